"""The resume driver's clients: sessions that outlive their connections, counted and checked; and a probe of how others
fare meanwhile, in a process of its own."""

from __future__ import annotations

import multiprocessing
import select
import socket
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any

from ..peers.loadgen import READ_BYTES, DeliveryError
from ..peers.wire import MqttWire, mqtt_frame
from ..stage.servers import Address

SILENCE_S = 120.0
WINDOW = 500
PROBE_TOPIC = "resume/probe"
_WIRE = MqttWire(4)
_PUBACK, _PUBLISH, _CONNACK, _SUBACK = 0x40, 0x30, 0x20, 0x90


def mqtt_string(value: str) -> bytes:
    """A length-prefixed string (MQTT 1.5.3)."""
    encoded = value.encode()
    return len(encoded).to_bytes(2, "big") + encoded


def connect_packet(client_id: str, clean: bool) -> bytes:
    """CONNECT of 3.1.1 without keep-alive."""
    return mqtt_frame(0x10, b"\0\4MQTT\4" + (b"\2" if clean else b"\0") + b"\0\0" + mqtt_string(client_id))


def subscribe_packet(filters: Iterable[str], qos: int = 1) -> bytes:
    """SUBSCRIBE to several filters."""
    return mqtt_frame(0x82, b"\0\1" + b"".join([mqtt_string(name) + bytes([qos]) for name in filters]))


@dataclass(eq=False)
class ResumingClient:
    """One connection; `on_message(topic, payload, retained)` for each PUBLISH, which is acknowledged."""

    sock: socket.socket
    on_message: Callable[[bytes, bytes, bool], None]
    buffer: bytearray = field(default_factory=bytearray)
    answered: int = 0
    acked: int = 0

    def readable(self) -> None:
        """Take what has arrived. Raises DeliveryError when the broker has closed."""
        data = self.sock.recv(READ_BYTES)
        if not data:
            raise DeliveryError("the broker closed a connection")
        self.buffer += data
        acks = bytearray()
        while (packet := _WIRE.next_packet(self.buffer)) is not None:
            taken = bytes(self.buffer[: packet.length])
            del self.buffer[: packet.length]
            kind = taken[0] & 0xF0
            if kind == _PUBLISH:
                acks += packet.reply or b""
                self._message(taken)
            elif kind == _PUBACK:
                self.acked += 1
            elif kind in (_CONNACK, _SUBACK):
                self.answered += 1
        if acks:
            self.send(bytes(acks))

    def _message(self, taken: bytes) -> None:
        start = 2
        while taken[start - 1] & 0x80:
            start += 1
        end = start + 2 + int.from_bytes(taken[start : start + 2], "big")
        body = end + 2 if taken[0] & 0x06 else end
        self.on_message(taken[start + 2 : end], taken[body:], bool(taken[0] & 1))

    def send(self, data: bytes) -> None:
        """Send all of it; the broker always takes acknowledgements in the end."""
        self.sock.setblocking(True)
        self.sock.sendall(data)
        self.sock.setblocking(False)


class Crowd:
    """Many clients behind one epoll."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._epoll = select.epoll()
        self.clients: dict[int, ResumingClient] = {}

    def connect(
        self, client_id: str, clean: bool, on_message: Callable[[bytes, bytes, bool], None] = lambda *_: None
    ) -> ResumingClient:
        """A client whose CONNECT is on its way."""
        sock = socket.create_connection((self._address.host, self._address.port), timeout=SILENCE_S)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        client = ResumingClient(sock, on_message)
        client.send(connect_packet(client_id, clean))
        self.clients[sock.fileno()] = client
        self._epoll.register(sock.fileno(), select.EPOLLIN)
        return client

    def turn(self, wait_s: float = 0.2) -> bool:
        """Take what has arrived; whether something has."""
        ready = self._epoll.poll(wait_s)
        for descriptor, _ in ready:
            self.clients[descriptor].readable()
        return bool(ready)

    def until(self, true: Callable[[], bool], what: str) -> None:
        """Go on until it is. Raises DeliveryError after SILENCE_S without anything."""
        heard = time.monotonic()
        while not true():
            if self.turn():
                heard = time.monotonic()
            elif time.monotonic() - heard > SILENCE_S:
                raise DeliveryError(f"{what}: nothing came for {SILENCE_S:.0f} s")

    def until_acked(self, client: ResumingClient, count: int) -> None:
        """Go on until so many publications of a client are acknowledged."""
        self.until(lambda: client.acked >= count, "acknowledgements")

    def until_answered(self, client: ResumingClient, count: int) -> None:
        """Go on until so many CONNECTs and SUBSCRIBEs of a client are answered."""
        self.until(lambda: client.answered >= count, "answers")

    def leave(self, clients: Sequence[ResumingClient]) -> None:
        """DISCONNECT."""
        for client in clients:
            self._epoll.unregister(client.sock.fileno())
            del self.clients[client.sock.fileno()]
            client.send(b"\xe0\0")
            client.sock.close()

    def close(self) -> None:
        """Close all."""
        self.leave(list(self.clients.values()))
        self._epoll.close()


def publish_all(
    crowd: Crowd, publisher: ResumingClient, messages: Iterable[tuple[str, bytes]], retain: bool = False
) -> None:
    """Publish with QoS 1, WINDOW unacknowledged at most; returns when all are acknowledged."""
    sent, before, pending = 0, publisher.acked, bytearray()
    for topic, payload in messages:
        packet = bytearray(_WIRE.publish(topic, payload, 1, sent % 60_000 + 1))
        packet[0] |= retain
        pending += packet
        sent += 1
        if sent % 50 == 0:
            publisher.send(bytes(pending))
            pending.clear()
            crowd.until_acked(publisher, before + sent - WINDOW)
    publisher.send(bytes(pending))
    crowd.until_acked(publisher, before + sent)


class Probe:
    """Another client, in a process of its own: a QoS 1 publication to itself every few ms, and how long each took."""

    def __init__(self, address: Address) -> None:
        context: Any = multiprocessing.get_context("spawn")
        self._here, there = context.Pipe()
        self._process = context.Process(target=_probe, args=(address, there), daemon=True)
        self._process.start()
        self._here.recv()

    def stop(self) -> float:
        """The 99th percentile in ms."""
        self._here.send(None)
        took: list[float] = self._here.recv()
        self._process.join(5.0)
        return sorted(took)[min(len(took) - 1, len(took) * 99 // 100)] * 1_000


def _probe(address: Address, pipe: Connection) -> None:
    """Ping and wait for both the delivery and the PUBACK."""
    crowd = Crowd(address)
    came: list[float] = []
    client = crowd.connect("resume-probe", True, lambda *_: came.append(time.perf_counter()))
    crowd.until(lambda: client.answered >= 1, "CONNACK")
    client.send(subscribe_packet([PROBE_TOPIC]))
    crowd.until(lambda: client.answered >= 2, "SUBACK")
    pipe.send(None)
    took: list[float] = []
    while not pipe.poll():
        count, acked, started = len(came), client.acked, time.perf_counter()
        client.send(_WIRE.publish(PROBE_TOPIC, b"x" * 100, 1, len(took) % 60_000 + 1))
        while len(came) == count or client.acked == acked:
            crowd.turn(0.2)
        took.append(time.perf_counter() - started)
        time.sleep(0.005)
    pipe.send(took)
    crowd.close()
