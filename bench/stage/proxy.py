"""A TCP proxy in user space that counts bytes each way, and can delay them, limit their rate and cut connections.

It stands between a client and a broker where one link's bytes have to be measured at the socket, and where a slow or
broken network has to be had without the kernel's traffic control.

Model of a direction with a rate: a token bucket in its virtual-time form. Each piece departs when the link has been
free for its length, at the earliest `burst_bytes` ahead of the steady rate, and arrives `delay_s` later. Timers of
the event loop have 1 ms resolution, so delays are exact to about that. Bytes are counted when they are read from the
sender.

Memory is bounded: a direction that holds `QUEUE_BYTES_MAX` (or whose receiver does not read) stops reading its
sender. With a delay this also bounds the throughput, to QUEUE_BYTES_MAX / delay_s.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import signal
import socket
import sys
from collections import deque
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import cast

from lexicast.cluster.errors import UnavailableError, UsageError

from .parts import run_part

QUEUE_BYTES_MAX = 4 * 2**20
"""Bytes that one direction of one connection may hold back."""

BURST_S = 0.01
"""Seconds of the rate that may pass at once; also the longest piece that is delivered at a time."""


@dataclass
class Counters:
    """Bytes read from each side so far, and connections accepted."""

    to_server: int = 0
    to_client: int = 0
    connections: int = 0


class _Direction(asyncio.Protocol):
    """One side's protocol: what it reads goes to the other side's transport, `self.peer`."""

    def __init__(self, proxy: Proxy, from_client: bool) -> None:
        self._proxy = proxy
        self._from_client = from_client
        self._loop = asyncio.get_running_loop()
        self._queue: deque[tuple[float, bytes]] = deque()
        self._queued_bytes = 0
        self._free_at = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._ended = False
        self._peer_is_full = False
        self._paused = False
        self._early = b""
        self.gone = asyncio.Event()
        self.transport: asyncio.Transport | None = None
        self.peer: _Direction | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's do not derive from asyncio's classes
        if self._proxy.queue_bytes_max < QUEUE_BYTES_MAX:
            # What the kernel holds back is the link's queue too.
            raw = self.transport.get_extra_info("socket")
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, self._proxy.queue_bytes_max)
        self._proxy.directions.add(self)

    def data_received(self, data: bytes) -> None:
        """Counts and passes on, at once or through the queue."""
        self._proxy.count(len(data), self._from_client)
        self._forward(data)

    def _forward(self, data: bytes) -> None:
        if self.peer is None:
            # Still connecting. uvloop starts to read after connection_made, so pausing there would not hold.
            self._early += data
            if self.transport is not None:
                self.transport.pause_reading()
            return
        if not self._proxy.delay_s and self._proxy.bytes_per_s is None:
            self._write(data)
            return
        for start in range(0, len(data), self._proxy.piece_bytes):
            piece = data[start : start + self._proxy.piece_bytes]
            self._queue.append((self._arrival(len(piece)), piece))
        self._queued_bytes += len(data)
        self._schedule()
        self._regulate()

    def join(self, peer: _Direction) -> None:
        """The other side is connected: each passes on what came before, also from a server that speaks first."""
        self.peer, peer.peer = peer, self
        self._begin()
        peer._begin()

    def _begin(self) -> None:
        early, self._early = self._early, b""
        if early:
            self._forward(early)
        if self.transport is None or self.transport.is_closing():
            self.abort_peer()
        elif self._ended and not self._queue:
            self._close_peer()
        elif not self._paused:
            self.transport.resume_reading()

    def _arrival(self, size: int) -> float:
        """When a piece of `size` bytes that came in now reaches the other side (event loop time)."""
        now = self._loop.time()
        if self._proxy.bytes_per_s is None:
            return now + self._proxy.delay_s
        self._free_at = max(self._free_at, now - BURST_S) + size / self._proxy.bytes_per_s
        return max(self._free_at, now) + self._proxy.delay_s

    def _schedule(self) -> None:
        if self._timer is None and self._queue:
            self._timer = self._loop.call_at(self._queue[0][0], self._release)

    def _release(self) -> None:
        self._timer = None
        now = self._loop.time()
        while self._queue and self._queue[0][0] <= now:
            _, piece = self._queue.popleft()
            self._queued_bytes -= len(piece)
            self._write(piece)
        if self._ended and not self._queue:
            self._close_peer()
        self._schedule()
        self._regulate()

    def _write(self, data: bytes) -> None:
        if self.peer is not None and self.peer.transport is not None and not self.peer.transport.is_closing():
            self.peer.transport.write(data)

    def _regulate(self) -> None:
        """Reads from the sender only while the queue and the receiver have room."""
        full = self._peer_is_full or self._queued_bytes >= self._proxy.queue_bytes_max
        if full == self._paused or self.transport is None or self.transport.is_closing():
            return
        self._paused = full
        if full:
            self.transport.pause_reading()
        else:
            self.transport.resume_reading()

    def pause_writing(self) -> None:
        """This side does not take more: the other side must not be read."""
        self._tell_peer(True)

    def resume_writing(self) -> None:
        """There is room again."""
        self._tell_peer(False)

    def _tell_peer(self, full: bool) -> None:
        if self.peer is not None:
            self.peer._peer_is_full = full
            self.peer._regulate()

    def eof_received(self) -> bool:
        """A half-close is passed on behind the bytes before it; the other direction goes on."""
        self._ended = True
        if not self._queue:
            self._close_peer()
        return True

    def _close_peer(self) -> None:
        peer = self.peer.transport if self.peer is not None else None
        if peer is None or peer.is_closing():
            return
        if self.transport is None or self.transport.is_closing():
            peer.close()
        elif peer.can_write_eof():
            with contextlib.suppress(OSError):
                peer.write_eof()

    def connection_lost(self, exc: Exception | None) -> None:
        """A reset is passed on at once; a close behind the bytes before it."""
        self._proxy.directions.discard(self)
        self.gone.set()
        self._ended = True
        if exc is not None:
            self.abort_peer()
        elif not self._queue:
            self._close_peer()

    def abort_peer(self) -> None:
        """Drops what is queued and resets the other side."""
        self._queue.clear()
        if self.peer is not None and self.peer.transport is not None:
            self.peer.transport.abort()


class Proxy:
    """Forwards each connection to `host`:`port`; an async context manager that listens while it is entered.

    `delay_s` is one-way; `bytes_per_s` limits each direction of each connection. Both may be changed while it runs
    and hold for what is read from then on.
    """

    def __init__(
        self,
        host: str,
        port: int,
        *,
        delay_s: float = 0.0,
        bytes_per_s: float | None = None,
        queue_bytes_max: int = QUEUE_BYTES_MAX,
    ) -> None:
        """`queue_bytes_max`: what a direction holds back; a real link's queue is tens of KiB, not MiB."""
        self.counters = Counters()
        self.queue_bytes_max = queue_bytes_max
        self.directions: set[_Direction] = set()
        self._server_address = (host, port)
        self._listener: asyncio.Server | None = None
        self._opening: set[asyncio.Task[None]] = set()
        self.set_link(delay_s=delay_s, bytes_per_s=bytes_per_s)

    def set_link(self, *, delay_s: float = 0.0, bytes_per_s: float | None = None) -> None:
        """Changes delay (seconds, one-way) and rate (bytes a second; None: unlimited).

        Raises `UsageError` for a negative delay or a rate that is not positive.
        """
        if delay_s < 0 or (bytes_per_s is not None and bytes_per_s <= 0):
            raise UsageError(f"a delay of {delay_s} s or a rate of {bytes_per_s} bytes/s is impossible")
        self.delay_s = delay_s
        self.bytes_per_s = bytes_per_s
        self.piece_bytes = QUEUE_BYTES_MAX if bytes_per_s is None else max(1_448, int(bytes_per_s * BURST_S))

    def count(self, size: int, from_client: bool) -> None:
        """Adds to the counters."""
        if from_client:
            self.counters.to_server += size
        else:
            self.counters.to_client += size

    async def start(self, listen_host: str = "127.0.0.1", listen_port: int = 0) -> int:
        """Listens; returns the port. Raises `UnavailableError` when the port is taken."""
        loop = asyncio.get_running_loop()
        try:
            self._listener = await loop.create_server(lambda: _Client(self), listen_host, listen_port, backlog=1024)
        except OSError as error:
            raise UnavailableError(f"cannot listen on {listen_host}:{listen_port}: {error.strerror}") from error
        return int(self._listener.sockets[0].getsockname()[1])

    def connect(self, client: _Direction) -> None:
        """Opens the way to the server for an accepted client."""
        self.counters.connections += 1
        task = asyncio.get_running_loop().create_task(self._connect(client))
        self._opening.add(task)
        task.add_done_callback(self._opening.discard)

    async def _connect(self, client: _Direction) -> None:
        server = _Direction(self, False)
        try:
            await asyncio.get_running_loop().create_connection(lambda: server, *self._server_address)
        except OSError:
            if client.transport is not None:
                client.transport.abort()  # as near to a refused connection as a proxy can come
            return
        client.join(server)

    def cut(self) -> int:
        """Resets every connection, both sides; returns how many were open. New ones are still accepted."""
        cut = list(self.directions)
        for direction in cut:
            if direction.transport is not None:
                direction.transport.abort()
        return sum(1 for direction in cut if isinstance(direction, _Client))

    async def stop(self) -> None:
        """Stops listening and resets all connections."""
        if self._listener is not None:
            self._listener.close()
        for task in list(self._opening):
            task.cancel()
        await asyncio.gather(*self._opening, return_exceptions=True)
        directions = list(self.directions)
        self.cut()
        for direction in directions:
            await direction.gone.wait()
        if self._listener is not None:
            await self._listener.wait_closed()

    async def __aenter__(self) -> Proxy:
        self.port = await self.start()
        return self

    async def __aexit__(self, *unused: object) -> None:
        await self.stop()


