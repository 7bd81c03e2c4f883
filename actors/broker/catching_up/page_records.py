"""The records of a page of the past as conditions see them: each decompressed and decoded once, whoever asks."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Final

from lexicast.cluster.blocks import FIRST_DICTIONARY, QOS_MASK, RAW, RETAIN
from lexicast.cluster.content.content_record import ContentRecord
from lexicast.cluster.content.fields import FieldReader
from lexicast.cluster.content.nodes import Name

from ..content.choosing import reader_of
from ..content.predicate_table import PredicateTable
from ..dictionaries.payload_opening import asked_of
from ..encoding import Encoder
from .pages import Page

# How often a page is decoded anew, for names that were not asked for yet, before all of its fields are.
READERS_MAX: Final = 4
# A record with its fields takes so much memory, about.
RECORD_BYTES: Final = 550


class PageRecords:
    """See the module's docstring. A record's number counts those of the page.

    `firsts`: the first record of each row, and how many there are; `unread`: something could not be decompressed.
    """

    def __init__(self, encoder: Encoder, predicates: PredicateTable, page: Page) -> None:
        self.page = page
        self.firsts = list(accumulate([run.count for run in page.columns.runs], initial=0))
        self.unread = False
        self.size_bytes = 0
        self._encoder = encoder
        self._predicates = predicates
        self._records: dict[int, ContentRecord] = {}
        # The names whose fields are decoded; None: all.
        self._names: frozenset[Name] | None = frozenset()
        self._readers = 0
        self._reader: FieldReader = reader_of(frozenset())

    def at(self, offset: int) -> int:
        """The first record at or after an offset."""
        columns = self.page.columns
        row = bisect_right(columns.offsets, offset) - 1
        return 0 if row < 0 else self.firsts[row] + min(offset - columns.offsets[row], columns.runs[row].count)

    def of_rows(self, rows: Iterable[int]) -> list[int]:
        """The records of rows, by number in ascending order."""
        firsts = self.firsts
        return [record for row in rows for record in range(firsts[row], firsts[row + 1])]

    def content(self, records: Sequence[int], names: frozenset[Name]) -> list[ContentRecord]:
        """Records, by number, whose fields of these names are known."""
        self._read_names(names)
        known, firsts = self._records, self.firsts
        if lacking := [record for record in records if record not in known]:
            rows = sorted({bisect_right(firsts, record) - 1 for record in lacking})
            for row, payloads in zip(rows, self.raw(rows), strict=True):
                self._open(row, payloads)
        return [known[record] for record in records]

    def _read_names(self, names: frozenset[Name]) -> None:
        if self._names is None or self._names >= names:
            return
        # All that somebody may ask for soon, so that this happens once.
        self._names = self._predicates.names | names
        self._readers += 1
        if self._readers < READERS_MAX:
            self._reader = reader_of(self._names)
        else:
            self._reader, self._names = FieldReader(), None
        self.size_bytes = 0
        self._records.clear()

    def _open(self, row: int, payloads: Sequence[bytes | None]) -> None:
        of = self.page.columns.row(row)
        flags, properties = of.run.flags, of.run.properties
        for record, payload in enumerate(payloads, self.firsts[row]):
            self._records[record] = ContentRecord(
                of.topic, payload or b"", self._reader, of.time_us, flags & QOS_MASK, flags & RETAIN > 0, properties
            )
        self.size_bytes += RECORD_BYTES * len(payloads) + sum([len(payload or b"") for payload in payloads])

    def raw(self, rows: Sequence[int]) -> list[list[bytes | None]]:
        """The payloads of rows as conditions ask them; None for one that cannot be decompressed."""
        columns, raw = self.page.columns, dict[int, list[bytes | None]]()
        places: dict[tuple[int, int | None], list[int]] = {}
        for row in rows:
            of = columns.row(row)
            places.setdefault((min(of.run.encoding, FIRST_DICTIONARY), of.dictionary), []).append(row)
        for (encoding, dictionary), some in places.items():
            # Those of one dictionary together.
            payloads: list[bytes | None] = [payload for row in some for payload in columns.row(row).payloads()]
            if encoding != RAW:
                payloads = asked_of(self._encoder.recoder, encoding, dictionary, payloads)
                self.unread = self.unread or None in payloads
            at = 0
            for row in some:
                end = at + columns.runs[row].count
                raw[row] = payloads[at:end]
                at = end
        return [raw[row] for row in rows]
