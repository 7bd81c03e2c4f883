"""The load of a shared subscription: one publisher of many topics, members that share its messages.

The members' deliveries all have one length: a read is a matrix, whose columns give packet ids, which are acknowledged,
and message numbers, which are counted. A message that no member got is lost; one that was got more than once repeated.
"""

from __future__ import annotations

import select
import socket
import time
from dataclasses import dataclass

import numpy as np

from lexicast.cluster.errors import UsageError

from ..stage.servers import Address
from .fleet_load import TOPIC_DIGITS
from .loadgen import LOST_AFTER_S, READ_BYTES, BlockPublisher, DeliveryError, RunResult, sequence_payload
from .session_opening import SessionSpec, close_all, open_sessions
from .wire import SEQUENCE_BYTES, Layout, Wire

UNACKNOWLEDGED = 4_000
"""Publications of the publisher that are not acknowledged, at most."""


@dataclass(frozen=True)
class SharedLoad:
    """`members` of one share of `topics` topics, which the publisher takes in turn, `burst` messages each;
    `payload_size` bytes a message; `qos` of publications and members."""

    name: str
    members: int
    topics: int = 1_000
    payload_size: int = 140
    qos: int = 1
    burst: int = 1

    def __post_init__(self) -> None:
        if self.payload_size < SEQUENCE_BYTES:
            raise UsageError(f"a payload of {self.payload_size} bytes cannot hold the sequence number: use 8 or more")
        if self.members < 1 or not 0 < self.topics < 10**TOPIC_DIGITS or self.burst < 1 or self.qos not in (0, 1):
            raise UsageError("a share has members and topics, a burst a message and more, and QoS is 0 or 1")
        if self.block > 65_535:
            raise UsageError(f"{self.topics} topics of {self.burst} messages are more than there are packet ids")

    @property
    def block(self) -> int:
        """Messages after which the topics begin anew, not fewer than may be unacknowledged."""
        turn = self.topics * self.burst
        return turn * -(-UNACKNOWLEDGED // turn)

    def topic(self, number: int) -> str:
        """The topic of message `number`; all are of one length."""
        return f"bench/{self.name}/{number // self.burst % self.topics:0{TOPIC_DIGITS}d}"


class SharedPublisher(BlockPublisher):
    """A topic after the other, in turn; the payload has the message's number."""

    def __init__(self, sock: socket.socket, wire: Wire, load: SharedLoad) -> None:
        payload, qos = sequence_payload(0, load.payload_size), load.qos
        packets = [wire.publish(load.topic(number), payload, qos, number + 1) for number in range(load.block)]
        super().__init__(sock, packets)
        self._layout = wire.publish_layout(load.topic(0), load.payload_size, qos)
        self._renumber()

    def _renumber(self) -> None:
        numbers = np.arange(self._start, self._start + self._count, dtype=">u8").view(np.uint8)
        rows = np.frombuffer(self._block, np.uint8).reshape(self._count, -1)
        first = self._layout.sequence_offset
        rows[:, first : first + SEQUENCE_BYTES] = numbers.reshape(-1, SEQUENCE_BYTES)


class SharedMember:
    """One member: acknowledges what it gets with QoS 1, and says which messages that were."""

    def __init__(self, sock: socket.socket, wire: Wire, load: SharedLoad) -> None:
        self.sock = sock
        self.received = 0
        self._wire = wire
        self._load = load
        self._rest = b""
        self._layout: Layout | None = None
        self._pending = b""

    def on_readable(self) -> np.ndarray:
        """Takes one read; the numbers of the messages that it completes. Raises `DeliveryError`."""
        data = self._rest + self.sock.recv(READ_BYTES)
        if len(data) == len(self._rest):
            raise DeliveryError(f"the broker closed a member after {self.received} messages")
        if self._layout is None:
            packet = self._wire.next_packet(data)
            if packet is None:
                self._rest = data
                return np.zeros(0, np.int64)
            self._layout = self._wire.delivery_layout(data[: packet.length], self._load.payload_size)
        layout = self._layout
        count = len(data) // layout.length
        self._rest = data[count * layout.length :]
        packets = np.frombuffer(data, np.uint8, count * layout.length).reshape(count, layout.length)
        at = layout.packet_id_offset
        wrong = (packets[:, : len(layout.prefix)] != np.frombuffer(layout.prefix, np.uint8)).any()
        if (at is None) != (self._load.qos == 0) or wrong:
            raise DeliveryError(f"a member gets something else than QoS {self._load.qos} deliveries: {data[:24].hex()}")
        if at is not None:
            acks = np.empty((count, 4), np.uint8)
            acks[:, 0], acks[:, 1] = 0x40, 2
            acks[:, 2:] = packets[:, at : at + 2]
            self._acknowledge(acks.tobytes())
        self.received += count
        first = layout.sequence_offset
        found = np.ascontiguousarray(packets[:, first : first + SEQUENCE_BYTES]).view(">u8")
        numbers: np.ndarray = found.ravel().astype(np.int64)
        return numbers

    def _acknowledge(self, acks: bytes) -> None:
        data = self._pending + acks
        try:
            self._pending = data[self.sock.send(data) :]
        except BlockingIOError:
            self._pending = data


class OpenShared:
    """A share whose members' sessions are open at one broker. Raises on opening what `open_sessions` raises."""

    def __init__(self, address: Address, wire: Wire, load: SharedLoad) -> None:
        self.load = load
        specs = [
            SessionSpec(f"bench-{load.name}-{number}", f"$share/bench/bench/{load.name}/+", load.qos)
            for number in range(load.members)
        ]
        specs.append(SessionSpec(f"bench-{load.name}-publisher"))
        self._sockets = open_sessions(address, wire, specs)
        self.publisher = SharedPublisher(self._sockets[-1], wire, load)
        self.members = [SharedMember(sock, wire, load) for sock in self._sockets[:-1]]
        self._seen = np.zeros(0, np.int32)
        self._epoll = select.epoll()
        self._by_number = {member.sock.fileno(): member for member in self.members}
        for sock in self._sockets:
            self._epoll.register(sock, select.EPOLLIN)

    @property
    def received(self) -> int:
        """Deliveries to all members."""
        return sum([member.received for member in self.members])

    def run(self, seconds: float, window: int, *, messages_max: int | None = None) -> RunResult:
        """Publishes for `seconds` with at most `window` messages under way, then waits for what is outstanding. `lost`
        counts what no member got and what more than one got."""
        first, before = self.publisher.sent, self.received
        cpu, started = time.process_time(), time.perf_counter()
        limit = 2**62 if messages_max is None else first + messages_max
        ended = self._loop(started + seconds, limit, window)
        cpu = time.process_time() - cpu
        sent = self.publisher.sent - first
        seen = self._seen[first : self.publisher.sent]
        wrong = int((seen != 1).sum()) + sent - len(seen)
        elapsed_s = time.perf_counter() - started
        return RunResult(sent, self.received - before, wrong, ended - started, cpu / elapsed_s)

    def _loop(self, stop_at: float, limit: int, window: int) -> float:
        publisher, step = self.publisher, max(1, window // 8)
        last = time.perf_counter()
        while True:
            now = time.perf_counter()
            if now < stop_at and not publisher.blocked:
                upto = min(self.received + window, limit)
                if self.load.qos:
                    upto = min(upto, publisher.acknowledged + UNACKNOWLEDGED)
                if upto - publisher.sent >= step or upto == limit:
                    publisher.send_up_to(upto)
            publisher.blocked = False
            over = now >= stop_at or publisher.sent >= limit
            acknowledged = publisher.acknowledged if self.load.qos else publisher.sent
            if over and self.received >= publisher.sent <= acknowledged:
                return last
            events = self._epoll.poll(0.01)
            if events:
                last = time.perf_counter()
            elif over and now - last > LOST_AFTER_S:
                return last
            for number, _ in events:
                self._take(number)

    def _take(self, number: int) -> None:
        member = self._by_number.get(number)
        if member is None:
            self.publisher.on_acknowledgements(self._sockets[-1].recv(READ_BYTES))
            return
        numbers = member.on_readable()
        if len(numbers):
            if len(self._seen) <= numbers.max():
                more = np.zeros(max(2 * len(self._seen), int(numbers.max()) + 1_000_000), np.int32)
                more[: len(self._seen)] = self._seen
                self._seen = more
            np.add.at(self._seen, numbers, 1)

    def close(self) -> None:
        """Closes its sessions."""
        self._epoll.close()
        close_all(self._sockets)
