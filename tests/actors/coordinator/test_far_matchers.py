"""Matchers that are asked over others: what is lost on the way, and who is asked then."""

from __future__ import annotations

from array import array
from typing import Any

import pytest

from lexicast.actors.coordinator.matching.asked_blocks import ANSWER_S, FAR_SILENT_S, AskedBlock, Matchers
from lexicast.actors.coordinator.matching.far_entries import AVOIDED_S
from lexicast.cluster.blocks import PUBLICATIONS, Block, Meta, Run, pack_meta
from lexicast.cluster.clock import Clock
from lexicast.cluster.errors import PeerError
from lexicast.cluster.protocol.messages import ASK, BACK, ENTRY, NAMES, ROUTE, VERDICT, pack_message, unpack_message


class Stopped(Clock):
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def time_us(self) -> int:
        return 0

    def monotonic(self) -> float:
        return self.now_s


class FakeEntry:
    """An entry's link: (number, whom for) of what was asked over it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.asked: list[tuple[int, str]] = []

    def gather(self, message: tuple[Any, ...]) -> None:
        """One message."""
        kind, number, target, path, data = message
        assert kind == ROUTE
        assert path == ()
        assert unpack_message(data)[:2] == (ASK, number)
        self.asked.append((number, target))

    def flush(self) -> None:
        """Nothing waits."""


def asked(candidates: tuple[str, ...] = ("x", "y")) -> AskedBlock:
    """A block of one record, about which far matchers may be asked."""
    meta = Meta((b"t",), (Run(0, 0, 0, 0, 0, None, -1, 1),), (), (), (), ())
    lengths = array("I", [1]).tobytes()
    block = Block(0, 1, 10, 10, 0, PUBLICATIONS, pack_meta(meta), lengths, b"x", meta)
    return AskedBlock(block, [(0, candidates, array("I", [0]).tobytes(), b"rows")])


def verdict(number: int, hops: int = 2) -> tuple[Any, ...]:
    """What comes back from afar: the broker `b` wants nothing."""
    return BACK, number, hops, (), pack_message((VERDICT, number, {"b": (1, 0, b"\0")}))


class Overlay:
    """A coordinator's matchers: two entries."""

    def __init__(self) -> None:
        self.clock = Stopped()
        self.matchers = Matchers(self.clock)
        self.entries = [self.entry("e0"), self.entry("e1")]

    def entry(self, name: str) -> Any:
        link: Any = FakeEntry(name)
        self.matchers.opened(link)
        self.matchers.on_message(link, (ENTRY, True))
        return link

    def ask(self, *candidates: str) -> AskedBlock:
        block = asked(candidates)
        self.matchers.ask(block)
        self.matchers.flush()
        return block

    def questions(self) -> list[tuple[Any, int, str]]:
        """All so far, in order: over which entry, its number, whom for."""
        found = [(entry, number, name) for entry in self.entries for number, name in entry.asked]
        return sorted(found, key=lambda each: each[1])


@pytest.fixture
async def overlay() -> Overlay:
    return Overlay()


async def test_an_answer_comes_back_from_afar_and_its_hops_are_counted(overlay: Overlay) -> None:
    block = overlay.ask("x")
    ((entry, number, name),) = overlay.questions()
    assert name == "x"
    assert block.open
    overlay.matchers.on_message(entry, verdict(number))
    assert not block.open
    assert block.unwanted("b", 1, 0)
    said = overlay.matchers.status()["overlay"]
    assert (said["entries"], said["routed"], said["hops_mean"], said["hops_max"]) == (2, 1, 2.0, 2)
    overlay.matchers.on_message(entry, verdict(number))  # once more: nobody waits for it


async def test_what_is_lost_another_candidate_is_asked_at_once(overlay: Overlay) -> None:
    block = overlay.ask("x", "y")
    ((entry, number, first),) = overlay.questions()
    overlay.matchers.on_message(entry, (BACK, number, 0, (), b""))
    entry, number, second = overlay.questions()[-1]
    assert {first, second} == {"x", "y"}
    overlay.matchers.on_message(entry, verdict(number))
    assert block.unwanted("b", 1, 0)
    assert overlay.matchers.status()["overlay"]["lost"] == 1


async def test_a_silent_way_is_avoided_and_a_silent_matcher_is_asked_again_after_a_while(overlay: Overlay) -> None:
    block = overlay.ask("x")
    ((blocked, _, _),) = overlay.questions()
    overlay.clock.now_s += ANSWER_S + 0.01
    overlay.matchers.tick()
    assert not block.open
    assert block.wanted("b", 1, 0, [True]) == [True]
    assert not overlay.ask("x").open, "it has just been silent"
    for _ in range(4):
        overlay.ask(f"other-{len(overlay.questions())}")
        assert overlay.questions()[-1][0] is not blocked
    overlay.clock.now_s += max(FAR_SILENT_S, AVOIDED_S)
    assert overlay.ask("x").open
    assert overlay.questions()[-1][2] == "x"


async def test_when_an_entry_dies_what_went_over_it_goes_over_another(overlay: Overlay) -> None:
    blocks = [overlay.ask("x") for _ in range(4)]
    dead = overlay.entries[0]
    overlay.matchers.on_close(dead, None)
    alive = overlay.entries[1]
    assert {entry for entry, _, _ in overlay.questions()[4:]} == {alive}
    for entry, number, _ in overlay.questions():
        if entry is alive:
            overlay.matchers.on_message(alive, verdict(number))
    assert all(not block.open for block in blocks)
    assert all(block.unwanted("b", 1, 0) for block in blocks)
    overlay.matchers.on_message(alive, (ENTRY, False))
    assert not overlay.ask("x").open, "nobody routes"


async def test_an_answer_that_is_none_is_a_peers_mistake(overlay: Overlay) -> None:
    overlay.ask("x")
    ((entry, number, _),) = overlay.questions()
    with pytest.raises(PeerError):
        overlay.matchers.on_message(entry, (BACK, number, 1, (), pack_message((NAMES, {}))))
