"""The tables: what replaying the log would give, kept up in the transaction that appends to it (no replay at start).

Rules, in log order:

    Session...       see `sessions`
    Subscribed       replaces the subscription of that broker to that filter; its offset is the cut
    Unsubscribed     forgets it
    Released         forgets those QoS 2 marks
    DictionaryStored is kept (dictionaries are not discarded yet: a few KiB each, and stored blocks refer to them)
    ProducerSeen     restates a producer's last sequence
    EpochStart       is remembered, EPOCHS_MAX a group

Publications add their producers' runs and marks, and move the retained position of their topic.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Final, NamedTuple, Protocol, TypeAlias, TypeVar

from lexicast.cluster.errors import PeerError
from lexicast.cluster.records import (
    ControlRecord,
    DictionaryStored,
    EpochStart,
    ProducerSeen,
    Released,
    SessionEnded,
    SessionMoved,
    SessionSaved,
    Subscribed,
    Unsubscribed,
    pack_record,
    unpack_record,
)
from lexicast.cluster.topics.names import is_wildcard

from ..file.keys import group_prefix, log_key, name_key
from ..file.sealing import DamageError, unpacked, unpacked_head
from ..file.table import AnyTransaction, WriteTransaction
from ..log.block_outline import CLEARED, Outline, RetainedRow
from . import producers
from .databases import Databases
from .sessions import SessionTable
from .superseded_records import supersede
from .topics import TopicIds, find_topic, id_key, wildcard_id

# Epoch starts remembered a group: a joiner looks for the last common one, far fewer back.
EPOCHS_MAX: Final = 1_024

R = TypeVar("R", bound=ControlRecord)

_U64: Final = struct.Struct(">Q")
_POSITION: Final = struct.Struct("<QQ")
_MARK: Final = struct.Struct("<Qq")
# In the place of a packet id, which is never 0: the row has the session's generation in place of an offset.
GENERATION_ID: Final = 0
_EPOCH: Final = struct.Struct("<Qq")  # the last offset before it may be -1: none


class Epoch(NamedTuple):
    """The start of an epoch: its first offset, and the last one of the epoch before."""

    epoch: int
    first: int
    previous_last: int


class Retained(NamedTuple):
    """Where a topic's retained publication lies, and when it expires (0 = never)."""

    offset: int
    expires_us: int


class SubscriptionIndex(Protocol):
    """Where subscriptions stand a second time, beside the publications of their topics: DualDB, in a coordinator."""

    def put(self, txn: WriteTransaction, topic_id: int, offset: int, record: Subscribed) -> None:
        """Enter a subscription under the id of its topic."""
        ...

    def delete(self, txn: WriteTransaction, topic_id: int, offset: int) -> None:
        """Take it out again."""
        ...


# The producers' rows that a transaction changes, by key: each is read once, and written at its end.
ProducerRows: TypeAlias = dict[bytes, bytes]


