"""Heartbeats: when to say that one lives, and when a silent peer is taken for gone. Pure: the clock is the caller's.

Each side of a link says something at least every `beat_s` (a BEAT where it had nothing to say), whatever the other
does: a peer that is not read for a while (back-pressure) is heard all the same. A peer is gone when it was silent for
`patience_s`: `silence_s`, and four mean deviations more than the lateness that is usual for it (as TCP's retransmission
timer does it, RFC 6298), `SILENCE_FACTOR_MAX` times `silence_s` at the most: a busy peer gets more time than one that
has always been prompt.

Who was asleep judges nobody: where the caller's own tick comes late (a stopped process, a blocked event loop), what the
peer has said meanwhile may lie unread, so the silence begins anew.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

SILENCE_FACTOR_MAX: Final = 6.0
# RFC 6298, section 2: gains of the smoothed mean and deviation, and how many deviations are waited for.
GAIN: Final = 1 / 8
DEVIATION_GAIN: Final = 1 / 4
DEVIATIONS: Final = 4.0


@dataclass(frozen=True, slots=True)
class Beats:
    """The knobs. `beat_s`: how often each side says that it lives; `silence_s`: how long it may at least be silent.

    `silence_s` is to be several times `beat_s`. What a longer `silence_s` costs is that a node without power is noticed
    later; what a shorter one costs is links that break when a machine is overloaded.
    """

    beat_s: float = 1.0
    silence_s: float = 10.0


# Beats within the time after which a silent coordinator is taken for lost.
BEATS_A_SILENCE: Final = 5


def detecting_beats(detect_s: float) -> Beats:
    """Beats of links over which it is seen within `detect_s` whether a coordinator lives."""
    return Beats(detect_s / BEATS_A_SILENCE, detect_s)


class Heartbeat:
    """One peer's; see the module's docstring. Times are seconds of one monotonic clock."""

    __slots__ = ("_beats", "_deviation_s", "_heard_s", "_late_s", "_ticked_s")

    def __init__(self, beats: Beats, now_s: float) -> None:
        self._beats = beats
        self._heard_s = now_s
        self._ticked_s = now_s
        self._late_s = 0.0
        self._deviation_s = 0.0

    @property
    def patience_s(self) -> float:
        """How long the peer may be silent now."""
        silence_s = self._beats.silence_s
        return min(silence_s + self._late_s + DEVIATIONS * self._deviation_s, silence_s * SILENCE_FACTOR_MAX)

    def tick(self, now_s: float, heard: bool) -> bool:
        """Whether the peer is gone. To be called every `beat_s`; `heard`: something has come since the last call."""
        asleep = now_s - self._ticked_s > 2 * self._beats.beat_s
        self._ticked_s = now_s
        if asleep:
            self._heard_s = now_s
        elif heard:
            self._note(max(0.0, now_s - self._heard_s - self._beats.beat_s))
            self._heard_s = now_s
        return now_s - self._heard_s > self.patience_s

    def _note(self, late_s: float) -> None:
        """How much later than promised something came."""
        self._deviation_s += DEVIATION_GAIN * (abs(late_s - self._late_s) - self._deviation_s)
        self._late_s += GAIN * (late_s - self._late_s)
