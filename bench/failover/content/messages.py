"""Messages that have something in them to ask for, and the conditions of those who ask. Pure.

What is in a message follows from who publishes it and its number alone. Whether a condition is true of it is written
down here a second time, in Python: nothing of lexicast has a say in what a subscriber is owed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, Final

from ..audit import TOPICS_A_PUBLISHER

PARTS: Final = 10
KINDS_OF_MEDIUM: Final = ("steam", "water", "wind", "oil", "gas", "brine", "smoke", "heat", "light", "sound")
COLDEST: Final = -10
DEGREES: Final = 40
NOTE: Final = "filed by the station's second controller, to be looked at when there is time for it"
KEPT: Final = 4_096

Fields = dict[str, Any]

TENTHS: Final[Mapping[str, Callable[[Fields], bool]]] = {
    "part = 0": lambda fields: fields["part"] == 0,
    "part = 3": lambda fields: fields["part"] == 3,
    "part > 6 AND part <= 7": lambda fields: fields["part"] == 7,
    "medium = 'steam'": lambda fields: fields["medium"] == "steam",
    "reading.celsius < -6": lambda fields: fields["reading"]["celsius"] < -6,
    "medium = 'wind' AND publisher LIKE '%-1'": lambda fields: (
        fields["medium"] == "wind" and fields["publisher"].endswith("-1")
    ),
    "part = 9 OR reading.celsius > 28": lambda fields: fields["part"] == 9 or fields["reading"]["celsius"] > 28,
}
"""Conditions that are true of about a tenth of all messages, the last but one of less."""
HALF: Final = "part >= 5"
CONDITIONS: Final[Mapping[str, Callable[[Fields], bool]]] = {**TENTHS, HALF: lambda fields: fields["part"] >= 5}


def fields(publisher: str, number: int) -> Fields:
    """What is in a message. Each of a publisher's topics gets of everything something."""
    on_topic = number // TOPICS_A_PUBLISHER
    return {
        "publisher": publisher,
        "number": number,
        "part": on_topic % PARTS,
        "medium": KINDS_OF_MEDIUM[(on_topic // 3) % len(KINDS_OF_MEDIUM)],
        "reading": {"celsius": COLDEST + number * 7 % DEGREES, "bar": round(1 + number % 97 / 100, 2)},
        "note": NOTE,
    }


@lru_cache(KEPT)
def _true_of(publisher: str, number: int) -> frozenset[str]:
    found = fields(publisher, number)
    return frozenset([where for where, holds in CONDITIONS.items() if holds(found)])


class ContentMessages:
    """`messages.DrillMessages` as JSON."""

    def payload(self, publisher: str, number: int) -> bytes:
        return json.dumps(fields(publisher, number)).encode()

    def read(self, payload: bytes) -> tuple[str, int] | None:
        try:
            found = json.loads(payload)
            key = found["publisher"], found["number"]
        except (ValueError, LookupError, TypeError):
            return None
        return key if payload == self.payload(*key) else None

    def wanted(self, where: str, publisher: str, number: int) -> bool:
        return not where or where in _true_of(publisher, number)
