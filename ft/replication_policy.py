"""When delivery positions go to a backup, and which: REAPS, Algorithm 3, line 1, and section IV-B. Pure.

A position t_km says how far subscriber m has got with subscription k. What lies between it and the one that the backup
has (eta_km) is *unsaved*: after a takeover it is delivered once more. Two rules say when, one or both:

    periodic   each `period_s` a round begins: everything that is unsaved then is sent
    threshold  what is unsaved and not under way passes `threshold_bytes`: the most unsaved are sent until half of the
               threshold is left

A turn sends `positions_max` at the most, and a round goes on over as many turns as it needs. The most unsaved first,
but for a quarter of each turn, which those get that have waited longest: so nothing starves, however much arrives. The
paper sends the whole state at once (and leaves open whether the threshold is one position's or the broker's): what a
takeover repeats falls most a position if few with much behind them are sent.

What was sent is unsaved until the backup has confirmed it. One policy a backup, since each has confirmed other things.
"""

from __future__ import annotations

import heapq
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from itertools import islice
from typing import Final, Generic, NamedTuple, TypeVar

from lexicast.cluster.errors import UsageError

Key = TypeVar("Key", bound=Hashable)
Position = TypeVar("Position")

# Of a turn's positions, one in so many is the one that has waited longest.
_AGED_PART: Final = 4


@dataclass(frozen=True, slots=True)
class ReplicationPace:
    """How often positions go to a backup. A short period or low threshold costs messages, a long one repeats after a
    takeover: half a period's deliveries in the mean; or `threshold_bytes`, what is under way, and what comes until the
    next turn, as long as `positions_max` a turn are enough.

    Raises UsageError: neither rule, values that are not above zero, fewer than two positions a turn.
    """

    period_s: float | None = None
    threshold_bytes: int | None = None
    positions_max: int = 1_000

    def __post_init__(self) -> None:
        if self.period_s is None and self.threshold_bytes is None:
            raise UsageError("positions are sent periodically, by a threshold, or both: give one")
        if not all(value > 0 for value in (self.period_s, self.threshold_bytes) if value is not None):
            raise UsageError("period_s and threshold_bytes have to be above 0")
        if self.positions_max < 2:
            raise UsageError("a turn needs 2 positions: one for the most unsaved, one for who has waited longest")


class PositionUpdate(NamedTuple, Generic[Key, Position]):
    """A position on its way to a backup."""

    key: Key
    position: Position


@dataclass(slots=True)
class _Unsaved(Generic[Position]):
    position: Position
    volume_bytes: int
    turn: int  # the first turn that could have sent it


class ReplicationPolicy(Generic[Key, Position]):
    """The positions that one backup does not have yet. A key is a pair of subscriber and subscription, or whatever else
    has a position of its own."""

    def __init__(self, pace: ReplicationPace, now_s: float) -> None:
        """`now_s`: of any clock that does not go back."""
        self._pace = pace
        self._turn = 0
        self._round_turn = -1  # what has waited since this turn or longer is of the round that is under way
        self._next_round_s = now_s + pace.period_s if pace.period_s is not None else float("inf")
        # In the order in which they began to wait.
        self._waiting: dict[Key, _Unsaved[Position]] = {}
        self._waiting_bytes = 0
        self._sent: dict[Key, _Unsaved[Position]] = {}
        self._sent_bytes = 0

    @property
    def unsaved_bytes(self) -> int:
        """What a takeover now would deliver again, that under way included."""
        return self._waiting_bytes + self._sent_bytes

    @property
    def waiting(self) -> int:
        """How many positions wait to be sent."""
        return len(self._waiting)

    def delivered(self, key: Key, position: Position, volume_bytes: int) -> None:
        """t_km is `position` now, `volume_bytes` further (line 8)."""
        self._waiting_bytes += volume_bytes
        if (unsaved := self._waiting.get(key)) is None:
            self._waiting[key] = _Unsaved(position, volume_bytes, self._turn)
        else:
            unsaved.position = position
            unsaved.volume_bytes += volume_bytes

    def turn(self, now_s: float) -> list[PositionUpdate[Key, Position]]:
        """What is to be sent now, the most unsaved first; nothing while neither rule asks for it."""
        if now_s >= self._next_round_s and self._pace.period_s is not None:
            self._round_turn = self._turn
            # From now on and not from when it was due: who comes late does not come twice for that.
            self._next_round_s = now_s + self._pace.period_s
        self._turn += 1
        return [self._send(key) for key in self._chosen()]

    def _chosen(self) -> list[Key]:
        """The keys of one turn, by what is unsaved."""
        most = self._pace.positions_max
        if self._in_round():
            needed = len(self._waiting)
        elif self._pace.threshold_bytes is not None and self._waiting_bytes > self._pace.threshold_bytes:
            needed = self._fewest(self._waiting_bytes - self._pace.threshold_bytes // 2)
        else:
            return []
        aged = list(islice(self._waiting, max(1, min(most, needed) // _AGED_PART)))
        largest = self._largest(set(aged), min(most, needed + len(aged)) - len(aged))
        return sorted([*aged, *largest], key=self._volume, reverse=True)

    def _in_round(self) -> bool:
        oldest = next(iter(self._waiting.values()), None)
        return oldest is not None and oldest.turn <= self._round_turn

    def _fewest(self, volume_bytes: int) -> int:
        """How many of the most unsaved make up so much; as far as one turn goes."""
        count = 0
        for unsaved in heapq.nlargest(self._pace.positions_max, [each.volume_bytes for each in self._waiting.values()]):
            if volume_bytes <= 0:
                break
            volume_bytes -= unsaved
            count += 1
        return count

    def _volume(self, key: Key) -> int:
        return self._waiting[key].volume_bytes

    def _largest(self, without: set[Key], count: int) -> list[Key]:
        return heapq.nlargest(count, [key for key in self._waiting if key not in without], key=self._volume)

    def _send(self, key: Key) -> PositionUpdate[Key, Position]:
        unsaved = self._waiting.pop(key)
        self._waiting_bytes -= unsaved.volume_bytes
        self._sent_bytes += unsaved.volume_bytes
        if (earlier := self._sent.get(key)) is not None:
            unsaved.volume_bytes += earlier.volume_bytes
        self._sent[key] = unsaved
        return PositionUpdate(key, unsaved.position)

    def confirmed(self, updates: Iterable[PositionUpdate[Key, Position]]) -> None:
        """The backup has these (eta_km). What was sent of a key since then stays under way."""
        for key, position in updates:
            if (sent := self._sent.get(key)) is not None and sent.position == position:
                self._sent_bytes -= sent.volume_bytes
                del self._sent[key]

    def unconfirmed(self) -> None:
        """The link is new, or the backup: what was under way is sent again, in a round that begins now."""
        again = self._sent
        for key, unsaved in self._waiting.items():
            if (earlier := again.get(key)) is None:
                again[key] = unsaved
            else:
                earlier.position = unsaved.position
                earlier.volume_bytes += unsaved.volume_bytes
        self._waiting, self._sent = again, {}
        self._round_turn = self._turn
        self._waiting_bytes, self._sent_bytes = self._waiting_bytes + self._sent_bytes, 0

    def forgotten(self, key: Key) -> None:
        """Nobody needs the position of `key` any more: the session has ended."""
        if (waiting := self._waiting.pop(key, None)) is not None:
            self._waiting_bytes -= waiting.volume_bytes
        if (sent := self._sent.pop(key, None)) is not None:
            self._sent_bytes -= sent.volume_bytes
