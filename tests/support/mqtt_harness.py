"""For MQTT tests: a served cluster in a thread of its own, so that blocking clients can be used, and a client that
sends exactly the packets it is told to and shows exactly those it gets."""

from __future__ import annotations

import asyncio
import itertools
import os
import socket
import tempfile
import threading
from collections import deque
from collections.abc import Coroutine, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple, Self, TypeVar

import uvloop

from lexicast.actors.broker.server import BrokerServer
from lexicast.actors.mqtt.codec import PacketReader, encode_packet
from lexicast.actors.mqtt.codec.packets import (
    PUBACK,
    PUBCOMP,
    PUBREC,
    PUBREL,
    V5,
    AckRun,
    ConnAck,
    Connect,
    Disconnect,
    PingReq,
    PingResp,
    PubAck,
    PubComp,
    Publish,
    PublishRun,
    PubRec,
    PubRel,
    SubAck,
    Subscribe,
    SubscriptionOptions,
    UnsubAck,
    Unsubscribe,
    Will,
)
from lexicast.cluster.config.tables import Config
from lexicast.cluster.security.files import NOTHING_KNOWN, SecurityFiles
from lexicast.storage.environment.options import StoreOptions

from .harness import STORE, Cluster

T = TypeVar("T")
WAIT_S = 60.0
HOST = "127.0.0.1"
# A transport that was closed tells its protocol in the next turn of the loop, and closes its socket in one after that.
CLOSING_TURNS = 5
_names = itertools.count()
_opened: list[Raw] = []


async def close_clients() -> None:
    """Close every Raw of the test: unclosed sockets are errors."""
    clients, _opened[:] = list(_opened), []
    for client in clients:
        client.abort()
    for client in clients:
        with suppress(ConnectionError):
            await client.wait_closed()


def unique(prefix: str = "t") -> str:
    """A client id or topic level that no other test uses."""
    return f"{prefix}{next(_names)}"


