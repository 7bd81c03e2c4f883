"""Recovering who leads a group: whatever has happened before, who is chosen has everything that was acknowledged."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lexicast.cluster.leadership import GroupState
from lexicast.cluster.recovery import EPOCH_GAP, GroupReport, Recovered, recover_group

NAMES = ("a", "b", "c", "d")
A = GroupReport(promised=3, log_epoch=3, last=100, counted_epoch=3, counted=("a", "b"))
B = GroupReport(promised=3, log_epoch=3, last=90)


def recovered(reports: dict[str, GroupReport], roster: Collection[str] = "abc", **options: int) -> Recovered:
    return recover_group(0, reports, roster, **options)


# -- one case each


def test_a_leader_that_serves_goes_on_as_it_is() -> None:
    state = GroupState(3, "a", ("a", "b"))
    assert recovered({"a": A._replace(leads=state), "b": B}) == Recovered(state)


def test_without_a_leader_all_promise_first_and_then_the_longest_log_leads() -> None:
    reports = {"a": A, "b": B}
    assert recovered(reports) == Recovered(fence=4)
    reports["a"] = A._replace(promised=4)
    assert recovered(reports, fence=4) == Recovered(fence=4)
    reports["b"] = B._replace(promised=4)
    assert recovered(reports, fence=4) == Recovered(GroupState(4, "a", ("a",)))
    assert recovered({"a": A, "b": B}, at_rest=True) == Recovered(GroupState(4, "a", ("a",)))


def test_a_newer_epoch_counts_more_than_a_longer_log_and_equal_ones_follow() -> None:
    newer = B._replace(log_epoch=4, promised=4, last=80)
    found = recovered({"a": A, "b": newer, "c": newer}, at_rest=True)
    assert found == Recovered(GroupState(5, "b", ("b", "c")))


def test_a_copy_that_was_being_made_leads_only_where_there_is_nothing_else() -> None:
    torn = A._replace(whole=False)
    assert recovered({"a": torn, "b": B}, at_rest=True) == Recovered(GroupState(4, "b", ("b",)))
    assert recovered({"a": torn, "b": B._replace(whole=False)}, at_rest=True) == Recovered(GroupState(4, "a", ("a",)))


def test_a_leader_that_was_deposed_elsewhere_does_not_go_on() -> None:
    deposed = A._replace(leads=GroupState(3, "a", ("a", "b")))
    assert recovered({"a": deposed, "b": B._replace(promised=4)}) == Recovered(fence=5)


def test_who_is_missing_may_have_gone_on_alone() -> None:
    assert recovered({"a": A}) == Recovered(missing=("b",))
    assert recovered({"a": A, "c": B}, "abc") == Recovered(missing=("b",))
    assert recovered({"b": B}) == Recovered(missing=("a", "c"))  # nobody says who counted
    assert recovered({}) == Recovered(missing=("a", "b", "c"))


def test_the_missing_one_that_has_nothing_the_others_lack_is_not_waited_for() -> None:
    assert recovered({"a": A, "b": B}, at_rest=True).state == GroupState(4, "a", ("a",))
    # Two copies of everything, and one coordinator away.
    far = 3 + EPOCH_GAP  # it may have seen newer epochs, though
    assert recovered({"a": A, "c": B}, at_rest=True, min_copies=2).state == GroupState(far, "a", ("a",))


def test_what_is_given_up_is_said_and_its_epoch_lies_far_beyond() -> None:
    far = 3 + EPOCH_GAP
    serving = A._replace(leads=GroupState(3, "a", ("a", "b")))
    assert recovered({"a": serving}, give_up=True) == Recovered(None, far, ("b",))
    fenced = A._replace(promised=far)
    assert recovered({"a": fenced}, fence=far, give_up=True) == Recovered(GroupState(far, "a", ("a",)), 0, ("b",))
    assert recovered({"a": A}, at_rest=True, give_up=True).state == GroupState(far, "a", ("a",))


def test_a_group_that_nobody_has_begun_is_its_homes() -> None:
    for group, home in enumerate("abca"):
        found = recover_group(group, {name: GroupReport() for name in "abc"}, "abc", at_rest=True)
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

    def __init__(self, size: int, min_copies: int) -> None:
        self.members = {name: Member() for name in NAMES[:size]}
        self.min_copies = min_copies
        self.registry: GroupState | None = GroupState(1, "a", ("a",))
        self.acknowledged: set[tuple[int, int]] = set()
        self.offset = 0
        self.open("a")

    def open(self, name: str) -> None:
        """Who was given the group begins its epoch."""
        state, own = self.registry, self.members[name]
        if state is None or state.leader != name or own.promised > state.epoch or own.leads == state:
            return
        own.counted = max(own.counted, (state.epoch, state.in_sync))
        own.promised, own.leads = state.epoch, state
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
        if granted and self.registry == own.leads:
            self.registry = own.leads = own.leads._replace(in_sync=(*own.leads.in_sync, name))

    def drop(self, leader: str, name: str) -> None:
        own = self.members[leader]
        if own.leads is not None and name != leader and name in own.leads.in_sync and self.registry == own.leads:
            self.registry = own.leads = own.leads._replace(in_sync=tuple(n for n in own.leads.in_sync if n != name))
            self.commit(leader)

    def succeed(self, name: str) -> None:
        state = self.registry
        if state is not None and name in state.in_sync and name != state.leader:
            left = tuple(n for n in state.in_sync if n != state.leader)
            self.registry = GroupState(state.epoch + 1, name, left)

    def restart(self, name: str) -> None:
        """What is not durable is gone; the registry, while there is one, gives a new epoch."""
        self.members[name].leads = None
        state = self.registry
        if state is not None and state.leader == name:
            newest = max(state.epoch, self.members[name].promised)
            self.registry = state._replace(epoch=newest + 1)

    def act(self, what: int, who: int, whom: int, much: int) -> None:
        names = tuple(self.members)
        leader, name = names[who % len(names)], names[whom % len(names)]
        match what:
            case 0 | 1:
                self.append(leader)
            case 2 | 3 | 4:
                self.ship(leader, name, much)
            case 5 | 6:
                self.join(leader, name, granted=much > 0)
            case 7:
                self.drop(leader, name)
            case 8:
                self.succeed(name)
                self.open(name if much else leader)
            case 9:
                self.restart(leader)
                self.open(leader)
            case _:
                self.open(leader)


ACTION = st.tuples(st.integers(0, 10), st.integers(0, 3), st.integers(0, 3), st.integers(0, 3))


@settings(max_examples=600, deadline=None)
@given(
    st.integers(1, 4),
    st.integers(1, 2),
    st.lists(ACTION, max_size=60),
    st.lists(st.one_of(st.integers(0, 3), ACTION), max_size=40),
    st.sets(st.integers(0, 3)),
    st.booleans(),
)
def test_who_is_recovered_has_everything_that_was_acknowledged(
    size: int,
    min_copies: int,
    before: list[tuple[int, int, int, int]],
    meanwhile: list[int | tuple[int, int, int, int]],
    away: set[int],
    at_rest: bool,
) -> None:
    history = History(size, min_copies)
    for action in before:
        history.act(*action)
    history.registry = None  # and nobody changes who leads any more
    names = tuple(history.members)
    asked = [name for at, name in enumerate(names) if at not in away] or [names[0]]
    if at_rest:
        reports = {name: history.members[name].report()._replace(leads=None) for name in asked}
        found = recover_group(0, reports, names, min_copies, at_rest=True)
    else:
        found = recovered_while_serving(history, asked, meanwhile)
        check(history, found, asked)
        for action in before:  # old leaders go on: what they can still commit, the new one has
            history.act(*action)
    check(history, found, asked)


def recovered_while_serving(
    history: History, asked: list[str], meanwhile: list[int | tuple[int, int, int, int]]
) -> Recovered:
    """Coordinators report when they come to it; leaders go on meanwhile, also those that are not asked."""
    reports: dict[str, GroupReport] = {}
    names, fence, found = tuple(history.members), 0, Recovered()
    for step in [*meanwhile, *range(len(names)), *range(len(names))]:
        if isinstance(step, tuple):
            history.act(*step)
            continue
        name = names[step % len(names)]
        if name in asked:
            own = history.members[name]
            if fence > own.promised:
                own.promised, own.leads = fence, None
            reports[name] = own.report()
            found = recover_group(0, reports, names, history.min_copies, fence)
            fence = found.fence or fence
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
    if leader.leads != found.state:  # else it is known already who counts
        assert all(history.members[name].log == leader.log for name in found.state.in_sync)
    assert max(history.members[name].report().newest for name in asked) <= found.state.epoch
    assert history.acknowledged.issubset(leader.log)


def test_the_model_finds_a_rule_that_is_too_weak() -> None:
    """A leader that does not note with whom it counts is caught: what the history allows is not too little."""
    history = History(2, 1)
    history.ship("a", "b", 9)
    history.join("a", "b", granted=True)
    history.succeed("b")
    history.open("b")
    history.append("b")
    history.members["a"] = replace(history.members["a"], counted=(1, ("a",)))  # as if the wider set were not noted
    found = recover_group(0, {"a": history.members["a"].report()}, "ab", at_rest=True)
    with pytest.raises(AssertionError):
        check(history, found, ["a"])
