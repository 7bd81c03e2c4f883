"""The distinct conditions of a broker's subscriptions, and which of them hold for a block's publications.

Conditions that mean the same are one (`Predicate`), however many subscribe to it. Those that bound fields lie in the
index (`cluster.content.index`), which is asked once for all publications of a block; where a condition's boxes say too
much it is asked itself. *Residual* conditions no index helps: each is asked about each publication of its topics, so
they have a limit of their own.

Whatever is looked up for each publication goes by a condition's *number*: 0 stands for none.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Any, Final, Protocol

from lexicast.cluster.content.content_record import ContentRecord
from lexicast.cluster.content.extraction import columns_of
from lexicast.cluster.content.fields import FieldCounts, FieldReader
from lexicast.cluster.content.index.predicate_index import BoxMatches, PredicateIndex
from lexicast.cluster.content.nodes import Name
from lexicast.cluster.content.normal_form import boxes_of
from lexicast.cluster.content.predicate import Predicate
from lexicast.cluster.errors import LimitError, UsageError

from .index_answers import IndexAnswers

PREDICATES_MAX: Final = 2_000_000
RESIDUAL_MAX: Final = 1_000
# Boxes that the index moves in one turn of its upkeep, and how long it gives way then.
BOXES_A_TURN: Final = 256
GIVES_WAY_S: Final = 0.001
# Conditions that the status names.
SHOWN: Final = 5


class Records(Protocol):
    """Publications by number (`choosing.BlockChoice`)."""

    def records(self, reader: FieldReader) -> Sequence[ContentRecord]:
        """All of them."""
        ...


class PredicateTable:
    """See the module's docstring."""

    def __init__(self) -> None:
        self._index = PredicateIndex()
        self._subscriptions: Counter[Predicate] = Counter()
        self._numbers: dict[Predicate, int] = {}
        self._residual: dict[int, Predicate] = {}
        # Those whose boxes say too much.
        self._inexact: dict[int, Predicate] = {}
        self._last_number = 0
        self._names: Counter[Name] = Counter()
        self._reader: FieldReader | None = None
        self._upkeep: asyncio.TimerHandle | None = None
        self._counts = FieldCounts()

    def __len__(self) -> int:
        return len(self._subscriptions)

    @property
    def residual(self) -> int:
        """How many no index helps."""
        return len(self._residual)

    @property
    def residual_predicates(self) -> Mapping[int, Predicate]:
        """Those, by number."""
        return self._residual

    def number(self, predicate: Predicate | None) -> int:
        """The number of one of them, 0 for None."""
        return 0 if predicate is None else self._numbers[predicate]

    def is_residual(self, number: int) -> bool:
        """Whether no index helps one of them."""
        return number in self._residual

    def check(self, predicate: Predicate) -> None:
        """Raises LimitError where there is no room for one more."""
        if predicate in self._subscriptions:
            return
        if len(self) >= PREDICATES_MAX:
            raise LimitError(f"this broker has {PREDICATES_MAX:,} different conditions, its limit: end some")
        if self.residual >= RESIDUAL_MAX and boxes_of(predicate.condition) is None:
            raise LimitError(
                f"this broker has {RESIDUAL_MAX:,} conditions that no index helps, its limit: bound a field, as in "
                f"delay > 30 AND {predicate.text[:80]}"
            )

    def hold(self, predicate: Predicate) -> None:
        """One subscription more."""
        self._subscriptions[predicate] += 1
        if self._subscriptions[predicate] > 1:
            return
        for name in predicate.names:
            self._names[name] += 1
            if self._names[name] == 1:
                self._reader = None
        self._last_number += 1
        number = self._numbers[predicate] = self._last_number
        boxes = boxes_of(predicate.condition)
        if boxes is None:
            self._residual[number] = predicate
            return
        try:
            self._index.add(number, boxes)
        except UsageError:  # fields that hardly another one asks for: it does without
            self._residual[number] = predicate
            return
        if not boxes.exact:
            self._inexact[number] = predicate
        self._keep_up()

    def release(self, predicate: Predicate) -> None:
        """One less; the last one ends it."""
        self._subscriptions[predicate] -= 1
        if self._subscriptions[predicate]:
            return
        del self._subscriptions[predicate]
        for name in predicate.names:
            self._names[name] -= 1
            if not self._names[name]:
                del self._names[name]
        number = self._numbers.pop(predicate)
        if self._residual.pop(number, None) is None:
            self._inexact.pop(number, None)
            self._index.remove(number)

    # -- the index' upkeep, between everything else

    def _keep_up(self) -> None:
        if self._upkeep is None:
            self._upkeep = asyncio.get_running_loop().call_later(GIVES_WAY_S, self._step)

    def _step(self) -> None:
        self._upkeep = None
        if self._index.step(BOXES_A_TURN):
            self._keep_up()

    @property
    def waiting(self) -> int:
        """Boxes that the upkeep has yet to move."""
        return self._index.waiting

    def close(self) -> None:
        """Nothing is asked any more."""
        if self._upkeep is not None:
            self._upkeep.cancel()

    # -- asked

    @property
    def names(self) -> frozenset[Name]:
        """The names of all conditions."""
        return frozenset(self._names)

    @property
    def reader(self) -> FieldReader:
        """What reads the fields that all conditions need; made anew when one needs more."""
        if self._reader is None:
            self._reader = FieldReader(self._names, self._counts)
        return self._reader

    def indexed(self, predicate: Predicate) -> int:
        """The number of a condition, as `answers` know it; 0 for one that no index helps, or that is not held here."""
        number = self._numbers.get(predicate, 0)
        return 0 if number in self._residual else number

    def is_inexact(self, number: int) -> bool:
        """Whether a condition has to be asked itself where its boxes hold."""
        return number in self._inexact

    def answers(self, asked: Sequence[ContentRecord]) -> IndexAnswers:
        """What the index says of records, of all conditions at once. Their reader knows `names`."""
        return IndexAnswers(self._matches(asked), self._last_number, len(self._index))

    def _matches(self, asked: Sequence[ContentRecord]) -> BoxMatches:
        columns = tuple(self._index.columns)
        return self._index.match(columns_of(asked, columns), columns)

    def holding_of(
        self, records: Records, numbers: Iterable[int], some: Mapping[int, Predicate]
    ) -> dict[int, list[int]]:
        """Of a few conditions those that hold, by the number of the publication."""
        asked = records.records(self.reader)
        found: dict[int, list[int]] = {}
        for number in numbers:
            record = asked[number]
            if holding := [condition for condition, predicate in some.items() if predicate.matches(record)]:
                found[number] = holding
        return found

    def holding(
        self, records: Records, numbers: Sequence[int], residual: Mapping[int, Predicate]
    ) -> dict[int, list[int]]:
        """All that hold, of those that no index helps only these; by the number of the publication."""
        inexact, every = self._inexact, records.records(self.reader)
        asked = every if len(numbers) == len(every) else [every[number] for number in numbers]
        matches = self._matches(asked)
        found: dict[int, list[int]] = {}
        for event, condition in zip(matches.events.tolist(), matches.keys.tolist(), strict=True):
            if condition not in inexact or inexact[condition].matches(asked[event]):
                found.setdefault(numbers[event], []).append(condition)
        if residual:
            for number, more in self.holding_of(records, numbers, residual).items():
                found.setdefault(number, []).extend(more)
        return found

    def status(self) -> dict[str, Any]:
        """For `lexicast status`."""
        counts = self._counts
        return {
            "predicates": len(self),
            "residual": self.residual,
            "residual_predicates": [each.text for each in islice(self._residual.values(), SHOWN)],
            "unread_payloads": {
                "beyond_limits": counts.beyond_limits,
                "malformed": counts.malformed,
                "no_map": counts.no_map,
            },
        }
