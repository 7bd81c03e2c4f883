"""Recovering who leads a group: whatever has happened before, who is chosen has everything that was acknowledged."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lexicast.cluster.leadership import GroupState
from lexicast.cluster.recovery import EPOCH_GAP, GroupReport, Recovered, recover_group

NAMES = ("a", "b", "c", "d")
A = GroupReport(promised=3, log_epoch=3, last=100, counted_epoch=3, counted=("a", "b"))
B = GroupReport(promised=3, log_epoch=3, last=90)


def recovered(reports: dict[str, GroupReport], min_copies: int = 1, give_up: bool = False) -> Recovered:
    return recover_group(0, reports, "abc", min_copies, give_up)


# -- one case each


def test_a_leader_that_serves_goes_on_as_it_is() -> None:
    state = GroupState(3, "a", ("a", "b"))
    assert recovered({"a": A._replace(leads=state), "b": B}) == Recovered(state)


def test_without_a_leader_the_longest_log_leads() -> None:
    assert recovered({"a": A, "b": B}) == Recovered(GroupState(4, "a", ("a",)))
    assert recovered({"a": A, "b": B._replace(promised=9)}) == Recovered(GroupState(10, "a", ("a",)))


def test_a_newer_epoch_counts_more_than_a_longer_log_and_equal_ones_follow() -> None:
    newer = B._replace(log_epoch=4, promised=4, last=80)
    assert recovered({"a": A, "b": newer, "c": newer}) == Recovered(GroupState(5, "b", ("b", "c")))


def test_a_copy_that_was_being_made_leads_only_where_there_is_nothing_else() -> None:
    torn = A._replace(whole=False)
    assert recovered({"a": torn, "b": B}) == Recovered(GroupState(4, "b", ("b",)))
    assert recovered({"a": torn, "b": B._replace(whole=False)}) == Recovered(GroupState(4, "a", ("a",)))


def test_a_leader_that_was_deposed_elsewhere_does_not_go_on() -> None:
    deposed = A._replace(leads=GroupState(3, "a", ("a", "b")))
    assert recovered({"a": deposed, "b": B._replace(promised=4)}) == Recovered(GroupState(5, "a", ("a",)))


def test_who_is_missing_may_have_gone_on_alone() -> None:
    assert recovered({"a": A}) == Recovered(None, ("b",))
    assert recovered({"a": A, "c": B}) == Recovered(None, ("b",))
    assert recovered({"b": B}) == Recovered(None, ("a", "c"))  # nobody says who counted
    assert recovered({}) == Recovered(None, ("a", "b", "c"))
    # The newest epoch that somebody has led is what counts.
    assert recovered({"a": A, "b": B._replace(counted_epoch=4, counted=("b", "c"))}) == Recovered(None, ("c",))
    assert recover_group(0, {"a": A}, "a") == Recovered(None, ("b",))  # also one of whom only the stores know


def test_the_missing_one_that_has_nothing_the_others_lack_is_not_waited_for() -> None:
    assert recovered({"a": A, "b": B}) == Recovered(GroupState(4, "a", ("a",)))
    # Two copies of everything, and one coordinator away; it may have seen newer epochs, though.
    assert recovered({"a": A, "c": B}, min_copies=2) == Recovered(GroupState(3 + EPOCH_GAP, "a", ("a",)))


def test_what_is_given_up_is_said_and_its_epoch_lies_far_beyond() -> None:
    serving = A._replace(leads=GroupState(3, "a", ("a", "b")))
    assert recovered({"a": serving}, give_up=True) == Recovered(GroupState(3 + EPOCH_GAP, "a", ("a",)), ("b",))


def test_a_group_that_nobody_has_begun_is_its_homes() -> None:
    for group, home in enumerate("abca"):
        found = recover_group(group, {name: GroupReport() for name in "abc"}, "abc")
        assert found.state is not None
        assert found.state.leader == home


# -- any history


@dataclass
class Member:
    """A coordinator: what is durable there, and whether it leads."""

    log: list[tuple[int, int]] = field(default_factory=list)  # (epoch, offset)
    promised: int = 0
    counted: tuple[int, tuple[str, ...]] = (0, ())
    leads: GroupState | None = None

    def report(self) -> GroupReport:
        epoch, last = self.log[-1] if self.log else (0, -1)
        return GroupReport(max(self.promised, epoch), epoch, last, True, *self.counted, self.leads)


class History:
    """One group with its registry, until that is lost; leaders go on as long as their followers let them."""

    def __init__(self, size: int, min_copies: int, group: int) -> None:
        self.group = group
        self.members = {name: Member() for name in NAMES[:size]}
        self.min_copies = min_copies
        self.registry = GroupState(1, "a", ("a",))
        # Whether the registry is lost; what it has given may still be on its way to who has not reported yet.
        self.lost = False
        self.reported: set[str] = set()
        self.began: set[tuple[int, str]] = set()
        self.acknowledged: set[tuple[int, int]] = set()
        self.offset = 0
        self.open("a")

    def open(self, name: str, begun: bool = True) -> None:
        """Who was given the group begins its epoch."""
        state, own = self.registry, self.members[name]
        if state.leader != name or own.promised > state.epoch or own.leads is not None or name in self.reported:
            return
        if (state.epoch, name) in self.began:
            return  # a restart takes a new epoch
        self.began.add((state.epoch, name))
        own.counted = max(own.counted, (state.epoch, state.in_sync))
        own.promised, own.leads = state.epoch, state
        if begun:  # else its first block is not durable yet
            self.append(name)

    def append(self, name: str) -> None:
        own = self.members[name]
        if own.leads is not None and own.promised == own.leads.epoch:
            self.offset += 1
            own.log.append((own.leads.epoch, self.offset))
            self.commit(name)

    def ship(self, leader: str, name: str, most: int) -> None:
        """A member follows: it promises, takes back what the leader has not, and takes some of what it lacks."""
        own, other = self.members[leader], self.members[name]
        if own.leads is None or leader == name or other.promised > own.leads.epoch:
            if own.leads is not None and other.promised > own.leads.epoch:
                own.leads = None  # it hears that it is deposed
            return
        if other.leads is not None and other.leads.epoch < own.leads.epoch:
            other.leads = None
        other.promised = own.leads.epoch
        agreed = 0
        while agreed < min(len(own.log), len(other.log)) and own.log[agreed] == other.log[agreed]:
            agreed += 1
        other.log[agreed:] = own.log[agreed : agreed + most]
        self.commit(leader)

    def commit(self, leader: str) -> None:
        """What every member that counts has is acknowledged, also those that have been asked for and not granted."""
        own = self.members[leader]
        if own.leads is None or len(own.leads.in_sync) < self.min_copies:
            return
        counting = {*own.leads.in_sync, *self.joining(own)}
        for record in own.log:
            if not all(record in self.members[name].log for name in counting):
                break
            self.acknowledged.add(record)

    @staticmethod
    def joining(own: Member) -> tuple[str, ...]:
        epoch, names = own.counted
        return names if own.leads is not None and epoch == own.leads.epoch else ()

    def join(self, leader: str, name: str, granted: bool) -> None:
        """The set is noted, then asked for; the answer may be lost."""
        own = self.members[leader]
        if own.leads is None or name in own.leads.in_sync:
            return
        if not self.acknowledged.issuperset(own.log) or not {*own.log}.issubset(self.members[name].log):
            return
        own.counted = (own.leads.epoch, tuple(sorted({*own.leads.in_sync, name})))
        if granted and not self.lost and self.registry == own.leads:
            self.registry = own.leads = own.leads._replace(in_sync=(*own.leads.in_sync, name))

    def drop(self, leader: str, name: str) -> None:
        own = self.members[leader]
        if own.leads is None or name == leader or name not in own.leads.in_sync or self.lost:
            return
        if self.registry == own.leads:
            self.registry = own.leads = own.leads._replace(in_sync=tuple(n for n in own.leads.in_sync if n != name))
            own.counted = (own.leads.epoch, own.leads.in_sync)
            self.commit(leader)

    def succeed(self, name: str) -> None:
        state = self.registry
        if not self.lost and name in state.in_sync and name != state.leader:
            left = tuple(n for n in state.in_sync if n != state.leader)
            self.registry = GroupState(state.epoch + 1, name, left)

    def restart(self, name: str) -> None:
        """What is not durable is gone; the registry, while there is one, gives a new epoch."""
        self.members[name].leads = None
        state = self.registry
        if state.leader == name and not self.lost:
            newest = max(state.epoch, self.members[name].promised)
            self.registry = state._replace(epoch=newest + 1)

    def act(self, what: int, who: int, whom: int, much: int) -> None:
        names = tuple(self.members)
        leaders = [name for name in names if self.members[name].leads is not None] or names
        leader, name = leaders[who % len(leaders)], names[whom % len(names)]
        match what:
            case 0 | 1:
                self.append(leader)
            case 2 | 3:
                self.ship(leader, name, much if much < 3 else 99)
            case 4:
                for each in names:
                    self.ship(leader, each, 99)
            case 5 | 6:
                for each in names:
                    self.ship(leader, each, 99)
                self.join(leader, name, granted=much > 0)
            case 7:
                self.drop(leader, name)
            case 8:
                self.succeed(name)
                if much:
                    self.open(name, much > 1)
            case 9:
                self.restart(names[who % len(names)])
            case _:
                self.open(name)


ACTION = st.tuples(st.integers(0, 10), st.integers(0, 3), st.integers(0, 3), st.integers(0, 3))


@settings(max_examples=1000, deadline=None)
@given(
    group=st.integers(0, 3),  # whose home it is
    size=st.integers(2, 4),
    min_copies=st.integers(1, 2),
    before=st.lists(ACTION, min_size=5, max_size=60),
    meanwhile=st.lists(st.one_of(st.integers(0, 3), ACTION), max_size=40),
    afterwards=st.lists(ACTION, max_size=10),
    away=st.sets(st.integers(0, 3), max_size=2),
)
def test_who_is_recovered_has_everything_that_was_acknowledged(
    group: int,
    size: int,
    min_copies: int,
    before: list[tuple[int, int, int, int]],
    meanwhile: list[int | tuple[int, int, int, int]],
    afterwards: list[tuple[int, int, int, int]],
    away: set[int],
) -> None:
    history = History(size, min_copies, group)
    for action in before:
        history.act(*action)
    history.lost = True
    names = tuple(history.members)
    asked = [name for at, name in enumerate(names) if at not in away] or [names[0]]
    found = recovered_meanwhile(history, asked, meanwhile)
    check(history, found, asked)
    for action in afterwards:  # old leaders go on: what they can still commit, the new one has
        history.act(*action)
    check(history, found, asked)


def recovered_meanwhile(
    history: History, asked: list[str], meanwhile: list[int | tuple[int, int, int, int]]
) -> Recovered:
    """Coordinators report when they come to it; leaders go on meanwhile, also those that are not asked."""
    reports: dict[str, GroupReport] = {}
    names, found = tuple(history.members), Recovered(None)
    for step in [*meanwhile, *range(len(names))]:
        if isinstance(step, tuple):
            history.act(*step)
            continue
        name = names[step % len(names)]
        if name in asked:
            history.reported.add(name)
            reports[name] = history.members[name].report()
            found = recover_group(history.group, reports, names, history.min_copies)
            if found.state is not None:
                return found
    return found


def check(history: History, found: Recovered, asked: list[str]) -> None:
    if found.state is None:
        assert found.missing, "asked for everything, and nothing was found"
        assert not {*found.missing} & {*asked}
        return
    leader = history.members[found.state.leader]
    assert found.state.leader in asked
    assert found.state.leader in found.state.in_sync
    assert history.acknowledged.issubset(leader.log)
    if found.state.epoch not in [epoch for epoch, _ in history.began]:  # elected: all that count have it
        assert all(history.acknowledged.issubset(history.members[name].log) for name in found.state.in_sync)
    else:
        assert (found.state.epoch, found.state.leader) in history.began
    assert max(member.report().newest for member in history.members.values()) <= found.state.epoch


def test_the_model_finds_a_leader_that_does_not_note_with_whom_it_counts() -> None:
    history = History(2, 1, 0)
    for action in ((5, 0, 1, 1), (8, 0, 1, 1), (0, 1, 0, 0)):  # b joins, succeeds, and goes on alone
        history.act(*action)
    found = recover_group(0, {"a": history.members["a"].report()}, "ab")
    assert found == Recovered(None, ("b",))
    found = recover_group(0, {"a": history.members["a"].report()._replace(counted=("a",))}, "ab")
    with pytest.raises(AssertionError):
        check(history, found, ["a"])
