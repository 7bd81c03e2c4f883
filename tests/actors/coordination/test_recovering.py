"""A coordination server that has lost what it knew: what it takes from whom, whom it waits for, and what goes on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from lexicast.actors.broker import server as broker_server
from lexicast.actors.coordination.recovering import ADOPT_S, ELSEWHERE, PATIENCE_S, Recovery, links_key, stores_here
from lexicast.actors.coordination.server import CoordinationServer, LocalCoordination
from lexicast.cluster.blocks import PUBLICATIONS
from lexicast.cluster.errors import StoreFormatError, UnavailableError
from lexicast.cluster.leadership import GroupState, Leadership
from lexicast.cluster.membership import COORDINATOR, CoordinatorReport, Member
from lexicast.cluster.recovery import EPOCH_GAP, UNKNOWN, GroupReport
from lexicast.storage.registry import FILE, Registry
from lexicast.storage.store import Store

from ...support.harness import Cluster, eventually

BOTH = ("coordinator-0", "coordinator-1")
ID = "c" * 32
KEY = b"k" * 32
LED = GroupReport(3, 3, 100, True, 3, BOTH)
FOLLOWED = GroupReport(3, 3, 90)


def report(reports: dict[int, GroupReport], name: str = "", cluster_id: str = ID) -> CoordinatorReport:
    member = Member(name, 0, (f"tcp:{name}",), "node", 1) if name else None
    return CoordinatorReport(cluster_id, 2, reports, KEY if name else b"", member)


class Clock:
    """Moved by hand."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def lost(folder: Path, **options: Any) -> CoordinationServer:
    options.setdefault("recovery", Recovery(roster_known=True))
    return CoordinationServer(Registry(folder), 2, BOTH, **options)


async def test_who_has_everything_leads_when_all_have_reported(tmp_path: Path) -> None:
    server = lost(tmp_path)
    assert await server.report(BOTH[1], report({0: FOLLOWED, 1: LED._replace(counted=BOTH[1:])}))
    assert await server.report_wanted(0)
    assert not await server.report(BOTH[0], report({0: LED}))
    assert not await server.report_wanted(0)
    states = (await server.members(-1, 0)).groups
    assert states == {0: GroupState(4, BOTH[0], BOTH[:1]), 1: GroupState(4, BOTH[1], BOTH[1:])}
    info = await server.cluster()
    assert (info.cluster_id, info.groups) == (ID, 2)
    opened = await server.open_groups(BOTH[0], {0: 4}, ID)
    assert opened == {0: GroupState(5, BOTH[0], BOTH[:1])}
    server.close()
    again = lost(tmp_path)
    assert (await again.cluster()).key == info.key
    assert (await again.members(-1, 0)).groups[1] == states[1]
    again.close()


async def test_who_serves_goes_on_as_it_is_and_is_a_member_again(tmp_path: Path) -> None:
    server = lost(tmp_path)
    state = GroupState(3, BOTH[0], BOTH)
    assert await server.report(BOTH[0], report({0: LED._replace(leads=state)}, BOTH[0]))
    assert not await server.report(BOTH[1], report({0: FOLLOWED}, BOTH[1]))
    members = await server.members(-1, 0)
    assert members.groups[0] == state
    assert set(members.coordinators) == {*BOTH}
    assert (await server.cluster()).key == KEY  # which the links have
    assert members.version > 1 << 40  # beyond what was counted up to
    assert await server.register(COORDINATOR, members.coordinators[BOTH[0]]) > 1 << 40
    server.close()


