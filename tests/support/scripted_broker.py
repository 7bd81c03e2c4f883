"""A broker that does what a test says: how many it takes, what it refuses, which MQTT it speaks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from lexicast.actors.mqtt.codec import PacketReader, encode_packet
from lexicast.actors.mqtt.codec.packets import (
    V5,
    ConnAck,
    Connect,
    PingReq,
    PingResp,
    PubAck,
    PubComp,
    PubRec,
    SubAck,
    Subscribe,
)

from .mqtt_harness import HOST, Message, flat


class Scripted:
    """One connection at a time; `on_publish` answers what comes, `connack` is the answer to CONNECT."""

    def __init__(self) -> None:
        self.connack: Callable[[Connect], ConnAck | None] = lambda _: ConnAck()
        self.on_publish: Callable[[Message], Any] = lambda m: PubAck(m.packet_id)
        self.connects: list[Connect] = []
        # Of each SUBSCRIBE the number of its connection.
        self.subscribes: list[int] = []
        self.published: list[Message] = []
        self.released: list[int] = []
        self.acknowledged: list[int] = []
        self.completed: list[int] = []
        # What is sent in one write with an accepting CONNACK.
        self.behind: list[Any] = []
        self.suback = 1
        self.subacks = 1
        self.port = 0
        self._writers: list[asyncio.StreamWriter] = []
        self._version = V5

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """A connection."""
        self._writers.append(writer)
        parser = PacketReader(1 << 20)
        while data := await reader.read(1 << 16):
            for packet in flat(list(parser.feed(data))):
                self._take(packet)
        writer.close()

    def _take(self, packet: Any) -> None:
        if isinstance(packet, Connect):
            self.connects.append(packet)
            self._version = packet.version
            answer = self.connack(packet)
            if answer is None:
                self._writers[-1].close()
            else:
                self.send(answer, *self.behind)
        elif isinstance(packet, Message):
            self.published.append(packet)
            answer = self.on_publish(packet)
            if answer is not None:
                self.send(answer)
        elif isinstance(packet, Subscribe):
            self.subscribes.append(len(self.connects))
            self.send(SubAck(packet.packet_id, [self.suback] * len(packet.filters) * self.subacks))
        elif isinstance(packet, PubAck | PubRec):
            self.acknowledged.append(packet.packet_id)
        elif isinstance(packet, PubComp):
            self.completed.append(packet.packet_id)
        elif isinstance(packet, PingReq):
            self.send(PingResp())
        elif type(packet).__name__ == "PubRel":
            self.released.append(packet.packet_id)
            self.send(PubComp(packet.packet_id))

    def send(self, *packets: Any) -> None:
        """To whoever came last, in one write."""
        self._writers[-1].write(b"".join([encode_packet(packet, self._version) for packet in packets]))

    def keeps_session(self) -> None:
        """From its second connection on a bridge finds its session."""
        self.connack = lambda _: ConnAck(session_present=len(self.connects) > 1)

    def cut(self) -> None:
        """The connection is gone."""
        self._writers[-1].transport.abort()


@asynccontextmanager
async def scripted() -> AsyncIterator[Scripted]:
    broker = Scripted()
    server = await asyncio.start_server(broker.serve, HOST, 0)
    broker.port = server.sockets[0].getsockname()[1]
    try:
        yield broker
    finally:
        server.close()
        for writer in broker._writers:
            writer.transport.abort()
        await server.wait_closed()
