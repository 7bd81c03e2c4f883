"""The topics of one level, out of the table of ids: what is below a name is passed over, however much that is.

Names such as `a-b` lie between `a` and `a/b`, so a name that is a topic and has topics below it comes twice: as `a`,
and as `a/`. Names that are too long for a key lie by digest, and are not among these.
"""

from __future__ import annotations

from ..file.keys import key_name
from ..file.table import AnyTransaction
from .databases import Databases

SEPARATOR = b"/"
# What follows the separator of levels.
_BEYOND_LEVEL = b"0"
# More than a name in a key has; LMDB's keys end at 511.
_PLACE_BYTES_MAX = 500


def topic_level(
    databases: Databases, txn: AnyTransaction, prefix: bytes, start: bytes, most: int
) -> list[tuple[bytes, bool]]:
    """(name, whether it stands for all below it) of what begins with `prefix`, a level's end or nothing, from `start`
    (`beyond` of the last one; b"": the first) on, in the order of names: `most` at the most, a look each."""
    found: list[tuple[bytes, bool]] = []
    with txn.cursor(databases.ids.database) as cursor:
        there = cursor.set_range(_place(max(prefix, start)))
        while there and len(found) < most:
            name = key_name(bytes(cursor.key()))
            if name is None or not name.startswith(prefix):
                break
            end = name.find(SEPARATOR, len(prefix))
            if end < 0:
                found.append((name, False))
                there = cursor.next()
            else:
                below = name[: end + 1], True
                found.append(below)
                there = cursor.set_range(_place(beyond(*below)))
    return found


def _place(start: bytes) -> bytes:
    """The key from which on names are that begin there or later. No key is as long as LMDB's longest."""
    return b"\0" + start[:_PLACE_BYTES_MAX]


def beyond(name: bytes, stands_for_all: bool) -> bytes:
    """Where the next one of a level begins."""
    return name[:-1] + _BEYOND_LEVEL if stands_for_all else name + b"\0"