async def test_only_the_groups_that_wait_for_who_is_missing_are_not_led(tmp_path: Path) -> None:
    clock = Clock()
    server = lost(tmp_path, found_wait_s=0.01, recovery=Recovery(1, clock, roster_known=True))
    alone = LED._replace(counted=BOTH[:1])
    await server.report(BOTH[0], report({0: LED, 1: alone}))
    with pytest.raises(UnavailableError, match="waits for coordinator-1 to open"):
        await server.cluster()
    clock.now_s = ADOPT_S
    assert await server.report(BOTH[0], report({0: LED, 1: alone}, BOTH[0]))
    states = (await server.members(-1, 0)).groups
    assert states == {0: UNKNOWN, 1: GroupState(4, BOTH[0], BOTH[:1])}
    assert server.status()["unknown"] == {0: [BOTH[1]]}
    assert server.lost(COORDINATOR, "", 0) == {}
    # It leads on, and what it asks for is neither done nor refused.
    held = await server.change_groups({0: (GroupState(3, BOTH[0], BOTH), GroupState(3, BOTH[0], BOTH[:1]))})
    assert held == {}
    server.close()
    again = lost(tmp_path)  # what is known is durable, what is not is asked for again
    assert again.status()["unknown"] == {0: []}
    assert await again.report(BOTH[0], report({0: LED, 1: alone}))
    told = await again.give_up_missing()
    assert told["unknown"] == {}
    assert told["group_states"][0] == [3 + EPOCH_GAP, BOTH[0], [BOTH[0]]]
    again.close()


async def test_stores_of_two_clusters_are_not_taken_together(tmp_path: Path) -> None:
    server = lost(tmp_path)
    await server.report(BOTH[0], report({}, cluster_id="a" * 32))
    with pytest.raises(StoreFormatError, match="different clusters"):
        await server.report(BOTH[1], report({}, cluster_id="b" * 32))
    server.close()


async def test_a_lost_store_is_not_taken_for_one_that_knows_nothing(tmp_path: Path) -> None:
    server = lost(tmp_path)
    empty = asyncio.create_task(server.open_groups(BOTH[0], {}, None))
    await asyncio.sleep(0)
    assert await server.report(BOTH[1], report({0: FOLLOWED, 1: LED._replace(counted=BOTH[1:])}))
    assert await empty == {}
    missing = {0: UNKNOWN, 1: GroupState(4, BOTH[1], BOTH[1:])}
    assert (await server.members(-1, 0)).groups == missing
    server.close()
    again = lost(tmp_path)  # now it has a store, with nothing in it
    for name in BOTH:
        assert await again.report(name, report({0: FOLLOWED, 1: FOLLOWED} if name == BOTH[1] else {}))
    assert (await again.members(-1, 0)).groups == missing
    assert again.status()["unknown"] == {0: [BOTH[0]]}
    # The old one is put back.
    assert not await again.report(BOTH[0], report({0: LED}))
    assert (await again.members(-1, 0)).groups[0] == GroupState(4, BOTH[0], BOTH[:1])
    again.close()


async def test_a_registry_that_is_older_than_the_stores_is_not_believed(tmp_path: Path) -> None:
    server = lost(tmp_path)
    for name in BOTH:
        await server.report(name, report({0: LED if name == BOTH[0] else FOLLOWED}))
    assert await server.report(BOTH[0], report({0: LED._replace(promised=9)}))
    assert (await server.members(-1, 0)).groups[0] == UNKNOWN
    assert not await server.report(BOTH[1], report({0: FOLLOWED._replace(log_epoch=9)}))
    assert (await server.members(-1, 0)).groups[0] == GroupState(10, BOTH[1], BOTH[1:])
    server.close()


def test_two_copies_of_everything_and_one_coordinator_away() -> None:
    clock = Clock()
    recovery = Recovery(2, clock)
    recovery.begin([0])
    recovery.take(BOTH[0], report({0: LED}))
    cluster = {"coordinators": list(BOTH)}
    assert recovery.decided(cluster) == {}  # it may come
    clock.now_s = PATIENCE_S
    assert recovery.decided({**cluster, "roster_known": False}) == {}  # there may be more of them
    assert recovery.decided(cluster) == {0: GroupState(3 + EPOCH_GAP, BOTH[0], BOTH[:1])}


