"""The load generator: one publisher, many subscribers, one thread, one epoll, no parsing in the common path.

How it stays cheaper than every broker it measures:

- A load's packets all have the same length, so a subscriber *counts* a read by dividing: `bytes // length`. The
  payloads carry consecutive sequence numbers; each read's last whole packet is checked against the count (its first
  bytes, and its sequence number, which must equal the number of packets before it). A message lost, repeated or out
  of place anywhere before makes that check fail. With `verify` every packet's number is checked (its last byte, by
  one strided slice a read).
- The publisher sends slices of one prebuilt block of packets; between blocks only the sequence numbers are patched.

One process is enough: against `toy` on two cores it takes 27 to 47 million deliveries/s from 100 and more
subscribers and 6 million from one, several times what any broker measured gives; a second one would only take the
broker's core.

The loop is closed: at most `window` messages are ahead of the slowest subscriber, so no broker is driven into its
queue limits, where some drop and some disconnect. Sequence numbers go on from run to run of one open load.
"""

from __future__ import annotations

import select
import socket
import time
from bisect import bisect_left
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import Protocol

from lexicast.cluster.errors import PeerError, UsageError

from ..stage.servers import Address
from .session_opening import SessionSpec, close_all, open_sessions
from .wire import SEQUENCE_BYTES, Layout, Wire

BLOCK = 4_096
"""Messages in the publisher's block. A power of 2 from 256 to 65,536, so that within a block the last byte of the
sequence number never changes, the one before takes the same steps, and the rest is constant."""

READ_BYTES = 262_144
"""Longest read. Above what a socket buffer usually holds, below the second-level cache."""

LOST_AFTER_S = 5.0
"""No progress for so long means that what is outstanding will not come."""

