"""The substring repository: scores of substrings over time (PREDICT, thesis sections 5.3.1 and 5.3.2).

Each time a family's substrings are ranked, they are *observed* here. Entries never contain one another:

    put        a new substring that overlaps no entry becomes one
    demerge    where an entry contains the new substring, the entry is cut into what is before it, it, and what is
               after it; where the new substring contains an entry, the new one is cut

    {abcdfgwxyz, abcdfgjklp}, then abcdfg is observed   ->   {abcdfg, wxyz, jklp}

A piece inherits the history of what it was cut from. Pieces of 3 bytes or fewer score 0 (eq. 5.3.1) and are dropped.

Features for predicting MC, over the entries observed in the last round: the mean standard deviation of their scores
(eq. 5.3.2: how volatile the language is) and their mean score (eq. 5.3.3: how much it matters). Occurrences are counted
per 100 messages, so that rounds over 50 and over 500 messages compare.

Bounded: ENTRIES_MAX entries, the longest unobserved out first; a round of 200 substrings takes about 10 ms.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import sqrt
from typing import Final, NamedTuple

from .substrings import REFERENCE_BYTES, Substring, score

ENTRIES_MAX: Final = 512
SUBSTRINGS_A_ROUND_MAX: Final = 200

_MESSAGES_UNIT: Final = 100


class History(NamedTuple):
    """An entry's scores: the newest, how many there were, their sum, the sum of their squares, the round of the newest.

    The thesis keeps the mean; the sum says the same.
    """

    newest: float
    observations: int
    total: float
    squares: float
    round: int

    def then(self, score: float, round: int) -> History:
        """This history and one more score; a second one in a round replaces nothing and is not counted."""
        if round == self.round:
            return self
        return History(score, self.observations + 1, self.total + score, self.squares + score * score, round)

    @property
    def mean(self) -> float:
        """Mean score."""
        return self.total / self.observations

    @property
    def deviation(self) -> float:
        """Standard deviation of the scores, equation 5.3.2."""
        return sqrt(max(0.0, self.squares / self.observations - self.mean**2))


class Features(NamedTuple):
    """What MC is predicted from."""

    mean_deviation: float
    mean_score: float


class SubstringRepository:
    """All entries of one family."""

    def __init__(self, entries_max: int = ENTRIES_MAX) -> None:
        self._entries_max = entries_max
        self._entries: dict[bytes, History] = {}
        self._round = 0

    @property
    def entries(self) -> dict[bytes, History]:
        """A copy of the entries."""
        return dict(self._entries)

    def observe(self, substrings: Iterable[Substring], messages: int) -> None:
        """One round: the ranked substrings of `messages` messages. At most SUBSTRINGS_A_ROUND_MAX are looked at."""
        self._round += 1
        for number, substring in enumerate(substrings):
            if number == SUBSTRINGS_A_ROUND_MAX:
                break
            rate = substring.occurrences * _MESSAGES_UNIT / max(1, messages)
            self._put(substring.content, score(len(substring.content), rate))
        self._trim()

    def features(self) -> Features:
        """Equations 5.3.2 and 5.3.3 over the entries of the last round; zeros where there are none."""
        last = [history for history in self._entries.values() if history.round == self._round]
        if not last:
            return Features(0.0, 0.0)
        return Features(
            sum(history.deviation for history in last) / len(last),
            sum(history.newest for history in last) / len(last),
        )

    def _put(self, content: bytes, value: float) -> None:
        fresh = History(value, 1, value, value * value, self._round)
        pending: list[tuple[bytes, History]] = [(content, fresh)]
        while pending:
            piece, history = pending.pop()
            if len(piece) > REFERENCE_BYTES:
                pending += self._place(piece, history)

    def _place(self, piece: bytes, history: History) -> list[tuple[bytes, History]]:
        """Enter one piece; what has been cut off on the way, to be entered next."""
        known = self._entries.get(piece)
        if known is not None:
            self._entries[piece] = known.then(history.newest, history.round)
            return []
        inside = next((entry for entry in self._entries if entry in piece), None)
        if inside is not None:
            self._entries[inside] = self._entries[inside].then(history.newest, history.round)
            return _cut(piece, inside, history)
        return self._demerge(piece, history)

    def _demerge(self, piece: bytes, history: History) -> list[tuple[bytes, History]]:
        containers = [entry for entry in self._entries if piece in entry]
        if not containers:
            self._entries[piece] = history
            return []
        histories = [(entry, self._entries.pop(entry)) for entry in containers]
        longest = max((old for _, old in histories), key=lambda old: old.observations)
        self._entries[piece] = longest.then(history.newest, history.round)
        return [cut for entry, old in histories for cut in _cut(entry, piece, old)]

    def _trim(self) -> None:
        excess = len(self._entries) - self._entries_max
        if excess > 0:
            weakest = sorted(self._entries, key=lambda entry: (self._entries[entry].round, self._entries[entry].mean))
            for entry in weakest[:excess]:
                del self._entries[entry]


def _cut(whole: bytes, part: bytes, history: History) -> list[tuple[bytes, History]]:
    """What is left of `whole` before and after the first `part`."""
    before, _, after = whole.partition(part)
    return [(before, history), (after, history)]
