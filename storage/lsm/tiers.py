"""The memory table: a few sorted tiers, each FANOUT times the size of the one before.

A batch becomes a small tier; FANOUT tiers of a size become one of the next size, and what has expired meanwhile is
dropped on the way (section 4: "efficiently remove the expired items ... during background compaction"). So a row is
moved log(rows) times and a question is asked of at most FANOUT - 1 tiers a size.

Chosen by measurement: the paper's workload at 3:1, 20,000 operations a second, 10,000 a batch, 170,000 live rows; CPU
time an operation of the whole engine (two busy cores: the differences count, not the values).

    FANOUT 2 / 4 / 8 / 16                                          1.89 / 1.85 / 1.89 / 1.97 us
    no merging at all: every tier until it is written              3.30
    one array, each batch merged into it                           2.49
    no memory table: rows in LMDB under (ID, kind, seq)            17.0
    no memory table: duplicate sorted values under (ID, kind)      19.3

Buckets by expiry instead of sizes are what tiers are as long as windows are equal: a tier that has expired as a whole
is passed over by its bounds. They were not kept apart, because one long window would hold its bucket for all.
"""

from __future__ import annotations

from typing import Final

from .rows import Asked, Bounds, Matches, Rows, bounds_of, merged, probe

FANOUT: Final = 8

# A batch that completes a tier waits for the merge: 5 ms for so many rows.
MERGED_ROWS_MAX: Final = 131_072


class Tiers:
    """Sorted rows in memory, asked as one."""

    __slots__ = ("_levels", "rows")

    def __init__(self) -> None:
        self._levels: list[list[tuple[Rows, Bounds]]] = [[]]
        self.rows = 0

    def add(self, rows: Rows, now_us: int) -> None:
        """Take in sorted rows, at least one; merges tiers when FANOUT of one size have come together.

        Tiers that would be more than MERGED_ROWS_MAX together stay as they are.
        """
        self.rows += rows.size
        level = 0
        while True:
            if rows.size:
                self._levels[level].append((rows, bounds_of(rows)))
            tiers = self._levels[level]
            if len(tiers) < FANOUT or sum([tier.size for tier, _ in tiers]) > MERGED_ROWS_MAX:
                return
            rows = merged([tier for tier, _ in tiers], now_us)
            self.rows += rows.size - sum([tier.size for tier, _ in tiers])
            self._levels[level] = []
            level += 1
            if level == len(self._levels):
                self._levels.append([])

    def probe(self, asking: Asked) -> list[Matches]:
        """The answers that these tiers hold."""
        found = [probe(tier, bounds, asking) for tiers in self._levels for tier, bounds in tiers]
        return [matches for matches in found if matches is not None]

    def parts(self, now_us: int) -> list[Rows]:
        """The tiers; without those that have expired as a whole."""
        return [rows for tiers in self._levels for rows, bounds in tiers if bounds.high_max >= now_us]
