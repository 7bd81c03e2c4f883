"""The references between a repaired store's rows, set right: names, positions, what is retained, when what expires.

Nothing here invents a record. Rows that refer to what is lost go; rows that follow from others are made again:

    ids, names        of a topic's two rows one suffices; where both are lost, a retained record says its topic
    retained          a row whose record is lost, or is another topic's, goes; lost rows are made again from the log
    kept              a record that is no topic's retained one goes
    session_due       made again from the sessions
    groups            never behind any position, epoch or topic id that is found anywhere: none is given out twice
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from lexicast.cluster.blocks import Block

from ..file.keys import group_prefix, log_key, name_key, parse_log_key
from ..file.sealing import seal, unseal
from ..log.block_cuts import only_topic, retained_topic_at
from ..log.block_format import HAS_RETAINED, IS_KEPT, Head, block_of, encode_block, peek_head
from ..log.block_outline import CLEARED, RetainedRow, outline
from ..tables.groups import GroupRow, pack_group_row
from ..tables.groups import parse_group_row as group_of_row
from ..tables.producers import parse_producer_row as producer_of_row
from ..tables.sessions import due_key, parse_session_row, session_of
from ..tables.state import (
    is_generation_key,
    pack_retained_row,
    parse_epoch_row,
    parse_mark_row,
    parse_retained_row,
    parse_subscription_row,
)
from ..tables.topics import GROUP_SHIFT, group_of, id_key, topic_id_of, wildcard_id
from .salvage import Writer

_NUMBERS: Final = (1 << GROUP_SHIFT) - 1


@dataclass
class GroupEnd:
    """What the rows of a group say of its end: at least so far it has come."""

    epoch: int = 0
    last: int = -1
    time_us: int = 0
    next_topic: int = 1
    first: int | None = None  # of the log
    first_kept: int = 0  # retention has discarded what is before
    in_log: int = -1  # the last offset of the log
    in_tree: int = -1  # the same, as its tree had it

    def reached(self, offset: int, epoch: int = 0, time_us: int = 0) -> None:
        """A row says that this position has been given out."""
        self.last, self.epoch = max(self.last, offset), max(self.epoch, epoch)
        self.time_us = max(self.time_us, time_us)


class GroupEnds:
    """The ends of all groups."""

    def __init__(self) -> None:
        self.groups: dict[int, GroupEnd] = {}

    def of(self, group: int) -> GroupEnd:
        """The end of a group."""
        return self.groups.setdefault(group, GroupEnd())

    def block(self, head: Head, kept: bool) -> None:
        """A block has been found."""
        end = self.of(head.group)
        end.reached(head.last, head.epoch, head.time_us)
        if not kept:
            end.in_log = max(end.in_log, head.last)
            end.first = head.first if end.first is None else min(end.first, head.first)

    def settle(self) -> None:
        """What comes now is not from the trees."""
        for end in self.groups.values():
            end.in_tree = end.in_log

    def topic(self, topic_id: int) -> None:
        """An id has been found."""
        end = self.of(group_of(topic_id))
        end.next_topic = max(end.next_topic, (topic_id & _NUMBERS) + 1)

    def row(self, table: str, key: bytes, row: bytes) -> None:
        """A row has been found, its checksum taken off. Raises DamageError."""
        if table in ("names", "retained"):
            self.topic(topic_id_of(key, table))
            if table == "retained":
                self.of(int.from_bytes(key[:2], "big")).reached(parse_retained_row(row).offset)
            return
        if table == "ids":
            self.topic(topic_id_of(row, table))
            return
        end = self.of(int.from_bytes(key[:2], "big")) if table in _SAY_POSITIONS else None
        if end is None:
            return
        if table == "groups":
            found = group_of_row(row)
            end.reached(found.last, found.epoch, found.time_us)
            end.next_topic = max(end.next_topic, found.next_topic)
            end.first_kept = max(end.first_kept, found.first_kept)
        elif table == "epochs":
            epoch = parse_epoch_row(key, row)
            end.reached(epoch.first, epoch.epoch)
        elif table == "producers":
            producer = producer_of_row(b"", row)
            end.reached(max([run.offset + run.records - 1 for run in producer.runs], default=-1), 0, producer.time_us)
        elif table == "marks":
            offset, time_us = parse_mark_row(row)
            end.reached(-1 if is_generation_key(key) else offset, 0, time_us)
        elif table == "subscriptions":
            end.reached(parse_subscription_row(row)[1])
        elif table == "sessions":
            end.reached(max(parse_session_row(row)[:3]))


_SAY_POSITIONS: Final = ("groups", "epochs", "producers", "marks", "subscriptions", "sessions")


class ReferenceRepair:
    """One pass over the tables of a new file."""

    def __init__(self, writer: Writer, ends: GroupEnds) -> None:
        self._writer = writer
        self._ends = ends
        self.dangling: dict[str, int] = {}
        self.restored: dict[str, int] = {}

    def run(self, retained_lost: bool) -> None:
        """Set everything right; with `retained_lost`, rows of retained publications are made again from the log."""
        self._names()
        self._retained()
        if retained_lost:
            self._retained_again()
        self._kept()
        self._session_due()
        self._groups()

    def _row(self, table: str, key: bytes) -> bytes | None:
        value = self._writer.get(table, key)
        return None if value is None else unseal(table, key, value)

    def _put(self, table: str, key: bytes, row: bytes) -> None:
        self._writer.put(table, key, seal(table, key, row))

    def _drop(self, table: str, key: bytes) -> None:
        self._writer.delete(table, key)
        self.dangling[table] = self.dangling.get(table, 0) + 1

    def _restore(self, table: str, key: bytes, row: bytes) -> None:
        self._put(table, key, row)
        self.restored[table] = self.restored.get(table, 0) + 1

    # topics

    def _names(self) -> None:
        """Give each topic the one of its two rows that it has lost; of two ids of a topic the newer one goes."""
        for key, value in self._writer.rows("names"):
            name = unseal("names", key, value)
            known = self._row("ids", name_key(name))
            if known is None:
                self._restore("ids", name_key(name), key)
            elif known != key:
                self._drop("names", key)
        for key, value in self._writer.rows("ids"):
            topic_id = unseal("ids", key, value)
            said = self._row("names", topic_id)
            if said is None and key[:1] == b"\0":
                self._restore("names", topic_id, key[1:])
            elif said is None or name_key(said) != key:
                self._drop("ids", key)  # of a long name only a digest, or an id that was given out twice

    def _id_of(self, group: int, topic: bytes) -> bytes:
        """The id of a topic; a new one where both of its rows are lost."""
        known = self._row("ids", name_key(topic))
        if known is None:
            end = self._ends.of(group)
            known = id_key(wildcard_id(group) + end.next_topic)
            end.next_topic += 1
            self._restore("ids", name_key(topic), known)
            self._restore("names", known, topic)
        return known

    # retained publications

    def _retained_topic(self, group: int, offset: int) -> bytes | None:
        """The topic of the retained publication at a position; None where there is none."""
        value = self._writer.get("kept", log_key(group, offset))
        if value is not None:
            return retained_topic_at(value, peek_head(value, group, offset), offset)
        with self._writer.txn.cursor(self._writer.databases["log"]) as cursor:
            if not cursor.set_range(log_key(group, offset)):
                return None
            found, last = parse_log_key(cursor.key())
            value = cursor.value()
            return retained_topic_at(value, peek_head(value, group, last), offset) if found == group else None

    def _retained(self) -> None:
        for key, value in self._writer.rows("retained"):
            row = unseal("retained", key, value)
            group, offset = int.from_bytes(key[:2], "big"), parse_retained_row(row).offset
            topic = self._retained_topic(group, offset)
            if topic is None:
                self._drop("retained", key)
                continue
            said = self._row("names", key)
            if said is None and self._row("ids", name_key(topic)) is None:
                self._restore("names", key, topic)
                self._restore("ids", name_key(topic), key)
            elif said != topic:
                # An id that was given out twice: the record says whose it is.
                self._writer.delete("retained", key)
                self._retain(group, topic, row)

    def _retain(self, group: int, topic: bytes, row: bytes) -> None:
        """This publication is the topic's retained one, unless a later one is."""
        key = self._id_of(group, topic)
        known = self._row("retained", key)
        if known is None or parse_retained_row(known).offset < parse_retained_row(row).offset:
            self._restore("retained", key, row)

    def _retained_again(self) -> None:
        for table in ("kept", "log"):
            for key, value in self._writer.rows(table):
                head = peek_head(value, *parse_log_key(key, table))
                if head.flags & HAS_RETAINED:
                    for found in outline(block_of(value, head)).retained:
                        self._replay(head, found)

    def _replay(self, head: Head, found: RetainedRow) -> None:
        if found.offset != CLEARED:
            self._retain(head.group, found.topic, pack_retained_row(found.offset, found.expires_us))
            return
        key = self._row("ids", name_key(found.topic))
        row = None if key is None else self._row("retained", key)
        if key is not None and row is not None and parse_retained_row(row).offset <= head.last:
            self._writer.delete("retained", key)

    def _kept(self) -> None:
        for key, value in self._writer.rows("kept"):
            group, offset = parse_log_key(key, "kept")
            block = block_of(value, peek_head(value, group, offset))
            topic_id = self._row("ids", name_key(only_topic(block)))
            row = None if topic_id is None else self._row("retained", topic_id)
            if row is None or parse_retained_row(row).offset != offset:
                self._drop("kept", key)

    # sessions and groups

    def _session_due(self) -> None:
        for key, value in self._writer.rows("sessions"):
            due = due_key(key, session_of(unseal("sessions", key, value)))
            if due is not None:
                self._put("session_due", due, b"")

    def _groups(self) -> None:
        """Every group's row, at its end; the index's watermark is set back, so that all of the log is entered again."""
        for group, end in self._ends.groups.items():
            stored = self._row("groups", group_prefix(group))
            kept = group_of_row(stored).first_kept if stored is not None else end.first
            row = GroupRow(
                end.epoch, max(end.last, 0), end.time_us, end.last + 1 if kept is None else kept, 0, 0, end.next_topic
            )
            self._put("groups", group_prefix(group), pack_group_row(row))


def as_kept(block: Block) -> bytes:
    """A block of one record as it lies in `kept`. Raises UsageError."""
    found = outline(block)
    return encode_block(block, found.flags | IS_KEPT, found.expire_first_us, found.expire_all_us)
