"""What peers send on links: to a listener from a stranger, and from whoever holds the cluster's key.

An input's first byte says which: 0: the bytes of a stranger, before the handshake; 2: the same on an encrypted link; 3:
those of somebody who stands between a peer and an encrypted link, after the handshake; else those of a peer after it.
What passes is looked at as those do who take it: requests by their tables, entries and blocks by the sequencer.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import Any, Final, cast

import msgpack

from lexicast.cluster.blocks import Block, Meta, ProducerRun, Run, pack_meta
from lexicast.cluster.errors import LexicastError, PeerError
from lexicast.cluster.protocol.messages import (
    APPEND,
    ASK,
    BACK,
    CELLS,
    CHALLENGE,
    CLOUD,
    COLUMNS,
    CUT,
    DELIVER,
    ENTRY,
    HEADS,
    HELLO,
    NAMES,
    NONCE_BYTES,
    OFFER,
    PROTOCOL_VERSION,
    PUBLISH,
    REPLY,
    REQUEST,
    ROUTE,
    SEGMENT,
    SPREAD,
    VERDICT,
    WANTS,
    pack_message,
)
from lexicast.cluster.protocol.requests import BROKER, CLIENT, COORDINATOR, LEADER
from lexicast.cluster.protocol.sealed_records import Sealer
from lexicast.cluster.protocol.shapes import check_request
from lexicast.cluster.records import SessionMoved, SessionSaved, pack_record, unpack_record
from lexicast.cluster.repeats import Placed, Producer
from lexicast.cluster.sequencer import Sequencer

from ...broker.python_clients.entry_checks import EntryChecks
from ...link.handshake import DiallerLink, ListenerLink
from ...link.link import Link
from .target import FuzzTarget, must

KEY: Final = b"k" * 32
CLUSTER: Final = "cluster"
GROUPS: Final = 16
PAYLOAD_BYTES_MAX: Final = 1_000
ROLES: Final = (CLIENT, COORDINATOR, BROKER, LEADER)
DEFECTS: list[BaseException] = []


class _NoWire:
    """A transport to nowhere."""

    def __init__(self) -> None:
        self.closing = False
        self.sent: list[bytes] = []

    def write(self, data: bytes) -> None:
        """From a link."""
        self.sent.append(data)

    def writelines(self, parts: list[bytes]) -> None:
        """From a link."""
        self.sent += parts

    def is_closing(self) -> bool:
        """Whether it was ended."""
        return self.closing

    def abort(self) -> None:
        """End it."""
        self.closing = True

    close = abort

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """It is never full."""

    def get_write_buffer_size(self) -> int:
        """Nothing waits."""
        return 0

    def is_reading(self) -> bool:
        """It is."""
        return True

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Nothing is known."""
        return default


class _NothingPublished:
    """What a store remembers in the beginning."""

    def producer(self, group: int, producer: bytes) -> Producer | None:
        """Nobody has published."""
        return None

    def mark(self, group: int, session_uid: bytes, packet_id: int) -> Placed | None:
        """Nothing is unreleased."""
        return None

    def generation(self, group: int, session_uid: bytes) -> int:
        """No session is known."""
        return 0


class _Taker:
    """Takes messages as brokers and coordinators do, as far as what is checked goes."""

    def __init__(self) -> None:
        self._checks = EntryChecks(GROUPS, PAYLOAD_BYTES_MAX)
        self.taken = 0

    def on_message(self, link: Link, message: tuple[Any, ...]) -> None:
        """Whatever is raised but what a peer may cause costs the fuzzer its peace."""
        self.taken += 1
        try:
            self._take(message)
        except LexicastError:
            raise
        except Exception as error:
            DEFECTS.append(error)

    def _take(self, message: tuple[Any, ...]) -> None:
        kind = message[0]
        if kind == REQUEST:
            for requests in ROLES:
                with suppress(PeerError):
                    check_request(requests, message[2], message[3])
        elif kind == PUBLISH:
            for entry in message[2]:
                with suppress(LexicastError):
                    self._place(entry)
        elif kind == DELIVER:
            for fields in message[2]:
                with suppress(PeerError):
                    look_through(Block.from_wire(fields))

    def _place(self, wire: Any) -> None:
        sealed, count, meta = self._checks.entry(wire)
        group, packed, lengths, body = sealed.wire
        sequencer = Sequencer("fuzzed", _NothingPublished())
        sequencer.open(group, 1, 0, 0, ["fuzzed"])
        before = sequencer.groups[group].next
        sequencer.publish(group, meta, packed, lengths, body, 1)
        must(sequencer.groups[group].next - before <= count, "more offsets than records")
        for block in sequencer.deliverable(group):
            must(look_through(block) == count, "other records than were published")

    def on_close(self, link: Link, error: Exception | None) -> None:
        """It has ended."""

    def on_writable(self, link: Link) -> None:
        """It always was."""


def look_through(block: Block) -> int:
    """Read every record of a block, as readers of the history do. How many there are."""
    count = 0
    for record in block.records():
        must(block.first <= record.offset, "an offset before the block's first")
        count += 1
    must(block.memory_bytes > 0, "a block of no size")
    return count


class _Alarm(logging.Handler):
    """What a link logs as a defect of ours."""

    def emit(self, record: logging.LogRecord) -> None:
        """See `Link.data_received`."""
        error = record.exc_info[1] if record.exc_info else None
        DEFECTS.append(error or AssertionError(record.getMessage()))