async def test_a_group_that_nobody_here_has_led_may_be_led_by_somebody_else(tmp_path: Path) -> None:
    server = lost(tmp_path, recovery=Recovery())
    assert await server.report(BOTH[0], report({0: LED._replace(counted=BOTH[:1])}))
    assert await server.report(BOTH[1], report({}))
    assert server.status()["unknown"] == {1: [ELSEWHERE]}
    server.close()


def test_without_the_links_key_a_cluster_is_not_taken_before_all_are_there() -> None:
    clock = Clock()
    recovery = Recovery(1, clock)
    cluster = {"id": "", "key": b"new", "groups": 8, "coordinators": list(BOTH)}
    assert recovery.adopted(cluster, (), at_once=True) is None
    recovery.take(BOTH[0], report({}))
    clock.now_s = 2 * ADOPT_S
    assert recovery.adopted(cluster, (), at_once=False) is None
    for empty, at_once in ((BOTH[1:], False), ((), True)):
        rows = recovery.adopted(cluster, empty, at_once)
        assert rows is not None
        assert (rows["cluster"]["key"], rows["cluster"]["groups"]) == (b"new", 2)


def test_what_a_data_folder_tells(tmp_path: Path) -> None:
    assert links_key(tmp_path) == b""
    assert stores_here(tmp_path) == []
    (tmp_path / "cluster.key").write_bytes(KEY)
    for name in ("coordinator-1", "coordination"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "data.mdb").touch()
    assert links_key(tmp_path) == KEY
    assert stores_here(tmp_path) == ["coordinator-1"]


# -- over real stores, with real coordinators


class Restarted:
    """`Coordination` that goes away and comes back, as Ray's does."""

    def __init__(self, folder: Path, groups: int) -> None:
        self.folder, self.groups = folder, groups
        self.now: CoordinationServer | None = LocalCoordination(folder, groups, BOTH)

    def start(self) -> None:
        self.now = CoordinationServer(Registry(self.folder), self.groups, BOTH, key=KEY)

    def end(self, forget: bool) -> None:
        assert self.now is not None
        self.now.close()
        self.now = None
        if forget:
            (self.folder / FILE).unlink()

    def __getattr__(self, name: str) -> Any:
        if self.now is None:
            raise UnavailableError("the coordination server is away")
        return getattr(self.now, name)


@asynccontextmanager
async def copied(folder: Path) -> AsyncIterator[tuple[Cluster, Restarted]]:
    """Two coordinators that copy each other's groups."""
    async with Cluster(folder, groups=4, coordinators=BOTH, copies=2) as cluster:
        cluster.coordination.close()
        coordination = Restarted(folder / "restarted", 4)
        cluster.coordination = coordination  # type: ignore[assignment]  # one that comes and goes
        await asyncio.gather(*[cluster.start_coordinator(name) for name in BOTH])
        await eventually(lambda: all(len(s[2]) == 2 for s in states(coordination)), "both to be in sync everywhere")
        yield cluster, coordination


def published(store: Store) -> int:
    blocks = [block for group in range(store.groups) for block in store.read(group, 0).blocks]
    return sum(block.count for block in blocks if block.kind == PUBLICATIONS)


def known(coordination: Restarted) -> bool:
    status = coordination.status()
    return bool(status["cluster_id"]) and not status["unknown"]


def states(coordination: Restarted) -> list[list[Any]]:
    return list(coordination.status()["group_states"].values())


