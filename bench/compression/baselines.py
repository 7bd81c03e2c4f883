"""The maintenance algorithms that PREDICT is measured against: SINGLEDICT, FIXEDRATE and ADAPTIVE.

As in the thesis (section 5.4.1, chapter 4) their dictionaries are packed from ranked substrings; `source` gives them
other contents, and `codec` any codec of dictionaries, so that what is compared is when and how large, not with what.
None of them knows how many links a dictionary has to cross.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

from lexicast.compression.codecs import DEFLATE_PRESET
from lexicast.compression.dictionary import NEVER_US, Dictionary
from lexicast.compression.dictionary_content import SUBSTRINGS
from lexicast.compression.maintenance import Candidate, Due, FamilySamples, Maintenance

SINGLEDICT_MULTIPLIERS: Final = (0.3, 0.5, 1, 2, 3, 5, 8, 13, 21, 35, 56, 91)
"""DM of SINGLEDICT, equation 5.4.1."""

MULTIPLIERS: Final = (0.3, 0.5, 1, 2, 3, 5, 8, 13, 21)
"""DM of FIXEDRATE (equation 5.4.2) and of ADAPTIVE (equation 4.3.2)."""

HISTORIES: Final = (50, 100, 200, 300, 500, 800, 1300, 2100, 3400, 5500)
"""BS of FIXEDRATE (equation 5.4.2) and of ADAPTIVE (equation 4.3.1)."""

INTERVALS: Final = (1500, 7500, 15000, 30000)
"""MC of FIXEDRATE, equation 5.4.2."""

IMPROVEMENTS: Final = (1, 2, 3, 4, 5)
"""MI of ADAPTIVE, percent (section 5.4.1)."""

_FIXEDRATE_DICTIONARIES_A_STEP: Final = 10
_ADAPTIVE_FIRST: Final = 100
_ADAPTIVE_INCREASES_MAX: Final = 4
_ADAPTIVE_FIRST_PAYOFFS: Final = 2_000
_ADAPTIVE_PAYOFFS: Final = 10
_HORIZON_WITHOUT_END: Final = 1 << 40


class _Baseline(Maintenance):
    """What the three share: samples, and one candidate that is announced as it is."""

    def __init__(self, history: int, multiplier: float, codec: str, source: str) -> None:
        if history < 1 or multiplier <= 0:
            raise ValueError(f"a history of at least 1 message and a positive multiplier, not {history}, {multiplier}")
        self._samples = FamilySamples(history)
        self._history = history
        self._multiplier = multiplier
        self._codec = codec
        self._source = source
        self._current: Dictionary | None = None

    @property
    def current(self) -> Dictionary | None:
        """The dictionary last adopted."""
        return self._current

    def observe(self, message: bytes, time_us: int, topic: bytes = b"") -> None:
        self._samples.add(message)

    def adopt(self, dictionary: Dictionary | None) -> None:
        self._current = dictionary or self._current

    def _candidate(self) -> Candidate:
        size = max(1, int(self._multiplier * self._samples.mean_bytes))
        return Candidate(self._codec, size, self._source)

    def _unconditional(self) -> Due:
        messages = self._samples.last(self._history)
        return Due(messages, (), (self._candidate(),), 1, 0.0, self._current, NEVER_US, unconditional=True)


class SingleDict(_Baseline):
    """SINGLEDICT: one dictionary of `multiplier` mean messages from the first `samples` messages, for ever."""

    def __init__(
        self, multiplier: float, *, samples: int = 10_000, codec: str = DEFLATE_PRESET, source: str = SUBSTRINGS
    ) -> None:
        super().__init__(samples, multiplier, codec, source)
        self._done = False

    def due(self) -> Due | None:
        wanted = not self._done and self._samples.seen >= self._history and len(self._samples) > 0
        return self._unconditional() if wanted else None

    def adopt(self, dictionary: Dictionary | None) -> None:
        super().adopt(dictionary)
        self._done = True


class FixedRate(_Baseline):
    """FIXEDRATE: a dictionary when `history` messages have been seen, then every `interval` messages, unconditionally.

    Every ten dictionaries the next larger history and the next larger multiplier are taken in turn (section 5.4.1).
    """

    def __init__(
        self,
        multiplier: float,
        history: int,
        interval: int,
        *,
        codec: str = DEFLATE_PRESET,
        source: str = SUBSTRINGS,
    ) -> None:
        super().__init__(history, multiplier, codec, source)
        if interval < 1:
            raise ValueError(f"an interval of at least 1 message, not {interval}")
        self._interval = interval
        self._next = history
        self._made = 0

    def due(self) -> Due | None:
        return self._unconditional() if self._samples.seen >= self._next and len(self._samples) else None

    def adopt(self, dictionary: Dictionary | None) -> None:
        super().adopt(dictionary)
        self._made += 1
        self._next = self._samples.seen + self._interval
        if self._made % _FIXEDRATE_DICTIONARIES_A_STEP == 0:
            self._increase(self._made // _FIXEDRATE_DICTIONARIES_A_STEP)

    def _increase(self, step: int) -> None:
        if step % 2:
            self._history = next((size for size in HISTORIES if size > self._history), self._history)
            self._samples.resize(self._history)
        else:
            self._multiplier = next((size for size in MULTIPLIERS if size > self._multiplier), self._multiplier)


class AdaptiveReading(Enum):
    """Where ADAPTIVE's pseudocode and its text differ."""

    PRINTED = "printed"
    """Algorithms 4.2 and 4.3: sizes grow four times and no more; what is prolonged lives twice as long as it did when
    it was new, each time; `adaptations` counts new dictionaries and begins anew where one is prolonged."""

    TEXT = "text"
    """Sections 4.2.2 and 5.4.1: whenever a dictionary is prolonged sizes grow, the buffer four times and the multiplier
    as far as there are any; `adaptations` counts these changes, and what is prolonged lives by equation 4.2.6."""


