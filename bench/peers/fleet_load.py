"""The loads of a fleet, which has a topic a device: many connections to one subscriber, or in pairs, or all on one.

How the generator stays cheaper than the brokers:

- All packets have the same length. A round (one message of every connection) is one prebuilt block, of which only the
  columns of the sequence numbers change from round to round; a write is one `send` of a prebuilt slice.
- The subscriber counts a read by dividing. What it read is looked at later, thousands of deliveries at a time, as a
  matrix: every byte of each delivery is compared with what it must be, and within each topic the numbers must follow
  each other without a gap. So a message lost, repeated, reordered within its topic or changed is noticed.
- A publisher's acknowledgements (QoS 1) are read after several of its messages, and compared with what they must be.
- The subscriber's socket wakes the generator when the next step of the window has arrived, not for each delivery.

What is left is the kernel's work for one write a message, which is the sender's in any client: nine tenths of its CPU.

The loop is closed: at most `window` messages are under way. While `window` is at most the number of connections, a
connection has about one message under way, and a broker reads about one message at a time from each.
"""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from lexicast.cluster.errors import UsageError

from ..stage.servers import Address
from .loadgen import (
    LOST_AFTER_S,
    READ_BYTES,
    BlockPublisher,
    DeliveryError,
    Load,
    LoadSubscriber,
    OpenLoad,
    Receiver,
    RunResult,
    sequence_payload,
    set_column,
)
from .session_opening import SessionSpec, close_all, open_sessions
from .wire import SEQUENCE_BYTES, Layout, Wire

TOPIC_DIGITS = 5
"""A topic ends in the number of its connection, always with so many digits: packets of one length."""

BUFFER_BYTES = 1 << 20
"""What a subscriber reads before it is looked at."""

ACKS_EVERY = 8
"""Messages of a connection after which its acknowledgements are read."""

UNACKNOWLEDGED = 250
"""Deliveries of QoS 1 after which they are acknowledged at the latest. A broker sends only so many ahead of their
acknowledgements (lexicast 4,000): a generator that waits for more than that to arrive waits for nothing, and one that
waits for just as many lets the broker wait for each round trip."""

_PACKET_IDS = 65_535


@dataclass(frozen=True)
class FleetLoad:
    """`connections` publishers with a topic each and one subscriber of all; `payload_size` bytes a message."""

    name: str
    connections: int
    payload_size: int = 140
    qos: int = 0

    def __post_init__(self) -> None:
        if self.payload_size < SEQUENCE_BYTES:
            raise UsageError(f"a payload of {self.payload_size} bytes cannot hold the sequence number: use 8 or more")
        if not 1 <= self.connections < 10**TOPIC_DIGITS:
            raise UsageError(f"a fleet has 1 to {10**TOPIC_DIGITS - 1} connections")

    def topic(self, number: int) -> str:
        """The topic of connection `number`."""
        return f"bench/{self.name}/{number:0{TOPIC_DIGITS}d}"

    @property
    def wildcard(self) -> str:
        """The filter of the subscriber."""
        return f"bench/{self.name}/+"


