"""LIKE: patterns with `%` (any characters) and `_` (one character), matched in bounded time and without expressions.

Pieces between `%` are found from left to right, each at the first place after the one before: what is found earliest
leaves most to the others, so nothing is ever tried again. A piece without `_` is found by `str.find`; one with `_` by
Shift-And (Baeza-Yates and Gonnet, "A new approach to text searching", 1992): one step a character, whose cost grows
with the piece's length in machine words. The first and the last piece stand at their ends and are only compared.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Final, TypeAlias

# A text of more characters is not compared with wildcards: the result is unknown.
LIKE_CHARACTERS_MAX: Final = 16_384


class Wildcard(Enum):
    """What a pattern has beside texts."""

    ONE = "_"
    MANY = "%"


# Texts (never two in a row, none empty) and wildcards, `_` before `%` and never two `%` without a text between them.
Pattern: TypeAlias = tuple[str | Wildcard, ...]
_Piece: TypeAlias = list[str | None]  # characters; None: any one


def parse_pattern(pattern: str, escape: str = "") -> Pattern:
    """A pattern as written. Raises ValueError, with what is wrong, when `escape` stands before anything but `%`, `_` or
    itself.
    """
    found: list[str | Wildcard] = []
    characters = iter(pattern)
    for character in characters:
        if character == escape:
            escaped = next(characters, "")
            if escaped not in ("%", "_", escape) or not escaped:
                raise ValueError(f"{escape!r} stands before {escaped!r}" if escaped else f"{escape!r} stands last")
            _append(found, escaped)
        elif character in "%_":
            _append(found, Wildcard(character))
        else:
            _append(found, character)
    return tuple(found)


def _append(found: list[str | Wildcard], element: str | Wildcard) -> None:
    last = found[-1] if found else None
    if isinstance(element, str) and isinstance(last, str):
        found[-1] = last + element
    elif last is Wildcard.MANY and isinstance(element, Wildcard):
        if element is Wildcard.ONE:
            found.insert(-1, element)
    else:
        found.append(element)


def pattern_text(pattern: Pattern) -> tuple[str, str]:
    """A pattern as it is written, and the character that escapes in it ("": none is needed)."""
    plain = not any([isinstance(element, str) and ("%" in element or "_" in element) for element in pattern])
    texts = []
    for element in pattern:
        if isinstance(element, Wildcard):
            texts.append(element.value)
        elif plain:
            texts.append(element)
        else:
            texts.append(element.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_"))
    return "".join(texts), "" if plain else "\\"


def matcher(pattern: Pattern) -> Callable[[str], bool]:
    """Whether a text (LIKE_CHARACTERS_MAX at most) is like the pattern."""
    pieces: list[_Piece] = [[]]
    for element in pattern:
        if element is Wildcard.MANY:
            pieces.append([])
        elif element is Wildcard.ONE:
            pieces[-1].append(None)
        else:
            pieces[-1].extend(element)
    if len(pieces) == 1:
        whole, length = _standing(pieces[0]), len(pieces[0])
        return lambda text: len(text) == length and whole(text, 0)
    first, last = pieces[0], pieces[-1]
    begins, ends = _standing(first), _standing(last)
    finders = [_finder(piece) for piece in pieces[1:-1]]
    shortest = sum(map(len, pieces))

    def like(text: str) -> bool:
        end = len(text) - len(last)
        if len(text) < shortest or not begins(text, 0) or not ends(text, end):
            return False
        at = len(first)
        for find in finders:
            at = find(text, at, end)
            if at < 0:
                return False
        return True

    return like


def _standing(piece: _Piece) -> Callable[[str, int], bool]:
    """Whether a piece stands at a place of a text, which is long enough."""
    if None not in piece:
        plain = "".join(map(str, piece))
        return lambda text, at: text.startswith(plain, at)
    known = [(i, character) for i, character in enumerate(piece) if character is not None]
    return lambda text, at: all([text[at + i] == character for i, character in known])


def _finder(piece: _Piece) -> Callable[[str, int, int], int]:
    """Where a piece ends that is first found between two places of a text; -1: nowhere."""
    length = len(piece)
    if None not in piece:
        plain = "".join(map(str, piece))

        def find(text: str, at: int, end: int) -> int:
            found = text.find(plain, at, end)
            return found + length if found >= 0 else -1

        return find
    anywhere = sum([1 << i for i, character in enumerate(piece) if character is None])
    places: dict[str, int] = {}
    for i, character in enumerate(piece):
        if character is not None:
            places[character] = places.get(character, anywhere) | 1 << i
    complete = 1 << (length - 1)

    def shift_and(text: str, at: int, end: int) -> int:
        begun = 0
        for place in range(at, end):
            begun = (begun << 1 | 1) & places.get(text[place], anywhere)
            if begun & complete:
                return place + 1
        return -1

    return shift_and
