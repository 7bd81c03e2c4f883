"""The table of superseded records: control records that count no more, for `compaction` to take out of the log."""

from __future__ import annotations

from collections.abc import Iterable

from ..file.keys import log_key
from ..file.sealing import seal
from ..file.table import WriteTransaction
from .databases import Databases


def supersede(databases: Databases, txn: WriteTransaction, group: int, offsets: Iterable[int]) -> None:
    """Later records have replaced those at `offsets`; what ends something names itself, too: it leaves after them."""
    for offset in offsets:
        key = log_key(group, offset)
        txn.put(key, seal("superseded", key, b""), db=databases.superseded)