class State:
    """Applies control records and publications' meta to the tables, and reads them."""

    def __init__(self, databases: Databases, ids: TopicIds, index: SubscriptionIndex) -> None:
        self._databases = databases
        self._ids = ids
        self._index = index
        self.sessions = SessionTable(databases)

    def apply(self, txn: WriteTransaction, outlines: Iterable[Outline]) -> None:
        """Apply blocks, in order. The caller appends them to the log in the same transaction."""
        rows: ProducerRows = {}
        for outline in outlines:
            self._apply_block(txn, outline, rows)
        for key, row in rows.items():
            self._databases.producers.put(txn, key, row)

    def _apply_block(self, txn: WriteTransaction, outline: Outline, rows: ProducerRows) -> None:
        block = outline.block
        for at, record in enumerate(outline.control):
            self._apply_control(txn, block.group, block.first + at, block.time_us, record, rows)
        for producer in outline.producers:
            if producer.producer:
                key = self._producer_key(block.group, producer.producer)
                rows[key] = producers.extended(self._producer_row(txn, key, rows), producer, block.time_us)
        generations: dict[bytes, int] = {}
        for mark in outline.marks:
            key = self._mark_key(block.group, mark.session_uid, mark.packet_id)
            self._databases.marks.put(txn, key, _MARK.pack(mark.offset, block.time_us))
            generations[mark.session_uid] = max(mark.generation, generations.get(mark.session_uid, 0))
        for session_uid, generation in generations.items():
            self._see_generation(txn, block.group, block.time_us, session_uid, generation)
        for retained in outline.retained:
            self._apply_retained(txn, block.group, block.last, retained)

    def _producer_row(self, txn: WriteTransaction, key: bytes, rows: ProducerRows) -> bytes | None:
        """A producer's row as the blocks before have left it."""
        row = rows.get(key)
        return self._databases.producers.get(txn, key) if row is None else row

    def _apply_control(
        self, txn: WriteTransaction, group: int, offset: int, time_us: int, record: ControlRecord, rows: ProducerRows
    ) -> None:
        match record:
            case SessionSaved():
                self.sessions.save(txn, group, offset, record)
            case SessionMoved():
                self.sessions.move(txn, group, offset, record)
            case SessionEnded():
                self.sessions.end(txn, group, offset, record)
            case Subscribed():
                self._subscribe(txn, group, offset, record)
            case Unsubscribed():
                self._unsubscribe(txn, group, offset, record.broker, record.filter)
                supersede(self._databases, txn, group, (offset,))
            case Released():
                for packet_id in record.packet_ids:
                    self._databases.marks.delete(txn, self._mark_key(group, record.session_uid, packet_id))
                self._see_generation(txn, group, time_us, record.session_uid, record.generation)
            case DictionaryStored():
                key = group_prefix(group) + _U64.pack(record.dictionary)
                self._databases.dictionaries.put(txn, key, pack_record(record))
            case ProducerSeen():
                key = self._producer_key(group, record.producer)
                row = self._producer_row(txn, key, rows)
                rows[key] = producers.restated(row, record.incarnation, record.sequence, time_us)
            case EpochStart():
                self._start_epoch(txn, group, offset, record)

    # subscriptions

    def _subscribe(self, txn: WriteTransaction, group: int, offset: int, record: Subscribed) -> None:
        if not self._unsubscribe(txn, group, offset, record.broker, record.filter):
            return
        filter = record.filter.encode()
        topic_id = wildcard_id(group) if is_wildcard(filter) else self._ids.resolve(txn, group, filter)
        key = self._subscription_key(group, record.broker, record.filter)
        self._databases.subscriptions.put(txn, key, _U64.pack(offset) + pack_record(record))
        self._index.put(txn, topic_id, offset, record)

    def _unsubscribe(self, txn: WriteTransaction, group: int, at: int, broker: str, filter: str) -> bool:
        """Forget a subscription before offset `at`; False when the one that is known is from there or later."""
        key = self._subscription_key(group, broker, filter)
        row = self._databases.subscriptions.get(txn, key)
        if row is None:
            return True
        (offset,) = unpacked_head(_U64, row, "subscriptions")
        if offset >= at:
            if offset > at:
                supersede(self._databases, txn, group, (at,))
            return False  # it was installed when it had followed from this record already
        self._databases.subscriptions.delete(txn, key)
        name = filter.encode()
        topic_id = wildcard_id(group) if is_wildcard(name) else self._ids.resolve(txn, group, name)
        self._index.delete(txn, topic_id, offset)
        supersede(self._databases, txn, group, (offset,))
        return True

    def index_subscription(self, txn: WriteTransaction, group: int, row: bytes) -> None:
        """Enter a row of the subscriptions table into the index. Raises DamageError."""
        record, offset = parse_subscription_row(row)
        self._index.put(txn, self._topic_id(txn, group, record), offset, record)

    def forget_subscription(self, txn: WriteTransaction, group: int, row: bytes) -> None:
        """Take a row of the subscriptions table out of the index. Raises DamageError."""
        record, offset = parse_subscription_row(row)
        self._index.delete(txn, self._topic_id(txn, group, record), offset)

    def _topic_id(self, txn: WriteTransaction, group: int, record: Subscribed) -> int:
        name = record.filter.encode()
        return wildcard_id(group) if is_wildcard(name) else self._ids.resolve(txn, group, name)

    def subscription(self, txn: AnyTransaction, group: int, broker: str, filter: str) -> Subscribed | None:
        """A broker's subscription to a filter."""
        row = self._databases.subscriptions.get(txn, self._subscription_key(group, broker, filter))
        return None if row is None else parse_subscription_row(row)[0]

    @staticmethod
    def _subscription_key(group: int, broker: str, filter: str) -> bytes:
        return group_prefix(group) + name_key(f"{broker}\0{filter}".encode())

    # producers and marks

    @staticmethod
    def _producer_key(group: int, producer: bytes) -> bytes:
        return group_prefix(group) + name_key(producer)

    @staticmethod
    def _mark_key(group: int, session_uid: bytes, packet_id: int) -> bytes:
        return group_prefix(group) + name_key(session_uid) + packet_id.to_bytes(2, "big")

    def producer(self, txn: AnyTransaction, group: int, producer: bytes) -> producers.ProducerState | None:
        """What the group remembers of a producer."""
        row = self._databases.producers.get(txn, self._producer_key(group, producer))
        return None if row is None else producers.parse_producer_row(producer, row)

    def _see_generation(
        self, txn: WriteTransaction, group: int, time_us: int, session_uid: bytes, generation: int
    ) -> None:
        if generation > self.generation(txn, group, session_uid):
            key = self._mark_key(group, session_uid, GENERATION_ID)
            self._databases.marks.put(txn, key, _MARK.pack(generation, time_us))

    def generation(self, txn: AnyTransaction, group: int, session_uid: bytes) -> int:
        """The newest generation of a session of which the group has a QoS 2 publication or a release; 0: none is
        known."""
        return self.mark(txn, group, session_uid, GENERATION_ID) or 0

    def mark(self, txn: AnyTransaction, group: int, session_uid: bytes, packet_id: int) -> int | None:
        """The offset of a QoS 2 publication not yet released."""
        row = self._databases.marks.get(txn, self._mark_key(group, session_uid, packet_id))
        return None if row is None else parse_mark_row(row)[0]

    # retained publications

    def _apply_retained(self, txn: WriteTransaction, group: int, last: int, row: RetainedRow) -> None:
        key = id_key(self._ids.resolve(txn, group, row.topic))
        before = self._databases.retained.get(txn, key)
        if before is not None:
            known = parse_retained_row(before).offset
            if known > last:
                return  # it was installed
            if known != row.offset:
                txn.delete(log_key(group, known), db=self._databases.kept)
        if row.offset == CLEARED:
            self._databases.retained.delete(txn, key)
        else:
            self._databases.retained.put(txn, key, pack_retained_row(row.offset, row.expires_us))

    def retained(self, txn: AnyTransaction, topic: bytes) -> Retained | None:
        """Where the retained publication of a topic lies."""
        topic_id = find_topic(self._databases, txn, topic)
        row = None if topic_id is None else self._databases.retained.get(txn, id_key(topic_id))
        return None if row is None else parse_retained_row(row)

    # dictionaries and epochs

    def dictionary(self, txn: AnyTransaction, group: int, dictionary: int) -> DictionaryStored | None:
        """A dictionary that records of the group may refer to."""
        row = self._databases.dictionaries.get(txn, group_prefix(group) + _U64.pack(dictionary))
        return None if row is None else parse_dictionary_row(row)

    def _start_epoch(self, txn: WriteTransaction, group: int, offset: int, record: EpochStart) -> None:
        table, prefix = self._databases.epochs, group_prefix(group)
        table.put(txn, prefix + _U64.pack(record.epoch), _EPOCH.pack(offset, record.previous_last))
        known = table.rows(txn, prefix, None, EPOCHS_MAX + 1)
        if len(known) > EPOCHS_MAX:
            table.delete(txn, known[0][0])

    def epochs(self, txn: AnyTransaction, group: int) -> list[Epoch]:
        """The group's last EPOCHS_MAX epoch starts, oldest first."""
        rows = self._databases.epochs.rows(txn, group_prefix(group), None, EPOCHS_MAX + 1)
        return [parse_epoch_row(key, row) for key, row in rows]


