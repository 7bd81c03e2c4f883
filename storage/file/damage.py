"""The one way for what is damaged: passed over, counted by kind, told once, and never an error of whoever met it.

Rules, which hold because the readers of rows themselves keep them (`table.Table`, `block_log.Log`,
`log_index.LogIndex`), so that no caller has to remember:

1. A row, block or record whose bytes are not those that were written is as if it were not there.
2. It is noted in the store's `Ledger`, wherever it was met: once a place, in the log once a kind.
3. What is derived from other rows is made anew from them by housekeeping: DualDB's index, names and ids of topics.
4. Anything else stays where it is until it is written over, or dropped by `lexicast store repair`.

`check` names damage instead: it compares checksums itself and gives up nothing.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from typing import Any, Final

from .sealing import DamageError

log = logging.getLogger(__name__)

# Places remembered, so that each is counted once; beyond them nothing is counted any more.
PLACES_MAX: Final = 10_000
_PLACES_TOLD: Final = 5


class Ledger:
    """What was found damaged in a store since it was opened. Used from any thread."""

    def __init__(self, store: str = "") -> None:
        """`store`: how the log calls it; "": nothing is logged, for who tells of damage in another way."""
        self._store = store
        self._lock = threading.Lock()
        self._places: dict[tuple[str, int, int, str], None] = {}
        self._counts: Counter[str] = Counter()

    def note(self, error: DamageError) -> None:
        """Remember a damaged place; the first of its kind is logged."""
        place = (error.table, error.group, error.offset, error.what)
        with self._lock:
            if place in self._places or len(self._places) >= PLACES_MAX:
                return
            self._places[place] = None
            self._counts[error.table] += 1
            first = self._counts[error.table] == 1
        if first and self._store:
            log.error("%s %s (passed over; further ones in %s: see status)", self._store, error, error.table)

    @property
    def counts(self) -> dict[str, int]:
        """Damaged places by table."""
        with self._lock:
            return dict(self._counts)

    def status(self) -> dict[str, Any]:
        """{"counts": damaged places by table, "first": the first of them in words}; empty when nothing is damaged."""
        with self._lock:
            if not self._places:
                return {}
            shown = [f"{t}, group {g}, offset {o}: {what}" for t, g, o, what in list(self._places)[:_PLACES_TOLD]]
            return {"counts": dict(self._counts), "first": shown}
