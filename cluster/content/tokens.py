"""Conditions cut into tokens: names, numbers, texts, keywords and signs, each with its column."""

from __future__ import annotations

import re
from math import isinf
from typing import Final, NamedTuple

from ..errors import UsageError
from .nodes import KEYWORDS, Constant

# What a condition may cost whoever reads it.
CHARACTERS_MAX: Final = 4_096
TOKENS_MAX: Final = 200
# Parentheses and NOTs within each other.
DEPTH_MAX: Final = 32
# What the canonical form of a condition that was within the limits may need: NOT and BETWEEN written out, at most.
CANONICAL_FACTOR: Final = 4

NAME: Final = "name"
CONSTANT: Final = "constant"
KEYWORD: Final = "keyword"
SIGN: Final = "sign"
END: Final = "end"

_SHOWN: Final = 40
_SEGMENT: Final = r'(?:(?:[^\W\d]|\$)[\w$]*|"(?:[^"]|"")*+")'
_TOKEN: Final = re.compile(
    rf"""(?P<name>{_SEGMENT}(?:\.{_SEGMENT})*)
    |(?P<number>[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)(?![\w$"'.])
    |(?P<text>'(?:[^']|'')*+')
    |(?P<sign><>|!=|<=|>=|[=<>(),])""",
    re.VERBOSE,
)
_SEGMENTS: Final = re.compile(_SEGMENT)
_SPACE: Final = re.compile(r"\s*")


class Token(NamedTuple):
    """`written` as it stands at `column` (from 1); `value`: what a constant is, the segments of a name.

    Keywords are written in capitals, whatever they were.
    """

    kind: str
    written: str
    column: int
    value: Constant | tuple[str, ...] = ""


def complaint(column: int, what: str) -> UsageError:
    """What is wrong with a condition, and where."""
    return UsageError(f"where, column {column}: {what}")


def excerpt(text: str) -> str:
    """A part of a condition for a message."""
    return text if len(text) <= _SHOWN else text[: _SHOWN - 3] + "..."


def tokens_of(condition: str, factor: int = 1) -> list[Token]:
    """The tokens of a condition, END last. `factor`: by how much the limits are wider than users'.

    Raises UsageError: too long, too many tokens, something that is no token.
    """
    most = CHARACTERS_MAX * factor
    if len(condition) > most:
        raise complaint(
            most + 1, f"the condition has {len(condition):,} characters, at most {most:,} are allowed: shorten it"
        )
    try:
        condition.encode()
    except UnicodeEncodeError as error:
        raise complaint(error.start + 1, "half a character: give whole ones, as UTF-8 has them") from None
    found: list[Token] = []
    at = _skip_space(condition, 0)
    while at < len(condition):
        if len(found) == TOKENS_MAX * factor:
            raise complaint(
                at + 1,
                f"{excerpt(condition[at:])} goes beyond {TOKENS_MAX * factor} names, values and signs: shorten the "
                "condition, or make two subscriptions of it",
            )
        match = _TOKEN.match(condition, at)
        if not match:
            raise _no_token(condition, at)
        found.append(_token(match))
        at = _skip_space(condition, match.end())
    found.append(Token(END, "the end", len(condition) + 1))
    return found


def _skip_space(condition: str, at: int) -> int:
    match = _SPACE.match(condition, at)
    return match.end() if match else at


def _token(match: re.Match[str]) -> Token:
    written, column = match[0], match.start() + 1
    if match.lastgroup == "name":
        if written.upper() in KEYWORDS:
            return Token(KEYWORD, written.upper(), column)
        return Token(NAME, written, column, tuple([_unquoted(each) for each in _SEGMENTS.findall(written)]))
    if match.lastgroup == "number":
        return Token(CONSTANT, written, column, _number(written, column))
    if match.lastgroup == "text":
        return Token(CONSTANT, written, column, _unquoted(written))
    return Token(SIGN, written, column)


def _unquoted(written: str) -> str:
    quote = written[:1]
    return written[1:-1].replace(quote * 2, quote) if quote in ("'", '"') else written


def _number(written: str, column: int) -> Constant:
    if written.lstrip("+-").isdigit():
        digits = len(written)
        if digits > CHARACTERS_MAX:  # the interpreter reads no more than 4,300
            raise complaint(column, f"a number of {digits:,} digits: at most {CHARACTERS_MAX:,} are allowed")
        return int(written)
    number = float(written)
    if isinf(number):
        raise complaint(column, f"{excerpt(written)} is too large: fractions and exponents end at 1.8e308")
    return number


def _no_token(condition: str, at: int) -> UsageError:
    character, rest = condition[at], excerpt(condition[at:])
    if character == "'":
        return complaint(at + 1, f"{rest} is not closed: end the text with ', and write a ' in it twice")
    if character == '"':
        return complaint(at + 1, f'{rest} is not closed: end the name with ", and write a " in it twice')
    if character.isdigit() or character == ".":
        return complaint(
            at + 1,
            f"{rest} begins as a number does and goes on otherwise: put texts into single quotes "
            'and names that begin with a digit into double quotes, as in "2nd"',
        )
    return complaint(
        at + 1,
        f"{character!r} has no meaning here: there is no arithmetic, texts stand in single quotes, names with other "
        "characters than letters, digits, _ and $ in double quotes",
    )
