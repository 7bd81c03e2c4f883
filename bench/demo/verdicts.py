"""The demo's verdicts, what arrived beside what was published: complete, each once, unaltered, in order in each topic.

A subscriber (`keep_arrivals`) turns what it got into the numbers of the events (-1: none of ours) with their times, and
into a hash for each topic over the sequence of payloads there. `judge` counts from the numbers; the hashes, which know
nothing of numbers, must then say the same.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from ..data.flights import Event, read_events

PERCENTILES: Final = (50, 90, 99, 100)

Ints = npt.NDArray[np.int64]


class Received(NamedTuple):
    """One delivery: when (monotonic ns), and what."""

    at_ns: int
    topic: str
    payload: bytes


def digests(sequence: Sequence[Received] | Sequence[Event]) -> dict[str, str]:
    """For each topic a hash over its payloads in this order, each behind its length."""
    hashes: dict[str, blake2b] = {}
    for one in sequence:
        running = hashes.get(one.topic)
        if running is None:
            running = hashes[one.topic] = blake2b(digest_size=16)
        running.update(len(one.payload).to_bytes(4, "big") + one.payload)
    return {topic: running.hexdigest() for topic, running in sorted(hashes.items())}


def keep_arrivals(received: Sequence[Received], events_file: Path, folder: Path, name: str) -> None:
    """What a subscriber got, kept in `folder` for `read_arrivals`."""
    numbers = {(event.topic, event.payload): number for number, event in enumerate(read_events(events_file))}
    rows = [(numbers.get((one.topic, one.payload), -1), one.at_ns) for one in received]
    np.save(folder / f"{name}.npy", np.array(rows, dtype=np.int64).reshape(-1, 2))
    (folder / f"{name}.json").write_text(json.dumps(digests(received)))


@dataclass(frozen=True)
class Arrivals:
    """What a subscriber got, in the order of arrival."""

    numbers: Ints
    at_ns: Ints
    digests: dict[str, str]


def read_arrivals(folder: Path, name: str) -> Arrivals:
    """Reads it back."""
    rows = np.load(folder / f"{name}.npy")
    return Arrivals(rows[:, 0], rows[:, 1], json.loads((folder / f"{name}.json").read_text()))


@dataclass(frozen=True)
class Verdict:
    """One subscriber. `identical`: topics whose sequence of payloads has the hash of what was published."""

    delivered: int
    lost: int
    duplicated: int
    out_of_order: int
    altered: int
    topics: int
    identical: int
    latency_ms: dict[str, float]

    @property
    def perfect(self) -> bool:
        """Whether it got exactly what was published."""
        wrong = self.lost + self.duplicated + self.out_of_order + self.altered
        return not wrong and self.topics == self.identical


def topic_numbers(events: Sequence[Event]) -> Ints:
    """A number for each event's topic."""
    known: dict[str, int] = {}
    return np.array([known.setdefault(event.topic, len(known)) for event in events], dtype=np.int64)


def judge(arrivals: Arrivals, expected: dict[str, str], topics: Ints, sent_ns: Ints) -> Verdict:
    """Compares with what was published: `expected` hashes, each event's topic number and time of sending.

    Out of order: deliveries that come directly after a later event of their topic. Latency: from the call of
    publish() to the subscriber's program.
    """
    ours = arrivals.numbers >= 0
    _, first = np.unique(arrivals.numbers[ours], return_index=True)
    order = np.sort(first)
    numbers, at_ns = arrivals.numbers[ours][order], arrivals.at_ns[ours][order]
    by_topic = np.argsort(topics[numbers], kind="stable")
    sequence = numbers[by_topic]
    same_topic = np.diff(topics[sequence]) == 0
    latency = (at_ns - sent_ns[numbers]) / 1e6
    return Verdict(
        delivered=len(arrivals.numbers),
        lost=len(topics) - len(numbers),
        duplicated=int(ours.sum()) - len(numbers),
        out_of_order=int((same_topic & (np.diff(sequence) < 0)).sum()),
        altered=int((~ours).sum()),
        topics=len(expected),
        identical=sum(arrivals.digests.get(topic) == digest for topic, digest in expected.items()),
        latency_ms={f"p{p}": round(float(np.percentile(latency, p)), 3) for p in PERCENTILES} if len(latency) else {},
    )
