"""What rows of the tables look like: for check, which names those of another form, and repair, which drops them.

A row with its right checksum has the form that some lexicast gave it; where that is not ours, nothing must be read
into it.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final

from .format import DamageError, unpacked, unpacked_head
from .groups import unpack as group_of_row
from .producers import parse as producer_of_row
from .state import dictionary_of, epoch_of, mark_fields, retained_fields, session_of, subscription_of
from .topics import topic_id_of

_GROUP: Final = struct.Struct(">H")
_MARK_KEY_BYTES_MIN: Final = 5
_EXPIRY: Final = struct.Struct(">Q")

_ROWS: Final[dict[str, Callable[[bytes], object]]] = {
    "groups": group_of_row,
    "ids": lambda row: topic_id_of(row, "ids"),
    "sessions": session_of,
    "subscriptions": subscription_of,
    "producers": lambda row: producer_of_row(b"", row),
    "marks": mark_fields,
    "retained": retained_fields,
    "dictionaries": dictionary_of,
}


def look_at_form(table: str, key: bytes, row: bytes) -> None:
    """Raise DamageError when a row, its checksum taken off, or its key is not of the form of its table."""
    if table in ("names", "retained"):
        topic_id_of(key, table)
    elif table == "groups":
        unpacked(_GROUP, key, table)
    elif table == "session_expiry":
        unpacked_head(_EXPIRY, key, table)
    elif table == "epochs":
        epoch_of(key, row)
    elif table == "marks" and len(key) < _MARK_KEY_BYTES_MIN:
        raise DamageError(table, -1, -1, f"the key {key!r} is too short")
    if table in _ROWS:
        _ROWS[table](row)
