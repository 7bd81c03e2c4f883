"""Persistent sessions that stay connected and get messages at a steady rate, in a process of their own.

Each session has a topic of its own (`state/N`) and subscribes to it with QoS 1; one publisher takes the topics in turn,
QoS 1. A session of the last tenth has a Receive Maximum of 1, so that it lags once it acknowledges nothing. All packets
of a kind are equally long, so they are told apart by dividing.
"""

from __future__ import annotations

import multiprocessing
import select
import time
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, Final

from lexicast.cluster.errors import LexicastError, PeerError

from ..peers.loadgen import LOST_AFTER_S, READ_BYTES, DeliveryError, sequence_payload
from ..peers.session_opening import SessionSpec, close_all, open_sessions, raise_open_files
from ..peers.wire import SEQUENCE_BYTES, HandshakeStep, MqttWire, mqtt_frame
from ..stage.servers import Address

ALL, FEW, SILENT = "all", "few", "silent"
"""Shapes: every session gets messages; one in ten does; every one does, and one in ten acknowledges none."""
SHAPES: Final = (ALL, FEW, SILENT)
TENTH: Final = 10
PAYLOAD_BYTES: Final = 100
EXPIRY_S: Final = 3_600
TICK_S: Final = 0.002
"""What is due by then goes out in one write."""
PACKET_IDS: Final = 60_000
SPARE_FILES: Final = 100
OPEN_TIMEOUT_S: Final = 300.0
ANSWER_S: Final = 600.0


@dataclass(frozen=True)
class Delivered:
    """What a run gave: messages, how long it took, and the generator's share of a core."""

    messages: int
    seconds: float
    generator_cpu: float


class LastingWire(MqttWire):
    """MQTT 5 sessions that outlive their connections. `receive_maximum`: deliveries that may be unacknowledged."""

    def __init__(self, receive_maximum: int) -> None:
        super().__init__(5)
        # Session Expiry Interval (3.1.2.11.2) and Receive Maximum (3.1.2.11.3).
        self._asked = b"\x11" + EXPIRY_S.to_bytes(4, "big") + b"\x21" + receive_maximum.to_bytes(2, "big")

    def opening(self, client_id: str, topic: str | None, qos: int) -> list[HandshakeStep]:
        """CONNECT with an expiry, without keep-alive; SUBSCRIBE as always."""
        name = client_id.encode()
        body = b"\0\4MQTT\5\2\0\0" + bytes([len(self._asked)]) + self._asked + len(name).to_bytes(2, "big") + name
        return [HandshakeStep(mqtt_frame(0x10, body), self._connack), *super().opening(client_id, topic, qos)[1:]]


def topic_of(number: int) -> str:
    """A session's own."""
    return f"state/{number:06d}"