def _record(table: str, row: bytes, kind: type[R]) -> R:
    """The record in a row. Raises DamageError when there is none, or another one."""
    try:
        record = unpack_record(row)
    except PeerError as error:
        raise DamageError(table, -1, -1, str(error)) from None
    if not isinstance(record, kind):
        raise DamageError(table, -1, -1, f"a {type(record).__name__} where a {kind.__name__} was expected")
    return record


# What follows raises DamageError: a row may have its right checksum and yet another form than this lexicast writes.


def parse_epoch_row(key: bytes, row: bytes) -> Epoch:
    """A row of the epochs table."""
    return Epoch(unpacked(_U64, key[2:], "epochs")[0], *unpacked(_EPOCH, row, "epochs"))


def parse_dictionary_row(row: bytes) -> DictionaryStored:
    """A row of the dictionaries table."""
    return _record("dictionaries", row, DictionaryStored)


def parse_subscription_row(row: bytes) -> tuple[Subscribed, int]:
    """A row of the subscriptions table: the record and its offset, the cut."""
    offset = unpacked_head(_U64, row, "subscriptions")[0]
    return _record("subscriptions", row[_U64.size :], Subscribed), offset


def parse_mark_row(row: bytes) -> tuple[int, int]:
    """A row of the marks table: (offset, or a session's generation, time_us)."""
    offset, time_us = unpacked(_MARK, row, "marks")
    return offset, time_us


def is_generation_key(key: bytes) -> bool:
    """Whether a row of the marks table is a session's generation."""
    return int.from_bytes(key[-2:], "big") == GENERATION_ID


def parse_retained_row(row: bytes) -> Retained:
    """A row of the retained table."""
    return Retained(*unpacked(_POSITION, row, "retained"))


def pack_retained_row(offset: int, expires_us: int) -> bytes:
    """The inverse of `parse_retained_row`."""
    return _POSITION.pack(offset, expires_us)
