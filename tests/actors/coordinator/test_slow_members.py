"""Members that store too slowly count no more, nor do they lead; what is on time elsewhere is acknowledged."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from lexicast.actors.coordinator.replication import slow_members
from lexicast.actors.coordinator.replication.follower_link import Led
from lexicast.actors.coordinator.replication.slow_members import APART_FIRST_S, LOOK_MOST_S, SlowMembers
from lexicast.actors.coordinator.sequencer_memory import StoreMemory
from lexicast.actors.testing.simulator.memory_store import MemoryStore
from lexicast.cluster.positions import topic_group
from lexicast.cluster.records import Unsubscribed
from lexicast.cluster.replication import FollowerProgress, Phase
from lexicast.cluster.sequencer import Sequencer

from ...support.harness import GROUPS, Cluster, eventually

GROUP = 1
BOTH = ("coordinator-0", "coordinator-1")
SLOW_S = 1.0


class Watched:
    """A leader, `a`, of one group that `b` and `c` follow, and what is asked for in it."""

    def __init__(self, min_copies: int = 1) -> None:
        store: Any = MemoryStore(8).tables
        self.sequencer = Sequencer("a", StoreMemory(store), min_copies)
        self.asked: list[tuple[Any, ...]] = []
        self.slow = SlowMembers("a", self.sequencer, SLOW_S, self._drop, self._give_way)
        start = self.sequencer.open(GROUP, 1, -1, 0, ("a", "b", "c"))
        live = {name: FollowerProgress(Phase.LIVE) for name in ("b", "c")}
        self.led = Led(1, ("a", "b", "c"), live)
        self.stores("abc", start.last)
        self.now_s = 100.0

    def _drop(self, member: str, groups: Sequence[int]) -> None:
        self.asked.append((member, *groups))
        self.led.in_sync = tuple([name for name in self.led.in_sync if name != member])
        self.sequencer.count(GROUP, self.led.in_sync, {})

    def _give_way(self, groups: Mapping[int, str]) -> None:
        self.asked.append(("gives way", dict(groups)))

    def publish(self) -> int:
        """A block is sequenced and shipped: its last offset."""
        last = self.sequencer.control(GROUP, [Unsubscribed("s", "t")], 1).last
        for progress in self.led.members.values():
            progress.sent = last
        return last

    def stores(self, names: str, last: int) -> None:
        """These have everything up to `last` on disk."""
        for name in names:
            self.sequencer.durable(name, GROUP, last)
            if name != "a":
                self.led.members[name].sent = max(last, self.led.members[name].sent)
                self.led.members[name].durable = last + 1
        if self.sequencer.groups[GROUP].committed > last:
            self.sequencer.applied(GROUP, last + 1)

    def pass_(
        self, seconds: float, step_s: float = LOOK_MOST_S / 2, unheard: tuple[str, ...] = ()
    ) -> list[tuple[Any, ...]]:
        """Time passes, while it is looked: what is asked for."""
        until_s = self.now_s + seconds
        while self.now_s < until_s:
            self.now_s += step_s
            self.slow.look({GROUP: self.led}, self.now_s, unheard)
        asked, self.asked = self.asked, []
        return asked


def test_who_owes_for_too_long_is_dropped_and_may_count_again_after_a_while() -> None:
    one = Watched()
    one.stores("ac", one.publish())
    assert one.pass_(SLOW_S - 0.2) == []
    assert one.pass_(0.5) == [("b", GROUP)]
    assert one.slow.status() == ["b"]
    one.stores("abc", one.publish())
    assert one.pass_(APART_FIRST_S - 1.0) == []
    assert one.slow.is_slow("b")
    one.pass_(1.0)
    assert not one.slow.is_slow("b")


def test_who_is_slow_again_stays_apart_for_longer() -> None:
    one = Watched()
    for wait_s in (APART_FIRST_S, 2 * APART_FIRST_S):
        one.led.in_sync = ("a", "b", "c")
        one.sequencer.count(GROUP, one.led.in_sync, {"b": one.led.members["b"].durable})
        one.stores("ac", one.publish())
        one.pass_(SLOW_S + 0.5)
        one.stores("abc", one.publish())
        one.pass_(wait_s - 1.0)
        assert one.slow.is_slow("b")
        one.pass_(1.5)
        assert not one.slow.is_slow("b")


def test_who_is_late_and_stores_all_the_same_is_not_slow() -> None:
    one = Watched()
    for _ in range(50):
        one.stores("abc", one.publish())
        one.publish()  # some of it is always under way
        assert one.pass_(0.3) == []


def test_who_does_not_say_where_it_stands_is_slow() -> None:
    one = Watched()
    one.led.members["c"].asked()
    assert one.pass_(SLOW_S + 0.3) == [("c", GROUP)]


def test_of_who_is_silent_nobody_is_told_that_its_disk_is_slow() -> None:
    """A leader that was cut off told operators to look at the disks of all others."""
    one = Watched()
    one.stores("ac", one.publish())
    assert one.pass_(SLOW_S + 0.3, unheard=("b",)) == [("b", GROUP)]
    assert one.slow.is_slow("b")
    assert one.slow.status() == []


def test_where_the_leader_is_slow_it_gives_way_and_blames_nobody() -> None:
    one = Watched()
    one.stores("bc", one.publish())
    assert ("gives way", {GROUP: "b"}) in one.pass_(SLOW_S + 0.2)
    assert one.slow.status() == []


def test_nobody_is_dropped_where_too_few_would_be_left() -> None:
    one = Watched(min_copies=3)
    one.stores("ac", one.publish())
    assert one.pass_(3 * SLOW_S) == []


def test_a_process_that_was_stopped_finds_nobody_late_by_that() -> None:
    one = Watched()
    one.publish()
    one.pass_(0.1)
    assert one.pass_(10.0, step_s=10.0) == []


@pytest.mark.parametrize("slow", BOTH)
async def test_what_is_stored_on_time_elsewhere_is_acknowledged_while_a_disk_stands_still(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, slow: str
) -> None:
    monkeypatch.setattr(slow_members, "APART_FIRST_S", 0.5)
    topic = next(t for i in range(100) if topic_group(t := b"t/%d" % i, GROUPS) % 2 == 0)
    async with Cluster(tmp_path, coordinators=BOTH, copies=2, slow_s=0.3) as cluster:
        await asyncio.gather(*[cluster.start_coordinator(name) for name in BOTH])
        await eventually(lambda: set(in_sync(cluster)) == {2}, "two copies of each group")
        broker = await cluster.start_engine("broker-0")
        stream = await broker.subscribe(b"#")
        await broker.publish(topic, [b"before"], qos=1)
        disk = cluster.coordinators[slow].disk
        disk.hold()
        under_way = [asyncio.ensure_future(broker.publish(b"t/%d" % i, [b"%d" % i], qos=1)) for i in range(20)]
        try:
            async with asyncio.timeout(5.0):
                await asyncio.gather(*under_way)
            assert {leader for _, leader, _ in states(cluster).values()} == {*BOTH} - {slow}
        finally:
            disk.release()
        await eventually(partial(all_copied, cluster), "two copies of each group again")
        got = await stream.arrived(21)
        assert sorted([each.payload for each in got]) == sorted([b"before", *[b"%d" % i for i in range(20)]])


def states(cluster: Cluster) -> dict[int, list[Any]]:
    found: dict[int, list[Any]] = cluster.coordination.status()["group_states"]
    return found


def in_sync(cluster: Cluster) -> list[int]:
    """How many members each group has."""
    return [len(members) for _, _, members in states(cluster).values()]


def all_copied(cluster: Cluster) -> bool:
    return set(in_sync(cluster)) == {2}
