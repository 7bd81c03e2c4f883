"""Records of bytes: messages of one length without text, cut into numbers where they are cheapest.

For each place and width the cheapest format is looked for: integers of 1, 2, 4 and 8 bytes in either order, floating
point that is a decimal number in truth. Then the cut of the whole record that costs least, by dynamic programming.
MessagePack of the same types has one length, and so do the structures of small devices.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from math import log2
from typing import Final, NamedTuple

from .number_formats import (
    BIG,
    BIG_SIGNED,
    DOUBLE,
    DOUBLE_LITTLE,
    LITTLE,
    LITTLE_SIGNED,
    SINGLE,
    SINGLE_LITTLE,
    parse_number,
)

RECORD_BYTES_MAX: Final = 96
_SAMPLES: Final = 50
_DECIMALS_MAX: Final = 6
_FIELD_BITS: Final = 0.1
"""Of two cuts that cost the same the one with fewer fields is the better one."""
_NOISE_BITS: Final = 6.8
"""What a byte of noise seems to cost by few samples, of which some are alike."""
_FLOATS: Final = {4: (SINGLE, SINGLE_LITTLE), 8: (DOUBLE, DOUBLE_LITTLE)}
_CONTROLS: Final = bytes([byte for byte in range(32) if byte not in b"\t\n\r"]) + b"\x7f"


class Column(NamedTuple):
    """So many bytes of a record, and the format of the number that they are."""

    width: int
    format: tuple[int, int]


def is_binary(text: bytes) -> bool:
    """Whether it is no text: control characters, or no UTF-8."""
    if len(text.translate(None, _CONTROLS)) != len(text):
        return True
    try:
        text.decode()
    except UnicodeDecodeError:
        return True
    return False


def find_columns(records: Sequence[bytes]) -> list[Column]:
    """The columns of records of one length; none where they would cost nearly what the bytes do: noise, encrypted."""
    sampled = records[:: max(1, len(records) // _SAMPLES)]
    length = len(sampled[0])
    best: list[tuple[float, list[Column]]] = [(0.0, [])]
    for end in range(1, length + 1):
        found: list[tuple[float, list[Column]]] = []
        for width in (1, 2, 4, 8):
            if width <= end:
                cost, format = _cheapest([record[end - width : end] for record in sampled], width)
                before = best[end - width]
                found.append((before[0] + cost + _FIELD_BITS, [*before[1], Column(width, format)]))
        best.append(min(found, key=lambda one: one[0]))
    cost, columns = best[length]
    return columns if cost < _NOISE_BITS * length else []


def _cheapest(values: Sequence[bytes], width: int) -> tuple[float, tuple[int, int]]:
    """What a value costs, and in which format."""
    if values.count(values[0]) == len(values):
        return 0.0, (BIG, width)
    forms = (BIG,) if width == 1 else (BIG, LITTLE, BIG_SIGNED, LITTLE_SIGNED)
    formats = [(form, width) for form in forms]
    formats += [(form, _decimals(values, form)) for form in _FLOATS.get(width, ())]
    return min([(_cost(values, format, width), format) for format in formats if format[1] >= 0])


def _decimals(values: Sequence[bytes], form: int) -> int:
    """With how many decimals a floating point number says nearly all values; -1: it does not."""
    for places in range(_DECIMALS_MAX + 1):
        if sum([parse_number(value, form, places) is None for value in values[:20]]) <= 1:
            return places
    return -1


def _cost(values: Sequence[bytes], format: tuple[int, int], width: int) -> float:
    numbers = [parse_number(value, *format) for value in values]
    known = [number for number in numbers if number is not None]
    if not known:
        return 16.0 * width
    total = len(known)
    counted = Counter(known)
    # a number that came once says nothing of how likely it is to come again
    spread = log2(max(known) - min(known) + 1)
    seen = sum([count * min(log2(total / count) if count > 1 else spread, spread) for count in counted.values()])
    return seen / total + (len(values) - total) / len(values) * 16 * width
