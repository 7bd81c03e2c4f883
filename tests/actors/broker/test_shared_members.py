"""The members of shares at a broker: what coordinators are told of them, and told again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from lexicast.actors.broker.catching_up.block_cache import SAME_OF, BlockCache
from lexicast.actors.broker.coordinators import Coordinators
from lexicast.actors.broker.encoding import BlockView
from lexicast.actors.broker.pipelines.pipeline import Pipeline
from lexicast.actors.broker.shares import shared_members
from lexicast.actors.broker.shares.dealt_blocks import DealtPart, dealt_parts
from lexicast.actors.broker.shares.shared_members import SharedMembers, ShareKey
from lexicast.cluster.blocks import PUBLICATIONS, RAW, Block, Meta, Run, pack_meta
from lexicast.cluster.errors import PeerError, UnavailableError
from lexicast.cluster.selection import offsets_of

from ...support.harness import eventually

KEY = ShareKey("g", b"#", "a")


class Member:
    """Has been dealt these."""

    def __init__(self, held: dict[int, list[int]]) -> None:
        self._held = held

    def take_dealt(self, parts: list[DealtPart]) -> None:
        """None comes."""

    def held(self) -> dict[int, list[int]]:
        return {group: [*offsets] for group, offsets in self._held.items()}


class Leader:
    """A pipeline to a coordinator that leads `groups`, and answers `share_join` with `errors` first."""

    def __init__(self, name: str, groups: list[int]) -> None:
        self.member = SimpleNamespace(name=name)
        self.groups = groups
        self.link = SimpleNamespace(closed=False)
        self.errors: list[Exception] = []
        self.asked: list[tuple[str, tuple[Any, ...]]] = []

    async def request(self, method: str, *arguments: Any) -> dict[str, Any]:
        self.asked.append((method, arguments))
        return {"groups": self.groups}

    def call(self, done: Callable[[Exception | None, Any], None], method: str, *arguments: Any) -> None:
        self.asked.append((method, arguments))
        joins = method == "share_join"
        done(self.errors.pop() if joins and self.errors else None, {"groups": self.groups})

    def joined_with(self) -> list[dict[int, list[int]]]:
        """What each `share_join` has said is held."""
        return [arguments[-2] for method, arguments in self.asked if method == "share_join"]


class Leaders:
    """Who leads what."""

    def __init__(self, *leaders: Leader) -> None:
        self.leaders = leaders
        self.pipelines = {leader.member.name: leader for leader in leaders}

    def groups_of_all(self, _: Iterable[bytes]) -> range:
        return range(4)

    def by_leader(self, groups: Iterable[int]) -> dict[Leader, list[int]]:
        asked = set(groups)
        found = {leader: [group for group in leader.groups if group in asked] for leader in self.leaders}
        return {leader: led for leader, led in found.items() if led}


def view(block: Block) -> BlockView:
    return BlockView(block, 0)


def itself(block: Block) -> Block:
    return block


def members_of(*leaders: Leader) -> SharedMembers:
    return SharedMembers(cast(Coordinators, Leaders(*leaders)), 5.0, view, itself)


async def test_a_coordinator_is_told_what_is_held_of_its_own_groups() -> None:
    """What it would know of others' would be out of date once it leads them."""
    one, other = Leader("one", [0, 1]), Leader("other", [2, 3])
    members = members_of(one, other)
    await members.join(KEY, Member({0: [5], 3: [7]}), 10)
    members.resumed(cast(Pipeline, other))
    assert one.joined_with() == [{0: [5]}]
    assert other.joined_with() == [{3: [7]}, {3: [7]}]


