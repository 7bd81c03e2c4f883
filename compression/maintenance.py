"""Dictionary maintenance: when a family needs a new dictionary, and of which kind.

Every algorithm has one interface and is pure (no clock, no I/O, no randomness, no training of its own):

    observe(message, time_us)    one message of the family, uncompressed (and, where it is known, its topic)
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

from .dictionary import Dictionary
from .shared_text import SharedText

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

    `topics`: of `training`, then of `held_out`; none where they are not known.

    `unconditional`: announce the best candidate whether it pays or not (the thesis' algorithms). `polynomial`: choose
    the size where the fitted curve flattens (`dictionary_size`), whatever the dictionary costs. `shared`: nothing
    enters the dictionary that this does not admit.
    """

    training: tuple[bytes, ...]
    held_out: tuple[bytes, ...]
    candidates: tuple[Candidate, ...]
    horizon: float
    margin_percent: float
    current: Dictionary | None
    life_us: int
    hope: float = 1.0
    topics: tuple[bytes, ...] = ()
    unconditional: bool = False
    polynomial: bool = False
    shared: SharedText | None = None


class FamilySamples:
    """The last messages of a family: at most `count` messages and SAMPLES_BYTES_MAX bytes, none empty or huge.

    Messages longer than SAMPLE_BYTES_MAX are counted in `seen` but not kept.
    """

    def __init__(self, count: int) -> None:
        self.seen = 0
        self._count = count
        self._kept: deque[bytes] = deque()
        self._topics: deque[bytes] = deque()
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

    def add(self, message: bytes, topic: bytes = b"") -> None:
        """The next message of the family."""
        self.seen += 1
        if 0 < len(message) <= SAMPLE_BYTES_MAX:
            self._kept.append(message)
            self._topics.append(topic)
            self._kept_bytes += len(message)
            self._trim()

    def last(self, count: int) -> tuple[bytes, ...]:
        """The newest `count` messages (or as many as there are), oldest first."""
        return tuple(islice(self._kept, max(0, len(self._kept) - count), None))

    def last_topics(self, count: int) -> tuple[bytes, ...]:
        """Their topics."""
        return tuple(islice(self._topics, max(0, len(self._topics) - count), None))

    def _trim(self) -> None:
        while len(self._kept) > self._count or self._kept_bytes > SAMPLES_BYTES_MAX:
            self._kept_bytes -= len(self._kept.popleft())
            self._topics.popleft()


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
    def observe(self, message: bytes, time_us: int, topic: bytes = b"") -> None:
        """One message of the family, in order; `topic`: what came before on it is what streams can build on."""

    @abstractmethod
    def due(self) -> Due | None:
        """What a new dictionary is to be made of, if one is wanted now."""

    @abstractmethod
    def adopt(self, dictionary: Dictionary | None) -> None:
        """`dictionary` is announced (also one that a predecessor left), or None: nothing was worth it."""
