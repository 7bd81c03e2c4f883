"""Predicates: conditions ready to be asked. Those with the same text are the same."""

from __future__ import annotations

from .canonical import canonical, condition_text
from .content_record import ContentRecord
from .evaluation import question
from .fields import NOTHING
from .nodes import Absence, All, Comparison, Condition, Either, Likeness, Membership, Name, Not, Source, Truth
from .parser import parse_canonical, parse_condition


class Predicate:
    """A condition in its canonical form.

    `text`: the canonical text; `condition`: its tree; `names`: all the values of a record that it needs.
    """

    __slots__ = ("_question", "_reads_payload", "condition", "names", "text")

    def __init__(self, condition: Condition) -> None:
        self.condition = canonical(condition)
        self.text = condition_text(self.condition)
        self.names = names_of(self.condition)
        self._question = question(self.condition)
        self._reads_payload = any([name.source is Source.PAYLOAD for name in self.names])

    @classmethod
    def parse(cls, where: str) -> Predicate:
        """The predicate of a condition that a user wrote. Raises UsageError (see `parse_condition`)."""
        return cls(parse_condition(where))

    @classmethod
    def of_canonical(cls, text: str) -> Predicate:
        """The predicate with that canonical text, as another process has made it. Raises UsageError."""
        return cls(parse_canonical(text))

    def matches(self, record: ContentRecord) -> bool:
        """Whether the condition is true of a record (not: false or unknown)."""
        return self._question(record.fields() if self._reads_payload else NOTHING, record)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Predicate) and self.text == other.text

    def __hash__(self) -> int:
        return hash(self.text)

    def __repr__(self) -> str:
        return f"Predicate({self.text!r})"


def names_of(condition: Condition) -> frozenset[Name]:
    """The names that stand in a condition."""
    match condition:
        case All(operands) | Either(operands):
            return frozenset[Name]().union(*map(names_of, operands))
        case Not(operand):
            return names_of(operand)
        case Comparison(_, left, right):
            return frozenset([side for side in (left, right) if isinstance(side, Name)])
        case Membership(name) | Likeness(name) | Absence(name):
            return frozenset([name])
        case Truth():
            return frozenset()
