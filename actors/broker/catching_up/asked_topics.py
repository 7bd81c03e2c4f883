"""Which records of a page conditions hold for, of those that one filter matches.

A condition that bounds fields is asked of all records at once: its boxes (`cluster.content.boxes`) are compared with
columns of the fields' values, of which each is made once a page. When ASKED_MAX have been, the index is asked about all
conditions of the broker by one question (as about live blocks, `content.content_fanout`), and its answer serves whoever
comes next; conditions that have begun since are asked themselves, and when they are many the index is asked again.
What bounds nothing is asked record by record, once each condition.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Final

import numpy as np
import numpy.typing as npt

from lexicast.cluster.content.boxes import Box, Boxes
from lexicast.cluster.content.extraction import columns_of
from lexicast.cluster.content.normal_form import boxes_of
from lexicast.cluster.content.predicate import Predicate

from ..content.index_answers import IndexAnswers
from ..content.predicate_table import PredicateTable
from .page_records import PageRecords

# So many conditions are asked themselves before the index is asked, and this part of those of which it has told before
# it is asked again.
ASKED_MAX: Final = 32
NEWER_PART: Final = 4
# Fewer records are asked one by one: NumPy's calls cost more.
NUMPY_FROM: Final = 8
BOXES_KEPT: Final = 16_384
# What a filter takes in memory, and a condition asked, beside 8 B a record.
TOPICS_BYTES: Final = 500
VERDICT_BYTES: Final = 250

Booleans = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]


class AskedTopics:
    """See the module's docstring. `records`: by number in ascending order, one or more."""

    __slots__ = ("_answers", "_asked", "_columns", "_page", "_predicates", "_verdicts", "records", "size_bytes")

    def __init__(self, page: PageRecords, predicates: PredicateTable, records: Sequence[int]) -> None:
        self.records = records
        self.size_bytes = TOPICS_BYTES + 8 * len(records)
        self._page = page
        self._predicates = predicates
        self._columns: dict[str, Floats] = {}
        self._answers: IndexAnswers | None = None
        # Conditions asked themselves since the index has answered.
        self._asked = 0
        # What was asked record by record; all else is found again as quickly.
        self._verdicts: dict[Predicate, Sequence[int]] = {}

    def holding(self, predicate: Predicate) -> Sequence[int]:
        """The records that a condition holds for."""
        found = self._verdicts.get(predicate)
        if found is None:
            found = self._of_index(predicate)
        if found is None:
            found = self._of_itself(predicate)
            self._asked += 1
        return found

    def _of_index(self, predicate: Predicate) -> Sequence[int] | None:
        """By what the index has said; None where that does not help."""
        number = self._predicates.indexed(predicate)
        if not number or len(self.records) < NUMPY_FROM:
            return None
        answers = self._answers
        if answers is None or number > answers.last_number:
            newer = 0 if answers is None else answers.conditions // NEWER_PART
            if self._asked < max(ASKED_MAX, newer):
                return None
            answers = self._answers = self._predicates.answers(self._page.content(self.records, self._predicates.names))
            self._asked = 0
            self.size_bytes += answers.size_bytes
        found = [self.records[at] for at in answers.events(number)]
        return self._one_by_one(predicate, found) if self._predicates.is_inexact(number) else found

    def _of_itself(self, predicate: Predicate) -> Sequence[int]:
        boxes = _boxes_of(predicate) if len(self.records) >= NUMPY_FROM else None
        if boxes is None:
            return self._one_by_one(predicate, self.records)
        inside = np.zeros(len(self.records), np.bool_)
        for box in boxes.boxes:
            inside |= self._inside(predicate, box)
        found = [self.records[at] for at in np.flatnonzero(inside).tolist()]
        return found if boxes.exact else self._one_by_one(predicate, found)

    def _inside(self, predicate: Predicate, box: Box) -> Booleans:
        inside = np.ones(len(self.records), np.bool_)
        for column, (low, high) in box.items():
            values = self._column(predicate, column)
            inside &= (values >= low) & (values <= high)
        return inside

    def _column(self, predicate: Predicate, column: str) -> Floats:
        values = self._columns.get(column)
        if values is None:
            made = columns_of(self._page.content(self.records, predicate.names), (column,))
            values = self._columns[column] = made[:, 0]
            self.size_bytes += values.nbytes
        return values

    def _one_by_one(self, predicate: Predicate, records: Sequence[int]) -> Sequence[int]:
        matches, content = predicate.matches, self._page.content(records, predicate.names)
        found = [record for record, each in zip(records, content, strict=True) if matches(each)]
        self._verdicts[predicate] = found
        self.size_bytes += VERDICT_BYTES + 8 * len(found)
        return found


@lru_cache(BOXES_KEPT)
def _boxes_of(predicate: Predicate) -> Boxes | None:
    return boxes_of(predicate.condition)
