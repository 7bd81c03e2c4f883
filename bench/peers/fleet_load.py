"""The load of a fleet: many connections, a topic each, one message a write, and one wildcard subscriber.

How the generator stays cheaper than the brokers:

- All packets have the same length. A round (one message of every connection) is one prebuilt block, of which only the
  columns of the sequence numbers change from round to round; a write is one `send` of a prebuilt slice.
- The subscriber counts a read by dividing. What it read is looked at later, thousands of deliveries at a time, as a
  matrix: every byte of each delivery is compared with what it must be, and within each topic the numbers must follow
  each other without a gap. So a message lost, repeated, reordered within its topic or changed is noticed.
- A publisher's acknowledgements (QoS 1) are read after several of its messages, and compared with what they must be.
- The subscriber's socket wakes the generator when the next step of the window has arrived, not for each delivery.

What is left is the kernel's work for one write a message, which is the sender's in any client: 3 to 5 us.

The loop is closed: at most `window` messages are under way. While `window` is at most the number of connections, a
connection has about one message under way, and a broker reads about one message at a time from each.
"""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lexicast.cluster.errors import UsageError

from ..stage.servers import Address
from .loadgen import LOST_AFTER_S, READ_BYTES, DeliveryError, RunResult, sequence_payload
from .session_opening import SessionSpec, close_all, open_sessions
from .wire import SEQUENCE_BYTES, Layout, Wire

TOPIC_DIGITS = 5
"""A topic ends in the number of its connection, always with so many digits: packets of one length."""

BUFFER_BYTES = 1 << 20
"""What a subscriber reads before it is looked at."""

ACKS_EVERY = 8
"""Messages of a connection after which its acknowledgements are read."""

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
        length, at = self._layout.length, self._layout.sequence_offset
        for index, value in enumerate(round_number.to_bytes(SEQUENCE_BYTES, "big")):
            self._block[at + index :: length] = bytes([value]) * self._count
        if (at_id := self._layout.packet_id_offset) is not None:
            for index, value in enumerate((round_number % _PACKET_IDS + 1).to_bytes(2, "big")):
                self._block[at_id + index :: length] = bytes([value]) * self._count

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


class WildcardSubscriber:
    """Counts deliveries of all topics on one connection as they come, and checks them some thousands at a time."""

    def __init__(self, sock: socket.socket, load: FleetLoad, layout: Layout, example: bytes) -> None:
        self.sock = sock
        self.received = 0
        self.length = layout.length
        self._layout = layout
        self._digits = example.index(b"0" * TOPIC_DIGITS)  # of topic 0, which stands before the payload
        self._template = np.frombuffer(example, np.uint8)
        self._fixed = np.ones(layout.length, bool)
        self._fixed[self._digits : self._digits + TOPIC_DIGITS] = False
        self._fixed[layout.sequence_offset : layout.sequence_offset + SEQUENCE_BYTES] = False
        if layout.packet_id_offset is not None:
            self._fixed[layout.packet_id_offset : layout.packet_id_offset + 2] = False
        self._next = np.zeros(load.connections, np.int64)
        self._buffer = bytearray(BUFFER_BYTES)
        self._view = memoryview(self._buffer)
        self._at = 0
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


class OpenFleet:
    """A fleet whose sessions are open at one broker; run it as often as wanted, then close it.

    Raises on opening what `open_sessions` raises, and `DeliveryError` when the first message does not arrive.
    """

    def __init__(self, address: Address, wire: Wire, load: FleetLoad) -> None:
        self.load = load
        self._wire = wire
        specs = [SessionSpec(f"bench-{load.name}-{number}") for number in range(load.connections)]
        specs.append(SessionSpec(f"bench-{load.name}-subscriber", load.wildcard, load.qos))
        self._sockets = open_sessions(address, wire, specs)
        self._poll = select.poll()
        self._poll.register(self._sockets[-1], select.POLLIN)
        try:
            self.publishers = FleetPublishers(self._sockets[:-1], wire, load)
            self.publishers.send_up_to(1)
            self.subscriber = self._first_delivery(self._sockets[-1])
        except BaseException:
            self.close()
            raise

    def _first_delivery(self, sock: socket.socket) -> WildcardSubscriber:
        """Waits for message 0, which tells how deliveries look here."""
        data = b""
        while (packet := self._wire.next_packet(data)) is None:
            if not self._poll.poll(LOST_AFTER_S * 1_000):
                raise DeliveryError(f"the first message did not arrive within {LOST_AFTER_S:.0f} s")
            more = sock.recv(READ_BYTES, socket.MSG_PEEK)
            if len(more) == len(data):
                raise DeliveryError("the broker closed the subscriber before its first message")
            data = more
        if not packet.is_message or packet.length != len(data):
            raise DeliveryError(f"the subscriber got something else than one message first: {data[:40]!r}")
        layout = self._wire.delivery_layout(data, self.load.payload_size)
        subscriber = WildcardSubscriber(sock, self.load, layout, data)
        subscriber.on_readable()
        return subscriber

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
        self._wake_at(step)
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
        self._wake_at(0)
        ended, seen = clock(), (0, 0)
        while subscriber.received < publishers.sent or not publishers.all_acknowledged():
            if self._poll.poll(5):
                subscriber.on_readable()
            if (now_seen := (subscriber.received, publishers.acknowledged)) != seen:
                ended, seen = clock(), now_seen
            elif clock() - ended > LOST_AFTER_S:
                return ended
        return clock()

    def _wake_at(self, messages: int) -> None:
        """Wakes when about so many deliveries can be read: one fewer, as a part of the first may be read already."""
        least = max(1, (messages - 1) * self.subscriber.length)
        self.subscriber.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, least)

    def close(self) -> None:
        """Says goodbye and closes all sessions."""
        close_all(self._sockets, self._wire.goodbye())
