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
"""

from __future__ import annotations

from typing import Final

PLAIN: Final = 0
PADDED: Final = 1
FIXED: Final = 2
SHORTEST: Final = 3
POINTED: Final = 4
FORMS: Final = 5

DIGITS_MAX: Final = 17
"""Of a number as an integer: below 2**62 with all differences between two of them."""
PLACES_MAX: Final = 12


def parse_number(text: bytes, form: int, places: int) -> int | None:
    """The number, times 10**places where it has decimals; None when it is not written in this format."""
    if form == PADDED:
        return int(text) if len(text) == places and text.isdigit() else None
    if form == PLAIN:
        return _plain(text)
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
    """The inverse of `parse_number`."""
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
