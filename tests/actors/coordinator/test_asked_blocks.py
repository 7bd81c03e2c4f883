"""Matchers are asked one after the other, and what nobody answers is not vouched for."""

from __future__ import annotations

from array import array
from typing import Any

import pytest

from lexicast.actors.coordinator.matching.asked_blocks import ANSWER_S, AskedBlock, Matchers
from lexicast.cluster.blocks import PUBLICATIONS, Block, Meta, Run, pack_meta
from lexicast.cluster.clock import Clock
from lexicast.cluster.errors import PeerError
from lexicast.cluster.protocol.messages import ASK, VERDICT


class Stopped(Clock):
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def time_us(self) -> int:
        return 0

    def monotonic(self) -> float:
        return self.now_s


class FakeLink:
    """A matcher's link: what was asked on it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.asked: list[int] = []

    def gather(self, message: tuple[Any, ...]) -> None:
        """One message."""
        assert message[0] == ASK
        self.asked.append(message[1])

    def flush(self) -> None:
        """Nothing waits."""

    def abort(self) -> None:
        """Its user has seen to that."""


def block_of(count: int) -> Block:
    """A block of so many records."""
    meta = Meta((b"t",), (Run(0, 0, 0, 0, 0, None, -1, count),), (), (), (), ())
    lengths = array("I", [1] * count).tobytes()
    return Block(0, 1, 10, 9 + count, 0, PUBLICATIONS, pack_meta(meta), lengths, b"x" * count, meta)


def asked(count: int, *records: int, candidates: tuple[str, ...] = ("a", "b")) -> AskedBlock:
    """A block of which these records are asked about."""
    return AskedBlock(block_of(count), [(0, candidates, array("I", records).tobytes(), b"rows")])


@pytest.fixture
def matchers() -> Matchers:
    """Nobody yet."""
    return Matchers(Stopped())


def opened(matchers: Matchers, name: str) -> Any:
    """A matcher that has dialled."""
    link: Any = FakeLink(name)
    matchers.opened(link)
    return link


async def test_a_verdict_tells_what_a_broker_wants(matchers: Matchers) -> None:
    link, block, settled = opened(matchers, "a"), asked(4, 0, 2, 3), list[int]()
    block.on_settled.append(lambda: settled.append(1))
    matchers.ask(block)
    assert not settled
    matchers.on_message(link, (VERDICT, link.asked[0], {"x": (1, 5, b"\x05")}))
    assert settled
    every = [True] * 4
    # Record 1 was not asked about, so nobody vouches for it.
    assert block.wanted("x", 1, 5, every) == [True, True, False, True]
    assert block.wanted("x", 1, 5, [False, True, True, True]) == [False, True, False, True]
    assert block.wanted("x", 1, 6, every) == every, "its conditions are known up to 5"
    assert block.wanted("x", 2, 5, every) == every, "of another incarnation"
    assert block.wanted("y", 1, 5, every) == every, "nothing is said of it"


async def test_what_nobody_vouches_for_is_not_unwanted(matchers: Matchers) -> None:
    link = opened(matchers, "a")
    for numbers, records, unwanted in (((0, 1), b"\0", True), ((0, 1), b"\2", False), ((1,), b"\0", False)):
        block = asked(2, *numbers)
        assert not block.unwanted("x", 1, 5)
        matchers.ask(block)
        matchers.on_message(link, (VERDICT, link.asked[-1], {"x": (1, 5, records)}))
        assert block.unwanted("x", 1, 5) is unwanted
        assert block.unwanted("x", 1, 5) == (not any(block.wanted("x", 1, 5, [True] * 2)))
        assert not block.unwanted("x", 1, 6)
        assert not block.unwanted("y", 1, 5)


async def test_a_verdict_that_is_too_short_counts_for_nothing(matchers: Matchers) -> None:
    link, block = opened(matchers, "a"), asked(9, *range(9))
    matchers.ask(block)
    matchers.on_message(link, (VERDICT, link.asked[0], {"x": (1, 5, b"\0")}))
    assert block.wanted("x", 1, 5, [True] * 9) == [True] * 9


@pytest.mark.parametrize("dies", [True, False])
async def test_another_candidate_is_asked_and_then_nobody(matchers: Matchers, dies: bool) -> None:
    clock: Any = matchers._clock
    links = {name: opened(matchers, name) for name in "ab"}
    block = asked(1, 0)
    matchers.ask(block)
    first, second = sorted(links.values(), key=lambda link: not link.asked)
    assert not second.asked
    for link in (first, second):
        assert block.open
        assert len(link.asked) == 1
        if dies:
            matchers.on_close(link, None)
        else:
            clock.now_s += ANSWER_S + 0.01
            matchers.tick()
    assert not block.open
    assert block.wanted("x", 1, 0, [True]) == [True]
    # A late answer is of no interest, but who gives it is asked again.
    if not dies:
        matchers.on_message(first, (VERDICT, first.asked[0], {"x": (1, 0, b"\0")}))
        assert block.wanted("x", 1, 0, [True]) == [True]
        again = asked(1, 0)
        matchers.ask(again)
        assert len(first.asked) == 2
        assert len(second.asked) == 1


async def test_nobody_is_asked_who_is_no_candidate(matchers: Matchers) -> None:
    link, block = opened(matchers, "c"), asked(1, 0)
    matchers.ask(block)
    assert not link.asked
    assert not block.open


def test_columns_of_other_records_are_a_peers_mistake() -> None:
    with pytest.raises(PeerError):
        asked(2, 2)
    with pytest.raises(PeerError):
        AskedBlock(block_of(2), [(0, ("a",), b"\0\0\0", b"")])