_loop: asyncio.AbstractEventLoop | None = None


def _attempt(data: bytes) -> None:
    global _loop
    if _loop is None:
        _loop = asyncio.new_event_loop()
        alarm = _Alarm(logging.ERROR)
        for name in ("link", "open_requests"):
            logging.getLogger(f"lexicast.actors.link.{name}").addHandler(alarm)
    _loop.run_until_complete(_speak(data))
    if DEFECTS:
        defect = DEFECTS[0]
        DEFECTS.clear()
        raise defect


async def _speak(data: bytes) -> None:
    who, said = data[:1], data[1:]
    opened: list[Link] = []
    taker = _Taker()

    def take(link: Link) -> _Taker:
        opened.append(link)
        return taker

    link = ListenerLink(KEY, CLUSTER, take, {}, encrypted=who in (b"\2", b"\3"))
    wire = _NoWire()
    link.connection_made(cast(asyncio.Transport, wire))
    if who in (b"\0", b"\2"):
        link.data_received(said)
        must(not opened, "a stranger was let in")
    else:
        link.data_received(_hello(wire))
        must(bool(opened), "who holds the key is not let in")
        link.data_received(said)
        must(who != b"\3" or not taker.taken, "what nobody sealed was taken")
    link.connection_lost(None)


def _hello(wire: _NoWire) -> bytes:
    """What whoever holds the key answers to what a link has sent."""
    dialler, answers = DiallerLink(KEY, CLUSTER, ("client", "fuzzer", 1), lambda _: None), _NoWire()
    dialler.connection_made(cast(asyncio.Transport, answers))
    dialler.data_received(b"".join(wire.sent))
    dialler.connection_lost(None)
    return b"".join(answers.sent)


def _attempt_records(data: bytes) -> None:
    """Control records, which lie in the log and come with copies."""
    try:
        record = unpack_record(data)
    except PeerError:
        return
    must(unpack_record(pack_record(record)) == record, f"{record} is not what is packed of it")


def _entry(qos: int = 0) -> tuple[int, bytes, bytes, bytes]:
    run = Run(0, 0, qos, 0, 0, {38: [("a", "b")], 9: b"c"}, 0, 2)
    meta = Meta((b"a/b",), (run,), (ProducerRun(b"p" * 16, 1, 1, 2),), (), ("ada",), ())
    return 0, pack_meta(meta), b"\1\0\0\0\2\0\0\0", b"abc"


def _seeds() -> list[bytes]:
    group, meta, lengths, body = _entry()
    block = (group, 1, 5, 6, 7, 0, meta, lengths, body)
    messages: list[tuple[Any, ...]] = [
        (PUBLISH, 1, [(number, meta, lengths, body) for number in range(GROUPS)]),
        (PUBLISH, 2, [_entry(1), _entry(2)]),
        (DELIVER, 0, [block]),
        (HEADS, {1: (1, 2)}),
        (APPEND, [(1, 2, -1, 0, [(3, b"v", None)])]),
        (COLUMNS, 1, {0: [(1, ["t"], b"\1", b"r")]}),
        (VERDICT, 1, {"b": (1, 2, b"\1")}),
        (WANTS, 1, 2, [(True, b"a/+", "t > 1")]),
        (NAMES, {b"a/+": ["t"]}),
        (ENTRY, True),
        (ROUTE, 1, "m", ["c"], pack_message((ASK, 1, 2, 3, b"r"))),
        (BACK, 1, 2, ["c"], pack_message((SEGMENT, 1, 2, 3, 4, pack_message((NAMES, {b"a/+": ["t"]}))))),
        (CUT, 1, 2),
        (CLOUD, 1, 2, -1, [("m", 0, ["tcp:h:1"])]),
        (SPREAD, 1, 2, b"v"),
        (CELLS, 1, None),
        (REPLY, 1, None, {"a": [1]}),
        (REQUEST, 1, "subscribe", [1, [b"a/+"], ("time", 5), {"qos": 1}]),
        (REQUEST, 2, "session_open", [1, "id", (True, b"u", 1, 0, b"", b"", b"", "", "")]),
        (REQUEST, 3, "last", [[b"a"], None, 0, 5, None, 10, None]),
        (REQUEST, 4, "sessions_stand", [1, {1: 2}, {3: None}]),
        (REQUEST, 5, "retained", [[b"#"], [1], None, 9]),
    ]
    strangers = [
        (HELLO, b"n" * NONCE_BYTES, "client", "x", 1, {"public": b"p" * 32}, b"p" * 32),
        (CHALLENGE, b"n" * NONCE_BYTES, CLUSTER, PROTOCOL_VERSION),
        (OFFER, {"public": b"p" * 32}),
    ]
    seeds = [b"\1" + msgpack.packb(m) for m in messages]
    seeds += [who + msgpack.packb(m) for who in (b"\0", b"\2") for m in strangers]
    return [*seeds, b"\3" + Sealer(b"s" * 32).seal(msgpack.packb(messages[0])), b"\3" + msgpack.packb(messages[0])]


_RECORDS: Final = (
    pack_record(SessionSaved("id", b"u", 1, "b", 1, 2, 3, 0, 0, b"f", b"w", b"p", "ada")),
    pack_record(SessionMoved("id", 1, "b", 1, 2, 3, 0, 0, b"p")),
)
TARGET: Final = FuzzTarget(_attempt, tuple(_seeds()))
RECORDS: Final = FuzzTarget(_attempt_records, _RECORDS)