async def test_data_flows_while_a_registry_is_lost_and_everything_goes_on_as_it_was(tmp_path: Path) -> None:
    async with copied(tmp_path) as (cluster, coordination):
        node = await cluster.start_engine("broker-0")
        before = states(coordination)
        coordination.end(forget=True)
        await asyncio.gather(*[node.publish(b"t/%d" % at, [b"away"]) for at in range(40)])
        coordination.start()
        await asyncio.gather(*[node.publish(b"t/%d" % at, [b"new"]) for at in range(40)])
        await eventually(lambda: known(coordination), "everybody to have reported")
        assert states(coordination) == before
        await asyncio.gather(*[node.publish(b"t/%d" % at, [b"after"]) for at in range(40)])
        # The new server is in charge: who is lost is succeeded, and has lost nothing.
        await cluster.lose_coordinator(BOTH[0])
        await asyncio.gather(*[node.publish(b"t/%d" % at, [b"last"]) for at in range(40)])
        store = cluster.coordinators[BOTH[1]].server.store
        await eventually(lambda: published(store) == 160, "the tables to follow from all that was acknowledged")


async def test_stores_at_rest_are_compared(tmp_path: Path) -> None:
    async with copied(tmp_path) as (cluster, coordination):
        node = await cluster.start_engine("broker-0")
        await asyncio.gather(*[node.publish(b"t/%d" % at, [b"both"]) for at in range(20)])
        await cluster.lose_coordinator(BOTH[1])
        await asyncio.gather(*[node.publish(b"t/%d" % at, [b"alone"]) for at in range(20)])
        await cluster.coordinators.pop(BOTH[0]).stop()
        coordination.end(forget=True)
        coordination.start()
        # The one that lacks the last messages comes first: it leads nothing.
        await asyncio.gather(*[cluster.start_coordinator(name) for name in reversed(BOTH)])
        assert {leader for _, leader, _ in states(coordination)} == {BOTH[0]}


async def test_a_broker_serves_beside_groups_that_nobody_leads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker_server, "UNLED_WAIT_S", 0.1)
    async with Cluster(tmp_path, groups=4, coordinators=BOTH[:1]) as cluster:
        await cluster.start_coordinator(BOTH[0])
        here = cluster.coordination
        states = (await here.members(-1, 0)).groups
        # As if the row of group 3 were lost, and somebody who is missing had led it last.
        led = cluster.coordinators[BOTH[0]].server.led
        await led.committer.run(partial(led.store.count_with, {3: (1, BOTH)}))
        led.close_groups([3])
        here.recovery.begin([3])
        here._leadership = Leadership({**states, 3: UNKNOWN})
        broker = await cluster.start_broker("broker-0")
        leads = broker.engine.coordinators
        assert [leads.pipeline_of(group) is None for group in range(4)] == [False, False, False, True]
        assert not leads.complete
        assert leads.unled == {3}
        await eventually(lambda: here.status()["unknown"] == {3: [BOTH[1]]}, "the coordinator to report")
        # It is decided: the broker hears of it, and the group is served.
        await here.give_up_missing()
        await eventually(lambda: leads.complete, "the group to be led again")


async def test_groups_whose_only_members_are_gone_for_good_are_led_by_others_when_that_is_decided(
    tmp_path: Path,
) -> None:
    async with copied(tmp_path) as (cluster, coordination):
        node = await cluster.start_engine("broker-0")
        await asyncio.gather(*[node.publish(b"t/%d" % at, [b"both"]) for at in range(20)])
        await cluster.lose_coordinator(BOTH[1])
        await asyncio.gather(*[node.publish(b"t/%d" % at, [b"alone"]) for at in range(20)])
        await eventually(lambda: {tuple(s[2]) for s in states(coordination)} == {BOTH[:1]}, "the other to be dropped")
        await cluster.start_coordinator(BOTH[1])
        # It has not caught up in every group when the one that has everything is gone.
        await cluster.lose_coordinator(BOTH[0])
        before = coordination.status()["group_states"]
        told = await coordination.give_up_missing()
        assert told["unknown"] == {}
        for group, (epoch, leader, members) in told["group_states"].items():
            assert (leader, members) == (BOTH[1], [BOTH[1]])
            if before[group][1] == BOTH[0]:
                assert epoch > before[group][0] + EPOCH_GAP // 2
