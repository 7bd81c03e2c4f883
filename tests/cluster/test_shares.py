"""A share: who gets what, and how far it has got, by examples and against a model of any order of events."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from lexicast.cluster.errors import PeerError
from lexicast.cluster.shares import choices as choices_module
from lexicast.cluster.shares.choices import TopicChoices
from lexicast.cluster.shares.dealing import FREE, TOPIC, Deal, Share
from lexicast.cluster.shares.pieces import DealtMember, MemberKey, Taken
from lexicast.cluster.shares.places import RANGES_MAX, SharePlace, pack_place, unpack_place

A, B, C = ("broker", "a"), ("broker", "b"), ("other", "c")
TOPICS = [b"t%d" % number for number in range(6)]


def begun(strategy: str = TOPIC, records_max: int = 1_000) -> Share:
    share = Share(strategy, records_max)
    share.begin(0, SharePlace(0, 0))
    return share


def take(share: Share, offsets: Iterable[int], topics: Iterable[bytes] = (b"t",), group: int = 0) -> None:
    offsets, names = list(offsets), list(topics)
    topics = names if len(names) == 1 else [names[offset % len(names)] for offset in offsets]
    share.take(group, Taken(group, offsets, topics), max(offsets) + 1)


def offsets_of(deal: Deal) -> list[int]:
    return [offset for piece in deal.pieces for offset in piece.offsets]


def dealt(share: Share) -> dict[MemberKey, list[int]]:
    return {deal.member: offsets_of(deal) for deal in share.deal()}


# -- who gets what


def test_one_topic_goes_to_one_member_in_order() -> None:
    share = begun()
    for member in (A, B, C):
        share.join(member, 100)
    take(share, range(10))
    (first,) = dealt(share).items()
    take(share, range(10, 20))
    (second,) = dealt(share).items()
    assert first[0] == second[0]
    assert first[1] + second[1] == list(range(20))


def test_topics_are_spread_and_only_those_of_a_member_that_comes_move() -> None:
    topics = [b"topic/%d" % number for number in range(300)]
    share = begun()
    for member in (A, B):
        share.join(member, 1_000)
    take(share, range(300), topics)
    before = {offset: member for member, offsets in dealt(share).items() for offset in offsets}
    share.join(C, 1_000)
    take(share, range(300, 600), topics)
    after = {offset - 300: member for member, offsets in dealt(share).items() for offset in offsets}
    assert all(list(before.values()).count(member) > 90 for member in (A, B))
    moved = [offset for offset in before if before[offset] != after[offset]]
    assert {after[offset] for offset in moved} == {C}
    assert 60 < len(moved) < 140


def test_freely_whoever_has_room_gets_it() -> None:
    share = begun(FREE)
    share.join(A, 2)
    share.join(B, 100)
    take(share, range(10))
    found = dealt(share)
    assert len(found[A]) == 2
    assert sorted(found[A] + found[B]) == list(range(10))


def test_what_a_full_member_has_no_room_for_waits_in_the_order_of_its_topic() -> None:
    share = begun()
    share.join(A, 2)
    take(share, range(5))
    assert dealt(share) == {A: [0, 1]}
    assert dealt(share) == {}
    share.done(A, 0, [1])
    assert dealt(share) == {A: [2]}
    share.done(A, 0, [0, 2])
    assert dealt(share) == {A: [3, 4]}


def test_what_a_member_leaves_goes_to_another_one_before_what_came_later() -> None:
    share = begun()
    share.join(A, 2)
    take(share, range(4))
    share.deal()
    share.join(B, 10)
    share.done(A, 0, [0])
    share.leave(A)
    assert dealt(share) == {B: [1, 2, 3]}


def test_a_member_that_rests_keeps_what_it_has_sent_and_then_is_gone() -> None:
    share = begun()
    share.join(A, 3)
    take(share, range(5))
    share.deal()
    share.leave(A, {0: [1]})
    share.join(B, 10)
    assert dealt(share) == {B: [0, 2, 3, 4]}
    assert share.place(0).floor == 0
    share.done(A, 0, [1])
    assert A not in share.members
    share.done(B, 0, [0, 2])
    assert share.place(0) == SharePlace(3, 5, (3, 4))


def test_a_stalled_member_loses_its_topics_until_it_moves() -> None:
    share = begun()
    share.join(A, 1)
    take(share, range(3))
    assert dealt(share) == {A: [0]}
    share.join(B, 10)
    share.stall(A)
    assert dealt(share) == {B: [1, 2]}
    share.done(A, 0, [0])
    assert not share.members[A].stalled


def test_nothing_is_dealt_where_nobody_is_and_it_waits() -> None:
    share = begun()
    share.join(A, 5)
    take(share, range(3))
    share.leave(A)
    assert not share.served
    assert dealt(share) == {}
    share.join(B, 5)
    assert dealt(share) == {B: [0, 1, 2]}


def test_what_a_member_brings_along_is_its_and_not_dealt_again() -> None:
    share = begun()
    share.join(A, 10)
    share.join(B, 10)
    share.hold(B, {0: [1, 2], 1: [7]})
    take(share, range(4))
    found = dealt(share)
    assert sorted(offset for offsets in found.values() for offset in offsets) == [0, 3]
    share.begin(1, SharePlace(5, 5))
    take(share, [7, 8], group=1)
    assert [offset for offsets in dealt(share).values() for offset in offsets] == [8]
    share.done(B, 0, [1, 2])
    share.done(B, 1, [7])
    assert share.place(1) == SharePlace(8, 9, (8,))


def test_what_another_one_has_by_now_is_not_done_by_who_had_it() -> None:
    share = begun()
    share.join(A, 10)
    take(share, [0])
    share.deal()
    share.leave(A)
    share.join(B, 10)
    share.deal()
    share.join(A, 10)
    share.done(A, 0, [0])
    assert share.place(0).floor == 0


def test_what_a_member_has_done_before_it_is_read_again_is_not_held_for_ever() -> None:
    """A coordinator that has just begun is told of records that it has yet to read."""
    share = Share()
    share.join(A, 2)
    share.hold(A, {0: [1, 2]})
    share.done(A, 0, [1])
    share.begin(0, SharePlace(0, 0))
    share.done(A, 0, [2])
    take(share, range(4))
    assert dealt(share) == {A: [0, 3]}
    share.done(A, 0, [0, 3])
    assert share.place(0) == SharePlace(4, 4)
    assert share.open_records == 0


def test_what_a_member_had_when_it_joined_is_out_of_date_where_it_says_anew_what_it_has() -> None:
    """A coordinator comes to lead a group after the member has had done there what it once told of."""
    share = begun()
    share.join(A, 10)
    share.hold(A, {1: [5, 6]})
    share.hold(A, {1: [6]})
    share.begin(1, SharePlace(5, 5))
    take(share, [5, 6], group=1)
    assert dealt(share) == {A: [5]}
    share.done(A, 1, [5, 6])
    assert share.place(1) == SharePlace(7, 7)


def test_where_nothing_has_moved_since_it_was_written_nothing_is_looked_at() -> None:
    share = begun()
    share.join(A, 10)
    take(share, range(2))
    assert share.moved == {0}
    share.settled(0, SharePlace(0, 0))
    assert share.moved == {0}
    share.settled(0, share.place(0))
    assert not share.moved
    share.deal()
    share.done(A, 0, [1])
    assert share.moved == {0}
    share.end(0)
    assert not share.moved


def test_as_much_as_may_be_open_is_full_until_half_of_it_is_done() -> None:
    share = begun(records_max=4)
    share.join(A, 10)
    take(share, range(4))
    assert share.full
    share.deal()
    share.done(A, 0, [0])
    assert not share.full
    assert not share.plenty
    share.done(A, 0, [1])
    assert share.plenty


# -- what others may hold


def test_what_may_have_been_sent_with_qos_2_waits_for_whom_it_is() -> None:
    """A coordinator begins to lead what another one has dealt, and members join one after the other."""
    share = Share()
    share.begin(0, SharePlace(0, 3, (0, 1, 2)), unclaimed=4)
    share.join(A, 10)
    share.take(0, Taken(0, range(5), [b"t"], exact=[1, 2, 3, 4]), 5)
    assert dealt(share) == {A: [0, 4]}
    share.join(B, 10)
    share.hold(B, {0: [2]})
    assert dealt(share) == {}
    share.done(B, 0, [2])
    share.leave(B)
    share.unclaimed_wait({0})
    assert dealt(share) == {A: [1, 3]}
    share.done(A, 0, [0, 1, 3, 4])
    assert share.place(0) == SharePlace(5, 5)


def test_each_group_has_its_own_time_in_which_members_bring_along_what_they_hold() -> None:
    share = Share()
    for group in (0, 1):
        share.begin(group, SharePlace(0, 0), unclaimed=1)
        share.take(group, Taken(group, [0], [b"t"], exact=[0]), 1)
    share.join(A, 10)
    assert share.deal() == []
    share.unclaimed_wait({0})
    assert [piece.taken.group for deal in share.deal() for piece in deal.pieces] == [0]
    share.unclaimed_wait({1, 2})
    assert [piece.taken.group for deal in share.deal() for piece in deal.pieces] == [1]


def test_it_is_known_where_each_record_is() -> None:
    share = Share()
    share.begin(0, SharePlace(2, 5, (3,)))
    assert [share.whereabouts(0, offset) for offset in (1, 2, 3, 5)] == ["done", "done", "unread", "unread"]
    share.take(0, Taken(0, [3, 5, 6], [b"t"] * 3), 7)
    assert share.whereabouts(0, 5) == "waiting"
    share.join(A, 2)
    share.deal()
    share.done(A, 0, [3])
    assert [share.whereabouts(0, offset) for offset in (3, 5, 6, 7)] == ["done", A, "waiting", "unread"]


def test_what_a_member_brings_along_of_qos_2_is_its_whoever_reads_it_first() -> None:
    share = Share()
    share.begin(0, SharePlace(0, 2, (0, 1)), unclaimed=2)
    share.join(A, 10)
    share.hold(A, {0: [1]})
    share.take(0, Taken(0, range(2), [b"t"], exact=[0, 1]), 2)
    share.done(A, 0, [1])
    assert share.place(0) == SharePlace(0, 2, (0,))
    share.end(0)
    assert share.open_records == 0


# -- places


@pytest.mark.parametrize(
    "place", [SharePlace(0, 0), SharePlace(5, 9, (5, 6, 8)), SharePlace(1 << 40, (1 << 40) + 3, (1 << 40,))]
)
def test_a_place_is_read_as_it_was_written(place: SharePlace) -> None:
    assert unpack_place(pack_place(place)) == place


def test_a_place_of_too_many_ranges_is_its_floor() -> None:
    scattered = tuple(range(0, 4 * RANGES_MAX, 2))
    assert unpack_place(pack_place(SharePlace(0, 4 * RANGES_MAX, scattered))) == SharePlace(0, 0)


@pytest.mark.parametrize(
    "data", [b"", b"\xc0", b"\x94\x02\x00\x00\x90", b"\x94\x01\x00\x00\x91\x01", b"\x94\x01\x05\x05\x92\x03\x01"]
)
def test_what_is_no_place_is_refused(data: bytes) -> None:
    with pytest.raises(PeerError):
        unpack_place(data)


def test_a_share_goes_on_from_a_place_with_what_was_open() -> None:
    share = begun()
    share.join(A, 10)
    take(share, range(6))
    share.deal()
    share.done(A, 0, [0, 2, 3])
    again = Share()
    again.begin(0, unpack_place(pack_place(share.place(0))))
    assert again.place(0) == share.place(0)
    again.join(B, 10)
    take(again, range(1, 3))
    assert again.place(0) == SharePlace(1, 6, (1, 4, 5))
    take(again, range(3, 8))
    assert dealt(again) == {B: [1, 4, 5, 6, 7]}


# -- any order of events


@settings(max_examples=150, stateful_step_count=40, deadline=None)
class AnyOrder(RuleBasedStateMachine):
    """Members come and go, records are taken, dealt and done in any order: nothing is lost, nothing is dealt to two,
    and the floor does not pass what is open. By topic nothing is dealt while something earlier of its topic waits, and
    to one member while all stay."""

    @initialize(strategy=st.sampled_from([TOPIC, FREE]))
    def begin(self, strategy: str) -> None:
        self.share = Share(strategy)
        self.share.begin(0, SharePlace(0, 0))
        self.taken = 0
        self.gone: set[int] = set()
        self.holders: dict[int, MemberKey] = {}
        self.by_topic = strategy == TOPIC
        # Topic -> whose it is, since members came or went.
        self.owners: dict[int, MemberKey] = {}

    @rule(member=st.sampled_from([A, B, C]), window=st.integers(1, 5))
    def join(self, member: MemberKey, window: int) -> None:
        self.share.join(member, window)
        self.owners.clear()
        self._given_up(member)

    @rule(member=st.sampled_from([A, B, C]), keeps=st.booleans())
    def leave(self, member: MemberKey, keeps: bool) -> None:
        held = sorted(offset for offset, holder in self.holders.items() if holder == member)
        kept = held[:1] if keeps else []
        self.share.leave(member, {0: kept})
        self.owners.clear()
        self._given_up(member, kept)

    def _given_up(self, member: MemberKey, kept: Iterable[int] = ()) -> None:
        self.holders = {o: holder for o, holder in self.holders.items() if holder != member or o in set(kept)}

    @rule(count=st.integers(1, 8))
    def publish(self, count: int) -> None:
        take(self.share, range(self.taken, self.taken + count), TOPICS)
        self.taken += count

    @rule()
    def deal(self) -> None:
        self.dealt_of_topic: dict[int, int] = {}
        for deal in self.share.deal():
            assert not self.share.members[deal.member].resting
            assert self.share.members[deal.member].held_records <= self.share.members[deal.member].window
            offsets = offsets_of(deal)
            assert offsets == sorted(offsets)
            for offset in offsets:
                assert offset not in self.gone
                assert offset not in self.holders
                self.holders[offset] = deal.member
                if self.by_topic:
                    assert self.owners.setdefault(offset % len(TOPICS), deal.member) == deal.member
                    self.dealt_of_topic[offset % len(TOPICS)] = offset
        waiting = set(range(self.taken)) - self.gone - self.holders.keys()
        for topic, last in self.dealt_of_topic.items():
            assert not [offset for offset in waiting if offset % len(TOPICS) == topic and offset < last]

    @precondition(lambda self: self.holders)
    @rule(data=st.data())
    def done(self, data: st.DataObject) -> None:
        offset = data.draw(st.sampled_from(sorted(self.holders)))
        holder = self.holders.pop(offset)
        if self.share.members[holder].stalled:
            self.owners.clear()
        self.share.done(holder, 0, [offset])
        self.gone.add(offset)

    @rule(member=st.sampled_from([A, B, C]))
    def stall(self, member: MemberKey) -> None:
        self.share.stall(member)
        self.owners.clear()

    @invariant()
    def nothing_is_lost(self) -> None:
        if not hasattr(self, "share"):
            return
        place = self.share.place(0)
        assert set(place.open) == set(range(self.taken)) - self.gone
        assert place.floor == min(place.open, default=self.taken)
        part = self.share._parts[0]
        held = {
            piece.taken.offsets[number]: key
            for key, member in self.share.members.items()
            for piece in member.held
            for number in part.live(piece)
        }
        assert held == self.holders
        assert self.share.open_records == len(place.open)
        counts = [sum(piece.open for piece in member.held) for member in self.share.members.values()]
        assert counts == [member.held_records for member in self.share.members.values()]

    def teardown(self) -> None:
        """Whatever has happened, one member that stays gets all that is left."""
        if not hasattr(self, "share"):
            return
        for member in list(self.share.members):
            self.share.leave(member)
            self._given_up(member)
        self.share.join(("last", "one"), 1_000_000)
        self.owners.clear()
        self.deal()
        assert set(self.holders) == set(range(self.taken)) - self.gone


TestAnyOrder = AnyOrder.TestCase


@given(st.lists(st.tuples(st.sets(st.integers(0, 9), min_size=1), st.sets(st.integers(0, 19))), max_size=10))
def test_whose_a_topic_is_follows_from_who_is_there_and_from_nothing_before(
    steps: list[tuple[set[int], set[int]]],
) -> None:
    """What was chosen is held against who has come since, whenever it is asked for."""
    members = [DealtMember(("broker", str(number)), 1) for number in range(10)]
    choices = TopicChoices()
    for there, asked in steps:
        choices.among([members[number] for number in there])
        anew = TopicChoices()
        anew.among([members[number] for number in sorted(there)])
        for number in asked:
            assert choices.choose(b"%d" % number) is anew.choose(b"%d" % number)


def test_topics_are_remembered_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choices_module, "CHOICES_MAX", 3)
    choices = TopicChoices()
    choices.among([DealtMember(A, 1), DealtMember(B, 1)])
    found = [choices.choose(b"%d" % number) for number in range(9)]
    assert len(choices._chosen) <= 3
    assert [choices.choose(b"%d" % number) for number in range(9)] == found


def test_thousands_of_members_that_leave_at_once_are_looked_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker's members leave in one turn, in which whatever waits was chosen anew for each of them."""
    share = begun()
    for number in range(2_000):
        share.join(("broker", str(number)), 1)
    share.join(C, 100)
    take(share, range(100), TOPICS)
    share.deal()
    looked: list[int] = []
    among = TopicChoices.among

    def counted(self: TopicChoices, members: Sequence[DealtMember]) -> None:
        looked.append(len(members))
        among(self, members)

    monkeypatch.setattr(TopicChoices, "among", counted)
    for number in range(2_000):
        share.leave(("broker", str(number)))
    left = dealt(share)
    assert looked == [1]
    assert list(left) == [C]
    assert share.place(0) == SharePlace(0, 100, tuple(range(100)))


def test_only_what_concerns_a_share_moves_it() -> None:
    """Where it stands is written to the group itself: it would be written again each second for ever."""
    share = Share()
    share.begin(0, SharePlace(5, 5))
    share.join(("broker-0", "a"), 10)
    saved = share.place(0)
    share.take(0, None, 9)  # others' records
    assert not share.has_moved(0, saved)
    share.take(0, Taken(0, [9], [b"t"]), 10)
    assert share.has_moved(0, saved)
    share.deal()
    saved = share.place(0)
    assert not share.has_moved(0, saved)
    share.done(("broker-0", "a"), 0, [9])
    assert share.has_moved(0, saved)
    assert not share.has_moved(0, share.place(0))
    # Taken and done between two looks.
    saved = share.place(0)
    share.take(0, Taken(0, [10], [b"t"]), 11)
    share.deal()
    share.done(("broker-0", "a"), 0, [10])
    assert share.has_moved(0, saved)
