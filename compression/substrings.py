"""Common substrings of messages, ranked (FemtoZip's way, thesis section 5.3.2): what dictionaries can be packed from.

A suffix array over the joined messages brings equal substrings together, its LCP array says how long they are equal. A
*run* of neighbours that share at least L bytes is one substring, as long as the run's least LCP; it counts once for
each distinct message in it. Runs are found for a ladder of lengths L, each in a few numpy operations: walking all
intervals with a stack, as FemtoZip does, took ten times as long in Python and found the same best substrings.

Score (eq. 5.3.1): f(S, O) = O (|S| - 3) / |S| for |S| > 3: what a byte of the dictionary saves, a reference costing 3.

For 64 KiB of messages (SAMPLE_BYTES_MAX; more is not looked at): 10 to 40 ms and 10 MB.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pydivsufsort

SAMPLE_BYTES_MAX: Final = 64 * 1024
REFERENCE_BYTES: Final = 3
"""What a reference into a dictionary costs (thesis section 5.3.2): shorter substrings score 0."""

_LADDER: Final = tuple(sorted({round(4 * 1.25**step) for step in range(28)}))
"""Lengths at which runs are looked for: 4 bytes to 1.6 KiB."""

_Ints = npt.NDArray[np.int64]


class Substring(NamedTuple):
    """A substring and the number of messages that hold it."""

    content: bytes
    occurrences: int

    @property
    def score(self) -> float:
        """Equation 5.3.1."""
        return score(len(self.content), self.occurrences)


def score(length: int, occurrences: float) -> float:
    """f(S, O), thesis equation 5.3.1."""
    return occurrences * (length - REFERENCE_BYTES) / length if length > REFERENCE_BYTES else 0.0


class _Suffixes(NamedTuple):
    """A suffix array and what runs are counted with."""

    text: bytes
    start: _Ints
    """Where each suffix begins, in suffix order."""
    common: _Ints
    """Bytes that a suffix shares with the next one, within one message each."""
    before: _Ints
    """The last suffix (in suffix order) before this one that begins in the same message; -1: none."""


def ranked(
    messages: Sequence[bytes], count: int, *, occurrences_min: int = 2, bytes_max: int = SAMPLE_BYTES_MAX
) -> list[Substring]:
    """The `count` best substrings of the messages, the best first; equal scores by length, then by content.

    Only the last `bytes_max` bytes of messages are looked at.
    """
    messages = _newest(messages, bytes_max)
    if not messages:
        return []
    suffixes = _suffixes(messages)
    longest = int(suffixes.common.max(initial=0))
    found = [_runs(suffixes, length, occurrences_min) for length in _LADDER if length <= longest]
    if not found:
        return []
    lengths, starts, counts = (np.concatenate(part) for part in zip(*found, strict=True))
    scores = counts * (lengths - REFERENCE_BYTES) / lengths
    # rungs of the ladder find the same run again: hence three for one
    best = np.lexsort((-lengths, -scores))[: 3 * count]
    text = suffixes.text
    unique = {text[starts[at] : starts[at] + lengths[at]]: int(counts[at]) for at in best}
    ordered = sorted(
        (Substring(*item) for item in unique.items()), key=lambda s: (-s.score, -len(s.content), s.content)
    )
    return ordered[:count]


def _newest(messages: Sequence[bytes], room: int) -> list[bytes]:
    kept: list[bytes] = []
    for message in reversed(messages):
        if len(message) > room:
            break
        if message:
            kept.append(message)
            room -= len(message)
    return kept[::-1]


def _suffixes(messages: Sequence[bytes]) -> _Suffixes:
    separator = _separator(messages)
    text = b"".join([message + separator for message in messages])
    lengths = np.array([len(message) + 1 for message in messages])
    message_of = np.repeat(np.arange(len(messages)), lengths)
    # a copy: divsufsort wants an array that may be written to
    array = np.frombuffer(text, np.uint8).copy()
    order = pydivsufsort.divsufsort(array)
    equal = pydivsufsort.kasai(array, order).astype(np.int64)
    left = (np.cumsum(lengths)[message_of] - 1 - np.arange(len(text)))[order]
    common = np.zeros(len(text), np.int64)
    common[:-1] = np.minimum(equal[: len(text) - 1], np.minimum(left[:-1], left[1:]))
    owner = message_of[order]
    return _Suffixes(text, order.astype(np.int64), common, _same_before(owner))


def _separator(messages: Sequence[bytes]) -> bytes:
    """A byte that is in no message, else the rarest.

    Without one between them, suffixes that end early would stand among longer equal ones and cut their runs in two.
    """
    counts = np.bincount(np.frombuffer(b"".join(messages), np.uint8), minlength=256)
    return bytes((int(counts.argmin()),))


def _same_before(owner: _Ints) -> _Ints:
    grouped = np.argsort(owner, kind="stable")
    before = np.full(len(owner), -1, np.int64)
    same = owner[grouped[1:]] == owner[grouped[:-1]]
    before[grouped[1:][same]] = grouped[:-1][same]
    return before


def _runs(suffixes: _Suffixes, length: int, occurrences_min: int) -> tuple[_Ints, _Ints, _Ints]:
    """(length, start in the text, distinct messages) of every substring of `length` bytes and the run's own length."""
    joined = suffixes.common >= length  # to the next suffix
    begins = np.concatenate(([True], ~joined[:-1]))
    index = np.arange(len(begins))
    first = np.flatnonzero(begins)
    run_first = np.maximum.accumulate(np.where(begins, index, 0))
    counts = np.add.reduceat((suffixes.before < run_first).astype(np.int64), first)
    # the last suffix of a run is not joined to the next: its LCP does not count
    shared = np.minimum.reduceat(np.where(joined, suffixes.common, np.iinfo(np.int64).max), first)
    held = counts >= occurrences_min
    return shared[held], suffixes.start[first[held]], counts[held]


def pack_substrings(substrings: Sequence[Substring], size: int) -> bytes:
    """At most `size` bytes holding the substrings, the best last; contained ones left out, overlaps merged.

    `substrings` best first. The end is nearest to the message: DEFLATE spends the fewest bits on it.
    """
    content = b""
    for substring in substrings:
        if len(content) >= size:
            break
        if substring.content not in content:
            content = _joined(substring.content, content)
    return content[-size:] if size else b""


def _joined(left: bytes, right: bytes) -> bytes:
    """`left` before `right`, the longest end of `left` that begins `right` written once."""
    for overlap in range(min(len(left), len(right)), 0, -1):
        if right.startswith(left[-overlap:]):
            return left + right[overlap:]
    return left + right
