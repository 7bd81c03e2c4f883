"""What one session was given, and what of it must not be. Pure: no I/O, no clock.

A topic has one publisher, which numbers its publications there from 0. For each session and topic:

    lost            acknowledged, and never delivered
    disorder        delivered for the first time after a later one of the same topic was
    repeated        delivered again after the session has gone on at another broker, as MQTT permits it
    repeated_qos2   the same with QoS 2: the session goes on from where its lost broker told its home that it was
                    (ARCHITECTURE.md, "Sessions"), so only what was delivered shortly before the loss
    doubled         QoS 2, delivered again without that, or of what was delivered longer before the loss
    unexplained     QoS 1, delivered again without that
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from typing import Final

# Brokers tell every second how far their sessions have got; a busy one a little later.
PLACE_OLD_NS: Final = 2_000_000_000
WHATS: Final = ("lost", "disorder", "doubled", "repeated", "repeated_qos2", "unexplained")


class _TopicLine:
    """Of each number of a topic: when it was published and when it first came (0: not yet)."""

    __slots__ = ("first_ns", "sent_ns")

    def __init__(self) -> None:
        self.sent_ns: list[int] = []
        self.first_ns: list[int] = []


class SessionAudit:
    """One session's."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.oldest_repeat_ns = 0
        """How long before the last sign of life of its broker the oldest of what was repeated had been delivered."""
        self._lines: dict[bytes, _TopicLine] = {}
        self._lost_ns = self._heard_ns = 0

    def lost_connection(self, heard_ns: int, now_ns: int) -> None:
        """Its connection has ended, on which something came at `heard_ns` for the last time."""
        self._heard_ns, self._lost_ns = heard_ns, now_ns

    def arrived(self, topic: bytes, number: int, sent_ns: int, qos: int, now_ns: int) -> None:
        """One delivery."""
        line = self._lines.get(topic)
        if line is None:
            line = self._lines[topic] = _TopicLine()
        first_ns = line.first_ns
        if number >= len(first_ns):
            gap = [0] * (number - len(first_ns))
            first_ns += [*gap, now_ns]
            line.sent_ns += [*gap, sent_ns]
        elif not first_ns[number]:
            self.counts["disorder"] += 1
            first_ns[number], line.sent_ns[number] = now_ns, sent_ns
        else:
            self._again(first_ns[number], qos)

    def _again(self, first_ns: int, qos: int) -> None:
        moved, age_ns = first_ns <= self._lost_ns, self._heard_ns - first_ns
        if not moved or (qos == 2 and age_ns > PLACE_OLD_NS):
            self.counts["doubled" if qos == 2 else "unexplained"] += 1
            return
        self.counts["repeated_qos2" if qos == 2 else "repeated"] += 1
        self.oldest_repeat_ns = max(self.oldest_repeat_ns, age_ns)

    # -- asked

    def missing(self, counts: Mapping[str, int], unanswered: Mapping[str, Collection[int]]) -> int:
        """How many deliveries are missing where so many were published on each topic, all but `unanswered`
        acknowledged."""
        found = 0
        for topic, count in counts.items():
            line = self._lines.get(topic.encode())
            first_ns = line.first_ns[:count] if line is not None else []
            found += count - len(first_ns) + first_ns.count(0)
            for number in unanswered.get(topic, ()):
                found -= number >= len(first_ns) or not first_ns[number]
        return found

    def first_after(self, hit_ns: int) -> int:
        """When the first message came that was published after that; 0: none."""
        times = [
            first_ns
            for line in self._lines.values()
            for sent_ns, first_ns in zip(line.sent_ns, line.first_ns, strict=True)
            if sent_ns > hit_ns
        ]
        return min(times, default=0)

    def delays(self) -> list[tuple[int, int]]:
        """(when published, how long it took) of all first deliveries, in ns."""
        return [
            (sent_ns, first_ns - sent_ns)
            for line in self._lines.values()
            for sent_ns, first_ns in zip(line.sent_ns, line.first_ns, strict=True)
            if first_ns
        ]
