"""The smallest broker there can be: what it reaches is about what the load generator can measure.

`--targets toy` puts it beside the real ones. It speaks as much MQTT 3.1.1 as the generator does, parses a whole read
at once and writes each subscriber of a topic one joined buffer a read. It knows exact topics and `.../+` only and
has no ordering between publishers, no storage, no sessions and no limits: it is a yardstick, not a broker.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
from itertools import chain
from pathlib import Path
from typing import cast

import uvloop

from .wire import MqttWire


class ToyConnection(asyncio.Protocol):
    """One client; `topics` maps each topic to its (subscriber's transport, QoS)."""

    def __init__(self, topics: dict[bytes, list[tuple[asyncio.WriteTransport, int]]]) -> None:
        self._topics = topics
        self._rest = b""
        self._wire = MqttWire()
        self.transport: asyncio.WriteTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.WriteTransport, transport)  # uvloop's do not derive from asyncio's classes

    def connection_lost(self, exc: Exception | None) -> None:
        for subscribers in self._topics.values():
            subscribers[:] = [entry for entry in subscribers if entry[0] is not self.transport]

    def data_received(self, data: bytes) -> None:
        """Takes runs of equal PUBLISHes (same length, same header and topic) as one; anything else packet by packet."""
        data = self._rest + data
        at = 0
        while (packet := self._wire.next_packet(data[at : at + 65_536])) is not None:
            one = data[at : at + packet.length]
            if one[0] & 0xF0 == 0x30:
                at += self._publish(one, data, at)
            else:
                self._control(one)
                at += packet.length
        self._rest = data[at:]

    def _publish(self, one: bytes, data: bytes, at: int) -> int:
        """Delivers the run of PUBLISHes that starts with `one` at `at`; returns its length in bytes."""
        length = len(one)
        header = 2 if one[1] < 128 else 3
        topic_end = header + 2 + int.from_bytes(one[header : header + 2], "big")
        head = one[:topic_end]
        end = at + length
        while data.startswith(head, end) and end + length <= len(data):
            end += length
        run = data[at:end]
        if one[0] & 6:
            self._acknowledge(run, length, topic_end)
        topic = head[header + 2 :]
        subscribers = self._topics.get(topic, ()), self._topics.get(topic.rpartition(b"/")[0] + b"/+", ())
        for transport, qos in chain.from_iterable(subscribers):
            if qos == (one[0] & 6) >> 1:
                self.deliver(transport, run, length)
        return end - at

    def deliver(self, transport: asyncio.WriteTransport, run: bytes, length: int) -> None:
        """Writes a run of PUBLISHes of `length` bytes each to one subscriber."""
        transport.write(run)

    def _acknowledge(self, run: bytes, length: int, at: int) -> None:
        acknowledgements = bytearray(b"\x40\x02\0\0" * (len(run) // length))
        acknowledgements[2::4] = run[at::length]
        acknowledgements[3::4] = run[at + 1 :: length]
        self._reply(bytes(acknowledgements))

    def _control(self, packet: bytes) -> None:
        kind = packet[0] & 0xF0
        if kind == 0x10:
            self._reply(b"\x20\x02\0\0")
        elif kind == 0x80 and self.transport is not None:
            length = int.from_bytes(packet[4:6], "big")
            topic, qos = packet[6 : 6 + length], packet[6 + length]
            self._topics.setdefault(topic, []).append((self.transport, qos))
            self._reply(b"\x90\x03" + packet[2:4] + bytes([qos]))

    def _reply(self, data: bytes) -> None:
        if self.transport is not None:
            self.transport.write(data)


async def serve(ready_file: Path) -> None:
    """Serves on a free port of loopback until SIGINT or SIGTERM; writes the port to `ready_file` when it listens."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    topics: dict[bytes, list[tuple[asyncio.WriteTransport, int]]] = {}
    server = await loop.create_server(lambda: ToyConnection(topics), "127.0.0.1", 0, backlog=4096)
    ready = {"mqtt_port": server.sockets[0].getsockname()[1], "pids": {"brokers": [os.getpid()]}}
    partial = ready_file.with_suffix(".partial")
    partial.write_text(json.dumps(ready))
    partial.rename(ready_file)
    await stop.wait()
    server.close()


def main() -> None:
    """`python -m lexicast.bench.peers.toy --ready-file FILE`."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ready-file", type=Path, required=True, help="JSON with the port, written when it listens")
    uvloop.run(serve(parser.parse_args().ready_file))


if __name__ == "__main__":
    main()
