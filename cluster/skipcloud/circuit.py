"""A circuit: messages between two that have no link, over hops that may lose, double or reorder them. Pure.

What comes out is what a link gives: every message once, in order, or the circuit has ended (`broken`). So whoever
stands behind one needs no rules of its own.

    segment    (number of its message, number up to which the other side's have been taken, message or b"")
    sending    at most WINDOW are under way; they are sent again when nothing has been acknowledged for RESEND_S
    taking     the next one in order and no other (go-back-N): a gap is filled by who sends
    living     something is said every ALIVE_S at least; who hears nothing for SILENT_S, or is not acknowledged anything
               for GIVE_UP_S, takes the other side, or the way to it, for gone
"""

from __future__ import annotations

from collections import deque
from typing import Final, NamedTuple

from ..errors import PeerError

WINDOW: Final = 32
RESEND_S: Final = 0.25
GIVE_UP_S: Final = 5.0
ALIVE_S: Final = 5.0
SILENT_S: Final = 20.0
# What may wait to be sent; more, and the other side is too slow to be told anything.
WAITING_BYTES_MAX: Final = 64 * 1024 * 1024


class Segment(NamedTuple):
    """See the module's docstring. `number`: of its message, from 1 on; without one, of the last that was sent."""

    number: int
    taken: int
    message: bytes


class Circuit:
    """One side of it. Times are seconds by any steady clock."""

    def __init__(self, now_s: float) -> None:
        # Not acknowledged yet; the first is number `_acknowledged` + 1, the last of those under way is `_sent`.
        self._waiting: deque[bytes] = deque()
        self._waiting_bytes = 0
        self._acknowledged = self._sent = self._taken = 0
        self._owes = False
        # How often it went back: another way may be better.
        self.resends = 0
        self._progress_s = self._resent_s = self._said_s = self._heard_s = now_s

    def send(self, message: bytes, now_s: float) -> None:
        """`message` is to go; `due` has it. Raises PeerError: more waits than the other side may make wait."""
        if self._waiting_bytes + len(message) > WAITING_BYTES_MAX:
            raise PeerError(f"more than {WAITING_BYTES_MAX:,} bytes wait on a circuit")
        if not self._waiting:
            self._progress_s = now_s
        self._waiting.append(message)
        self._waiting_bytes += len(message)

    def due(self, now_s: float) -> list[Segment]:
        """What is to be sent now."""
        if self._sent > self._acknowledged and now_s - self._resent_s >= RESEND_S:
            self._sent = self._acknowledged
            self.resends += 1
        segments, last = list[Segment](), self._acknowledged + min(len(self._waiting), WINDOW)
        if self._sent < last and self._sent == self._acknowledged:
            self._resent_s = now_s
        while self._sent < last:
            self._sent += 1
            segments.append(Segment(self._sent, self._taken, self._waiting[self._sent - self._acknowledged - 1]))
        if not segments and (self._owes or now_s - self._said_s >= ALIVE_S):
            segments.append(Segment(self._sent, self._taken, b""))
        if segments:
            self._owes, self._said_s = False, now_s
        return segments

    def received(self, segment: Segment, now_s: float) -> bytes | None:
        """The message that a segment brings, if it is the next one. Raises PeerError: what was never sent is taken."""
        if segment.taken > self._acknowledged + len(self._waiting):
            raise PeerError(f"{segment.taken} messages of a circuit are taken; fewer were sent")
        self._heard_s = now_s
        if segment.taken > self._acknowledged:
            self._progress_s = self._resent_s = now_s
        while self._acknowledged < segment.taken:
            self._waiting_bytes -= len(self._waiting.popleft())
            self._acknowledged += 1
        self._sent = max(self._sent, self._acknowledged)
        if not segment.message:
            return None
        self._owes = True
        if segment.number != self._taken + 1:
            return None
        self._taken += 1
        return segment.message

    def broken(self, now_s: float) -> bool:
        """Whether the other side, or the way to it, is gone."""
        late = bool(self._waiting) and now_s - self._progress_s > GIVE_UP_S
        return late or now_s - self._heard_s > SILENT_S
