"""The subscriptions in the index: each beside the publications of its topic, under the offset of its cut."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from lexicast.cluster.records import Subscribed

from ..file.sealing import DamageError, seal, unpacked, unpacked_head, unseal
from ..file.table import AnyTransaction, Database, WriteTransaction

_KIND: Final = b"S"
_TIMES = struct.Struct("<qq")
_KEY = struct.Struct(">QcQ")


class IndexedSubscription(NamedTuple):
    """A subscription beside the publications of its ID: [T_min, T_max] and who asks."""

    offset: int
    time_min_us: int
    time_max_us: int
    broker: str


class IndexSubscriptions:
    """Those of one index; `damaged` is told of a row that cannot be believed."""

    def __init__(self, database: Database, damaged: Callable[[DamageError], None]) -> None:
        self._database = database
        self._damaged = damaged

    def put(self, txn: WriteTransaction, topic_id: int, offset: int, record: Subscribed) -> None:
        """Enter a subscription beside the publications of its ID."""
        key = _KEY.pack(topic_id, _KIND, offset)
        data = _TIMES.pack(record.time_min_us, record.time_max_us) + record.broker.encode()
        txn.put(key, seal("dual", key, data), db=self._database)

    def delete(self, txn: WriteTransaction, topic_id: int, offset: int) -> None:
        """Take a subscription out."""
        txn.delete(_KEY.pack(topic_id, _KIND, offset), db=self._database)

    def of(self, txn: AnyTransaction, topic_id: int) -> Iterator[IndexedSubscription]:
        """The subscriptions of an ID, by cut."""
        prefix = topic_id.to_bytes(8, "big") + _KIND
        with txn.cursor(self._database) as cursor:
            there = cursor.set_range(prefix)
            while there and bytes(cursor.key()).startswith(prefix):
                try:
                    found = _parsed(bytes(cursor.key()), cursor.value())
                except DamageError as error:
                    self._damaged(error)
                else:
                    yield found
                there = cursor.next()


def _parsed(key: bytes, value: bytes | memoryview) -> IndexedSubscription:
    data = unseal("dual", key, value)
    time_min_us, time_max_us = unpacked_head(_TIMES, data, "dual")
    broker = data[_TIMES.size :].decode(errors="replace")
    return IndexedSubscription(unpacked(_KEY, key, "dual")[2], time_min_us, time_max_us, broker)


def parse_subscription_key(key: bytes) -> tuple[int, int]:
    """(topic id, offset of the cut) of a subscription's key. Raises ValueError for another one."""
    if len(key) != _KEY.size or key[8:9] != _KIND:
        raise ValueError("this is no key of the index")
    topic_id, _, offset = _KEY.unpack(key)
    return topic_id, offset
