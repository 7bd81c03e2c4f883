"""Numbers as they are written: digits to an integer and back, byte for byte.

A format is (form, places). What is not written in exactly the way of its format is no number to it: it goes another way
(a row, a run, text), so nothing is lost on "007", "1e5" or "-0".

| form    | written                                                        | places: 2         |
| ------- | -------------------------------------------------------------- | ----------------- |
| PLAIN   | no leading zero, a sign where it is negative                   | (none)            |
| PADDED  | exactly `places` digits, no sign                               | `07`              |
| FIXED   | exactly `places` decimals                                      | `-3.10`, `0.07`   |
| SHORTEST| at most `places` decimals, no zero at the end, no lone point   | `-3.1`, `4`       |
| POINTED | the same, but one decimal at the least                         | `-3.1`, `4.0`     |
| BIG, LITTLE | `places` bytes, the most or least significant first, no sign |                 |
| BIG_SIGNED, LITTLE_SIGNED | the same in two's complement                   |                   |
| SINGLE, SINGLE_LITTLE | 4 bytes of IEEE 754 with `places` decimals         | 3.14 as 314       |
| DOUBLE, DOUBLE_LITTLE | 8 bytes                                            |                   |
"""

from __future__ import annotations

import struct
from typing import Final, Literal

PLAIN: Final = 0
PADDED: Final = 1
FIXED: Final = 2
SHORTEST: Final = 3
POINTED: Final = 4
BIG: Final = 5
LITTLE: Final = 6
BIG_SIGNED: Final = 7
LITTLE_SIGNED: Final = 8
SINGLE: Final = 9
SINGLE_LITTLE: Final = 10
DOUBLE: Final = 11
DOUBLE_LITTLE: Final = 12
FORMS: Final = 13

DIGITS_MAX: Final = 17
"""Of a number as an integer: below 2**62 with all differences between two of them."""
PLACES_MAX: Final = 12
_END: Final = 10**DIGITS_MAX
_FLOAT_END: Final = 1e12
_FLOATS: Final = (struct.Struct(">f"), struct.Struct("<f"), struct.Struct(">d"), struct.Struct("<d"))


def decimals_of(form: int, places: int) -> int:
    """How many decimals its numbers have."""
    return places if FIXED <= form <= POINTED or form >= SINGLE else 0


def parse_number(text: bytes, form: int, places: int) -> int | None:
    """The number, times 10**places where it has decimals; None when it is not written in this format."""
    if form == PADDED:
        return int(text) if len(text) == places and text.isdigit() else None
    if form == PLAIN:
        return _plain(text)
    if form >= BIG:
        return _binary(text, form, places)
    negative = text[:1] == b"-"
    head, point, tail = (text[1:] if negative else text).partition(b".")
    if not head.isdigit() or (head[0] == 48 and len(head) > 1) or len(head) + places > DIGITS_MAX:
        return None
    if point:
        if not tail.isdigit() or not _decimals_fit(tail, form, places):
            return None
    elif form != SHORTEST:
        return None
    number = int(head + tail + b"0" * (places - len(tail)))
    if negative:
        return -number if number else None
    return number


def _binary(text: bytes, form: int, places: int) -> int | None:
    if form >= SINGLE:
        layout = _FLOATS[form - SINGLE]
        if len(text) != layout.size:
            return None
        value = float(layout.unpack(text)[0])
        if not abs(value) < _FLOAT_END:
            return None
        number = round(value * 10**places)
        return number if -_END < number < _END and _pack_float(number, form, places) == text else None
    if len(text) != places:
        return None
    order: Literal["big", "little"] = "big" if form in (BIG, BIG_SIGNED) else "little"
    number = int.from_bytes(text, order, signed=form >= BIG_SIGNED)
    return number if -_END < number < _END else None


def _pack_float(number: int, form: int, places: int) -> bytes:
    return _FLOATS[form - SINGLE].pack(number / 10**places)


def _plain(text: bytes) -> int | None:
    digits = text[1:] if text[:1] == b"-" else text
    if not digits.isdigit() or len(digits) > DIGITS_MAX:
        return None
    if digits[0] == 48 and len(text) > 1:
        return None
    return int(text)


def _decimals_fit(tail: bytes, form: int, places: int) -> bool:
    if form == FIXED:
        return len(tail) == places
    if len(tail) > places:
        return False
    return tail[-1] != 48 or (form == POINTED and tail == b"0")


def render_number(number: int, form: int, places: int) -> bytes:
    """The inverse of `parse_number`. Raises OverflowError for a number that there are not bytes enough for."""
    if form >= SINGLE:
        return _pack_float(number, form, places)
    if form >= BIG:
        order: Literal["big", "little"] = "big" if form in (BIG, BIG_SIGNED) else "little"
        return number.to_bytes(places, order, signed=form >= BIG_SIGNED)
    if form == PLAIN:
        return b"%d" % number
    if form == PADDED:
        return b"%0*d" % (places, number)
    digits = b"%0*d" % (places + 1, abs(number))
    cut = len(digits) - places
    head, tail = digits[:cut], digits[cut:]
    if form != FIXED:
        tail = tail.rstrip(b"0") or (b"0" if form == POINTED else b"")
    text = head + b"." + tail if tail else head
    return b"-" + text if number < 0 else text
