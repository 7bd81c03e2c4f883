"""What conditions ask of publications, as it travels beside them to matchers: no payload, no dictionary to read one.

A broker that takes publications has them decoded, or can decode them; who matches them gets the values alone. A row is
[topic, flags, values, user properties], each value that of one of the payload's own fields, or nothing but [topic]
where a record cannot be told in a row: whoever is asked about it has to take it for one that every condition may hold
of. Of what is no text, number or truth, only what it may have been asked for is kept: a map has the fields that names
lead to, and everything else is an empty map, which no comparison holds of, and which is not NULL.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, TypeAlias

import msgpack

from ..blocks import QOS_MASK, RETAIN
from ..errors import PeerError, UsageError
from ..properties import USER_PROPERTY
from .content_record import ContentRecord
from .nodes import Name, Source
from .parser import parse_name

# Names of one set of rows: more are not asked for, and who needs them is not vouched for.
NAMES_MAX: Final = 64
# A record with a longer text is not told in a row.
TEXT_CHARACTERS_MAX: Final = 1_024
_LAYOUTS_KEPT: Final = 256

# Of a payload's field the fields within that are asked for, and so on; None where it is asked for itself alone.
Within: TypeAlias = "dict[str, Within] | None"


class _Layout:
    """Names as columns."""

    __slots__ = ("fields", "properties", "within")

    def __init__(self, names: Iterable[Name]) -> None:
        self.within: dict[str, Any] = {}
        properties = set()
        for name in names:
            if name.source is Source.PROPERTIES:
                properties.add(name.path[0])
            elif name.source is Source.PAYLOAD:
                at = self.within
                for part in name.path[:-1]:
                    at[part] = at.get(part) or {}
                    at = at[part]
                at.setdefault(name.path[-1], None)
        self.fields = tuple(sorted(self.within))
        self.properties = tuple(sorted(properties))


@lru_cache(_LAYOUTS_KEPT)
def _layout(names: tuple[str, ...]) -> _Layout:
    return _Layout([parse_name(name) for name in names])


def pack_rows(records: Sequence[ContentRecord], names: tuple[str, ...]) -> bytes:
    """The rows of records, whose reader knows the `names` (canonical texts), NAMES_MAX at most. Raises UsageError."""
    layout = _layout(names)
    topics: dict[bytes, int] = {}
    numbers = [topics.setdefault(record.topic, len(topics)) for record in records]
    rows = [_row(record, layout, topic) for record, topic in zip(records, numbers, strict=True)]
    try:
        packed: bytes = msgpack.packb((names, tuple(topics), rows))
    except (ValueError, OverflowError, UnicodeEncodeError):  # a number beyond 64 bits somewhere
        packed = msgpack.packb((names, tuple(topics), [_packable(row) for row in rows]))
    return packed


def _row(record: ContentRecord, layout: _Layout, topic: int) -> list[Any]:
    fields = record.fields()
    values = []
    for field in layout.fields:
        value = fields.get(field)
        kind = type(value)
        if kind is str:
            if len(value) > TEXT_CHARACTERS_MAX:  # type: ignore[arg-type]  # a str, by its type
                return [topic]
        elif not (value is None or kind is float or kind is int or kind is bool):
            value = _pruned(value, layout.within[field])
        values.append(value)
    flags = record.qos | (RETAIN if record.retain else 0)
    return [topic, flags, values, [record.user_property(name) for name in layout.properties]]


def _pruned(value: Any, within: Within) -> Any:
    kind = type(value)
    if value is None or kind is str or kind is float or kind is int or kind is bool:
        return value
    if kind is dict and within:
        return {name: _pruned(value[name], further) for name, further in within.items() if name in value}
    return {}


def _packable(row: list[Any]) -> list[Any]:
    try:
        msgpack.packb(row)
    except (ValueError, OverflowError, UnicodeEncodeError):
        return row[:1]
    return row


class EventRows:
    """Rows that have come. `topics` of the records by number, `names`: what is known of them; `records`: None where one
    could not be told.

    Raises PeerError: they are none.
    """

    __slots__ = ("names", "records", "topics")

    def __init__(self, packed: bytes, time_us: int) -> None:
        try:
            names, topics, rows = msgpack.unpackb(packed, use_list=False, strict_map_key=False)
            layout = _layout(names)
            self.names: frozenset[str] = frozenset(names)
            self.topics = [_bytes(topics[row[0]]) for row in rows]
            self.records = [
                None if len(row) == 1 else _record(topic, row, layout, time_us)
                for topic, row in zip(self.topics, rows, strict=True)
            ]
        except (ValueError, TypeError, IndexError, UsageError, msgpack.UnpackException) as error:
            raise PeerError(f"not rows of publications: {error}") from None


def _bytes(value: Any) -> bytes:
    if type(value) is not bytes:
        raise TypeError("a topic is bytes")
    return value


def _record(topic: bytes, row: tuple[Any, ...], layout: _Layout, time_us: int) -> ContentRecord:
    _, flags, values, properties = row
    fields: Mapping[str, object] = dict(zip(layout.fields, values, strict=True))
    pairs = [(name, value) for name, value in zip(layout.properties, properties, strict=True) if value is not None]
    more = {USER_PROPERTY: pairs} if pairs else None
    return ContentRecord.of_fields(topic, fields, time_us, flags & QOS_MASK, flags & RETAIN > 0, more)
