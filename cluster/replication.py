"""Replication of topic groups: what a follower takes, and where two logs agree. Pure (DESIGN.md section 3).

Theory of operation. The leader of a group ships every block, as it is stored, to the followers of the group; a block
is committed when it is durable in every member of the in-sync set (`cluster.sequencer` counts). A follower never
decides anything: it takes what the leader of the epoch that it has promised sends, in order, without holes of its own.

    follow     the leader of epoch e asks; the follower promises e durably, which refuses every older leader from then
               on, and says where its log stands (epoch starts, last offset)
    begin      the leader says from where they agree (`common_last`); what the follower has beyond is a deposed leader's
               tail, which nobody committed, and goes
    append     blocks behind `previous`, the last offset that the leader knows the follower to have; and up to where the
               group is committed, which is how far the follower's tables may follow
    end        the leader's log ends at an offset, and retention has left nothing before that

Two logs agree on an epoch as far as both have it, since one leader gave its offsets, in one order. So the last offset
that both have of the newest epoch that both know is where they agree. What retention or compaction has taken from the
leader's log since is no hole: offsets ascend, they need not be dense.

Invariants (tests/cluster/test_replication.py): a follower's log is a prefix of its leader's after `begin`; nothing
of an older epoch is taken after a promise; a promise never goes back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from .errors import StaleEpochError, UsageError


class EpochSpan(NamedTuple):
    """One epoch of a log: its first offset, and its last one (below the first: it has none)."""

    epoch: int
    first: int
    last: int


class LogEnd(NamedTuple):
    """Where a member's log of a group stands: its epoch starts (epoch, first offset, last offset before), oldest first,
    its last offset (-1: it has none), and up to where its tables have followed."""

    starts: tuple[tuple[int, int, int], ...]
    last: int
    applied_below: int

    def spans(self) -> list[EpochSpan]:
        """The epochs that it remembers, oldest first; a joiner's tables may know of some that its log has not yet."""
        starts = [start for start in self.starts if start[1] <= self.last]
        ends = [*[previous for _, _, previous in starts[1:]], self.last]
        return [EpochSpan(epoch, first, end) for (epoch, first, _), end in zip(starts, ends, strict=False)]


def sequenced_end(durable: LogEnd, epoch: int, opened: int, last: int) -> LogEnd:
    """Where the log of a group stands that is led here: what is `durable`, and behind it what was sequenced since, up
    to offset `last`, in an `epoch` that begins at offset `opened`.

    A follower's disk may be quicker than the leader's. What it has of the leader's own epoch is no deposed leader's
    tail: the leader counts it already.
    """
    starts = durable.starts
    if not starts or starts[-1][0] < epoch:  # even the epoch's beginning is on its way to the disk yet
        starts = (*starts, (epoch, opened, durable.last))
    return LogEnd(starts, max(durable.last, last), durable.applied_below)


def common_last(ours: LogEnd, theirs: LogEnd) -> int:
    """The last offset up to which two logs of a group agree; -1 when they have no epoch in common."""
    known = {(span.epoch, span.first): span.last for span in ours.spans()}
    for span in reversed(theirs.spans()):
        end = known.get((span.epoch, span.first))
        if end is not None:
            return min(end, span.last)
    return -1