class Served:
    """A cluster with one coordinator and brokers in a thread of its own."""

    def __init__(
        self, folder: Path, brokers: int, config: Config, options: StoreOptions, files: SecurityFiles = NOTHING_KNOWN
    ) -> None:
        """`files`: of security, those that `config` names."""
        self._files = files
        self._options = options
        self._folder = folder
        self._names = [f"broker-{i}" for i in range(brokers)]
        self._config = config
        self._loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="served", daemon=True)
        self.cluster: Cluster

    def start(self) -> Self:
        """Returns once it serves."""
        self._thread.start()
        self.run(self._start())
        return self

    async def _start(self) -> None:
        self.cluster = Cluster(self._folder, config=self._config, options=self._options)
        await self.cluster.start_coordinator()
        await self.cluster.coordination.give_security(self._files.given(), True)
        for name in self._names:
            await self.cluster.start_broker(name)
        for number in range(self._config.node.matchers):
            await self.cluster.start_matcher(f"matcher-{number}")

    def run(self, work: Coroutine[Any, Any, T], wait_s: float = WAIT_S * 2) -> T:
        """Run something in the cluster's loop."""
        return self.begin(work).result(wait_s)

    def begin(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Begin something in the cluster's loop."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def broker(self, index: int = 0) -> BrokerServer:
        """A broker; look, do not touch (it lives in another thread)."""
        node = self.cluster.nodes[self._names[index]]
        assert isinstance(node, BrokerServer)
        return node

    @property
    def port(self) -> int:
        """The first broker's MQTT port."""
        return self.broker().mqtt.port

    def stop(self) -> None:
        """Stop everything."""
        self.run(self._stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(WAIT_S)
        assert not self._thread.is_alive(), "the cluster's loop does not stop"
        self._loop.close()

    async def _stop(self) -> None:
        await self.cluster.__aexit__(None, None, None)
        for _ in range(CLOSING_TURNS):
            await asyncio.sleep(0)


@contextmanager
def served(
    brokers: int = 1,
    options: StoreOptions = STORE,
    passwords: bytes | None = None,
    rules: bytes | None = None,
    token_keys: bytes | None = None,
    **knobs: Any,
) -> Iterator[Served]:
    """A running cluster; `passwords`, `rules`, `token_keys`: what is in its files of security, None: it has none;
    `knobs` as for `Config.replaced`."""
    named = {
        "security__password_file": passwords,
        "security__acl_file": rules,
        "security__jwt_key_file": token_keys,
    }
    config = Config().replaced(**{knob: "given" for knob, data in named.items() if data is not None}, **knobs)
    with tempfile.TemporaryDirectory(prefix="lexicast-test-") as folder:
        running = Served(Path(folder), brokers, config, options, SecurityFiles(0, passwords, rules, token_keys)).start()
        try:
            yield running
        finally:
            running.stop()


class Message(NamedTuple):
    """One PUBLISH as it was received."""

    topic: str
    payload: bytes
    qos: int
    retain: bool
    dup: bool
    packet_id: int
    properties: dict[int, Any]


class Closed(Exception):
    """The broker closed the connection."""


_ACKS = {PUBACK: PubAck, PUBREC: PubRec, PUBREL: PubRel, PUBCOMP: PubComp}


def flat(items: list[Any]) -> Iterator[Any]:
    """Packets one by one: runs taken apart."""
    for item in items:
        if isinstance(item, PublishRun):
            ids = item.packet_ids or [0] * len(item.payloads)
            for payload, packet_id in zip(item.payloads, ids, strict=True):
                topic = item.topic.decode()
                yield Message(topic, payload, item.qos, item.retain, item.dup, packet_id, item.properties or {})
        elif isinstance(item, AckRun):
            for packet_id in item.packet_ids:
                yield _ACKS[item.kind](packet_id)
        else:
            yield item


class Raw:
    """A client that does nothing by itself; `answers`: acknowledges what it receives."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, version: int) -> None:
        self.version = version
        self.answers = True
        self.connack = ConnAck()
        self._stream = reader
        self._writer = writer
        self._reader = PacketReader(268_435_460, from_client=False, version=version)
        self._packets: deque[Any] = deque()
        self._kept: deque[Message] = deque()
        self._ids = itertools.cycle(range(1, 65_536))
        _opened.append(self)

    @classmethod
    async def open(cls, port: int, version: int = V5, receive_bytes: int = 0) -> Self:
        """A bare connection; `receive_bytes`: what the kernel keeps for it at most (0: as usual)."""
        if not receive_bytes:
            return cls(*await asyncio.open_connection(HOST, port), version)
        sock = socket.socket()
        sock.setblocking(False)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        await asyncio.get_running_loop().sock_connect(sock, (HOST, port))
        return cls(*await asyncio.open_connection(sock=sock), version)

    @classmethod
    async def connect(
        cls,
        port: int,
        client_id: str | None = None,
        version: int = V5,
        clean: bool = True,
        keep_alive_s: int = 0,
        will: Will | None = None,
        receive_bytes: int = 0,
        user: str | None = None,
        password: bytes | None = None,
        **properties: Any,
    ) -> Self:
        """CONNECT, and CONNACK in `connack`. Properties by number: `_17=60` asks for a session expiry of 60 s."""
        client = await cls.open(port, version, receive_bytes)
        found = {int(name[1:]): value for name, value in properties.items()} or None
        client_id = unique() if client_id is None else client_id
        client.send(Connect(version, client_id, clean, keep_alive_s, will, user, password, found))
        client.connack = await client.expect(ConnAck)
        return client

    def send(self, packet: Any) -> None:
        """Any packet, or bytes as they are."""
        self._writer.write(packet if isinstance(packet, bytes) else encode_packet(packet, self.version))

    def next_id(self) -> int:
        """A packet id."""
        return next(self._ids)

    async def packet(self) -> Any:
        """The next packet. Raises Closed."""
        async with asyncio.timeout(WAIT_S):
            while not self._packets:
                try:
                    data = await self._stream.read(1 << 20)
                except ConnectionError as error:
                    raise Closed from error
                if not data:
                    raise Closed
                self._packets.extend(flat(list(self._reader.feed(data))))
                assert self._reader.error is None, f"the broker sent nonsense: {self._reader.error}"
        packet = self._packets.popleft()
        if isinstance(packet, Message) and self.answers and packet.qos:
            self.send(PubAck(packet.packet_id) if packet.qos == 1 else PubRec(packet.packet_id))
        elif isinstance(packet, PubRec) and packet.reason_code < 0x80 and self.answers:
            self.send(PubRel(packet.packet_id))
        elif isinstance(packet, PubRel) and self.answers:
            self.send(PubComp(packet.packet_id))
        return packet

    async def expect(self, kind: type[T]) -> T:
        """The next packet of `kind`. Publications before it are kept for later, what else there is is dropped."""
        if kind is Message and self._kept:
            return self._kept.popleft()  # type: ignore[return-value]  # T is Message
        while True:
            packet = await self.packet()
            if isinstance(packet, kind):
                return packet
            if isinstance(packet, Message):
                self._kept.append(packet)

    async def messages(self, count: int) -> list[Message]:
        """The next publications."""
        return [await self.expect(Message) for _ in range(count)]

    async def subscribe(self, *filters: str, qos: int = 0, identifier: int | None = None, **options: Any) -> list[int]:
        """SUBSCRIBE; the reason codes."""
        chosen = SubscriptionOptions(qos, **options)
        packet_id = self.next_id()
        self.send(Subscribe(packet_id, [(name.encode(), chosen) for name in filters], identifier))
        answer = await self.expect(SubAck)
        assert answer.packet_id == packet_id
        return answer.reason_codes

    async def unsubscribe(self, *filters: str) -> list[int]:
        """UNSUBSCRIBE; the reason codes."""
        self.send(Unsubscribe(self.next_id(), [name.encode() for name in filters]))
        return (await self.expect(UnsubAck)).reason_codes

    async def publish(
        self, topic: str, payload: bytes = b"", qos: int = 0, retain: bool = False, **properties: Any
    ) -> int:
        """PUBLISH, and wait for its acknowledgement: the reason code."""
        found = {int(name[1:]): value for name, value in properties.items()} or None
        packet_id = self.next_id() if qos else 0
        self.send(Publish(topic.encode(), payload, qos, retain, False, packet_id, found))
        if qos == 1:
            return (await self.expect(PubAck)).reason_code
        if qos == 2:
            received = await self.expect(PubRec)
            return received.reason_code or (await self.expect(PubComp)).reason_code
        return 0

    async def ping(self) -> list[Any]:
        """What arrives before the answer to a PINGREQ."""
        self.send(PingReq())
        before: list[Any] = list(self._kept)
        self._kept.clear()
        while not isinstance(packet := await self.packet(), PingResp):
            before.append(packet)
        return before

    async def nothing(self, publisher: Raw, topic: str) -> None:
        """Check that nothing waits for this client: of what `publisher` sends now to a topic it is subscribed to, the
        first thing that arrives is that."""
        marker = os.urandom(8)
        await publisher.publish(topic, marker, qos=1)
        assert (await self.expect(Message)).payload == marker

    async def closed(self) -> list[Any]:
        """What still arrives until the broker closes the connection."""
        rest: list[Any] = []
        try:
            while True:
                rest.append(await self.packet())
        except Closed:
            return rest

    async def rest(self) -> bytes:
        """What still arrives until the broker closes the connection, as it is."""
        async with asyncio.timeout(WAIT_S):
            return await self._stream.read()

    async def take(self, count: int) -> bytes:
        """The next ones, as they are."""
        async with asyncio.timeout(WAIT_S):
            return await self._stream.readexactly(count)

    async def disconnect(self, reason_code: int = 0, **properties: Any) -> None:
        """DISCONNECT; returns when the broker has closed too."""
        self.send(Disconnect(reason_code, {int(k[1:]): v for k, v in properties.items()} or None))
        await self.closed()
        self._writer.close()

    @property
    def local_port(self) -> int:
        """This end's port."""
        port: int = self._writer.get_extra_info("sockname")[1]
        return port

    @property
    def is_closing(self) -> bool:
        """Whether this end has closed."""
        return self._writer.is_closing()

    def abort(self) -> None:
        """The connection breaks."""
        with suppress(AttributeError):  # Python 3.11.2's TLS transports do not survive it once they have ended
            self._writer.transport.abort()

    async def wait_closed(self) -> None:
        """Return when the socket is closed."""
        await self._writer.wait_closed()

    async def drain(self) -> None:
        """Return when the socket takes more."""
        await self._writer.drain()

    def stop_reading(self) -> None:
        """Read nothing from now on; the kernel's buffer fills."""
        self._read_transport.pause_reading()

    def start_reading(self) -> None:
        """Read again."""
        self._read_transport.resume_reading()

    @property
    def _read_transport(self) -> asyncio.ReadTransport:
        transport = self._writer.transport
        assert isinstance(transport, asyncio.ReadTransport)
        return transport


async def check_slow_subscriber(running: Served, slow: Raw, count: int) -> None:
    """Check that the client "slow" costs its broker little memory while it takes nothing, and gets all of `count` large
    messages then: they wait in the log."""
    topic, publisher = unique("slow/"), await Raw.connect(running.port)
    await slow.subscribe(topic)
    slow.stop_reading()
    payload = bytes(64 * 1_024)
    for number in range(count):
        await publisher.publish(topic, number.to_bytes(4, "big") + payload, qos=1)
    (own,) = [each for each in running.broker().mqtt.connections if each.client_id == "slow"]
    assert own.transport.get_write_buffer_size() < 2 * running.broker().config.mqtt.output_bytes_max
    slow.start_reading()
    got = [int.from_bytes(message.payload[:4], "big") for message in await slow.messages(count)]
    assert got == list(range(count))