class Adaptive(_Baseline):
    """ADAPTIVE (algorithms 4.1 to 4.3): at T_exp a new dictionary if it gains more than `improvement` percent.

    The gain is estimated by training on the newest 70% of the buffer and compressing the oldest 30% (algorithm 4.1,
    whose fraction is printed inverted: the reduction is 1 - compressed/uncompressed). Times are those given to
    `observe`; the thesis has 100 messages a second.
    """

    def __init__(
        self,
        improvement: float,
        *,
        reading: AdaptiveReading = AdaptiveReading.PRINTED,
        codec: str = DEFLATE_PRESET,
        source: str = SUBSTRINGS,
    ) -> None:
        super().__init__(_ADAPTIVE_FIRST, MULTIPLIERS[0], codec, source)
        self._improvement = improvement
        self._reading = reading
        self._buffer_step = self._multiplier_step = 0
        self._buffer_next = True
        self._adaptations = self._increases = 0
        self._times: list[tuple[int, int]] = []
        self._now_us = 0
        self._expires_us: float = 0.0
        self._payoff_us: float = 0.0
        self._amortized_us: float = 0.0
        self._bytes = 0

    def observe(self, message: bytes, time_us: int, topic: bytes = b"") -> None:
        super().observe(message, time_us)
        self._now_us = time_us
        self._bytes += len(message)
        self._times.append((time_us, self._bytes))
        del self._times[: -max(2, self._history)]

    def due(self) -> Due | None:
        if self._samples.seen < _ADAPTIVE_FIRST or len(self._samples) < 4:
            return None
        if self._current is not None and self._now_us < self._expires_us:
            return None
        messages = self._samples.last(self._history)
        cut = max(1, len(messages) * 3 // 10)
        return Due(
            messages[cut:],
            messages[:cut],
            (self._candidate(),),
            _HORIZON_WITHOUT_END,
            self._improvement,
            self._current,
            NEVER_US,
            unconditional=self._current is None,
        )

    def adopt(self, dictionary: Dictionary | None) -> None:
        first = self._current is None
        super().adopt(dictionary)
        printed = self._reading is AdaptiveReading.PRINTED
        if dictionary is not None:
            self._amortized_us = self._amortize_us(dictionary)
            self._adaptations += printed and not first
            self._payoff_us = self._amortized_us * (_ADAPTIVE_FIRST_PAYOFFS if first else self._payoffs)
            self._expires_us = self._now_us + self._payoff_us
            return
        if printed:
            self._adaptations = 0
            life_us = 2 * self._payoff_us
        else:
            self._adaptations += 1
            life_us = self._amortized_us * self._payoffs
        self._expires_us = self._now_us + max(1.0, life_us)
        if self._increases < _ADAPTIVE_INCREASES_MAX:
            self._increase()
        elif not printed:
            self._enlarge()
        self._increases += 1

    @property
    def _payoffs(self) -> int:
        """How often a dictionary is to amortize before it expires, equation 4.2.6."""
        return _ADAPTIVE_PAYOFFS * max(1, self._adaptations) ** 3

    def _amortize_us(self, dictionary: Dictionary) -> float:
        """T_amortize = |SD| / (R BR), equations 4.2.3 to 4.2.5."""
        messages = self._samples.last(self._history)
        tested = messages[: max(1, len(messages) * 3 // 10)]
        codec = dictionary.build()
        share = 1 - sum(1 + len(codec.encode(m)[1]) for m in tested) / sum(map(len, tested))
        (begin_us, begin_bytes), (end_us, end_bytes) = self._times[0], self._times[-1]
        rate = (end_bytes - begin_bytes) / max(1, end_us - begin_us)
        return len(dictionary.pack()) / max(1e-9, rate * max(0.01, share))

    def _increase(self) -> None:
        """Algorithm 4.3: buffer and multiplier in turn."""
        if self._buffer_next:
            self._buffer_step = min(self._buffer_step + 1, len(HISTORIES) - 1)
            self._history = max(_ADAPTIVE_FIRST, HISTORIES[self._buffer_step])
            self._samples.resize(self._history)
        else:
            self._enlarge()
        self._buffer_next = not self._buffer_next

    def _enlarge(self) -> None:
        self._multiplier_step = min(self._multiplier_step + 1, len(MULTIPLIERS) - 1)
        self._multiplier = MULTIPLIERS[self._multiplier_step]
