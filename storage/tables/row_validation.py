"""The validation of rows: whether they have the form of their table. For whoever reads them (`table`), for check, which
names those of another form, and for repair, which drops them.

Also which of two rows under one key is the newer: positions and generations only ascend.

A row with its right checksum has the form that some lexicast gave it; where that is not ours, nothing must be read
into it.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final

from ..file.sealing import DamageError, unpacked, unpacked_head
from ..file.table import Form
from .counted import parse_counted
from .groups import parse_group_row as group_of_row
from .producers import check_producer_row
from .producers import parse_producer_row as producer_of_row
from .promises import parse_promise
from .sessions import parse_session_row, session_of
from .state import parse_dictionary_row, parse_epoch_row, parse_mark_row, parse_retained_row, parse_subscription_row
from .topics import topic_id_of

_GROUP: Final = struct.Struct(">H")
_MARK_KEY_BYTES_MIN: Final = 5
_DUE: Final = struct.Struct(">Q")


def _groups(key: bytes, row: bytes) -> None:
    unpacked(_GROUP, key, "groups")
    group_of_row(row)


def _marks(key: bytes, row: bytes) -> None:
    if len(key) < _MARK_KEY_BYTES_MIN:
        raise DamageError("marks", -1, -1, f"the key {key!r} is too short")
    parse_mark_row(row)


def _retained(key: bytes, row: bytes) -> None:
    topic_id_of(key, "retained")
    parse_retained_row(row)


_FORMS: Final[dict[str, Form]] = {
    "groups": _groups,
    "names": lambda key, row: topic_id_of(key, "names"),
    "ids": lambda key, row: topic_id_of(row, "ids"),
    "sessions": lambda key, row: parse_session_row(row),
    "session_due": lambda key, row: unpacked_head(_DUE, key, "session_due"),
    "subscriptions": lambda key, row: parse_subscription_row(row),
    "producers": lambda key, row: check_producer_row(row),
    "marks": _marks,
    "retained": _retained,
    "dictionaries": lambda key, row: parse_dictionary_row(row),
    "epochs": parse_epoch_row,
    "promises": parse_promise,
    "counted": parse_counted,
}


def form_of(table: str) -> Form:
    """What raises DamageError when a row, its checksum taken off, or its key is not of the form of `table`."""
    return _FORMS[table]


_AGES: Final[dict[str, Callable[[bytes], tuple[int, ...]]]] = {
    "groups": lambda row: group_of_row(row)[:2],
    "promises": lambda row: parse_promise(b"\0\0", row),
    "counted": lambda row: parse_counted(b"\0\0", row)[:1],
    "sessions": lambda row: (session_of(row).generation, *parse_session_row(row)[:3]),
    "subscriptions": lambda row: (parse_subscription_row(row)[1],),
    "producers": lambda row: producer_of_row(b"", row)[1:3],
    "marks": parse_mark_row,
    "retained": lambda row: (parse_retained_row(row).offset,),
}


def is_newer(table: str, row: bytes, than: bytes) -> bool:
    """Of two rows of a table under one key, both with their checksums taken off. Raises DamageError."""
    age = _AGES.get(table)
    return age is not None and age(row) > age(than)


def check_row(table: str, key: bytes, row: bytes) -> None:
    """Raise DamageError when a row is not of the form of `table`; any row is good where a table is none of these."""
    if table in _FORMS:
        _FORMS[table](key, row)
