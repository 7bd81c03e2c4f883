"""The compression of what plain clients publish: stored in its family's compression, while the broker has time.

What plain clients publish comes raw. Where their family has a dictionary, an entry's payloads are compressed when it is
sealed: the log, the links and the other brokers then carry a third to a fifth of the bytes, and dictionary-aware
subscribers need no encoding of their own. Only runs that become shorter are; an empty payload stays empty, since it
clears a retained publication.

**The budget** (pure: the caller tells the times). In each period of PERIOD_S at most `cpu_percent` of it is spent. Who
cannot keep up does not try: in the period after one in which all that came would have cost more than DEMAND_MAX
budgets, or in which the broker was busy with other work for more than BUSY_MAX of the time, nothing is compressed, and
nothing looked at but the number of records. So a flood costs one period's budget, once, and then no more than a look at
a clock for each entry; it stays raw.

**What is sent to local plain subscribers** is not decompressed again: the raw payloads of what was compressed here are
remembered until their block comes back, REMEMBERED_BYTES of them at the most. Catching up and other brokers decompress
(0.8 us a message with zstd, 5 with DEFLATE).
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from lexicast.cluster.blocks import Block
from lexicast.cluster.errors import DictionaryError
from lexicast.compression.wire import Recoder

from ..dictionaries.keeper import NewestDictionary

PERIOD_S: Final = 1.0
DEMAND_MAX: Final = 2.0
BUSY_MAX: Final = 0.5
# What a record costs before any has been measured.
RECORD_S: Final = 10e-6
# Of what a record costs a new measurement counts so much.
WEIGHT: Final = 1 / 8
# And none counts for more than so many times the estimate: a dictionary's first use takes milliseconds.
OUTLIER: Final = 4
REMEMBERED_BYTES: Final = 4 * 1024 * 1024
# In the entry's meta, for each dictionary that it refers to.
ID_BYTES: Final = 9


class CompressionBudget:
    """See the module's docstring. `on`: something may be compressed in this period."""

    def __init__(self, cpu_percent: float) -> None:
        self._budget_s = cpu_percent / 100 * PERIOD_S
        self._record_s = RECORD_S
        self._spent_s = self._demand_s = 0.0
        self._began_s = self._busy_s = float("-inf")
        self.on = cpu_percent > 0

    def period_over(self, now_s: float) -> bool:
        """Whether `begin` is due."""
        return now_s >= self._began_s + PERIOD_S

    def begin(self, now_s: float, busy_s: float) -> None:
        """A period begins; `busy_s`: CPU time that the broker's thread has taken so far, of any kind."""
        past_s = max(now_s - self._began_s, PERIOD_S)
        keeps_up = self._demand_s <= DEMAND_MAX * self._budget_s * past_s / PERIOD_S
        others = busy_s - self._busy_s - self._spent_s <= BUSY_MAX * past_s or self._busy_s == float("-inf")
        if not self.on:
            # Nothing was measured: what was dear (the first use of a dictionary) need not stay so.
            self._record_s += (RECORD_S - self._record_s) / 2
        self.on = self._budget_s > 0 and keeps_up and others
        self._began_s, self._busy_s = now_s, busy_s
        self._spent_s = self._demand_s = 0.0

    def allows(self, records: int) -> bool:
        """Whether so many records may be compressed now; they count as wanted in any case."""
        cost_s = records * self._record_s
        self._demand_s += cost_s
        return self.on and self._spent_s + cost_s <= self._budget_s

    def charge(self, records: int, seconds: float) -> None:
        """What so many records have taken."""
        self._spent_s += seconds
        self._record_s += (min(seconds / records, OUTLIER * self._record_s) - self._record_s) * WEIGHT


class Compressed(NamedTuple):
    """A run's payloads as stored: compressed with this dictionary."""

    dictionary: int
    payloads: list[bytes]


class _Sealed(NamedTuple):
    """Where an entry's records come from: enough to know its block again."""

    producer: bytes
    incarnation: int
    group: int
    sequence: int


class StoredCompression:
    """See the module's docstring."""

    def __init__(
        self,
        recoder: Recoder,
        newest: NewestDictionary,
        cpu_percent: float,
        clock_s: Callable[[], float] = time.perf_counter,
        busy_s: Callable[[], float] = time.thread_time,
    ) -> None:
        self._recoder = recoder
        self._newest = newest
        self._clock_s = clock_s
        self._busy_s = busy_s
        self._budget = CompressionBudget(cpu_percent)
        self._remembered: OrderedDict[_Sealed, tuple[list[bytes], int]] = OrderedDict()
        self._remembered_bytes = 0
        self.records = self.raw_bytes = self.stored_bytes = self.left_raw = 0

    def begin(self, records: int) -> float | None:
        """CPU time at which compressing so many records of an entry begins (for `end`); None: there is no time."""
        now_s, budget = self._clock_s(), self._budget
        if budget.period_over(now_s):
            budget.begin(now_s, self._busy_s())
        if budget.allows(records):
            return self._busy_s()  # not the clock: on a busy machine it goes on while others run
        self.left_raw += records
        return None

    def run(self, topic: bytes, payloads: list[bytes], named: bool) -> Compressed | None:
        """A raw run of one topic compressed; None when it is to stay as it is. `named`: whether the entry refers to a
        dictionary already, most probably this one."""
        dictionary = self._newest(topic)
        if dictionary is None or b"" in payloads:
            return None
        try:
            made = self._recoder.encode_all(payloads, dictionary)
        except DictionaryError:
            return None  # it cannot be used for compressing
        raw, stored = sum(map(len, payloads)), sum(map(len, made))
        if stored + (0 if named else ID_BYTES) >= raw:
            return None
        self.records += len(payloads)
        self.raw_bytes += raw
        self.stored_bytes += stored
        return Compressed(dictionary.id, made)

    def end(self, records: int, began_s: float) -> None:
        """An entry is done."""
        self._budget.charge(records, self._busy_s() - began_s)

    # -- what comes back

    def remember(self, producer: bytes, incarnation: int, group: int, sequence: int, raw: list[bytes]) -> None:
        """The raw payloads of an entry of which some were compressed."""
        size = sum(map(len, raw))
        self._remembered[_Sealed(producer, incarnation, group, sequence)] = raw, size
        self._remembered_bytes += size
        while self._remembered_bytes > REMEMBERED_BYTES:
            _, (_, gone) = self._remembered.popitem(last=False)
            self._remembered_bytes -= gone

    def raw_of(self, block: Block) -> list[bytes] | None:
        """The raw payloads of a block that came from here, once; None when they are not known (any more)."""
        producers = block.meta.producers
        if not self._remembered or len(producers) != 1:
            return None
        producer, incarnation, sequence, count = producers[0]
        found = self._remembered.pop(_Sealed(producer, incarnation, block.group, sequence), None)
        if found is None:
            return None
        self._remembered_bytes -= found[1]
        return found[0] if len(found[0]) == count == block.count else None

    def raw_kept(self, block: Block) -> list[bytes] | None:
        """The same before it has come back: they stay."""
        producers = block.meta.producers
        if len(producers) != 1:
            return None
        producer, incarnation, sequence, _ = producers[0]
        found = self._remembered.get(_Sealed(producer, incarnation, block.group, sequence))
        return found[0] if found is not None and len(found[0]) == block.count else None

    def status(self) -> dict[str, Any]:
        """For `lexicast status`: what was compressed here, and how many records went raw for want of time."""
        return {
            "on": self._budget.on,
            "records": self.records,
            "raw_bytes": self.raw_bytes,
            "stored_bytes": self.stored_bytes,
            "left_raw": self.left_raw,
        }
