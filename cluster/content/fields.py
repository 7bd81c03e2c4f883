"""The fields of payloads, as far as conditions ask for them: JSON and MessagePack, within limits, never an error.

What a payload is says its content type, else its first byte. A payload whose form is broken, that is no map, or that is
beyond PAYLOAD_BYTES_MAX, FIELDS_MAX or NESTING_MAX has no fields: all of them are NULL, and it is counted. A field of
JSON that cannot be held (1e999, a number of 5,000 digits) is NULL by itself. Of fields that are there twice the last
counts.

Of JSON only what is asked for is decoded, which takes a third of the time of the whole map: four of 19 fields of a
flight's 309 B, 0.50 against 1.6 us (64 names that are not there as well: 1.2 us; a `Struct` takes 0.41 us, and 0.83 as
a map). What is passed over has to be of the right form, but is not made values of; so that a field's value never
depends on which others are asked for, a map that cannot be decoded is taken field by field.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final, TypeAlias, TypedDict

import msgspec
import numpy as np

from .nodes import Name, Source

PAYLOAD_BYTES_MAX: Final = 65_536
# Fields of maps, whatever they are in, and lists: each costs far more than its bytes.
FIELDS_MAX: Final = 4_096
# Maps and lists within each other, the payload's own among them; far below what the interpreter's stack allows.
NESTING_MAX: Final = 64
# A payload's names are looked for among so many one by one; among more the whole map is the quicker way.
WANTED_NAMES_MAX: Final = 64

Fields: TypeAlias = Mapping[str, object]
NOTHING: Final[Fields] = {}

JSON: Final = "json"
MSGPACK: Final = "msgpack"
_MEDIA_TYPES: Final = {
    "application/json": JSON,
    "text/json": JSON,
    "application/msgpack": MSGPACK,
    "application/x-msgpack": MSGPACK,
    "application/vnd.msgpack": MSGPACK,
}
_SUFFIXES: Final = {"+json": JSON, "+msgpack": MSGPACK}

# A field takes at least so many bytes: `"":0,` and two of MessagePack.
_JSON_FIELD_BYTES: Final = 5
_MSGPACK_FIELD_BYTES: Final = 2
_JSON_SPACE: Final = b" \t\r\n"
# A text that is not closed goes to the end: looked for anew at each of its quotes, it would take minutes.
_JSON_TEXT: Final = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL)
_BRACKET: Final = ord("[")
_NO_BRACKETS: Final = bytes(set(range(256)) - set(b"[]{}"))
# MessagePack's bytes that begin no map and no list; the others do, unless they stand in a text or a number.
_NO_CONTAINERS: Final = bytes(set(range(256)) - set(range(0x80, 0xA0)) - {0xDC, 0xDD, 0xDE, 0xDF})
# More of those that may are not decoded, which could take 50 ms (a text beyond ASCII has some too, but not so many).
_CONTAINER_BYTES_MAX: Final = FIELDS_MAX * 4
_MSGPACK_MAPS: Final = frozenset([*range(0x80, 0x90), 0xDE, 0xDF])

_json: Final = msgspec.json.Decoder()
_json_parts: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_msgpack: Final = msgspec.msgpack.Decoder()
_UNREADABLE: Final = (ValueError, RecursionError, OverflowError)


@dataclass(slots=True)
class FieldCounts:
    """Payloads without fields: beyond a limit, of a broken form, neither JSON's nor MessagePack's map."""

    beyond_limits: int = 0
    malformed: int = 0
    no_map: int = 0


class FieldReader:
    """Reads the fields that `names` need, or all (None)."""

    def __init__(self, names: Iterable[Name] | None = None, counts: FieldCounts | None = None) -> None:
        self.counts = FieldCounts() if counts is None else counts
        wanted = None if names is None else sorted({name.path[0] for name in names if name.source is Source.PAYLOAD})
        self._wanted = wanted
        self._decode: Callable[[bytes], Fields] = msgspec.json.Decoder(_map_of(wanted)).decode

    def fields(self, payload: bytes, content_type: str | None = None) -> Fields:
        """The fields of a payload by their names; those that are missing are not there, or None."""
        if len(payload) > PAYLOAD_BYTES_MAX:
            self.counts.beyond_limits += 1
            return NOTHING
        form = payload_form(payload, content_type) if content_type or payload[:1] != b"{" else JSON
        if form is JSON:
            return self._of_json(payload)
        if form is MSGPACK:
            return self._of_msgpack(payload)
        self.counts.no_map += 1
        return NOTHING

    def _of_json(self, payload: bytes) -> Fields:
        if not _json_within_limits(payload):
            self.counts.beyond_limits += 1
            return NOTHING
        try:
            if not payload.isascii():
                payload.decode()  # also what is passed over [RFC 8259, section 8.1]
            return self._decode(payload)
        except _UNREADABLE:
            return self._field_by_field(payload)

    def _field_by_field(self, payload: bytes) -> Fields:
        try:
            payload.decode()
            parts = _json_parts.decode(payload)
        except _UNREADABLE:
            self.counts.malformed += 1
            return NOTHING
        return {name: _json_value(parts[name]) for name in (self._wanted or parts) if name in parts}

    def _of_msgpack(self, payload: bytes) -> Fields:
        containers = len(payload.translate(None, _NO_CONTAINERS))  # at most
        if containers > _CONTAINER_BYTES_MAX:
            self.counts.beyond_limits += 1
            return NOTHING
        try:
            decoded = _msgpack.decode(payload)
        except _UNREADABLE:
            self.counts.malformed += 1
            return NOTHING
        if type(decoded) is not dict:
            self.counts.no_map += 1
            return NOTHING
        many = len(payload) > (FIELDS_MAX - NESTING_MAX) * _MSGPACK_FIELD_BYTES
        if (containers > NESTING_MAX or many) and not _within_limits(decoded):
            self.counts.beyond_limits += 1
            return NOTHING
        return decoded


def payload_form(payload: bytes, content_type: str | None = None) -> str:
    """JSON, MSGPACK, or "" where it is neither: by the content type where that says it, else by the first byte."""
    if content_type:
        media_type = content_type.partition(";")[0].strip().lower()
        form = _MEDIA_TYPES.get(media_type) or _SUFFIXES.get(media_type[media_type.rfind("+") :])
        if form:
            return form
    first = payload[:1]
    if first == b"{":
        return JSON
    if first and first[0] in _MSGPACK_MAPS:
        return MSGPACK
    return JSON if first and first in _JSON_SPACE and payload.lstrip(_JSON_SPACE)[:1] == b"{" else ""


def _map_of(names: list[str] | None) -> Any:
    """The type of a map of which only these names are wanted; of a whole one where that is not possible."""
    # msgspec 0.23.0 takes names beyond ASCII for empty ones there.
    if not names or len(names) > WANTED_NAMES_MAX or not all([name.isascii() for name in names]):
        return dict[str, Any]
    return TypedDict("Wanted", dict.fromkeys(names, Any), total=False)  # type: ignore[operator] # names of users


def _json_value(part: msgspec.Raw) -> object:
    try:
        return _json.decode(part)
    except _UNREADABLE:
        return None


def _json_within_limits(payload: bytes) -> bool:
    """Whether JSON has no more fields and levels than are allowed, decided by its form alone."""
    many = len(payload) > (FIELDS_MAX - NESTING_MAX) * _JSON_FIELD_BYTES
    if not many and payload.find(b"{", 1) < 0 and _BRACKET not in payload:
        return True
    if not many and payload.count(b"{") + payload.count(b"[") <= NESTING_MAX:
        return True
    outline = _JSON_TEXT.sub(b"", payload)
    if outline.count(b":") + outline.count(b"[") > FIELDS_MAX:
        return False
    brackets = np.frombuffer(outline.translate(None, _NO_BRACKETS), np.uint8)
    # [ and { lack the bit of value 4 that ] and } have.
    steps = 1 - (brackets & 4).astype(np.int32) // 2
    return not steps.size or int(steps.cumsum().max()) <= NESTING_MAX


def _within_limits(decoded: object) -> bool:
    """The same of decoded values, level by level."""
    level: list[Any] = [decoded]
    fields = 0
    for _ in range(NESTING_MAX):
        fields += sum([len(each) if type(each) is dict else 1 for each in level])
        if fields > FIELDS_MAX:
            return False
        inner = chain.from_iterable([each.values() if type(each) is dict else each for each in level])
        level = [each for each in inner if type(each) is dict or type(each) is list]
        if not level:
            return True
    return False