_CYCLE = bytes(range(256)) * (READ_BYTES // 256 + 2)


class DeliveryError(PeerError):
    """Messages were lost, repeated or reordered, or the broker closed a connection in the middle of a load."""


def filler(size: int) -> bytes:
    """`size` bytes of printable text, the same in each run, with no long repeats."""
    out = bytearray()
    state = 12_345
    while len(out) < size:
        state = (state * 1_103_515_245 + 12_345) % 2**31
        out += b"%08x" % state
    return bytes(out[:size])


def sequence_payload(sequence: int, size: int) -> bytes:
    """The payload of message number `sequence`, `size` bytes long."""
    return sequence.to_bytes(SEQUENCE_BYTES, "big") + filler(size - SEQUENCE_BYTES)


def set_column(block: bytearray, at: int, length: int, value: bytes) -> None:
    """Writes `value` at `at` of each packet of `block`, whose packets are all `length` bytes long."""
    count = len(block) // length
    for index, byte in enumerate(value):
        block[at + index :: length] = bytes([byte]) * count


class BlockPublisher:
    """Sends a block of packets again and again, renumbered each time, up to a limit that only grows.

    `sent` counts the messages of which at least a part has been handed to the socket.
    """

    def __init__(self, sock: socket.socket, packets: Sequence[bytes]) -> None:
        self._send = sock.send
        self._count = len(packets)
        self._ends = list(accumulate(map(len, packets), initial=0))
        self._block = bytearray(b"".join(packets))
        self._view = memoryview(self._block)
        self._start = 0
        self._at = 0
        self.blocked = False
        self.acknowledged = 0
        self._ack_bytes = 0

    @property
    def sent(self) -> int:
        return self._start + bisect_left(self._ends, self._at)

    def send_up_to(self, limit: int) -> None:
        """Sends all messages below number `limit`; `blocked` says that the socket took less."""
        self.blocked = False
        while (end := self._ends[max(0, min(limit - self._start, self._count))]) > self._at:
            try:
                self._at += self._send(self._view[self._at : end])
            except BlockingIOError:
                self.blocked = True
                return
            if self._at == self._ends[-1]:
                self._start += self._count
                self._at = 0
                self._renumber()

    def _renumber(self) -> None:
        """Gives the block's packets the numbers from `_start` on."""
        raise NotImplementedError

    def on_acknowledgements(self, data: bytes) -> None:
        """Counts PUBACKs: 4 bytes each, also in MQTT 5 as long as each is a success without properties."""
        if data[-self._ack_bytes % 4 :: 4].strip(b"\x40"):
            raise DeliveryError(f"the publisher expected PUBACKs and got {data[:24].hex()}")
        self._ack_bytes += len(data)
        self.acknowledged = self._ack_bytes // 4


class LoadPublisher(BlockPublisher):
    """Sends the packets of one load: one topic, one length, consecutive sequence numbers."""

    def __init__(self, sock: socket.socket, wire: Wire, topic: str, size: int, qos: int) -> None:
        # Packet ids 1 to BLOCK come again with each block: never twice at a time while fewer than BLOCK are unacked.
        packets = (wire.publish(topic, sequence_payload(number, size), qos, number + 1) for number in range(BLOCK))
        super().__init__(sock, list(packets))
        self._layout = wire.publish_layout(topic, size, qos)

    def _renumber(self) -> None:
        first, length = self._layout.sequence_offset, self._layout.length
        number = self._start.to_bytes(SEQUENCE_BYTES, "big")
        set_column(self._block, first, length, number[:-2])
        steps = b"".join(bytes([(number[-2] + step) & 255]) * 256 for step in range(BLOCK // 256))
        self._block[first + SEQUENCE_BYTES - 2 :: length] = steps


class Receiver(Protocol):
    """What a load needs of a subscriber: its socket, how many deliveries it has, and taking a read."""

    @property
    def sock(self) -> socket.socket: ...

    @property
    def received(self) -> int: ...

    def on_readable(self) -> object:
        """Takes one read. Raises `DeliveryError` when the bytes are not the next ones of the load."""
        ...


class LoadSubscriber:
    """Counts and checks QoS 0 deliveries on one connection."""

    __slots__ = ("_base", "_bytes", "_layout", "_length", "_read", "_verify", "name", "received", "sock")

    buffer = bytearray(READ_BYTES)
    """Shared by all: what a subscriber reads is looked at before the next one reads."""

    def __init__(self, sock: socket.socket, name: str, layout: Layout, received: int, verify: bool) -> None:
        self.sock = sock
        self.name = name
        self.received = received
        self._read = sock.recv_into
        self._layout = layout
        self._length = layout.length
        self._bytes = received * layout.length
        self._verify = verify

    def on_readable(self) -> None:
        """Takes one read. Raises `DeliveryError` when the bytes are not the next packets of the load."""
        taken = self._read(self.buffer)
        if not taken:
            raise DeliveryError(f"the broker closed {self.name} after {self.received} messages")
        before = self._bytes
        self._bytes = before + taken
        count = self._bytes // self._length
        last = (count - 1) * self._length - before
        if last >= 0:
            check_packet(self.buffer, last, self._layout, count - 1, self.name)
            if self._verify:
                first = self.received * self._length - before
                if first < 0:
                    first += self._length
                check_sequence(self.buffer[first : last + self._length], self._layout, count, self.name)
        self.received = count


class AcknowledgingSubscriber(LoadSubscriber):
    """The same for QoS 1: answers each delivery, one joined buffer of PUBACKs a read.

    Packet ids may stand across two reads, so the incomplete packet is kept and put before the next read.
    """

    __slots__ = ("_own", "_pending", "_rest")

    def __init__(self, sock: socket.socket, name: str, layout: Layout, received: int, verify: bool) -> None:
        super().__init__(sock, name, layout, received, verify)
        self._own = bytearray(65_536)
        self._rest = 0
        self._pending = b""

    def on_readable(self) -> None:
        """Takes one read and acknowledges it. Raises like `Subscriber.on_readable`."""
        taken = self._read(memoryview(self._own)[self._rest :])
        if not taken:
            raise DeliveryError(f"the broker closed {self.name} after {self.received} messages")
        count, rest = divmod(self._rest + taken, self._length)
        end = count * self._length
        if count:
            self.received += count
            check_packet(self._own, end - self._length, self._layout, self.received - 1, self.name)
            if self._verify:
                check_sequence(self._own[:end], self._layout, self.received, self.name)
            self._acknowledge(end, count)
        self._own[:rest] = self._own[end : end + rest]
        self._rest = rest

    def _acknowledge(self, end: int, count: int) -> None:
        at = self._layout.packet_id_offset
        if at is None:
            raise DeliveryError(f"{self.name} subscribed with QoS 1 and gets QoS 0; its broker lowered it")
        acknowledgements = bytearray(b"\x40\x02\0\0" * count)
        acknowledgements[2::4] = self._own[at : end : self._length]
        acknowledgements[3::4] = self._own[at + 1 : end : self._length]
        data = self._pending + acknowledgements
        try:
            self._pending = data[self.sock.send(data) :]
        except BlockingIOError:
            self._pending = data


def check_packet(data: bytearray, start: int, layout: Layout, expected: int, name: str) -> None:
    """Checks that the packet at `start` is number `expected` of its load; raises `DeliveryError` with what it is."""
    at = start + layout.sequence_offset
    found = int.from_bytes(data[at : at + SEQUENCE_BYTES], "big")
    if found == expected and data.startswith(layout.prefix, start):
        return
    if not data.startswith(layout.prefix, start):
        raise DeliveryError(f"{name}: no delivery where number {expected} should start: {bytes(data[start:][:24])!r}")
    what = f"{found - expected} lost" if found > expected else f"{expected - found} repeated or out of order"
    raise DeliveryError(f"{name}: message {found} stands where {expected} should be: {what}")


def check_sequence(packets: bytearray, layout: Layout, count: int, name: str) -> None:
    """Checks the numbers' last bytes of whole `packets`, of which the last is number `count - 1`."""
    found = packets[layout.sequence_offset + SEQUENCE_BYTES - 1 :: layout.length]
    first = (count - len(found)) & 255
    if found != _CYCLE[first : first + len(found)]:
        raise DeliveryError(f"{name}: messages before number {count} are not consecutive")


def take_whole(read: Callable[[], object]) -> None:
    """`read` from a socket with TLS or a WebSocket, where nothing whole may have come."""
    with suppress(BlockingIOError):
        read()


@dataclass(frozen=True)
class RunResult:
    """What one run of a load gave. `generator_cpu` is this process's CPU time over the elapsed time, 0 to 1."""

    sent: int
    deliveries: int
    lost: int
    elapsed_s: float
    generator_cpu: float

    @property
    def deliveries_per_s(self) -> float:
        return self.deliveries / self.elapsed_s


@dataclass(frozen=True)
class Load:
    """One publisher on one topic to `subscribers` connections, `payload_size` bytes a message."""

    name: str
    subscribers: int
    payload_size: int = 140
    qos: int = 0
    verify: bool = False

    def __post_init__(self) -> None:
        if self.payload_size < SEQUENCE_BYTES:
            raise UsageError(f"a payload of {self.payload_size} bytes cannot hold the sequence number: use 8 or more")
        if self.subscribers < 1:
            raise UsageError("a load needs at least one subscriber")


class OpenLoad:
    """A load whose sessions are open at one broker; run it as often as wanted, then close it.

    Raises on opening what `open_sessions` raises, and `DeliveryError` when the first message does not reach all.
    """

    def __init__(self, address: Address, wire: Wire, load: Load) -> None:
        self.load = load
        self._wire = wire
        topic = f"bench/{load.name}"
        names = [f"bench-{load.name}-{number}" for number in range(load.subscribers)]
        specs = [SessionSpec(name, self._topic_filter(topic), load.qos) for name in names]
        specs.append(SessionSpec(f"bench-{load.name}-publisher"))
        self._wrapped = bool(address.cafile) or address.websocket
        self._sockets = open_sessions(address, wire, specs)
        self.publisher_socket = self._sockets[-1]
        self._epoll = select.epoll()
        try:
            self.publisher = self._make_publisher(topic)
            self.publisher.send_up_to(1)
            self.subscribers = [
                self._make_subscriber(sock, name, topic, self._first_delivery(sock, name))
                for sock, name in zip(self._sockets[:-1], names, strict=True)
            ]
            self._register()
        except BaseException:
            self.close()
            raise

    def _topic_filter(self, topic: str) -> str:
        """What the subscribers subscribe to."""
        return topic

    def _make_publisher(self, topic: str) -> BlockPublisher:
        load = self.load
        return LoadPublisher(self.publisher_socket, self._wire, topic, load.payload_size, load.qos)

    def _make_subscriber(self, sock: socket.socket, name: str, topic: str, first: bytes) -> Receiver:
        """What takes the deliveries after message 0, which came as `first`."""
        kind = AcknowledgingSubscriber if self.load.qos else LoadSubscriber
        layout = self._wire.delivery_layout(first, self.load.payload_size)
        return kind(sock, name, layout, 1, self.load.verify)

    def _first_delivery(self, sock: socket.socket, name: str) -> bytes:
        """Waits for message 0, which tells how deliveries look here, and answers it."""
        data = b""
        sock.settimeout(LOST_AFTER_S)
        try:
            while (packet := self._wire.next_packet(data)) is None:
                more = sock.recv(READ_BYTES)
                if not more:
                    raise DeliveryError(f"the broker closed {name} before its first message")
                data += more
        except TimeoutError:
            raise DeliveryError(f"{name} did not get the first message within {LOST_AFTER_S:.0f} s") from None
        finally:
            sock.setblocking(False)
        if not packet.is_message or packet.length != len(data):
            raise DeliveryError(f"{name} got something else than one message first: {data[:40]!r}")
        if packet.reply:
            sock.send(packet.reply)
        return data

    def _register(self) -> None:
        self._handlers: dict[int, Callable[[], object]] = {}
        for subscriber in self.subscribers:
            read = subscriber.on_readable
            self._handlers[subscriber.sock.fileno()] = read if not self._wrapped else partial(take_whole, read)
            self._epoll.register(subscriber.sock, select.EPOLLIN)
        self._handlers[self.publisher_socket.fileno()] = self.on_publisher
        self._events = select.EPOLLIN
        self._epoll.register(self.publisher_socket, self._events)

    def on_publisher(self) -> None:
        """Reads what the broker sends the publisher: acknowledgements. Room to write is used by the loop itself."""
        try:
            data = self.publisher_socket.recv(READ_BYTES)
        except BlockingIOError:
            return
        if not data:
            raise DeliveryError(f"the broker closed the publisher's connection after {self.publisher.sent} messages")
        if not self.load.qos:
            raise DeliveryError(f"the broker sent the publisher unexpected bytes: {data[:40]!r}")
        self.publisher.on_acknowledgements(data)

    def run(
        self, seconds: float, window: int, *, ack_window: int = 1_000, messages_max: int | None = None
    ) -> RunResult:
        """Publishes for `seconds` (or `messages_max` messages), then waits for what is outstanding.

        At most `window` messages are ahead of the slowest subscriber; with QoS 1 at most `ack_window` of them are
        unacknowledged. Deliveries and acknowledgements that do not arrive within `LOST_AFTER_S` of silence are
        counted as lost; raises `DeliveryError` when the deliveries that do arrive show a gap, and when a connection
        is closed.
        """
        if not 1 <= ack_window < BLOCK or window < 1:
            raise UsageError(f"windows must be at least 1, and the acknowledgement window below {BLOCK}")
        first = self.publisher.sent
        cpu, started = time.process_time(), time.perf_counter()
        limit = first + messages_max if messages_max is not None else 2**62
        ended = self._loop(started + seconds, limit, window, ack_window)
        cpu = time.process_time() - cpu
        sent = self.publisher.sent
        deliveries = sum(subscriber.received - first for subscriber in self.subscribers)
        lost = (sent - first) * len(self.subscribers) - deliveries
        if self.load.qos:
            lost += sent - self.publisher.acknowledged
        return RunResult(sent - first, deliveries, lost, ended - started, cpu / (time.perf_counter() - started))

    def _loop(self, stop_at: float, limit: int, window: int, ack_window: int) -> float:
        """Runs the load; returns the time of the last delivery."""
        publisher, subscribers, handlers = self.publisher, self.subscribers, self._handlers
        poll, clock = self._epoll.poll, time.perf_counter
        # A step of a part of the window keeps the publisher from sending single messages to a busy broker.
        step = max(1, window // 8)
        ack_step = max(1, ack_window // 8) if self.load.qos else 0
        slowest = min(subscribers, key=lambda subscriber: subscriber.received)
        floor, target, progress_at = slowest.received, publisher.sent, clock()
        while True:
            now = clock()
            if now >= stop_at:
                limit = min(limit, max(target, publisher.sent))
            allowed = min(floor + window, limit)
            if ack_step:
                allowed = min(allowed, publisher.acknowledged + ack_window)
            if allowed - target >= min(step, ack_step or step) or (allowed == limit > target):
                target = allowed
            if publisher.sent < target or publisher.blocked:
                publisher.send_up_to(target)
            self._watch_publisher()
            for descriptor, _ in poll(0.2):
                handlers[descriptor]()
                progress_at = now
            if slowest.received > floor:
                slowest = min(subscribers, key=lambda subscriber: subscriber.received)
                floor = slowest.received
            if publisher.sent >= limit and floor >= publisher.sent and self._all_acknowledged():
                return clock()
            if now - progress_at > LOST_AFTER_S:
                return progress_at

    def _all_acknowledged(self) -> bool:
        """True when the publisher's last packet is wholly sent and, with QoS 1, acknowledged."""
        publisher = self.publisher
        return not publisher.blocked and (not self.load.qos or publisher.acknowledged >= publisher.sent)

    def _watch_publisher(self) -> None:
        """Asks for room to write only while the publisher's socket is full."""
        wanted = select.EPOLLIN | (select.EPOLLOUT if self.publisher.blocked else 0)
        if wanted != self._events:
            self._epoll.modify(self.publisher_socket, wanted)
            self._events = wanted

    def close(self) -> None:
        """Says goodbye and closes all sessions."""
        self._epoll.close()
        close_all(self._sockets, self._wire.goodbye())


class Runnable(Protocol):
    """An open load, of any kind."""

    def run(self, seconds: float, window: int, *, messages_max: int | None = None) -> RunResult:
        """Publishes for `seconds` (or `messages_max` messages) with at most `window` messages ahead."""
        ...

    def close(self) -> None:
        """Closes its sessions."""
        ...


def best_window(
    load: Runnable, copies: int, ladder: Sequence[int], seconds: float, turnover_s: float
) -> tuple[int, dict[int, float]]:
    """The window of `ladder` (ascending) with the most deliveries/s in one short run each, and each one's figure.

    Each message is delivered `copies` times. A window that would take more than `turnover_s` at the best rate so far is
    not tried: a run with it would be one burst and its drain. Raises `DeliveryError` like `OpenLoad.run`.
    """
    rates: dict[int, float] = {}
    for window in ladder:
        if rates and window * copies > turnover_s * max(rates.values()):
            break
        rates[window] = load.run(seconds, window).deliveries_per_s
    return max(rates, key=lambda window: rates[window]), rates
