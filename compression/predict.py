"""PREDICT (thesis chapter 5): dictionaries whose size, history and life follow the stream, with nothing to configure.

    few messages seen      a dictionary from the first `first` messages; new looks after 100 and after 500,
                           the longest history (HS, eq. 5.3.10)
    afterwards             a look whenever MC messages have passed: the dictionary is probed on recent messages, and
                           what that says against what it promised decides (eq. 5.3.8):
                             better by I.min (1%) or more   MC doubles, the expectation rises
                             worse by I.min or more         MC/2 is recorded, a new dictionary is made
                             about the same                 MC is recorded and doubles, the dictionary is one look older
                           after AGE_MAX such looks (eq. 5.3.6) a new dictionary is made in any case
    a new dictionary       is announced when it pays (`maintenance.Due`); its MC is MC.base (eq. 5.3.4) until six
                           observations exist, then predicted from the substring repository (`regression`)

**Where this leaves the thesis, and why** (figures: `bench.compression.driver`):

- The first dictionary comes after 30 messages, not 500: what is sent before it is most of the overhead of a short
  stream. Hence the looks that follow soon.
- Size and codec are chosen by cost, the packed dictionary and the number of links it crosses included, where the
  thesis fits a parabola through the reduction alone (`dictionary_size`; PREDICT(sizing="polynomial") does that).
- A new dictionary that would not pay is not announced. With many publishers this is what keeps the result above
  DEFLATE: an announcement crosses P + S links, a message 1 + S. How long will it serve? A stream is expected to go on
  for half as long as it has lasted (2/3 for the first dictionary), and a family is presumed to carry 8 messages a
  publisher (at least HORIZON_MIN, at most PRESUMED_MAX). Sampling brokers reckon with one publisher and one
  subscriber: there each link decides for itself (`link_dictionaries`).
- What a dictionary promises is measured on the first messages after it, not on those it was made of: the latter
  promise too much, and every probe would find it "worse".
- MC never exceeds what was seen (looks at doubled counts at the latest): MC.base can be millions of messages.
- Two printed formulas contradict the text: MC.base (`Base`), eq. 5.3.7 and 5.3.8 (`FormulaReading`). Both are here.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from math import inf, isfinite
from typing import Any, Final, Literal

from .codecs import DEFLATE_PRESET, FIELDS, ZSTD_DENSE
from .dictionary import NEVER_US, Dictionary
from .dictionary_content import COVERING, FIELDS_ALONE, FIELDS_AND_RECENT, FIELDS_LEAN, RECENT, SUBSTRINGS
from .dictionary_size import MULTIPLIERS
from .fields.training import LEARNED_BYTES_MAX
from .maintenance import Candidate, Due, FamilySamples, Maintenance, split_by_thirds, split_by_time
from .regression import MessageCountModel, Observation
from .substring_repository import SUBSTRINGS_A_ROUND_MAX, SubstringRepository
from .substrings import ranked

HISTORY: Final = (50, 100, 200, 300, 500)
"""HS, equation 5.3.10: how many messages a dictionary is made of."""

AGE_MAX: Final = 6
"""Equation 5.3.6: looks that a dictionary may outlive unchanged."""

OVERHEAD_FACTOR: Final = 1000
"""The overhead of a dictionary is to be 1/1000 of the bytes (thesis section 5.3.2)."""

HORIZON_MIN: Final = 500
PRESUMED_A_PUBLISHER: Final = 8
PRESUMED_MAX: Final = 8_000
PROBE_MESSAGES: Final = 100

_FIRST: Final = 30
# All of HS reduced by 0.1 points more and took 1.4 times the CPU.
_EARLY_LOOKS: Final = (100, 500)
_FIRST_FRUGAL: Final = 200
# Nothing is announced to P publishers before P/5 messages: a family that ends sooner would have paid for nothing.
_PUBLISHERS_A_MESSAGE: Final = 5
_FIRST_MARGIN_PERCENT: Final = 2.0
_LASTING_FIRST: Final = 2 / 3
_LASTING: Final = 1 / 2
"""For how large a part of what has been seen a stream is expected to go on: for the first dictionary, for later ones.
With 2/3, 10,000 publishers of flights get theirs before half a month is over; with 1/2, twice as late."""
_LARGER_MULTIPLIERS: Final = (34, 55, 91)
_SMALL_MULTIPLIERS: Final = (0.25, 0.35, 0.5, 0.7, 1, 1.4, 2, 2.8, 4, 5.6, 8, 11, 16)
_FRUGAL_HORIZON: Final = 500
_MEAGRE_HORIZON: Final = 12
# Whether to announce is decided by what is certain, which dictionary by what is likely.
_HOPE: Final = 2.0
_LONGER: Final = 3.0
"""A dictionary made for a third of the messages that are expected now is looked for anew."""
_HELD_OUT_MAX: Final = 50
_HELD_OUT_LATE_MAX: Final = 100
_SIZE_MAX: Final = 64 * 1024
_FIELDS_SIZES: Final = (8 * 1024, 16 * 1024, 32 * 1024)
_GROWTH_MAX: Final = 1

CPU_US_A_MESSAGE: Final = 40.0
CPU_US_AT_FIRST: Final = 12e6
"""What making dictionaries may cost, about: 12 s and 40 us a message, which is 0.7% of a core in the first hour of a
family of 100 messages a second, and 0.4% later. Where it is overdrawn a look waits."""
_TRYING_US: Final = 100_000.0
_BYTE_US: Final = 0.5
_FIELDS_BYTE_US: Final = 6.0
"""Of field models, a byte of the first LEARNED_BYTES_MAX."""
_IN_VAIN: Final = 2
"""An attempt that did not pay counts so often: messages that change all the time are not learned again each time."""


class Base(Enum):
    """Equation 5.3.4, as printed and as its text needs it."""

    PAPER = "paper"
    """MC.base = oh (100 - BR) / (mean 100) * 1000: the better a dictionary, the sooner it is looked at."""
    DERIVED = "derived"
    """MC.base = 1000 oh / (mean (1 - BR/100)): as many messages as make oh 1/1000 of the compressed bytes."""

    def messages(self, overhead_bytes: float, mean_bytes: float, reduction_percent: float) -> float:
        """MC.base. `overhead_bytes`: oh = |DC| (|P| + |S|); a reduction of 100% counts as 99%."""
        share = max(0.01, 1 - reduction_percent / 100)
        count = OVERHEAD_FACTOR * overhead_bytes / mean_bytes
        return count * share if self is Base.PAPER else count / share


class ProbeOutcome(Enum):
    """Equation 5.3.8."""

    BETTER = "a"
    WORSE = "b"
    SAME = "c"


class FormulaReading(Enum):
    """How 5.3.7 and 5.3.8 are read."""

    TEXT = "text"
    """Measured against what the dictionary promised, by I.min = 1% of it: the text of section 5.3.2."""
    PRINTED = "printed"
    """BR.imp = max(BR.avg, BR.curr) - BR.curr, never negative, against I.min: "the same" cannot happen."""

    def outcome(self, promised: float, average: float, current: float) -> ProbeOutcome:
        """What a probe that measured `current` percent means."""
        least = abs(promised if self is FormulaReading.TEXT else current) / 100
        if self is FormulaReading.PRINTED:
            return ProbeOutcome.BETTER if max(average, current) - current >= least else ProbeOutcome.WORSE
        if current - promised >= least:
            return ProbeOutcome.BETTER
        return ProbeOutcome.WORSE if promised - current >= least else ProbeOutcome.SAME


class Predict(Maintenance):
    """PREDICT for one family. Memory: 500 messages (4 MiB at most), 512 substrings, 64 observations."""

    def __init__(
        self,
        *,
        base: Base = Base.DERIVED,
        reading: FormulaReading = FormulaReading.TEXT,
        sizing: Literal["cost", "polynomial"] = "cost",
        first: int = _FIRST,
        margin_percent: float = 1.0,
        life_us: int = NEVER_US,
        fields: bool = True,
    ) -> None:
        """`fields`: whether field models are tried beside dictionaries of bytes, which are all that the thesis has."""
        if not 4 <= first <= HISTORY[-1]:
            raise ValueError(f"the first dictionary takes 4 to {HISTORY[-1]} messages, not {first}")
        if margin_percent < 0 or life_us < 1:
            raise ValueError("margin_percent >= 0 and life_us >= 1")
        self._base = base
        self._reading = reading
        self._polynomial = sizing == "polynomial"
        self._margin_percent = margin_percent
        self._life_us = life_us
        self._fields = fields and sizing == "cost"
        self._samples = FamilySamples(HISTORY[-1])
        self._repository = SubstringRepository()
        self._model = MessageCountModel()
        self._current: Dictionary | None = None
        self._changed = False
        self._refusals = 0
        self._look_at = first
        self._count = float(first)
        self._wanted = False
        self._age = 0
        self._recorded = False
        self._promised: float | None = None
        self._promise_at = 0
        self._average = 0.0
        self._probes = 0
        self._made_for = inf
        self._cpu_us = 0.0

    @property
    def current(self) -> Dictionary | None:
        """The dictionary last adopted."""
        return self._current

    @property
    def messages_until_look(self) -> int:
        """How many more messages until the next look; 0: now."""
        return max(0, self._look_at - self._samples.seen)

    def observe(self, message: bytes, time_us: int, topic: bytes = b"") -> None:
        self._samples.add(message, topic)
        if self._promised is None and self._current is not None and self._samples.seen >= self._promise_at:
            self._promised = self._probe()

    def due(self) -> Due | None:
        least = max(_FIRST_FRUGAL, self.publishers // _PUBLISHERS_A_MESSAGE) if self._frugal else 4
        if self._samples.seen < max(self._look_at, least) or len(self._samples) < 4:
            return None
        if not self._wanted:
            self._wanted = self._decide()
        if not self._wanted or self._waits():
            return None
        return self._due()

    def adopt(self, dictionary: Dictionary | None) -> None:
        changed, asked, self._wanted, self._changed = self._changed, self._wanted, False, False
        if asked:
            self._cpu_us += self._about_us() * (1 if dictionary is not None else _IN_VAIN)
        if dictionary is None:
            self._age = 0
            self._made_for = self._horizon()
            # worse, and still nothing better: the history may yet be of both languages
            self._schedule(HISTORY[-1] * 2.0**self._refusals if changed else self._count * 2)
            self._refusals += changed
            return
        self._refusals = 0
        self._made_for = self._horizon()
        self._current = dictionary
        self._promised = None
        self._promise_at = self._samples.seen + PROBE_MESSAGES
        self._age = self._probes = 0
        self._recorded = False
        if self._samples.seen >= HISTORY[-1]:
            history = self._samples.last(HISTORY[-1])
            self._repository.observe(ranked(history, SUBSTRINGS_A_ROUND_MAX), len(history))
        self._schedule(self._first_count(dictionary))

    def state(self) -> dict[str, Any]:
        """What a successor needs to go on: counts and measurements, nothing of any message."""
        return {
            "seen": self._samples.seen,
            "look_at": self._look_at,
            "count": self._count,
            "age": self._age,
            "recorded": self._recorded,
            "promised": self._promised,
            "promise_at": self._promise_at,
            "average": self._average,
            "probes": self._probes,
            "cpu_us": self._cpu_us,
            "model": self._model.state(),
        }

    def restore(self, state: dict[str, Any], dictionary: Dictionary | None) -> None:
        """Go on from a predecessor's `state`, `dictionary` being announced; the next look waits for new samples.

        Raises ValueError, TypeError or KeyError, nothing changed, for what is no state.
        """
        seen, look_at, age, promise_at, probes = (
            int(state[key]) for key in ("seen", "look_at", "age", "promise_at", "probes")
        )
        count, average = float(state["count"]), float(state["average"])
        promised = None if state["promised"] is None else float(state["promised"])
        cpu_us = float(state.get("cpu_us", 0.0))
        counts = min(seen, look_at, age, promise_at, probes)
        if counts < 0 or not 0 <= count < inf or not 0 <= cpu_us < inf or not isfinite(average):
            raise ValueError("a number is out of range")
        self._model.restore(state["model"])
        self._samples.seen = seen
        self._look_at = max(look_at, seen + PROBE_MESSAGES)
        self._count, self._age, self._recorded = count, age, bool(state["recorded"])
        self._promised, self._promise_at = promised, max(promise_at, seen + PROBE_MESSAGES)
        self._average, self._probes, self._cpu_us = average, probes, cpu_us
        self._current = dictionary

    def warm(self, observations: Sequence[Observation]) -> None:
        """Start MC from a regression over other families, as long as this one is in its bootstrap (`regression`).

        A dictionary whose MC is still the bootstrap's, and that has not been looked at since, is looked at when the
        regression says.
        """
        self._model.warm(observations)
        untouched = self._current is not None and not (self._recorded or self._probes or self._wanted)
        if not untouched or not self._model.bootstrapping or self._samples.seen <= HISTORY[-1]:
            return
        predicted = self._model.predict(self._repository.features())
        if predicted is not None:
            adopted_at = self._promise_at - PROBE_MESSAGES
            self._count = min(max(predicted, float(PROBE_MESSAGES)), float(_GROWTH_MAX * adopted_at))
            self._look_at = max(self._samples.seen + 1, adopted_at + int(self._count))

    def _decide(self) -> bool:
        """Whether a new dictionary is to be made now; else the next look is set."""
        if self._current is None or self._samples.seen <= HISTORY[-1] or self._promised is None:
            return True
        if self._horizon() < _MEAGRE_HORIZON or self._horizon() >= _LONGER * self._made_for:
            # a dictionary as good as it promised was small for want of messages, and is too small for a longer stream
            return True
        current = self._probe()
        self._probes += 1
        self._average += (current - self._average) / self._probes
        outcome = self._reading.outcome(self._promised, self._average, current)
        if outcome is ProbeOutcome.WORSE:
            self._record(self._count / 2)
            self._changed = True
            return True
        if outcome is ProbeOutcome.BETTER:
            self._record(self._count * 2)
            self._promised = current
        else:
            self._record(self._count)
            self._age += 1
            if self._age >= AGE_MAX:
                return True
        self._schedule(self._count * 2)
        return False

    def _waits(self) -> bool:
        """Whether dictionaries have cost too much so far: then the look is put off for as long as that takes."""
        over = self._cpu_us - CPU_US_AT_FIRST - CPU_US_A_MESSAGE * self._samples.seen
        if over <= 0:
            return False
        self._look_at = self._samples.seen + 1 + int(over / CPU_US_A_MESSAGE)
        return True

    def _about_us(self) -> float:
        """What a dictionary costs that is made of the samples at hand, with all that is tried for it."""
        sampled = self._samples.kept_bytes
        fields = _FIELDS_BYTE_US * min(sampled, LEARNED_BYTES_MAX) if self._fields else 0.0
        return _TRYING_US + _BYTE_US * sampled + fields

    def _record(self, count: float) -> None:
        """One observation a dictionary, corrected by later probes of it."""
        if self._recorded:
            self._model.correct(count)
        else:
            self._model.record(self._repository.features(), count)
        self._recorded = True

    def _first_count(self, dictionary: Dictionary) -> float:
        """MC of a new dictionary, equation 5.3.5."""
        predicted = self._model.predict(self._repository.features())
        if predicted is not None:
            return predicted
        if not self._samples.mean_bytes:
            return float(PROBE_MESSAGES)  # a predecessor's dictionary, and no message seen yet
        overhead = len(dictionary.pack()) * (self.publishers + self.subscribers)
        return self._base.messages(overhead, self._samples.mean_bytes, self._probe())

    def _schedule(self, count: float) -> None:
        """The next look: after `count` messages, sooner while the longest history has not been seen."""
        seen = self._samples.seen
        self._count = min(max(count, float(PROBE_MESSAGES)), float(_GROWTH_MAX * seen))
        self._look_at = seen + max(1, int(self._count))
        longer = [size for size in _EARLY_LOOKS if size > seen]
        if longer:
            self._look_at = longer[0]

    def _probe(self) -> float:
        """The current dictionary's reduction in percent on the newest messages."""
        messages = self._samples.last(PROBE_MESSAGES)
        if self._current is None or not messages:
            return 0.0
        codec = self._current.build()
        sent = sum(1 + len(codec.encode(message)[1]) for message in messages)
        return 100 - 100 * sent / sum(map(len, messages))

    def _due(self) -> Due:
        training, held_out = self._split(self._samples.last(HISTORY[-1]))
        topics, held_out_topics = self._split(self._samples.last_topics(HISTORY[-1]))
        return Due(
            training,
            held_out,
            self._candidates(sum(map(len, training))),
            self._horizon(),
            _FIRST_MARGIN_PERCENT if self._frugal and self._current is None else self._margin_percent,
            self._current,
            self._life_us,
            hope=_HOPE if self._frugal else 1.0,
            topics=topics + held_out_topics,
            polynomial=self._polynomial,
        )

    def _split(self, history: tuple[bytes, ...]) -> tuple[tuple[bytes, ...], tuple[bytes, ...]]:
        """(training, held out) of the newest messages, or of their topics."""
        if len(history) < _FIRST_FRUGAL:
            return split_by_thirds(history)
        return split_by_time(history, _HELD_OUT_MAX if self._samples.seen <= HISTORY[-1] else _HELD_OUT_LATE_MAX)

    def _horizon(self) -> float:
        """For how many messages on one link a dictionary is expected to serve; a link's share with many publishers."""
        presumed = min(max(HORIZON_MIN, PRESUMED_A_PUBLISHER * self.publishers), PRESUMED_MAX)
        lasting = _LASTING_FIRST if self._current is None else _LASTING
        expected = max(presumed, self._samples.seen * lasting)
        return expected * (1 + self.subscribers) / (self.publishers + self.subscribers)

    def _candidates(self, training_bytes: int) -> tuple[Candidate, ...]:
        """Sizes from DM (eq. 5.3.9) and beyond, for each codec; and finer ones where bytes are dear."""
        steps: tuple[float, ...] = (*MULTIPLIERS, *_LARGER_MULTIPLIERS)
        sources: tuple[str, ...] = (RECENT,)
        if self._polynomial:
            steps = MULTIPLIERS
        elif self._frugal:
            steps, sources = _SMALL_MULTIPLIERS, (RECENT, COVERING, SUBSTRINGS)
        mean = self._samples.mean_bytes
        fields = self._field_candidates() if self._fields else ()
        sizes = sorted({max(1, int(min(step * mean, training_bytes, _SIZE_MAX))) for step in steps})
        return fields + tuple(
            Candidate(codec, size, source)
            for source in sources
            for codec in (ZSTD_DENSE, DEFLATE_PRESET)
            for size in sizes
        )

    def _field_candidates(self) -> tuple[Candidate, ...]:
        """Field models, alone and with a dictionary beside."""
        lean = (Candidate(FIELDS, _SIZE_MAX, FIELDS_LEAN),)
        if self._frugal:
            return lean
        beside = tuple(Candidate(FIELDS, size, FIELDS_AND_RECENT) for size in _FIELDS_SIZES)
        return (*lean, Candidate(FIELDS, _SIZE_MAX, FIELDS_ALONE), *beside)

    @property
    def _frugal(self) -> bool:
        """Whether each byte of a dictionary weighs so much that more CPU and patience pay."""
        return self._horizon() < _FRUGAL_HORIZON
