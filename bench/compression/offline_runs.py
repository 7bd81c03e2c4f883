"""Runs of maintenance algorithms over a corpus, offline, with the accounting of thesis equation 5.2.1.

The sampling broker sees every message and answers at once; publishers use a dictionary from the message after it. Each
link pays for a dictionary what actors send for it: all of it, packed, and the binding of its alias.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from lexicast.compression.accounting import reduction_percent
from lexicast.compression.codecs import Codec, Deflate
from lexicast.compression.dictionary import Dictionary
from lexicast.compression.dictionary_content import SUBSTRINGS, Material
from lexicast.compression.maintenance import SAMPLES_BYTES_MAX, Due, Maintenance
from lexicast.compression.predict import Predict
from lexicast.compression.training import fulfil

from .network_bytes import compressed_bytes, uncompressed_bytes

FAMILY: Final = b"bench/+"
_START_US: Final = 1_700_000_000_000_000
MESSAGE_US: Final = 10_000
"""100 messages a second (thesis sections 4.3.4 and 5.4.1): what ADAPTIVE reckons with."""

BINDING_BYTES: Final = 9
_TAG_BYTES: Final = 1

# Reading the CPU clock takes as long as observing a message: one of so many is timed and stands for all.
# Probes and trainings are timed in full.
_TIMED: Final = 16


@dataclass
class OfflineRun:
    """What one algorithm did to one corpus."""

    messages: int = 0
    raw_bytes: int = 0
    sent_bytes: int = 0
    dictionary_bytes: int = 0
    dictionaries: list[tuple[int, Dictionary]] = field(default_factory=list)
    """Each with the number of messages seen when it came."""
    sampling_cpu_s: float = 0.0
    windows: list[float] = field(default_factory=list)
    """Reduction in each hundredth of the corpus, dictionaries included."""

    def reduction(self, publishers: int = 1, subscribers: int = 1) -> float:
        """BR, equation 5.2.1."""
        return reduction_percent(
            uncompressed_bytes(self.raw_bytes, subscribers),
            compressed_bytes(self.sent_bytes, self.dictionary_bytes, publishers, subscribers),
        )


Trainer = Callable[[Due, int], tuple[Dictionary | None, float]]
"""Answers a `Due` at a number of messages seen: the dictionary, and the CPU seconds it took (or would have)."""


def train_now(due: Due, seen: int) -> tuple[Dictionary | None, float]:
    """The trainer that a sampling broker has."""
    begun = time.process_time()
    answer = fulfil(due, family=FAMILY, now_us=_START_US + seen)
    return answer, time.process_time() - begun


class RememberingTrainer:
    """A trainer for several runs of PREDICT over one corpus: what was asked before is not trained again.

    What it took is charged to every run that asks for it.
    """

    def __init__(self) -> None:
        self._made: dict[tuple[int, Due], tuple[Dictionary | None, float]] = {}

    def __call__(self, due: Due, seen: int) -> tuple[Dictionary | None, float]:
        made = self._made.get((seen, due))
        if made is None:
            made = self._made[seen, due] = train_now(due, seen)
        return made


class SharedTrainer:
    """A trainer for permutations of one algorithm over one corpus: equal rankings of substrings are made once.

    What a ranking took is charged to every run that uses it.
    """

    def __init__(self) -> None:
        self._materials: dict[tuple[int, int, bool], tuple[Material, float]] = {}
        self._made: dict[tuple[int, int, object], tuple[Dictionary, float]] = {}

    def __call__(self, due: Due, seen: int) -> tuple[Dictionary | None, float]:
        if not due.unconditional:
            return train_now(due, seen)
        candidate = due.candidates[0]
        key = (seen, len(due.training), candidate)
        if key not in self._made:
            material, ranking_s = self._material(seen, due.training, candidate.source == SUBSTRINGS)
            begun = time.process_time()
            content = material.content(candidate.size, candidate.codec, candidate.source or SUBSTRINGS)
            dictionary = Dictionary(FAMILY, candidate.codec, content, _START_US + seen, samples=len(due.training))
            self._made[key] = (dictionary, ranking_s + time.process_time() - begun)
        return self._made[key]

    def _material(self, seen: int, samples: Sequence[bytes], ranked: bool) -> tuple[Material, float]:
        """The samples' material and, if they are to be ranked, what that took."""
        key = (seen, len(samples), ranked)
        if key not in self._materials:
            begun = time.process_time()
            material = Material(samples, substrings_of_bytes_max=SAMPLES_BYTES_MAX)
            if ranked:
                _ = material.substrings
            self._materials[key] = (material, time.process_time() - begun)
        return self._materials[key]


def simulate(
    messages: Sequence[bytes],
    algorithm: Maintenance,
    *,
    publishers: int = 1,
    trainer: Trainer = train_now,
    stride: int = 1,
) -> OfflineRun:
    """Runs `algorithm` over `messages`. `stride`: only every so many-th message is compressed, and stands for all."""
    algorithm.audience(publishers, 1)
    run = OfflineRun()
    codec: Codec = Deflate()
    window = max(1, len(messages) // 100)
    before = (0, 0)
    for at, message in enumerate(messages):
        if at % stride == 0:
            run.sent_bytes += _TAG_BYTES + len(codec.encode(message)[1])
            run.raw_bytes += len(message)
        weight = 1 if _probes_now(algorithm) else _TIMED if at % _TIMED == 0 else 0
        begun = time.process_time() if weight else 0.0
        algorithm.observe(message, _START_US + at * MESSAGE_US)
        due = algorithm.due()
        if weight:
            run.sampling_cpu_s += weight * (time.process_time() - begun)
        if due is not None and (dictionary := _answer(run, algorithm, due, at + 1, trainer)) is not None:
            codec = dictionary.build()
        if (at + 1) % window == 0:
            before = _close_window(run, before)
    _extrapolate(run, len(messages), stride)
    return run


def _probes_now(algorithm: Maintenance) -> bool:
    return isinstance(algorithm, Predict) and algorithm.messages_until_look <= 1


def _answer(run: OfflineRun, algorithm: Maintenance, due: Due, seen: int, trainer: Trainer) -> Dictionary | None:
    dictionary, cpu_s = trainer(due, seen)
    begun = time.process_time()
    algorithm.adopt(dictionary)
    run.sampling_cpu_s += cpu_s + time.process_time() - begun
    if dictionary is not None:
        run.dictionary_bytes += len(dictionary.pack()) + BINDING_BYTES
        run.dictionaries.append((seen, dictionary))
    return dictionary


def _close_window(run: OfflineRun, before: tuple[int, int]) -> tuple[int, int]:
    now = (run.raw_bytes, run.sent_bytes + run.dictionary_bytes)
    run.windows.append(reduction_percent(now[0] - before[0], now[1] - before[1]))
    return now


def _extrapolate(run: OfflineRun, messages: int, stride: int) -> None:
    run.messages = messages
    compressed = -(-messages // stride)
    if compressed:
        run.raw_bytes = run.raw_bytes * messages // compressed
        run.sent_bytes = run.sent_bytes * messages // compressed
