"""Conditions parsed: a subset of SQL-92's, as the selectors of JMS (Jakarta Messaging 3.1, section 3.8.1) have it.

    condition   operand (= | <> | != | < | <= | > | >=) operand
                operand [NOT] BETWEEN operand AND operand
                name [NOT] IN (constant, ...)
                name [NOT] LIKE 'pattern' [ESCAPE 'character']
                name IS [NOT] NULL
                name | TRUE | FALSE | NOT condition | (condition) | condition AND condition | condition OR condition
    operand     name | constant
    constant    number | 'text' | TRUE | FALSE

NOT binds closest, then AND, then OR. Keywords are written in any case, names as they are. Names:

    a, a.b, payload.a.b     a payload's field, within others; "an odd name" and a.b."c d" in double quotes
    properties.x            the first user property x of MQTT 5, a text
    topic, level(n)         the topic, and its level n from 1: texts
    qos, retain             0 to 2, and TRUE or FALSE
    time                    when it was published: seconds since 1970, or ISO 8601 with an offset ('2026-05-01T12:00Z')

A field called as one of these is written "topic" or payload.topic. BETWEEN becomes two comparisons here, a name alone
`name = TRUE`, and a time in ISO 8601 the seconds since 1970.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Final

from ..errors import UsageError
from .boxes import ColumnKind
from .like import parse_pattern
from .nodes import (
    TYPES,
    WHOLE_NAMES,
    Absence,
    All,
    Comparison,
    Condition,
    Constant,
    Either,
    Likeness,
    Membership,
    Name,
    Not,
    Source,
    Truth,
    constant_kind,
)
from .tokens import (
    CANONICAL_FACTOR,
    CONSTANT,
    DEPTH_MAX,
    END,
    KEYWORD,
    NAME,
    SIGN,
    Token,
    complaint,
    excerpt,
    tokens_of,
)

COMPARISONS: Final = {"=": "=", "<>": "<>", "!=": "<>", "<": "<", "<=": "<=", ">": ">", ">=": ">="}
# From the weakest on: what joins conditions, and what becomes of them.
JUNCTIONS: Final = (("OR", Either), ("AND", All))
# A topic has 65,535 bytes at most, so no more levels than that and one.
LEVEL_MAX: Final = 65_536

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_US_PER_S: Final = 1_000_000
_WORDS: Final = {
    ColumnKind.NUMBER: "a number",
    ColumnKind.TEXT: "a text",
    ColumnKind.TRUTH: "TRUE or FALSE",
}


def parse_condition(text: str) -> Condition:
    """The tree of a condition that a user wrote.

    Raises UsageError, with the column, what was found and what to write: not a condition, one that compares a name with
    what it never is, or one beyond CHARACTERS_MAX, TOKENS_MAX or DEPTH_MAX.
    """
    return _Parser(tokens_of(text)).whole()


def parse_canonical(text: str) -> Condition:
    """The same for a canonical form, which may be longer by CANONICAL_FACTOR. Raises UsageError."""
    return _Parser(tokens_of(text, CANONICAL_FACTOR)).whole()


def parse_name(text: str) -> Name:
    """A name as `str` writes it. Raises UsageError."""
    return _Parser(tokens_of(text, CANONICAL_FACTOR)).name_alone()


def publication_seconds(time_us: int) -> float:
    """What `time` is of a publication at `time_us` microseconds since 1970: seconds, the nearest float."""
    return time_us / _US_PER_S


class _Parser:
    def __init__(self, tokens: list[Token]) -> None:
        self._tokens = tokens
        self._at = 0
        self._depth = 0

    def whole(self) -> Condition:
        if self._token.kind == END:
            raise complaint(1, "the condition is empty: write one, as in delay > 30, or leave `where` out")
        condition = self._junction(0)
        if self._token.kind != END:
            raise self._unexpected("the condition could end", "join conditions with AND or OR")
        return condition

    def name_alone(self) -> Name:
        operand = self._operand("a name is expected", "write one alone")
        if not isinstance(operand, Name) or self._token.kind != END:
            raise self._unexpected("a name alone is expected", "write nothing else")
        return operand

    @property
    def _token(self) -> Token:
        return self._tokens[self._at]

    def _next(self) -> Token:
        token = self._tokens[self._at]
        self._at += token.kind != END
        return token

    def _took(self, kind: str, written: str) -> bool:
        found = self._token.kind == kind and self._token.written == written
        self._at += found
        return found

    def _expect(self, kind: str, written: str, remedy: str) -> None:
        if not self._took(kind, written):
            raise self._unexpected(f"{written} is expected", remedy)

    def _unexpected(self, where: str, remedy: str) -> UsageError:
        found = self._token
        return complaint(found.column, f"found {excerpt(found.written)} where {where}: {remedy}")

    def _junction(self, level: int) -> Condition:
        """Conditions joined by the operator of this level, which are joined by those that bind closer themselves."""
        if level == len(JUNCTIONS):
            return self._single()
        keyword, node = JUNCTIONS[level]
        operands = [self._junction(level + 1)]
        while self._took(KEYWORD, keyword):
            operands.append(self._junction(level + 1))
        return node(tuple(operands)) if len(operands) > 1 else operands[0]

    def _single(self) -> Condition:
        token = self._token
        if self._took(KEYWORD, "NOT"):
            return self._deeper(token, lambda: Not(self._single()))
        if self._took(SIGN, "("):
            return self._deeper(token, self._parenthesised)
        left = self._operand("a condition is expected", "write a name, a value, NOT or (")
        if self._token.kind == SIGN and self._token.written in COMPARISONS:
            return self._comparison(token, left)
        negated = self._took(KEYWORD, "NOT")
        condition = self._keyword_condition(token, left)
        if condition is not None:
            return Not(condition) if negated else condition
        if negated:
            raise self._unexpected("IN, BETWEEN or LIKE is expected", "NOT stands before a condition otherwise")
        return self._alone(token, left)

    def _deeper(self, token: Token, parse: Callable[[], Condition]) -> Condition:
        self._depth += 1
        if self._depth > DEPTH_MAX:
            raise complaint(
                token.column, f"{token.written} is one of more than {DEPTH_MAX} within each other: write it flatter"
            )
        condition = parse()
        self._depth -= 1
        return condition

    def _parenthesised(self) -> Condition:
        condition = self._junction(0)
        self._expect(SIGN, ")", "close the parenthesis, or join conditions with AND or OR")
        return condition

    def _comparison(self, token: Token, left: Name | Constant) -> Condition:
        operator = COMPARISONS[self._next().written]
        at = self._token
        right = self._operand("a value is expected", "write a name, a number, a 'text', TRUE or FALSE")
        return Comparison(operator, *self._typed(token, left, at, right))

    def _keyword_condition(self, token: Token, left: Name | Constant) -> Condition | None:
        if self._took(KEYWORD, "BETWEEN"):
            return self._between(token, left)
        if self._took(KEYWORD, "IN"):
            return self._membership(token, self._named(token, left, "IN"))
        if self._took(KEYWORD, "LIKE"):
            return self._likeness(token, self._named(token, left, "LIKE"))
        if self._tokens[self._at - 1].written != "NOT" and self._took(KEYWORD, "IS"):
            negated = self._took(KEYWORD, "NOT")
            self._expect(KEYWORD, "NULL", "only IS NULL and IS NOT NULL are known; compare with = TRUE and = FALSE")
            return Absence(self._named(token, left, "IS"), negated)
        return None

    def _between(self, token: Token, left: Name | Constant) -> Condition:
        remedy = "write name BETWEEN low AND high"
        low_at = self._token
        low = self._operand("a value is expected", remedy)
        self._expect(KEYWORD, "AND", remedy)
        high_at = self._token
        high = self._operand("a value is expected", remedy)
        return All(
            (
                Comparison(">=", *self._typed(token, left, low_at, low)),
                Comparison("<=", *self._typed(token, left, high_at, high)),
            )
        )

    def _membership(self, token: Token, name: Name) -> Condition:
        remedy = "write name IN (1, 2) or name IN ('a', 'b')"
        self._expect(SIGN, "(", remedy)
        values: list[Constant] = []
        while not values or self._took(SIGN, ","):
            at = self._token
            value = self._operand("a value is expected", remedy)
            if isinstance(value, Name):
                raise complaint(at.column, f"found the name {value} in a list of IN: {remedy}, and OR for names")
            values.append(_typed_constant(token, name, at, value))
        self._expect(SIGN, ")", remedy)
        return Membership(name, tuple(values))

    def _likeness(self, token: Token, name: Name) -> Condition:
        if TYPES[name.source] not in (None, ColumnKind.TEXT):
            raise complaint(token.column, f"{name} is {_WORDS[_type(name)]}, and LIKE is for texts: compare it")
        at = self._token
        pattern = self._text("a pattern is expected", "write name LIKE 'a%', with % for any text and _ for a character")
        escape = ""
        if self._took(KEYWORD, "ESCAPE"):
            escape_at = self._token
            escape = self._text("a character is expected", "write ESCAPE '!' and !% and !_ in the pattern")
            if len(escape) != 1:
                raise complaint(escape_at.column, f"{escape!r} is no single character: write ESCAPE '!'")
        try:
            return Likeness(name, parse_pattern(pattern, escape))
        except ValueError as error:
            raise complaint(at.column, f"{error} in the pattern: only %, _ and itself may follow it") from None

    def _text(self, where: str, remedy: str) -> str:
        if self._token.kind == CONSTANT and isinstance(self._token.value, str):
            return str(self._next().value)
        raise self._unexpected(where, remedy)

    def _alone(self, token: Token, left: Name | Constant) -> Condition:
        if isinstance(left, bool):
            return Truth(left)
        if not isinstance(left, Name) or TYPES[left.source] not in (None, ColumnKind.TRUTH):
            raise self._unexpected(
                "a comparison is expected", f"go on with {excerpt(token.written)} = ..., IN, BETWEEN, LIKE or IS NULL"
            )
        return Comparison("=", left, True)

    def _operand(self, where: str, remedy: str) -> Name | Constant:
        token = self._token
        if token.kind == NAME:
            return self._name()
        if token.kind == CONSTANT:
            self._next()
            assert not isinstance(token.value, tuple)
            return token.value
        if token.kind == KEYWORD and token.written in ("TRUE", "FALSE"):
            return self._next().written == "TRUE"
        if token.written == "NULL":
            remedy = "nothing equals NULL, ask with IS NULL or IS NOT NULL"
        raise self._unexpected(where, remedy)

    def _name(self) -> Name:
        token = self._next()
        path = token.value
        assert isinstance(path, tuple)
        first, rest = path[0], path[1:]
        quoted = token.written[0] == '"'
        if first == "level" and not rest and not quoted and self._took(SIGN, "("):
            return self._level()
        if quoted or first not in WHOLE_NAMES:
            return Name(Source.PAYLOAD, path)
        if first in ("payload", "properties"):
            if not rest:
                raise complaint(
                    token.column,
                    f'{first} stands for all of them: name one, as in {first}.x, or write "{first}" for a field '
                    "that is called so",
                )
            if first == "payload":
                return Name(Source.PAYLOAD, rest)
            if len(rest) > 1:
                raise complaint(
                    token.column, f'user properties have no fields: write properties."{".".join(rest)}" for that one'
                )
            return Name(Source.PROPERTIES, rest)
        return Name(Source.PAYLOAD, path) if rest else Name(Source(first))

    def _level(self) -> Name:
        token = self._token
        if token.kind != CONSTANT or type(token.value) is not int or not 1 <= token.value <= LEVEL_MAX:
            raise self._unexpected(
                f"a number from 1 to {LEVEL_MAX} is expected", "write level(1) for the first level of the topic"
            )
        self._next()
        self._expect(SIGN, ")", "write level(1)")
        return Name(Source.LEVEL, level=token.value)

    def _named(self, token: Token, left: Name | Constant, keyword: str) -> Name:
        if isinstance(left, Name):
            return left
        raise complaint(token.column, f"found {excerpt(token.written)} before {keyword}: a name is expected there")

    def _typed(
        self, left_at: Token, left: Name | Constant, right_at: Token, right: Name | Constant
    ) -> tuple[Name | Constant, Name | Constant]:
        """Both sides of a comparison, constants as the name on the other side has them."""
        if isinstance(left, Name) and not isinstance(right, Name):
            return left, _typed_constant(left_at, left, right_at, right)
        if isinstance(right, Name) and not isinstance(left, Name):
            return _typed_constant(right_at, right, left_at, left), right
        return left, right


def _type(name: Name) -> ColumnKind:
    kind = TYPES[name.source]
    assert kind is not None
    return kind


def _typed_constant(name_at: Token, name: Name, at: Token, value: Constant) -> Constant:
    """A constant as values of that name are. Raises UsageError when it is of a type that they never have."""
    if name.source is Source.TIME and isinstance(value, str):
        return _seconds(value, at)
    wanted = TYPES[name.source]
    if wanted is None or constant_kind(value) is wanted:
        return value
    raise complaint(
        at.column,
        f"{excerpt(at.written)} is {_WORDS[constant_kind(value)]}, and {name} is {_WORDS[wanted]}: "
        f"compare {name} with {_WORDS[wanted]}",
    )


def _seconds(text: str, at: Token) -> float:
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        raise complaint(
            at.column,
            f"{text!r:.40} is no time: write ISO 8601 with an offset, as in '2026-05-01T12:00:00Z', or seconds since "
            "1970",
        ) from None
    if when.tzinfo is None:
        raise complaint(
            at.column,
            f"{text!r} names no offset from UTC, and it is not known where it is read: write "
            f"'{when.isoformat(timespec='seconds')}Z' if UTC is meant",
        )
    return publication_seconds((when - _EPOCH) // timedelta(microseconds=1))
