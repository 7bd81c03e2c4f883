"""Bandwidth accounting: what went over links, family by family, with every byte counted.

Raw bytes are the payloads as the publishers' programs wrote them, sent bytes the payloads as sent, the tag byte
included, dictionary bytes the dictionaries as sent (`Dictionary.pack`) with their bindings. The reduction is the
thesis' BR (equation 5.2.1), of each link's own counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

FAMILIES_MAX: Final = 1_000

# Where the traffic of families beyond FAMILIES_MAX is counted: no family has an empty name.
REST: Final = b""


def reduction_percent(uncompressed: int, compressed: int) -> float:
    """BR; 0 where nothing was sent, negative where compression cost more than it saved."""
    return 100.0 - 100.0 * compressed / uncompressed if uncompressed else 0.0


class Traffic(NamedTuple):
    """What went over links: messages, bytes before encoding, bytes as sent (tags included), dictionaries' bytes."""

    messages: int = 0
    raw_bytes: int = 0
    sent_bytes: int = 0
    dictionary_bytes: int = 0

    def plus(self, other: Traffic) -> Traffic:
        """The sum of both."""
        return Traffic(*(a + b for a, b in zip(self, other, strict=True)))

    def reduction_percent(self) -> float:
        """BR of what was counted: for counters that stand on each link, whose dictionary bytes are real ones."""
        return reduction_percent(self.raw_bytes, self.sent_bytes + self.dictionary_bytes)


class TrafficCounters:
    """A running Traffic a family; at most `families_max` families, the traffic of further ones is counted as REST."""

    def __init__(self, families_max: int = FAMILIES_MAX) -> None:
        self._families_max = families_max
        self._counts: dict[bytes, list[int]] = {}

    def add(self, family: bytes | None, raw_bytes: int, sent_bytes: int, messages: int = 1) -> None:
        """Count `messages` messages of a family (None: of none). `sent_bytes` includes their tag bytes."""
        counts = self._of(family)
        counts[0] += messages
        counts[1] += raw_bytes
        counts[2] += sent_bytes

    def add_dictionary(self, family: bytes | None, sent_bytes: int) -> None:
        """Count the bytes of a dictionary or binding sent on one link."""
        self._of(family)[3] += sent_bytes

    def snapshot(self) -> dict[bytes, Traffic]:
        """The counts now, by family."""
        return {family: Traffic(*counts) for family, counts in self._counts.items()}

    def merge(self, other: Mapping[bytes, Traffic]) -> None:
        """Add another counter's snapshot."""
        for family, traffic in other.items():
            counts = self._of(family)
            for at, value in enumerate(traffic):
                counts[at] += value

    def total(self) -> Traffic:
        """The sum over all families."""
        total = Traffic()
        for traffic in self.snapshot().values():
            total = total.plus(traffic)
        return total

    def _of(self, family: bytes | None) -> list[int]:
        name = REST if family is None else family
        counts = self._counts.get(name)
        if counts is None:
            # REST itself does not count against the limit
            if len(self._counts) - (REST in self._counts) >= self._families_max and name != REST:
                return self._of(REST)
            counts = self._counts[name] = [0, 0, 0, 0]
        return counts
