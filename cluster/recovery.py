"""Who leads a topic group of which the coordination server's registry does not know any more: from what the
coordinators report of it. Pure.

Theory of operation. What is acknowledged is durable in every member of a group's in-sync set, and every leader comes
from the set before. So a log whose last block is of the newest epoch, and among those the longest one, has everything
that was acknowledged, if only one member of the last in-sync set is among those that were asked. Which set was the
last one only the registry knew. What is left is what leaders note in their own stores: a leader *counts* with a set of
members, and has promised its epoch, durably, before it begins the epoch, notes every wider set before it asks for it,
and a narrower one when it knows that it was granted.

    certain    the set of the newest epoch that was noted was asked as a whole. Whoever led later came from it, has
               been asked, and has noted nothing: so nothing was committed later (by induction over later leaders), and
               the last in-sync set is part of this one
    certain    fewer coordinators are missing, of all that there are, than hold every message (`min_copies`)
    uncertain  else: a missing one may have gone on alone. Nobody leads the group until it has been asked, or until the
               operator has said that what it alone may have is given up
    led        a coordinator leads the group, under the newest epoch that anybody knows: it goes on, as it is
    elected    nobody does: who has the most leads under a new epoch, and who has the same counts

Reports need not be of one moment: while the registry is lost nobody is given a group and no set changes. A leader of an
older epoch that still serves commits nothing any more, since the first of its successors to begin was in its set and
has promised more.

Where not all of the noted set were asked, the new epoch lies EPOCH_GAP beyond: a missing coordinator may have seen
newer epochs than those that were asked, and an epoch must never have two leaders.

Invariants (tests/cluster/test_recovery.py, over random histories of leaders, in-sync sets, crashes and coordinators
that are away): where nothing was given up, the recovered leader has every acknowledged offset, also of those that older
leaders acknowledge later; its epoch is above every promise, or its own; a group that is not certain has no leader.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

from .leadership import GroupState

# A group that nobody leads: its row in the registry is lost, and nobody can be sure yet.
UNKNOWN = GroupState(0, "", ())
EPOCH_GAP = 1_000_000


class GroupReport(NamedTuple):
    """What one coordinator knows of one group: the newest epoch that it has promised or seen; of its log the last
    block's epoch and last offset (-1: none); whether its tables fit its log (a copy that is being made does not); the
    last epoch that it has led itself, with the members it has counted with (0: none); and its state where it leads the
    group now, or is about to."""

    promised: int = 0
    log_epoch: int = 0
    last: int = -1
    whole: bool = True
    counted_epoch: int = 0
    counted: tuple[str, ...] = ()
    leads: GroupState | None = None

    @property
    def newest(self) -> int:
        """The newest epoch that it knows of."""
        return max(self.promised, self.log_epoch, self.counted_epoch, self.leads.epoch if self.leads else 0)


NOTHING = GroupReport()


class Recovered(NamedTuple):
    """What is known of a group: its state, or, where that is None, who has to be asked first. With a state, `missing`
    are those whose part was given up."""

    state: GroupState | None
    missing: tuple[str, ...] = ()


def recover_group(
    group: int,
    reports: Mapping[str, GroupReport],
    roster: Collection[str],
    min_copies: int = 1,
    give_up: bool = False,
) -> Recovered:
    """`reports`: of the coordinators that were asked, whatever they know of the group; `roster`: all that there are.

    `give_up`: what missing ones alone may have is given up, and nobody waits for them.
    """
    unasked = _unasked(reports, roster)
    missing = unasked if len({*roster, *unasked}.difference(reports)) >= min_copies else ()
    if not reports or (missing and not give_up):
        return Recovered(None, missing)
    newest = max([report.newest for report in reports.values()])
    if not unasked:
        for report in reports.values():
            if report.leads is not None and report.leads.epoch == newest:
                return Recovered(report.leads)
    return Recovered(_elected(group, reports, newest + (EPOCH_GAP if unasked else 1)), missing)


def _unasked(reports: Mapping[str, GroupReport], roster: Collection[str]) -> tuple[str, ...]:
    """Those that may have led the group last, or counted in it, and have not been asked."""
    newest = max(reports.values(), key=lambda report: report.counted_epoch, default=NOTHING)
    may_have = newest.counted if newest.counted_epoch else roster
    return tuple(sorted({*may_have}.difference(reports)))


def _elected(group: int, reports: Mapping[str, GroupReport], epoch: int) -> GroupState:
    """Led by who has the most, followed by who has the same."""
    names = sorted(reports)
    most = max([_amount(report) for report in reports.values()])
    able = [name for name in names if _amount(reports[name]) == most]
    home = names[group % len(names)]
    leader = home if home in able else able[group % len(able)]
    return GroupState(epoch, leader, (leader, *[name for name in able if name != leader]))


def _amount(report: GroupReport) -> tuple[bool, int, int]:
    return report.whole, report.log_epoch, report.last