class _Client(_Direction):
    """The accepted side, which opens the other one."""

    def __init__(self, proxy: Proxy) -> None:
        super().__init__(proxy, True)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._proxy.connect(self)


def write_counters(file: Path, port: int, counters: Counters) -> None:
    """Writes port and counters as JSON, in one step for whoever reads meanwhile."""
    partial = file.with_suffix(".partial")
    partial.write_text(json.dumps({"port": port, **asdict(counters)}))
    partial.rename(file)


async def serve(options: argparse.Namespace) -> None:
    """Runs one proxy until SIGINT or SIGTERM; writes the counters every `--every` seconds and at the end."""
    host, _, port = options.to.rpartition(":")
    proxy = Proxy(host, int(port), delay_s=options.delay_ms / 1e3, bytes_per_s=options.bytes_per_s)
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    listening = await proxy.start(listen_port=options.port)
    print(f"127.0.0.1:{listening} -> {options.to}", flush=True)
    while not stop.is_set():
        if options.counters is not None:
            write_counters(options.counters, listening, proxy.counters)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(stop.wait(), options.every)
    await proxy.stop()
    if options.counters is not None:
        write_counters(options.counters, listening, proxy.counters)
    print(json.dumps(asdict(proxy.counters)), flush=True)


def main(argv: Sequence[str] | None = None) -> int:
    """`python -m lexicast.bench.stage.proxy --to HOST:PORT`; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m lexicast.bench.stage.proxy",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--to", required=True, metavar="HOST:PORT", help="where connections are forwarded")
    parser.add_argument("--port", type=int, default=0, help="port of 127.0.0.1 to listen on (default: a free one)")
    parser.add_argument("--delay-ms", type=float, default=0.0, help="one-way delay")
    parser.add_argument("--bytes-per-s", type=float, help="rate of each direction of each connection")
    parser.add_argument("--counters", type=Path, metavar="FILE", help="keep the counters here, as JSON")
    parser.add_argument("--every", type=float, default=1.0, help="seconds between two writes of it (default 1)")
    return run_part(serve(parser.parse_args(argv)))


if __name__ == "__main__":
    sys.exit(main())