class Sessions:
    """The sessions behind one epoll, and their publisher. `got`: how many messages each has got."""

    def __init__(self, address: Address, count: int) -> None:
        raise_open_files(count + SPARE_FILES)
        self._count = count
        # The last tenth, at least one: the silent.
        self._first_silent = count - max(1, count // TENTH)
        self._publisher_wire, wire = MqttWire(4), MqttWire(5)
        specs = [SessionSpec(f"state-{number}", topic_of(number), 1) for number in range(count)]
        parts = ((specs[: self._first_silent], 65_535), (specs[self._first_silent :], 1))
        self._sockets = [
            sock
            for some, most in parts
            for sock in open_sessions(address, LastingWire(most), some, timeout_s=OPEN_TIMEOUT_S)
        ]
        (self._publisher,) = open_sessions(address, self._publisher_wire, [SessionSpec("state-publisher")])
        self._layout = wire.publish_layout(topic_of(0), PAYLOAD_BYTES, 1)
        self._numbers = {sock.fileno(): number for number, sock in enumerate(self._sockets)}
        self._epoll = select.epoll()
        for sock in (*self._sockets, self._publisher):
            self._epoll.register(sock, select.EPOLLIN)
        self._buffers: dict[int, bytes] = {}
        self._sent, self.got = [0] * count, [0] * count
        self._published = self._acknowledged = self._ack_bytes = 0
        self._silent = range(0)
        self._owed: dict[int, bytes] = {}

    def run(self, shape: str, rate: int, seconds: float) -> Delivered:
        """Publish `rate` messages a second; returns when all are acknowledged and have come, but to the silent.

        Raises `DeliveryError` when one is not the next of its topic, or nothing comes for LOST_AFTER_S.
        """
        self._silent = range(self._first_silent, self._count) if shape == SILENT else range(0)
        receivers = range(max(1, self._count // TENTH)) if shape == FEW else range(self._count)
        clock, first, total = time.perf_counter, self._published, int(rate * seconds)
        cpu, began_s = time.process_time(), clock()
        due = 0
        while due < total:
            due = min(total, int((clock() - began_s) * rate))
            self._publish(receivers, first + due)
            self._read(TICK_S)
        self._until_settled()
        took_s = clock() - began_s
        return Delivered(total, took_s, (time.process_time() - cpu) / took_s)

    def settle(self) -> None:
        """The silent acknowledge what they owe, and get the rest."""
        self._silent = range(0)
        for number, acks in self._owed.items():
            self._sockets[number].send(acks)
        self._owed = {}
        self._until_settled()

    def _until_settled(self) -> None:
        heard_s = time.monotonic()
        while any(self._missing()):
            if self._read(TICK_S):
                heard_s = time.monotonic()
            elif time.monotonic() - heard_s > LOST_AFTER_S:
                lacking = sum(self._missing())
                raise DeliveryError(f"{lacking} deliveries or acknowledgements have not come")

    def _missing(self) -> Iterator[int]:
        yield self._published - self._acknowledged
        for number, sent in enumerate(self._sent):
            if number not in self._silent:
                yield sent - self.got[number]

    def _publish(self, receivers: range, until: int) -> None:
        packets = []
        while self._published < until:
            number = receivers[self._published % len(receivers)]
            payload = sequence_payload(self._sent[number], PAYLOAD_BYTES)
            packet_id = self._published % PACKET_IDS + 1
            packets.append(self._publisher_wire.publish(topic_of(number), payload, 1, packet_id))
            self._sent[number] += 1
            self._published += 1
        if packets:
            self._publisher.setblocking(True)
            self._publisher.sendall(b"".join(packets))
            self._publisher.setblocking(False)

    def _read(self, wait_s: float) -> bool:
        ready = self._epoll.poll(wait_s)
        for descriptor, _ in ready:
            number = self._numbers.get(descriptor)
            if number is not None:
                self._take(number, self._received(self._sockets[number]))
            else:
                self._ack_bytes += len(self._received(self._publisher))
                self._acknowledged = self._ack_bytes // 4
        return bool(ready)

    @staticmethod
    def _received(sock: Any) -> bytes:
        data: bytes = sock.recv(READ_BYTES)
        if not data:
            raise DeliveryError("the broker closed a connection")
        return data

    def _take(self, number: int, data: bytes) -> None:
        layout = self._layout
        assert layout.packet_id_offset is not None
        data = self._buffers.pop(number, b"") + data
        end, acks = len(data) // layout.length * layout.length, b""
        for at in range(0, end, layout.length):
            sequence = data[at + layout.sequence_offset :][:SEQUENCE_BYTES]
            if data[at] != layout.prefix[0] or int.from_bytes(sequence, "big") != self.got[number]:
                got = data[at : at + layout.length]
                raise DeliveryError(f"{topic_of(number)} expected message {self.got[number]} and got {got!r}")
            self.got[number] += 1
            acks += b"\x40\x02" + data[at + layout.packet_id_offset :][:2]
        if end < len(data):
            self._buffers[number] = data[end:]
        if acks and number in self._silent:
            self._owed[number] = self._owed.get(number, b"") + acks
        elif acks:
            self._sockets[number].send(acks)

    def close(self) -> None:
        """End the connections."""
        self._epoll.close()
        close_all([*self._sockets, self._publisher], b"\xe0\0")


class SteadyCrowd:
    """`Sessions` in a process of their own. Raises PeerError what goes wrong there."""

    def __init__(self, address: Address, count: int) -> None:
        context: Any = multiprocessing.get_context("spawn")
        self._here, there = context.Pipe()
        self._process = context.Process(target=_serve, args=(there, address, count), daemon=True)
        self._process.start()
        there.close()
        try:
            self._answer()
        except BaseException:
            self.close()
            raise

    def run(self, shape: str, rate: int, seconds: float) -> Delivered:
        """See `Sessions.run`."""
        self._here.send(("run", shape, rate, seconds))
        delivered: Delivered = self._answer()
        return delivered

    def settle(self) -> None:
        """See `Sessions.settle`."""
        self._here.send(("settle",))
        self._answer()

    def _answer(self) -> Any:
        try:
            if not self._here.poll(ANSWER_S):
                raise PeerError(f"the sessions' process says nothing for {ANSWER_S:.0f} s")
            what = self._here.recv()
        except EOFError:
            raise PeerError("the sessions' process has ended") from None
        if isinstance(what, str):
            raise PeerError(what)
        return what

    def close(self) -> None:
        """End the process, and with it its connections."""
        self._here.close()
        self._process.join(LOST_AFTER_S)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()


def _serve(pipe: Connection, address: Address, count: int) -> None:
    """Answers each order with what it returns, or with an error's text; the pipe's end is the process's."""
    try:
        sessions = Sessions(address, count)
        pipe.send(None)
        while True:
            method, *arguments = pipe.recv()
            pipe.send(getattr(sessions, method)(*arguments))
    except EOFError:
        sessions.close()
    except (LexicastError, OSError) as error:
        pipe.send(str(error))
