"""Heartbeats: when to say that one lives, and when a silent peer is taken for gone. Pure: the clock is the caller's.

Each side of a link says a BEAT every `beat_s`, whatever the other does: a peer that is not read for a while
(back-pressure) is heard all the same. (Also where it has said something else: beats left out for that would be lateness
that is usual, and make the other side patient.) A peer is gone when it was silent for `patience_s`: `silence_s`, and
four mean deviations more than the lateness that is usual for it (as TCP's retransmission timer does it, RFC 6298),
`SILENCE_FACTOR_MAX` times `silence_s` at the most: a busy peer gets more time than one that has always been prompt.

Silence is counted from the moment at which something was heard, and looked at when it has lasted long enough, not at
the next beat: `next_s` says when to call again.

Who was asleep judges nobody: where the caller's own tick comes late, what the peer has said meanwhile may lie unread. A
short lateness (a blocked event loop) is not counted as the peer's silence, and nobody is gone in such a turn but in the
next one, when all of that is read; after a long one (a stopped process) the silence begins anew.

Where others take the peer for gone (`suspect`), SUSPECTED_BEATS without a word are enough, until it is heard again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

SILENCE_FACTOR_MAX: Final = 6.0
# RFC 6298, section 2: gains of the smoothed mean and deviation, and how many deviations are waited for.
GAIN: Final = 1 / 8
DEVIATION_GAIN: Final = 1 / 4
DEVIATIONS: Final = 4.0
# The caller's own lateness, in beats, that is no more than a timer's, and beyond which it was asleep.
LATE_BEATS: Final = 0.1
ASLEEP_BEATS: Final = 2.0
# In beats: how long a peer may be silent of which others say that it is gone.
SUSPECTED_BEATS: Final = 1.5


@dataclass(frozen=True, slots=True)
class Beats:
    """The knobs. `beat_s`: how often each side says that it lives; `silence_s`: how long it may at least be silent.

    `silence_s` is to be several times `beat_s`. What a longer `silence_s` costs is that a node without power is noticed
    later; what a shorter one costs is links that break when a machine is overloaded.
    """

    beat_s: float = 1.0
    silence_s: float = 10.0


# Beats within the time after which a silent coordinator is taken for lost.
BEATS_A_SILENCE: Final = 10


def detecting_beats(detect_s: float) -> Beats:
    """Beats of links over which it is seen within `detect_s` whether a coordinator lives."""
    return Beats(detect_s / BEATS_A_SILENCE, detect_s)


class Heartbeat:
    """One peer's; see the module's docstring. Times are seconds of one monotonic clock."""

    __slots__ = (
        "_beat_s",
        "_beats",
        "_deviation_s",
        "_doubted",
        "_gap_s",
        "_heard_s",
        "_late_s",
        "_next_s",
        "_suspected",
    )

    def __init__(self, beats: Beats, now_s: float) -> None:
        self._beats = beats
        self._heard_s = now_s
        # The longest time without a word in the last beat.
        self._gap_s = 0.0
        # When the next beat is due, and when the next tick.
        self._beat_s = self._next_s = now_s + beats.beat_s
        self._late_s = 0.0
        self._deviation_s = 0.0
        # It looked gone when this side was late: what has come by then is read before it is looked at again.
        self._doubted = False
        self._suspected = False

    @property
    def patience_s(self) -> float:
        """How long the peer may be silent now."""
        silence_s = SUSPECTED_BEATS * self._beats.beat_s if self._suspected else self._beats.silence_s
        return min(silence_s + self._late_s + DEVIATIONS * self._deviation_s, silence_s * SILENCE_FACTOR_MAX)

    @property
    def next_s(self) -> float:
        """When to call `tick` next."""
        return self._next_s

    def silent_s(self, now_s: float) -> float:
        """How long nothing has come."""
        return max(0.0, now_s - self._heard_s)

    def heard(self, now_s: float) -> None:
        """Something has come."""
        self._suspected = False
        self._gap_s = max(self._gap_s, now_s - self._heard_s)
        self._heard_s = now_s

    def suspect(self, now_s: float) -> None:
        """Others take the peer for gone."""
        self._suspected = True
        self._next_s = max(now_s, min(self._next_s, self._heard_s + self.patience_s))

    def tick(self, now_s: float) -> tuple[bool, bool]:
        """Whether to say a BEAT, and whether the peer is gone."""
        late_s = now_s - self._next_s
        if late_s > ASLEEP_BEATS * self._beats.beat_s:
            self._heard_s = now_s
        elif late_s > LATE_BEATS * self._beats.beat_s:
            self._heard_s = min(now_s, self._heard_s + late_s)
        says = now_s >= self._beat_s
        if says:
            if self._gap_s:
                self._note(max(0.0, self._gap_s - self._beats.beat_s))
                self._gap_s = 0.0
            self._beat_s = now_s + self._beats.beat_s
        gone_s = self._heard_s + self.patience_s
        gone = now_s >= gone_s
        self._doubted = gone and not self._doubted and late_s > LATE_BEATS * self._beats.beat_s
        if self._doubted:
            gone_s = now_s + LATE_BEATS * self._beats.beat_s
        self._next_s = self._beat_s if now_s >= gone_s else min(self._beat_s, gone_s)
        return says, gone and not self._doubted

    def _note(self, late_s: float) -> None:
        """How much later than promised something came."""
        self._deviation_s += DEVIATION_GAIN * (abs(late_s - self._late_s) - self._deviation_s)
        self._late_s += GAIN * (late_s - self._late_s)
