"""The resume driver's clients: sessions that outlive their connections, counted and checked; and a probe of how others
fare meanwhile, in a process of its own."""

from __future__ import annotations

import multiprocessing
import re
import select
import socket
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from ..peers.loadgen import READ_BYTES, DeliveryError
from ..peers.wire import MqttWire, mqtt_frame, mqtt_header
from ..stage.servers import Address

SILENCE_S = 120.0
# The publisher's: so many packets go out at once, and are unacknowledged at most. Fewer would measure round trips.
SENT_AT_ONCE = 1_000
WINDOW = 10_000
PACKET_IDS = 60_000
TOLD_S = 5.0
PAYLOAD_BYTES = 100
NUMBER_BYTES = 8
PROBE_TOPIC = "resume/probe"
_WIRE = MqttWire(4)
_PUBLISH, _CONNACK, _SUBACK = 0x30, 0x20, 0x90
_PUBACKS = re.compile(rb"(?:\x40\x02[\x00-\xff]{2})+")
_DIGITS = 10 ** np.arange(NUMBER_BYTES - 1, -1, -1)


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


def numbered_payload(number: int) -> bytes:
    """The `number`th of its topic."""
    return b"%08d" % number + b"." * (PAYLOAD_BYTES - NUMBER_BYTES)


@dataclass(eq=False)
class ResumingClient:
    """One connection; `on_messages(topic, numbers, retained)` for PUBLISHes of one topic that follow one another, which
    are acknowledged. `numbers`: of their payloads (`numbered_payload`)."""

    sock: socket.socket
    on_messages: Callable[[bytes, list[int], bool], None]
    buffer: bytes = b""
    answered: int = 0
    acked: int = 0

    def readable(self) -> None:
        """Take what has arrived. Raises DeliveryError when the broker has closed."""
        received = self.sock.recv(READ_BYTES)
        if not received:
            raise DeliveryError("the broker closed a connection")
        data, at = self.buffer + received, 0
        acks: list[bytes] = []
        while (header := mqtt_header(data[at : at + 5])) is not None and at + header[1] <= len(data):
            kind = data[at] & 0xF0
            if kind == _PUBLISH:
                at = self._messages(data, at, *header, acks)
            elif (acked := _PUBACKS.match(data, at)) is not None:
                self.acked += (acked.end() - at) // 4
                at = acked.end()
            else:
                self.answered += kind in (_CONNACK, _SUBACK)
                at += header[1]
        self.buffer = data[at:]
        if acks:
            self.send(b"".join(acks))

    def _messages(self, data: bytes, at: int, start: int, length: int, acks: list[bytes]) -> int:
        """Those that differ in nothing but packet id and payload are looked at together: one by one they would take the
        core that the broker needs. Returns where they end."""
        name = at + start + 2
        end = name + int.from_bytes(data[name - 2 : name], "big")
        body = end + 2 if data[at] & 0x06 else end
        head, count = data[at:end], 1
        numbers = [int(data[body : body + NUMBER_BYTES])]
        if data.startswith(head, at + length) and body + NUMBER_BYTES <= at + length:
            rows = np.frombuffer(data, np.uint8, (len(data) - at) // length * length, at).reshape(-1, length)
            alike = (rows[:, : len(head)] == rows[0, : len(head)]).all(axis=1)
            count = len(rows) if alike.all() else int(alike.argmin())
            numbers = ((rows[:count, body - at : body - at + NUMBER_BYTES] - ord("0")) @ _DIGITS).tolist()
            ids = rows[:count, end - at : body - at]
        else:
            ids = np.frombuffer(data, np.uint8, body - end, end).reshape(1, -1)
        if ids.size:
            answers = np.empty((count, 4), np.uint8)
            answers[:, :2] = 0x40, 2
            answers[:, 2:] = ids
            acks.append(answers.tobytes())
        self.on_messages(data[name:end], numbers, bool(data[at] & 1))
        return at + count * length

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
        self, client_id: str, clean: bool, on_messages: Callable[[bytes, list[int], bool], None] = lambda *_: None
    ) -> ResumingClient:
        """A client whose CONNECT is on its way."""
        sock = socket.create_connection((self._address.host, self._address.port), timeout=SILENCE_S)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        client = ResumingClient(sock, on_messages)
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

    def until(self, true: Callable[[], bool], what: str, limit_s: float = float("inf")) -> None:
        """Go on until it is. Raises DeliveryError after SILENCE_S without anything, or `limit_s`."""
        began = heard = time.monotonic()
        while not true():
            came, now = self.turn(), time.monotonic()
            if came:
                heard = now
            if now - heard > SILENCE_S:
                raise DeliveryError(f"{what}: nothing came for {SILENCE_S:.0f} s")
            if now - began > limit_s:
                raise DeliveryError(f"{what}: not all came in {limit_s:.0f} s")

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


class Progress:
    """Says every TOLD_S how far something is. Raises DeliveryError when it takes longer than `limit_s`."""

    def __init__(self, what: str, total: int, tell: Callable[[str], None], limit_s: float) -> None:
        self._what, self._total, self._tell, self._limit_s = what, total, tell, limit_s
        self._began_s = self._told_s = time.monotonic()

    def at(self, done: int) -> None:
        """So many of all are done."""
        now_s = time.monotonic()
        took_s = now_s - self._began_s
        if now_s - self._told_s >= TOLD_S:
            self._told_s = now_s
            self._tell(f"{self._what}: {done:,} of {self._total:,} in {took_s:.0f} s")
        if took_s > self._limit_s:
            raise DeliveryError(f"{self._what}: {done:,} of {self._total:,} in {took_s:.0f} s, which is too long")


def publish_all(
    crowd: Crowd,
    publisher: ResumingClient,
    messages: Iterable[tuple[str, bytes]],
    retain: bool = False,
    progress: Progress | None = None,
) -> None:
    """Publish with QoS 1, WINDOW unacknowledged at most; returns when all are acknowledged."""
    sent, before = 0, publisher.acked
    heads: dict[tuple[str, int], bytes] = {}
    pending: list[bytes] = []
    for topic, payload in messages:
        head = heads.get((topic, len(payload)))
        if head is None:  # what stands before the packet id
            whole = bytearray(_WIRE.publish(topic, payload, 1))
            whole[0] |= retain
            head = heads[topic, len(payload)] = bytes(whole[: -2 - len(payload)])
        pending += (head, (sent % PACKET_IDS + 1).to_bytes(2, "big"), payload)
        sent += 1
        if sent % SENT_AT_ONCE == 0:
            publisher.send(b"".join(pending))
            pending.clear()
            crowd.until_acked(publisher, before + sent - WINDOW)
            if progress is not None:
                progress.at(publisher.acked - before)
    publisher.send(b"".join(pending))
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
        client.send(_WIRE.publish(PROBE_TOPIC, numbered_payload(len(took)), 1, len(took) % 60_000 + 1))
        while len(came) == count or client.acked == acked:
            crowd.turn(0.2)
        took.append(time.perf_counter() - started)
        time.sleep(0.005)
    pipe.send(took)
    crowd.close()
