"""Alphabets: runs of characters as one integer, so that a character costs the logarithm of its alphabet.

What a model does not have a row for is mostly a run of one kind: digits, hexadecimal, capitals. Which alphabet a run is
of is a symbol with a learned count; its characters are the digits of a number.
"""

from __future__ import annotations

from typing import Final

_DIGITS: Final = b"0123456789"
_LOWER: Final = b"abcdefghijklmnopqrstuvwxyz"
_UPPER: Final = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ"

ALPHABETS: Final[list[bytes]] = [
    _DIGITS,
    _DIGITS + _LOWER[:6],
    _DIGITS + _UPPER[:6],
    _LOWER,
    _UPPER,
    _DIGITS + _LOWER,
    _DIGITS + _UPPER,
    _DIGITS + _LOWER + _UPPER,
    _DIGITS + _LOWER + _UPPER + b"+/-_=.",
    bytes(range(256)),
]
"""Smallest first, so that the first one that fits is the cheapest. Their order is part of the format."""

BYTES: Final = len(ALPHABETS) - 1
"""The alphabet of every byte string."""

_DECIMAL: Final = 0
_HEXADECIMAL: Final = (1, 2)
_SHORT_MAX: Final = 64
_SLOTS: Final[list[list[int]]] = [[len(letters) ** length for length in range(_SHORT_MAX + 1)] for letters in ALPHABETS]
_VALUES: Final = [bytes([max(0, letters.find(byte)) for byte in range(256)]) for letters in ALPHABETS]


def alphabet_of(run: bytes) -> int:
    """The first alphabet that has all of its bytes."""
    for at in range(BYTES):
        if not run.translate(None, ALPHABETS[at]):
            return at
    return BYTES


def letter_values(run: bytes, alphabet: int) -> bytes:
    """The places of the bytes of `run` in an alphabet that has all of them."""
    return run if alphabet == BYTES else run.translate(_VALUES[alphabet])


def run_number(run: bytes, alphabet: int) -> int:
    """The number whose digits are the bytes of `run`, all of them in `alphabet`; 0 for an empty one."""
    if not run:
        return 0
    if alphabet == BYTES:
        return int.from_bytes(run, "big")
    if alphabet == _DECIMAL:
        return int(run)
    if alphabet in _HEXADECIMAL:
        return int(run, 16)
    radix = len(ALPHABETS[alphabet])
    number = 0
    for digit in run.translate(_VALUES[alphabet]):
        number = number * radix + digit
    return number


def run_of(number: int, alphabet: int, length: int) -> bytes:
    """The inverse of `run_number`: `number` is below the alphabet's size to the power of `length`."""
    if alphabet == BYTES:
        return number.to_bytes(length, "big")
    if not length:
        return b""
    if alphabet == _DECIMAL:
        return b"%0*d" % (length, number)
    if alphabet in _HEXADECIMAL:
        return (b"%0*x" if alphabet == _HEXADECIMAL[0] else b"%0*X") % (length, number)
    letters = ALPHABETS[alphabet]
    radix = len(letters)
    out = bytearray(length)
    for at in range(length - 1, -1, -1):
        number, digit = divmod(number, radix)
        out[at] = letters[digit]
    return bytes(out)


def run_slots(alphabet: int, length: int) -> int:
    """How many runs of `length` there are; of up to `_SHORT_MAX` bytes from a table."""
    if length <= _SHORT_MAX:
        return _SLOTS[alphabet][length]
    return int(len(ALPHABETS[alphabet]) ** length)