async def test_a_coordinator_that_cannot_take_a_member_back_yet_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has just begun and cannot write: nothing it leads would be dealt to the member otherwise."""
    monkeypatch.setattr(shared_members, "JOIN_AGAIN_S", 0.0)
    leader = Leader("one", [0, 1, 2, 3])
    members = members_of(leader)
    await members.join(KEY, Member({}), 10)
    leader.errors = [UnavailableError("no quorum"), UnavailableError("no quorum")]
    members.resumed(cast(Pipeline, leader))
    await eventually(lambda: len(leader.joined_with()) == 4)
    await asyncio.sleep(0.01)
    assert len(leader.joined_with()) == 4


async def test_a_member_that_has_left_or_a_link_that_has_ended_is_not_asked_about_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(shared_members, "JOIN_AGAIN_S", 0.0)
    left, cut = Leader("left", [0, 1, 2, 3]), Leader("cut", [0, 1, 2, 3])
    for leader in (left, cut):
        members = members_of(leader)
        await members.join(KEY, Member({}), 10)
        leader.errors = [UnavailableError("no quorum")]
        members.resumed(cast(Pipeline, leader))
        if leader is left:
            members.leave(KEY)
        else:
            leader.link = SimpleNamespace(closed=False)
    await asyncio.sleep(0.01)
    assert len(left.joined_with()) == len(cut.joined_with()) == 2


async def test_every_coordinator_hears_who_has_left_whatever_it_leads_now() -> None:
    """One that had led the share, led nothing as the member left, and led it again dealt to it for ever: what it was
    dealt nobody got."""
    one, other = Leader("one", [0, 1, 2, 3]), Leader("other", [])
    members = members_of(one, other)
    await members.join(KEY, Member({}), 10)
    members.leave(KEY)
    for leader in (one, other):
        assert leader.asked[-1] == ("share_leave", (*KEY, {}))


@pytest.mark.parametrize("rests", [False, True])
async def test_what_is_dealt_to_who_has_left_is_given_back_but_not_what_it_still_has(rests: bool) -> None:
    leader = Leader("one", [0, 1, 2, 3])
    members = members_of(leader)
    await members.join(KEY, Member({}), 10)
    members.leave(KEY, {0: [5]} if rests else None)
    leader.asked.clear()
    members.dealt(KEY.share, KEY.filter, [(block(2).to_wire(), ((KEY.member, None),))])
    assert leader.asked == ([] if rests else [("share_leave", (*KEY, {}))])


async def test_what_is_done_while_nobody_leads_its_group_is_told_whoever_leads_it_next() -> None:
    """It was forgotten, and dealt again."""
    leader = Leader("one", [0, 1])
    members = members_of(leader)
    members.done(KEY, 0, [5])
    members.done(KEY, 3, [7])
    await asyncio.sleep(0)
    leader.groups = [0, 1, 2, 3]
    members.resumed(cast(Pipeline, leader))
    await asyncio.sleep(0)
    assert leader.asked == [("share_told", ([(*KEY, {group: [offset]})],)) for group, offset in ((0, 5), (3, 7))]


# -- what is dealt


def block(count: int) -> Block:
    meta = Meta((b"t",), (Run(0, 0, 0, RAW, 0, None, -1, count),), (), (), (), ())
    lengths = b"\1\0\0\0" * count
    return Block(0, 1, 7, 6 + count, 9, PUBLICATIONS, pack_meta(meta), lengths, b"abcdefgh"[:count])


def test_a_block_comes_once_and_each_member_has_its_part() -> None:
    found = dealt_parts(
        [(block(4).to_wire(), (("a", (0, 2)), ("b", (1, 3)))), (block(2).to_wire(), (("a", None),))], view, itself
    )
    assert {name: [part.offsets() for part in parts] for name, parts in found.items()} == {
        "a": [[7, 9], [7, 8]],
        "b": [[8, 10]],
    }
    assert found["a"][0].dealt is found["b"][0].dealt
    part = found["a"][0].block()
    assert (part.payloads(), offsets_of(part)) == ([b"a", b"c"], [7, 9])
    first, rest = found["b"][0].cut(1)
    assert (first.offsets(), rest.offsets()) == ([8], [10])


def test_what_was_delivered_live_is_that_block_and_not_unpacked_again() -> None:
    cache = BlockCache(1 << 20)
    live, later = block(4), replace(block(2), first=11, last=12)
    for each in (live, later):
        cache.add(each, 0)

    def dealt(deal: Block) -> Block:
        return dealt_parts([(deal.to_wire(), (("a", None),))], view, cache.same)["a"][0].dealt.block

    assert dealt(block(4)) is live
    assert dealt(replace(block(2), first=11, last=12)) is later
    others = [replace(live, body=b"x" * len(live.body)), replace(live, epoch=live.epoch + 1), replace(live, group=99)]
    for other in (*others, replace(block(2), first=13, last=14), replace(block(2), first=1, last=2)):
        found = dealt(other)
        assert found is not live
        assert found.to_wire() == other.to_wire()


def test_no_more_than_a_few_blocks_are_looked_at_for_one_that_is_dealt() -> None:
    cache = BlockCache(1 << 24)
    blocks = [replace(block(2), first=2 * number, last=2 * number + 1) for number in range(100)]
    for each in blocks:
        cache.add(each, 0)
    found = [cache.same(Block.from_wire(each.to_wire())) is each for each in blocks]
    assert found == [False] * (100 - SAME_OF) + [True] * SAME_OF


@pytest.mark.parametrize(
    "parts", [(), ("a",), (("a", (0, 4)),), (("a", (2, 1)),), (("a", (True,)),), (("a", ()),), ((1, None),)]
)
def test_what_is_no_deal_is_refused(parts: Any) -> None:
    with pytest.raises(PeerError):
        dealt_parts([(block(4).to_wire(), parts)] if parts else [block(4).to_wire()], view, itself)
