"""Numeric topic ids: names lie in one table, ids everywhere else (LMDB keys end at 511 bytes, topics at 65,535).

An id is (group, number within the group), so that a group's topics lie together; number 0 stands for the wildcard
filters of the group. Ids are never given twice: stale index rows of a forgotten topic cannot come back to life.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final

from ..file.keys import key_name, name_key
from ..file.sealing import unpacked
from ..file.table import AnyTransaction, WriteTransaction
from .databases import Databases

GROUP_SHIFT: Final = 48
ID_BYTES: Final = 8
_ID: Final = struct.Struct(">Q")


def wildcard_id(group: int) -> int:
    """The id under which wildcard filters of `group` stand in the index."""
    return group << GROUP_SHIFT


def id_key(topic_id: int) -> bytes:
    """`topic_id` as a key."""
    return topic_id.to_bytes(ID_BYTES, "big")


def topic_id_of(data: bytes, table: str) -> int:
    """The topic that a key or row of `table` names. Raises DamageError when it has another length."""
    topic_id: int = unpacked(_ID, data, table)[0]
    return topic_id


def group_of(topic_id: int) -> int:
    """The group of a topic."""
    return topic_id >> GROUP_SHIFT


def find_topic(databases: Databases, txn: AnyTransaction, topic: bytes) -> int | None:
    """The id of `topic`, or None when no record names it. Where its row is damaged, the names tell."""
    key = name_key(topic)
    row = databases.ids.get(txn, key)
    if row is not None:
        return topic_id_of(row, "ids")
    return _named(databases, txn, topic) if databases.ids.damaged(txn, key) else None


def _named(databases: Databases, txn: AnyTransaction, topic: bytes) -> int | None:
    """The id that the table of names gives `topic`: looked for in all of it, which only damage asks for."""
    after: bytes | None = None
    while rows := databases.names.rows(txn, b"", after):
        for key, name in rows:
            if name == topic:
                return topic_id_of(key, "names")
        after = rows[-1][0]
    return None


class TopicIds:
    """Names to ids, for the writer: a bounded cache before the table, and what the open transaction has added."""

    def __init__(self, databases: Databases, begin: Callable[[], WriteTransaction], cache_max: int) -> None:
        """`begin` begins a write transaction of the store's."""
        self._databases = databases
        self._begin = begin
        self._cache: dict[bytes, int] = {}
        self._cache_max = cache_max
        self._next: dict[int, int] = {}
        self._added: dict[bytes, int] = {}
        self._next_added: dict[int, int] = {}

    def number_from(self, next_numbers: dict[int, int]) -> None:
        """The next number of each group, as opening has found them."""
        self._next = next_numbers

    @property
    def known(self) -> Callable[[bytes], int]:
        """The id of a topic that is remembered; KeyError for another one."""
        return self._cache.__getitem__

    def resolve(self, txn: WriteTransaction, group: int, topic: bytes) -> int:
        """The id of `topic`; a new one when it has none."""
        known = self._cache.get(topic) or self._added.get(topic)
        if known is not None:
            return known
        found = find_topic(self._databases, txn, topic)
        if found is None:
            found = self._create(txn, group, topic)
            self._added[topic] = found
        else:
            self._remember(topic, found)
        return found

    def _create(self, txn: WriteTransaction, group: int, topic: bytes) -> int:
        number = self.next_number(group)
        self._next_added[group] = number + 1
        topic_id = (group << GROUP_SHIFT) + number
        key = id_key(topic_id)
        self._databases.ids.put(txn, name_key(topic), key)
        self._databases.names.put(txn, key, topic)
        return topic_id

    def forget(self, txn: WriteTransaction, topic_id: int) -> None:
        """Delete a topic that nothing refers to any more."""
        key = id_key(topic_id)
        topic = self._databases.names.get(txn, key)
        if topic is not None:
            self._databases.names.delete(txn, key)
            self._databases.ids.delete(txn, name_key(topic))
            self._cache.pop(topic, None)
            self._added.pop(topic, None)

    def mend(self) -> None:
        """Make damaged rows of names and ids anew from each other. (A name too long for a key is in its row alone.)"""
        names, ids = self._databases.names, self._databases.ids
        for table in (names, ids):
            after: bytes | None = None
            while True:
                with self._begin() as txn:
                    rows = table.rows(txn, b"", after)
                    for key, row in rows:
                        if table is names and ids.get(txn, name_key(row)) is None:
                            ids.put(txn, name_key(row), key)
                        elif table is ids and (name := key_name(key)) is not None and names.get(txn, row) is None:
                            names.put(txn, row, name)
                if not rows:
                    break
                after = rows[-1][0]

    def name_again(self, txn: WriteTransaction, topic_id: int, topic: bytes) -> None:
        """Make the rows of a topic anew that has lost both, unless it has got another id since."""
        if find_topic(self._databases, txn, topic) is None:
            key = id_key(topic_id)
            self._databases.ids.put(txn, name_key(topic), key)
            self._databases.names.put(txn, key, topic)

    def numbered(self) -> dict[int, int]:
        """The next number of each group in which the open transaction has named topics: to be stored with it."""
        return self._next_added

    def next_number(self, group: int) -> int:
        """The next topic number of a group."""
        return self._next_added.get(group) or self._next.get(group, 1)

    def committed(self) -> None:
        """The transaction is durable: what it added may be remembered."""
        for topic, topic_id in self._added.items():
            self._remember(topic, topic_id)
        self._next.update(self._next_added)
        self.aborted()

    def aborted(self) -> None:
        """The transaction is gone, and the topics it added with it."""
        self._added = {}
        self._next_added = {}

    def _remember(self, topic: bytes, topic_id: int) -> None:
        if len(self._cache) >= self._cache_max:
            del self._cache[next(iter(self._cache))]
        self._cache[topic] = topic_id