class Followed:
    """A group at a follower. Offsets are those of what was handed to its disk, whether durable or not."""

    __slots__ = ("committed", "epoch", "last", "taking")

    def __init__(self, epoch: int, last: int) -> None:
        """`epoch`: what was promised; `last`: the last offset of the log (-1: it has none)."""
        self.epoch = epoch
        self.last = last
        # The first offset that is not known to be committed.
        self.committed = 0
        # Whether `begin` has said from where on.
        self.taking = False

    def promise(self, epoch: int) -> None:
        """Nothing of an older epoch is taken from here on. Raises StaleEpochError when a newer one was promised."""
        if epoch < self.epoch:
            raise StaleEpochError(f"epoch {self.epoch} was promised, {epoch} is older")
        self.epoch = epoch
        self.taking = False

    def begin(self, epoch: int, last: int) -> None:
        """The leader's blocks behind `last` follow. Raises StaleEpochError; UsageError when `last` is not there."""
        if epoch != self.epoch:
            raise StaleEpochError(f"epoch {self.epoch} was promised, not {epoch}")
        if last > self.last:
            raise UsageError(f"the log ends at offset {self.last}, before {last}")
        self.last = last
        self.taking = True

    def take(self, epoch: int, previous: int, spans: Sequence[tuple[int, int, int]]) -> None:
        """Blocks (epoch, first offset, last offset) that stand behind `previous`.

        Raises StaleEpochError (another epoch than was promised), UsageError (they do not follow what is here): nothing
        was taken.
        """
        if epoch != self.epoch or not self.taking:
            raise StaleEpochError(f"epoch {self.epoch} was promised, not {epoch}")
        if previous != self.last:
            raise UsageError(f"the log ends at offset {self.last}, not at {previous}")
        last = previous
        for own, first, end in spans:
            if not (last < first <= end and own <= epoch):
                raise UsageError(f"offsets {first} to {end} of epoch {own} do not follow {last}")
            last = end
        self.last = last

    def ends(self, epoch: int, previous: int, last: int) -> None:
        """The leader's log has nothing between `previous`, where this one ends, and `last`, where that one ends.

        Raises StaleEpochError, UsageError as `take`.
        """
        if previous < last:
            self.take(epoch, previous, [(epoch, last, last)])


class Phase(Enum):
    """How a leader serves one member of a group."""

    ASKED = "asked"  # it has not said yet where its log stands
    BEHIND = "behind"  # it gets what is in the leader's log
    LIVE = "live"  # it gets every block at once


class Lateness:
    """How long somebody has owed to a disk what is there to be stored, as it is looked at again and again."""

    __slots__ = ("_since_s", "_until")

    def __init__(self) -> None:
        self._since_s: float | None = None
        self._until = -1

    def look(self, sent: int, durable: int, now_s: float) -> float:
        """Seconds; 0 where nothing is owed. `sent`: the last offset to be stored, `durable`: the first that is not.

        Never more than it is. Kept is one offset at a time: whatever is owed for T is seen to be owed for T / 2.
        """
        if durable > sent:
            self._since_s = None
            return 0.0
        if self._since_s is None or durable > self._until or sent < self._until:
            self._since_s, self._until = now_s, sent
        return now_s - self._since_s


# Owed as long as a member has not said where its log stands.
_ANSWER = 2**63 - 1


@dataclass(slots=True, eq=False)
class FollowerProgress:
    """How far one member has got with one group, as its leader knows."""

    phase: Phase = Phase.ASKED
    # The last offset sent, the first one that is not durable there, and up to where it was told what is committed.
    sent: int = -1
    durable: int = 0
    told: int = 0
    lateness: Lateness = field(default_factory=Lateness)

    def late_s(self, now_s: float) -> float:
        """How long it has owed what it was sent, or where its log stands."""
        if self.phase is Phase.ASKED:
            return self.lateness.look(_ANSWER, 0, now_s)
        return self.lateness.look(self.sent, self.durable, now_s)

    def asked(self) -> None:
        """The link is new: where it stands has to be asked (again)."""
        self.phase, self.told = Phase.ASKED, 0

    def begun(self, common: int) -> None:
        """It has everything up to `common`, durably."""
        self.phase, self.sent, self.durable = Phase.BEHIND, common, common + 1

    def ended(self, last: int) -> None:
        """It has everything up to `last`, the end of the leader's log, durably."""
        self.sent, self.durable = last, last + 1

    def has(self, next: int) -> bool:
        """It says that everything below `next` is durable there. False for what it was not sent, or said before."""
        if self.phase is Phase.ASKED or not self.durable < next <= self.sent + 1:
            return False
        self.durable = next
        return True

    def caught_up(self, committed: int) -> bool:
        """Whether it may count: it is live, and everything committed is durable there."""
        return self.phase is Phase.LIVE and self.durable >= committed