class FleetPublishers:
    """Sends the fleet's messages: number m comes from connection m % n and is that one's message m // n.

    `acknowledged` counts the PUBACKs read so far (QoS 1).
    """

    def __init__(self, sockets: Sequence[socket.socket], wire: Wire, load: FleetLoad) -> None:
        self.sent = 0
        self.acknowledged = 0
        self._count = len(sockets)
        self._sockets = sockets
        self._qos = load.qos
        self._layout = wire.publish_layout(load.topic(0), load.payload_size, load.qos)
        payload = sequence_payload(0, load.payload_size)
        packets = (wire.publish(load.topic(number), payload, load.qos, 1) for number in range(self._count))
        self._block = bytearray(b"".join(packets))
        length, view = self._layout.length, memoryview(self._block)
        self._writes = [(sock.send, view[at * length : (at + 1) * length]) for at, sock in enumerate(sockets)]
        ids = (b"\x40\x02" + number.to_bytes(2, "big") for number in range(1, _PACKET_IDS + 1))
        self._ack_stream = b"".join(ids) if load.qos else b""
        self._ack_bytes = [0] * self._count
        self._acks_at = 0

    def send_up_to(self, limit: int) -> None:
        """Sends all messages below number `limit`. Raises `DeliveryError` when a connection takes no more."""
        length, first = self._layout.length, self.sent
        while self.sent < limit:
            at = self.sent % self._count
            if not at:
                self._number(self.sent // self._count)
            end = min(self._count, at + limit - self.sent)
            for send, packet in self._writes[at:end]:
                if send(packet) != length:
                    raise DeliveryError("the broker does not read from a publisher that has a few messages under way")
            self.sent += end - at
        if self._qos:
            for _ in range(-(-(self.sent - first) // ACKS_EVERY)):
                self._read_acks(self._acks_at)
                self._acks_at = (self._acks_at + 1) % self._count

    def _number(self, round_number: int) -> None:
        """Gives the block the sequence number, and the packet id, of a round."""
        length = self._layout.length
        set_column(self._block, self._layout.sequence_offset, length, round_number.to_bytes(SEQUENCE_BYTES, "big"))
        if self._layout.packet_id_offset is not None:
            packet_id = round_number % _PACKET_IDS + 1
            set_column(self._block, self._layout.packet_id_offset, length, packet_id.to_bytes(2, "big"))

    def _read_acks(self, number: int) -> None:
        """Reads the acknowledgements that connection `number` has got; each must be the next one."""
        try:
            data = self._sockets[number].recv(READ_BYTES)
        except BlockingIOError:
            return
        if not data:
            raise DeliveryError(f"the broker closed the connection of publisher {number}")
        before = self._ack_bytes[number]
        at = before % len(self._ack_stream)
        expected = self._ack_stream[at : at + len(data)]
        if data != expected + self._ack_stream[: len(data) - len(expected)]:
            raise DeliveryError(f"publisher {number} expected its PUBACKs and got {data[:24].hex()}")
        self._ack_bytes[number] += len(data)
        self.acknowledged += self._ack_bytes[number] // 4 - before // 4

    def all_acknowledged(self) -> bool:
        """Reads what has come; True when nothing is outstanding (always with QoS 0)."""
        if self._qos and self.acknowledged < self.sent:
            for number in range(self._count):
                self._read_acks(number)
        return not self._qos or self.acknowledged >= self.sent


class TopicsPublisher(BlockPublisher):
    """Sends the fleet's messages, QoS 0, over one connection: a topic after the other, in turn."""

    def __init__(self, sock: socket.socket, wire: Wire, load: FleetLoad) -> None:
        payload = sequence_payload(0, load.payload_size)
        super().__init__(sock, [wire.publish(load.topic(number), payload, 0) for number in range(load.connections)])
        self._layout = wire.publish_layout(load.topic(0), load.payload_size, 0)

    def _renumber(self) -> None:
        number = (self._start // self._count).to_bytes(SEQUENCE_BYTES, "big")
        set_column(self._block, self._layout.sequence_offset, self._layout.length, number)


class WildcardSubscriber:
    """Counts deliveries of all topics on one connection as they come, and checks them some thousands at a time."""

    def __init__(self, sock: socket.socket, load: FleetLoad, layout: Layout, first: bytes) -> None:
        """`first` is the first message of topic 0, which has been read from `sock`."""
        self.sock = sock
        self.received = 1
        self._layout = layout
        self._digits = first.index(b"0" * TOPIC_DIGITS)  # of topic 0, which stands before the payload
        self._template = np.frombuffer(first, np.uint8)
        self._fixed = np.ones(layout.length, bool)
        self._fixed[self._digits : self._digits + TOPIC_DIGITS] = False
        self._fixed[layout.sequence_offset : layout.sequence_offset + SEQUENCE_BYTES] = False
        if layout.packet_id_offset is not None:
            self._fixed[layout.packet_id_offset : layout.packet_id_offset + 2] = False
        self._next = np.zeros(load.connections, np.int64)
        self._buffer = bytearray(BUFFER_BYTES)
        self._view = memoryview(self._buffer)
        self._view[: len(first)] = first
        self._at = len(first)
        self._checked = 0
        self._answered = 0
        if load.qos and layout.packet_id_offset is None:
            raise DeliveryError("the subscriber asked for QoS 1 and gets QoS 0; its broker lowered it")

    def on_readable(self) -> bool:
        """Takes one read; False when there was nothing. Raises `DeliveryError` when the connection was closed."""
        try:
            taken = self.sock.recv_into(self._view[self._at :])
        except BlockingIOError:
            return False
        if not taken:
            raise DeliveryError(f"the broker closed the subscriber after {self.received} messages")
        self._at += taken
        whole = self._at // self._layout.length
        self.received = self._checked + whole
        if self._layout.packet_id_offset is not None:
            self._acknowledge(self._layout.packet_id_offset, whole)
        if self._at > BUFFER_BYTES - READ_BYTES:
            self.check()
        return True

    def _acknowledge(self, at: int, whole: int) -> None:
        length = self._layout.length
        start, end = self._answered * length, whole * length
        acks = bytearray(b"\x40\x02\0\0" * (whole - self._answered))
        acks[2::4] = self._buffer[start + at : end : length]
        acks[3::4] = self._buffer[start + at + 1 : end : length]
        self._answered = whole
        # Four bytes for each message of the window: a socket's buffer takes them unless the broker has stopped reading.
        if acks and self.sock.send(acks) != len(acks):
            raise DeliveryError("the broker does not read the subscriber's acknowledgements")

    def wake_at(self, messages: int) -> None:
        """Lets `poll` wait for about so many deliveries: one fewer, as a part of the first may be read already."""
        least = max(1, (messages - 1) * self._layout.length)
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, least)

    def check(self) -> None:
        """Looks at what has been read since. Raises `DeliveryError` when a delivery is not what it must be."""
        length = self._layout.length
        end = self._at // length * length
        if end:
            self._check_rows(np.frombuffer(self._buffer, np.uint8, end).reshape(-1, length))
        self._buffer[: self._at - end] = self._buffer[end : self._at]
        self._checked += end // length
        self._answered = 0
        self._at -= end

    def _check_rows(self, rows: np.ndarray) -> None:
        wrong = ((rows != self._template) & self._fixed).any(axis=1)
        digits = rows[:, self._digits : self._digits + TOPIC_DIGITS].astype(np.int64) - ord("0")
        topics = digits @ (10 ** np.arange(TOPIC_DIGITS - 1, -1, -1))
        wrong |= (digits < 0).any(axis=1) | (digits > 9).any(axis=1) | (topics >= len(self._next))
        if wrong.any():
            at = int(wrong.argmax())
            raise DeliveryError(f"no delivery of this load where number {self._checked + at} is: {bytes(rows[at])!r}")
        at = self._layout.sequence_offset
        numbers = np.ascontiguousarray(rows[:, at : at + SEQUENCE_BYTES]).view(">u8")[:, 0].astype(np.int64)
        order = np.argsort(topics, kind="stable")
        topics, numbers = topics[order], numbers[order]
        starts = np.flatnonzero(np.diff(topics, prepend=-1))
        counts = np.diff(starts, append=len(topics))
        expected = self._next[topics] + np.arange(len(topics)) - np.repeat(starts, counts)
        if (numbers != expected).any():
            at = int((numbers != expected).argmax())
            what = "lost" if numbers[at] > expected[at] else "repeated or out of order"
            raise DeliveryError(
                f"topic {topics[at]}: message {numbers[at]} stands where {expected[at]} should be: "
                f"{abs(int(numbers[at] - expected[at]))} {what}"
            )
        self._next[topics[starts]] += counts


class PairedSubscribers:
    """A subscriber a topic; what `OpenFleet` waits for and counts is all of them together."""

    def __init__(self, subscribers: Sequence[LoadSubscriber]) -> None:
        self.received = len(subscribers)
        self._by_descriptor = {one.sock.fileno(): one for one in subscribers}
        self._epoll = select.epoll()
        for one in subscribers:
            self._epoll.register(one.sock, select.EPOLLIN)

    def fileno(self) -> int:
        """Readable when one of the subscribers is."""
        return self._epoll.fileno()

    def on_readable(self) -> None:
        """Takes a read of each subscriber that has one. Raises like `LoadSubscriber.on_readable`."""
        for descriptor, _ in self._epoll.poll(0):
            one = self._by_descriptor[descriptor]
            before = one.received
            one.on_readable()
            self.received += one.received - before

    def wake_at(self, messages: int) -> None:
        """Nothing: each subscriber gets one message at a time."""

    def check(self) -> None:
        """Nothing: each read has been checked."""


class OpenFleet:
    """A fleet whose sessions are open at one broker; run it as often as wanted, then close it.

    Raises on opening what `open_sessions` raises, and `DeliveryError` when the first message does not arrive.
    """

    def __init__(self, address: Address, wire: Wire, load: FleetLoad) -> None:
        self.load = load
        self._wire = wire
        publishers = [SessionSpec(f"bench-{load.name}-{number}") for number in range(load.connections)]
        self._sockets = open_sessions(address, wire, [*publishers, *self._subscriptions()])
        self._poll = select.poll()
        try:
            self.publishers = FleetPublishers(self._sockets[: load.connections], wire, load)
            self._open_subscribers(self._sockets[load.connections :])
        except BaseException:
            self.close()
            raise

    def _subscriptions(self) -> list[SessionSpec]:
        return [SessionSpec(f"bench-{self.load.name}-subscriber", self.load.wildcard, self.load.qos)]

    def _open_subscribers(self, sockets: Sequence[socket.socket]) -> None:
        self.publishers.send_up_to(1)
        first = self._first_delivery(sockets[0])
        layout = self._wire.delivery_layout(first, self.load.payload_size)
        self.subscriber: WildcardSubscriber | PairedSubscribers
        self.subscriber = WildcardSubscriber(sockets[0], self.load, layout, first)
        self._poll.register(sockets[0], select.POLLIN)

    def _first_delivery(self, sock: socket.socket) -> bytes:
        """Waits for a topic's message 0, which tells how deliveries look here."""
        data, poll = b"", select.poll()
        poll.register(sock, select.POLLIN)
        while (packet := self._wire.next_packet(data)) is None:
            if not poll.poll(LOST_AFTER_S * 1_000):
                raise DeliveryError(f"a subscriber did not get the first message within {LOST_AFTER_S:.0f} s")
            more = sock.recv(READ_BYTES)
            if not more:
                raise DeliveryError("the broker closed a subscriber before its first message")
            data += more
        if not packet.is_message or packet.length != len(data):
            raise DeliveryError(f"a subscriber got something else than one message first: {data[:40]!r}")
        return data

    def run(self, seconds: float, window: int, *, messages_max: int | None = None) -> RunResult:
        """Publishes for `seconds` (or `messages_max` messages) with at most `window` under way, then waits for them.

        What does not arrive, or is not acknowledged, within `LOST_AFTER_S` of silence is counted as lost. Raises
        `DeliveryError` when a delivery is not what it must be.
        """
        if window < 1:
            raise UsageError("a window must be at least 1")
        first, clock = self.publishers.sent, time.perf_counter
        cpu, started = time.process_time(), clock()
        limit = first + messages_max if messages_max is not None else 2**62
        self._send(started + seconds, limit, window)
        ended = self._wait_for_rest()
        self.subscriber.check()
        cpu = time.process_time() - cpu
        sent, missing = self.publishers.sent - first, self.publishers.sent - self.subscriber.received
        lost = missing + (self.publishers.sent - self.publishers.acknowledged if self.load.qos else 0)
        return RunResult(sent, sent - missing, lost, ended - started, cpu / (clock() - started))

    def _send(self, stop_at: float, limit: int, window: int) -> None:
        publishers, subscriber, clock = self.publishers, self.subscriber, time.perf_counter
        # A step of a part of the window keeps the generator from waking for single messages.
        step = max(1, window // 8)
        subscriber.wake_at(min(step, UNACKNOWLEDGED) if self.load.qos else step)
        while publishers.sent < limit and clock() < stop_at:
            free = subscriber.received + window - publishers.sent
            if free >= step:
                publishers.send_up_to(min(publishers.sent + step, limit))
            elif not self._poll.poll(LOST_AFTER_S * 1_000):
                break
            subscriber.on_readable()

    def _wait_for_rest(self) -> float:
        """Returns the time of the last delivery, or of the last acknowledgement."""
        publishers, subscriber, clock = self.publishers, self.subscriber, time.perf_counter
        subscriber.wake_at(0)
        ended, seen = clock(), (0, 0)
        while subscriber.received < publishers.sent or not publishers.all_acknowledged():
            if self._poll.poll(5):
                subscriber.on_readable()
            if (now_seen := (subscriber.received, publishers.acknowledged)) != seen:
                ended, seen = clock(), now_seen
            elif clock() - ended > LOST_AFTER_S:
                return ended
        return clock()

    def close(self) -> None:
        """Says goodbye and closes all sessions."""
        close_all(self._sockets, self._wire.goodbye())


class OpenPairs(OpenFleet):
    """A fleet of which each connection has a subscriber of its own, to its topic alone (QoS 0)."""

    def _subscriptions(self) -> list[SessionSpec]:
        load = self.load
        return [SessionSpec(f"bench-{load.name}-to-{at}", load.topic(at), load.qos) for at in range(load.connections)]

    def _open_subscribers(self, sockets: Sequence[socket.socket]) -> None:
        self.publishers.send_up_to(len(sockets))
        made = []
        for number, sock in enumerate(sockets):
            first = self._first_delivery(sock)
            layout = self._wire.delivery_layout(first, self.load.payload_size)
            prefix = first[: layout.sequence_offset]
            if f"{number:0{TOPIC_DIGITS}d}".encode() not in prefix:
                raise DeliveryError(f"subscriber {number} got another topic's message: {first[:40]!r}")
            made.append(LoadSubscriber(sock, f"subscriber {number}", replace(layout, prefix=prefix), 1, False))
        self.subscriber = PairedSubscribers(made)
        self._poll.register(self.subscriber.fileno(), select.POLLIN)


class OpenTopics(OpenLoad):
    """One publisher that takes the topics of a fleet in turn, and one wildcard subscriber (QoS 0)."""

    def __init__(self, address: Address, wire: Wire, fleet: FleetLoad) -> None:
        self._fleet = fleet
        super().__init__(address, wire, Load(fleet.name, 1, fleet.payload_size))

    def _topic_filter(self, topic: str) -> str:
        return self._fleet.wildcard

    def _make_publisher(self, topic: str) -> BlockPublisher:
        return TopicsPublisher(self.publisher_socket, self._wire, self._fleet)

    def _make_subscriber(self, sock: socket.socket, name: str, topic: str, first: bytes) -> Receiver:
        layout = self._wire.delivery_layout(first, self._fleet.payload_size)
        self._subscriber = WildcardSubscriber(sock, self._fleet, layout, first)
        return self._subscriber

    def run(
        self, seconds: float, window: int, *, ack_window: int = 1_000, messages_max: int | None = None
    ) -> RunResult:
        """Like that of any load; what was delivered is looked at before it returns."""
        result = super().run(seconds, window, ack_window=ack_window, messages_max=messages_max)
        self._subscriber.check()
        return result
