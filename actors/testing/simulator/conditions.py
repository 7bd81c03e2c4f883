"""What content subscribers of a story want, and what is published for them: conditions, each with a judge of its own.

A judge is Python and shares no code with what evaluates conditions (`cluster.content`).
"""

from __future__ import annotations

import json
import random
from binascii import crc32
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

NUMBERS: Final = 20
LETTERS: Final = "abcd"

# Whether a condition is true of a publication: its topic, and the payload's fields.
Holds = Callable[[bytes, Mapping[str, Any]], bool]


class StoryCondition(NamedTuple):
    """`where` as a subscriber writes it, none for ""; `holds`: whether it is true."""

    where: str
    holds: Holds

    def wants(self, topic: bytes, payload: bytes) -> bool:
        """Whether a subscriber with this condition is to get that."""
        return self.holds(topic, _fields(payload))


def _fields(payload: bytes) -> Mapping[str, Any]:
    """A payload's fields; wills have none."""
    try:
        found = json.loads(payload)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _number(fields: Mapping[str, Any]) -> float:
    """NaN, of which no comparison holds, where there is no number."""
    found = fields.get("n")
    return found if isinstance(found, int) else float("nan")


EVERYTHING: Final = StoryCondition("", lambda topic, fields: True)


def _between(low: int, high: int) -> StoryCondition:
    return StoryCondition(f"n BETWEEN {low} AND {high}", lambda topic, fields: low <= _number(fields) <= high)


def _of_letter(letter: str, least: int) -> StoryCondition:
    return StoryCondition(
        f"s = '{letter}' AND n >= {least}",
        lambda topic, fields: fields.get("s") == letter and _number(fields) >= least,
    )


OTHERS: Final = (
    StoryCondition("n < 3 OR n = 9", lambda topic, fields: _number(fields) < 3 or _number(fields) == 9),
    StoryCondition("n IS NULL", lambda topic, fields: fields.get("n") is None),
    StoryCondition("s LIKE 'a%'", lambda topic, fields: str(fields.get("s", "")).startswith("a")),
    StoryCondition(
        "level(1) = 'b' AND NOT n > 11", lambda topic, fields: topic.split(b"/")[0] == b"b" and _number(fields) <= 11
    ),
    EVERYTHING,
)


def drawn_condition(dice: random.Random) -> StoryCondition:
    """One of many."""
    kind = dice.random()
    if kind < 0.5:
        low = dice.randrange(NUMBERS)
        return _between(low, low + dice.randrange(5))
    if kind < 0.7:
        return _of_letter(dice.choice(LETTERS), dice.randrange(NUMBERS))
    return dice.choice(OTHERS)


def content_payload(name: bytes) -> bytes:
    """The payload of that name, always the same; some lack a field, or have a text where others have a number."""
    dice = random.Random(crc32(name))
    fields: dict[str, Any] = {"id": name.decode()}
    if dice.random() < 0.9:
        fields["n"] = dice.randrange(NUMBERS) if dice.random() < 0.95 else "many"
    if dice.random() < 0.7:
        fields["s"] = dice.choice(LETTERS)
    return json.dumps(fields).encode()
