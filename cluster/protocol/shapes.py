"""Shapes: what a value from another process has to be, looked at before anything acts on it. Pure.

Whoever holds the cluster's key may speak on a link, and may be wrong: a program of an older version, a client library
in the making, a defect. So each end of a link checks what it takes, all fields of it, in one place (`check_message`,
`check_request`), and the code behind it need not ask again. What does not fit costs its sender the link.

A Shape is a predicate of a value as msgpack gives it: arrays are tuples, bool is no number.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from operator import call
from typing import Any, Final, TypeAlias

from ..errors import LexicastError, PeerError
from ..topics.names import all_filters, check_filter, check_topic

Shape: TypeAlias = Callable[[Any], bool]

I64_MAX: Final = 2**63 - 1
U64_MAX: Final = 2**64 - 1
GROUP_MAX: Final = 2**16 - 1
# Names of sessions, brokers and families: what MQTT allows in a field.
TEXT_BYTES_MAX: Final = 65_535


class Number:
    """A whole number from `low` to `high`."""

    __slots__ = ("high", "low")

    def __init__(self, low: int, high: int) -> None:
        self.low = low
        self.high = high

    def __call__(self, value: Any) -> bool:
        return type(value) is int and self.low <= value <= self.high

    def all(self, values: Collection[Any]) -> bool:
        """All of `values` at once: a cursor names every group."""
        return not values or (
            _INT.issuperset(map(type, values)) and self.low <= min(values) and max(values) <= self.high
        )


_INT: Final = frozenset({int})
_BYTES: Final = frozenset({bytes})


def whole_number(low: int = 0, high: int = I64_MAX) -> Number:
    """A whole number from `low` to `high`."""
    return Number(low, high)


def _all(shape: Shape) -> Callable[[Collection[Any]], bool]:
    return shape.all if isinstance(shape, Number) else lambda values: all(map(shape, values))


def each(shape: Shape) -> Shape:
    """An array of such."""
    all_fit = _all(shape)
    return lambda value: type(value) is tuple and all_fit(value)


def row(*shapes: Shape) -> Shape:
    """An array with one value for each shape."""
    return lambda value: type(value) is tuple and fields_fit(shapes, value)


def mapping(keys: Shape, values: Shape) -> Shape:
    """A map from such to such."""
    keys_fit, values_fit = _all(keys), _all(values)
    return lambda value: type(value) is dict and keys_fit(value) and values_fit(value.values())


def either(one: Shape, other: Shape) -> Shape:
    """One of the two."""
    return lambda value: one(value) or other(value)


def nothing(value: Any) -> bool:
    """None."""
    return value is None


def any_value(value: Any) -> bool:
    """Whatever msgpack gives: for what is looked at elsewhere."""
    return True


def data(value: Any) -> bool:
    """Bytes."""
    return type(value) is bytes


def data_upto(most: int) -> Shape:
    """At most so many bytes."""
    return lambda value: type(value) is bytes and len(value) <= most


def truth(value: Any) -> bool:
    """True or False."""
    return type(value) is bool


def name_text(value: Any) -> bool:
    """A text that can be a name. (msgpack gives no lone surrogates.)"""
    return type(value) is str and len(value) <= TEXT_BYTES_MAX


def topic_name(value: Any) -> bool:
    """The bytes of a topic that may be published to."""
    if type(value) is not bytes:
        return False
    try:
        check_topic(value)
    except LexicastError:
        return False
    return True


def topic_filter(value: Any) -> bool:
    """The bytes of a topic filter, well formed."""
    if type(value) is not bytes:
        return False
    try:
        check_filter(value)
    except LexicastError:
        return False
    return True


def topic_filters(value: Any) -> bool:
    """An array of such."""
    if type(value) is not tuple or not _BYTES.issuperset(map(type, value)):
        return False
    return all_filters(value) or all(map(topic_filter, value))


GROUP: Final = whole_number(0, GROUP_MAX)
OFFSET: Final = whole_number()
WHOLE: Final = whole_number()
CURSOR: Final = mapping(GROUP, OFFSET)
FILTERS: Final = topic_filters
PACKET_IDS: Final = each(whole_number(1, 65_535))
DICTIONARY_ID: Final = whole_number(0, U64_MAX)

# What each message of `cluster.protocol.messages` carries after its kind.
Fields: TypeAlias = tuple[Shape, ...]


def fields_fit(shapes: Fields, fields: tuple[Any, ...]) -> bool:
    """Whether `fields` are of `shapes`, one for each."""
    return len(fields) == len(shapes) and all(map(call, shapes, fields))


def check_fields(what: str, shapes: Fields, fields: tuple[Any, ...], fewest: int | None = None) -> None:
    """Raise PeerError unless `fields` are of `shapes`, at least the first `fewest` (None: all)."""
    if not (len(shapes) if fewest is None else fewest) <= len(fields) <= len(shapes):
        raise PeerError(f"{what} has {len(fields)} fields instead of {len(shapes)}")
    for index, (fits, field) in enumerate(zip(shapes, fields, strict=False)):
        if not fits(field):
            raise PeerError(f"{what}: field {index + 1} is of a wrong type or out of range: {field!r:.80}")


def check_request(requests: Mapping[str, Fields], method: str, arguments: tuple[Any, ...]) -> None:
    """Raise PeerError unless `arguments` are what `method` takes; a method that is not among `requests` passes."""
    shapes = requests.get(method)
    if shapes is not None and not fields_fit(shapes, arguments):
        check_fields(f"the request {method!r}", shapes, arguments)
