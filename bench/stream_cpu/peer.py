"""The real peer, which keeps one deflate stream a subscriber: aiohttp's WebSocket server with permessage-deflate.

Run as a module it is the server: it waits for its subscribers, sends them every message of a file when told to, and
ends with its input. `WebSocketPeer` is the driver's side: the server as a process, its subscribers as raw sockets that
read and forget. (aiohttp comes with `ray[default]`.)
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from aiohttp import WSMsgType, web

from lexicast.cluster.errors import PeerError

from ..data.message_files import read_lines
from ..stage.parts import Orders, Part, tell_driver
from ..stage.servers import cpu_s

HOST: Final = "127.0.0.1"
TIMEOUT_S: Final = 120.0
UPGRADE: Final = (
    b"GET / HTTP/1.1\r\nHost: peer\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Extensions: permessage-deflate\r\n\r\n"
)


class WebSocketPeer:
    """The driver's side: the server as a part, and its subscribers."""

    def __init__(self, file: Path, messages: int, subscribers: int) -> None:
        arguments = ["--file", str(file), "--messages", str(messages), "--subscribers", str(subscribers)]
        self._part = Part("stream_cpu_peer", "lexicast.bench.stream_cpu.peer", arguments, file.with_suffix(".peer.log"))
        self._messages = messages
        self._subscribers = subscribers
        self._writers: list[asyncio.StreamWriter] = []
        self._reading: list[asyncio.Task[int]] = []

    async def __aenter__(self) -> Self:
        await self._part.start()
        port = await self._part.wait_for("port")
        for _ in range(self._subscribers):
            reader, writer = await asyncio.open_connection(HOST, port)
            self._writers.append(writer)
            writer.write(UPGRADE)
            answer = await reader.readuntil(b"\r\n\r\n")
            if b" 101 " not in answer or b"permessage-deflate" not in answer:
                raise PeerError(f"the peer does not deflate: {answer[:80]!r}")
            self._reading.append(asyncio.create_task(_drain(reader)))
        await self._part.wait_for("ready")
        return self

    async def measure(self) -> tuple[float, float]:
        """(CPU in us a delivery, bytes a delivery)."""
        pid = await self._part.wait_for("pid")
        before = cpu_s(pid)
        self._part.order("go 0")
        await self._part.wait_for("done", TIMEOUT_S)
        used_s = cpu_s(pid) - before
        for writer in self._writers:
            writer.close()
        read = await asyncio.gather(*self._reading)
        deliveries = self._messages * self._subscribers
        return used_s * 1e6 / deliveries, sum(read) / deliveries

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for writer in self._writers:
            writer.close()
        await self._part.stop()


async def _drain(reader: asyncio.StreamReader) -> int:
    total = 0
    try:
        while data := await reader.read(1 << 18):
            total += len(data)
    except ConnectionError:
        pass
    return total


async def serve(options: argparse.Namespace) -> None:
    """The server."""
    sockets: list[web.WebSocketResponse] = []
    complete, ended = asyncio.Event(), asyncio.Event()

    async def handle(request: web.Request) -> web.WebSocketResponse:
        response = web.WebSocketResponse(compress=True)
        await response.prepare(request)
        sockets.append(response)
        if len(sockets) == options.subscribers:
            complete.set()
        async for message in response:
            if message.type == WSMsgType.ERROR:
                break
        return response

    application = web.Application()
    application.router.add_get("/", handle)
    runner = web.AppRunner(application)
    await runner.setup()
    site = web.TCPSite(runner, HOST, 0, backlog=4096)
    await site.start()
    orders = Orders()
    messages = read_lines(options.file, options.messages)
    tell_driver(port=runner.addresses[0][1], pid=os.getpid())
    await complete.wait()
    tell_driver(ready=True)
    await asyncio.to_thread(orders.wait_go)
    for message in messages:
        for response in sockets:
            await response.send_bytes(message)
    tell_driver(done=True)
    await ended.wait()


def main(argv: Sequence[str] | None = None) -> int:
    """`python -m lexicast.bench.stream_cpu.peer`; started by `stream_cpu`."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--file", type=Path, required=True)
    parser.add_argument("--messages", type=int, required=True)
    parser.add_argument("--subscribers", type=int, required=True)
    asyncio.run(serve(parser.parse_args(argv)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
