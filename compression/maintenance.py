"""Dictionary maintenance: when a family needs a new dictionary, and of which kind.

Every algorithm has one interface and is pure (no clock, no I/O, no randomness, no training of its own):

    observe(message, time_us)    one message of the family, uncompressed
    due()                        None, or what a new dictionary is to be made of; the same until `adopt`
    adopt(dictionary)            the answer: the dictionary now announced, or None when none was worth it

The shell around it (the sampling broker) calls `training.fulfil(due, ...)`, in another thread where CPU matters,
announces what comes out and hands it back. Messages observed meanwhile count for the next time.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from itertools import islice
from typing import Final, NamedTuple

from .codecs import DEFLATE_PRESET, ZSTD
from .dictionary import NEVER_US, Dictionary

SAMPLE_BYTES_MAX: Final = 64 * 1024
SAMPLES_BYTES_MAX: Final = 4 << 20


class Candidate(NamedTuple):
    """A codec, a content size in bytes and a source of content (`dictionary_content`; None: the codec's) to try."""

    codec: str
    size: int
    source: str | None = None


class Due(NamedTuple):
    """A new dictionary is wanted: the parameters.

    `training` and `held_out` are samples, oldest first; of `candidates` the cheapest on `held_out` wins, the packed
    dictionary spread over `horizon` messages. It is worth announcing only when it saves `margin_percent` of the raw
    bytes more than what is used now: `current`, or DEFLATE without dictionary. It lives `life_us`.

    `hope`: of the candidates that pay within `horizon`, take the one that is best should the dictionary serve `hope`
    times as long.

    `unconditional`: announce the best candidate whether it pays or not (the thesis' algorithms). `polynomial`: choose
    the size where the fitted curve flattens (`dictionary_size`), whatever the dictionary costs.
    """

    training: tuple[bytes, ...]
    held_out: tuple[bytes, ...]
    candidates: tuple[Candidate, ...]
    horizon: float
    margin_percent: float
    current: Dictionary | None
    life_us: int
    hope: float = 1.0
    unconditional: bool = False
    polynomial: bool = False


class FamilySamples:
    """The last messages of a family: at most `count` messages and SAMPLES_BYTES_MAX bytes, none empty or huge.

    Messages longer than SAMPLE_BYTES_MAX are counted in `seen` but not kept.
    """

    def __init__(self, count: int) -> None:
        self.seen = 0
        self._count = count
        self._kept: deque[bytes] = deque()
        self._kept_bytes = 0

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def kept_bytes(self) -> int:
        """Bytes of all kept messages."""
        return self._kept_bytes

    @property
    def mean_bytes(self) -> float:
        """Mean length of the kept messages; 0 where there are none."""
        return self._kept_bytes / len(self._kept) if self._kept else 0.0

    def resize(self, count: int) -> None:
        """Keep at most `count` messages from now on."""
        self._count = count
        self._trim()

    def add(self, message: bytes) -> None:
        """The next message of the family."""
        self.seen += 1
        if 0 < len(message) <= SAMPLE_BYTES_MAX:
            self._kept.append(message)
            self._kept_bytes += len(message)
            self._trim()

    def last(self, count: int) -> tuple[bytes, ...]:
        """The newest `count` messages (or as many as there are), oldest first."""
        skipped = max(0, len(self._kept) - count)
        return tuple(islice(self._kept, skipped, None))

    def _trim(self) -> None:
        while len(self._kept) > self._count or self._kept_bytes > SAMPLES_BYTES_MAX:
            self._kept_bytes -= len(self._kept.popleft())


def split_by_time(messages: tuple[bytes, ...], held_out_max: int) -> tuple[tuple[bytes, ...], tuple[bytes, ...]]:
    """(training, held out): the oldest 70% and `held_out_max` of the newest 30%, spread over them.

    A trial on messages that lie between those trained on flatters contents that match neighbours in time: by it,
    flights chose DEFLATE with 28 KiB, which then was 2 points worse than zstd on the flights that followed.
    """
    cut = len(messages) * 7 // 10
    newest = messages[cut:]
    return messages[:cut], newest[:: max(1, len(newest) // held_out_max)][-held_out_max:]


def split_by_thirds(messages: tuple[bytes, ...]) -> tuple[tuple[bytes, ...], tuple[bytes, ...]]:
    """(training, held out): every third message is held out, so both see the same mixture, and the newest."""
    return tuple(m for at, m in enumerate(messages) if at % 3 != 2), messages[2::3]


class Maintenance(ABC):
    """The interface of every dictionary maintenance algorithm: one object a family."""

    publishers: int = 1
    subscribers: int = 1

    def audience(self, publishers: int, subscribers: int) -> None:
        """How many links a dictionary has to cross; 1 and 1 until told. Raises ValueError below 1."""
        if publishers < 1 or subscribers < 1:
            raise ValueError(f"at least one publisher and one subscriber, not {publishers} and {subscribers}")
        self.publishers, self.subscribers = publishers, subscribers

    @abstractmethod
    def observe(self, message: bytes, time_us: int) -> None:
        """One message of the family, in order."""

    @abstractmethod
    def due(self) -> Due | None:
        """What a new dictionary is to be made of, if one is wanted now."""

    @abstractmethod
    def adopt(self, dictionary: Dictionary | None) -> None:
        """`dictionary` is announced (also one that a predecessor left), or None: nothing was worth it."""


def sizes_for(mean_bytes: float) -> tuple[Candidate, ...]:
    """The candidates for messages of this mean length: zstd at 8 means, 1 to 16 KiB; DEFLATE at 2 to 16 KiB."""
    zstd = min(16 * 1024, max(1024, int(8 * mean_bytes)))
    return (Candidate(ZSTD, zstd), *(Candidate(DEFLATE_PRESET, size << 10) for size in (2, 4, 8, 16)))


class FirstSamples(Maintenance):
    """A dictionary from the first `samples` messages, looked at again at growing intervals.

    The n-th look comes after samples, growth * samples, growth^2 * samples, ... messages, from `interval_max` on every
    `interval_max` messages. A look costs one training; a new dictionary is announced only when, measured on held-out
    recent messages, it saves `margin_percent` of the raw bytes more than the current one and pays for itself within
    as many messages as were seen so far (at least `horizon_min`): what has lasted n messages is expected to last n
    more. With many publishers a dictionary crosses more links than a message does, (P + S) against (1 + S) (thesis
    equation 5.2.1), so it has to serve that many times as long.

    Defaults: raw messages sent before the first dictionary are most of the overhead on a short stream. Mean reduction
    over 11 sets of real messages with 20, 30, 50, 80, 120 samples: 74.8, 74.7, 74.3, 74.0, 73.1%; with growth 2, 3, 4,
    8 (50 samples): 74.3, 74.4, 74.3, 74.4%. Memory: `samples_max` messages, SAMPLES_BYTES_MAX bytes; messages longer
    than SAMPLE_BYTES_MAX are counted but not kept.
    """

    def __init__(
        self,
        samples: int = 30,
        *,
        samples_max: int = 300,
        growth: float = 4.0,
        interval_max: int = 20_000,
        horizon_min: int = 500,
        margin_percent: float = 1.0,
        life_us: int = NEVER_US,
    ) -> None:
        if not 4 <= samples <= samples_max:
            raise ValueError(f"samples must lie between 4 and samples_max ({samples_max}), not {samples}")
        if growth <= 1 or interval_max < samples or horizon_min < 1 or margin_percent < 0 or life_us < 1:
            raise ValueError("growth > 1, interval_max >= samples, horizon_min >= 1, margin_percent >= 0, life_us >= 1")
        self._growth = growth
        self._interval_max = interval_max
        self._horizon_min = horizon_min
        self._margin_percent = margin_percent
        self._life_us = life_us
        self._samples = FamilySamples(samples_max)
        self._samples_max = samples_max
        self._next_look = samples
        self._current: Dictionary | None = None

    @property
    def current(self) -> Dictionary | None:
        """The dictionary last adopted."""
        return self._current

    def observe(self, message: bytes, time_us: int) -> None:
        self._samples.add(message)

    def due(self) -> Due | None:
        if self._samples.seen < self._next_look or len(self._samples) < 4:
            return None
        training, held_out = split_by_thirds(self._samples.last(self._samples_max))
        return Due(
            training,
            held_out,
            sizes_for(self._samples.mean_bytes),
            self._horizon(),
            self._margin_percent,
            self._current,
            self._life_us,
        )

    def _horizon(self) -> int:
        expected = max(self._horizon_min, self._samples.seen)
        return max(1, expected * (1 + self.subscribers) // (self.publishers + self.subscribers))

    def adopt(self, dictionary: Dictionary | None) -> None:
        if dictionary is not None:
            self._current = dictionary
        interval = min(self._interval_max, int(self._next_look * (self._growth - 1)))
        while self._next_look <= self._samples.seen:
            self._next_look += max(1, interval)
