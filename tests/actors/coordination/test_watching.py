"""Watching coordinators, over real links: who is lost, who is found again, who leads then."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from lexicast.actors.coordination.server import LocalCoordination
from lexicast.actors.coordination.watching import CoordinatorWatch
from lexicast.actors.link.link import Link
from lexicast.cluster.leadership import GroupState
from lexicast.cluster.protocol.heartbeat import Beats, detecting_beats

from ...support.harness import Cluster, eventually

BOTH = ("coordinator-0", "coordinator-1")
# Long enough for a loaded machine to say something in time.
BEATS = detecting_beats(5.0)
NEVER_S = 1e9


@asynccontextmanager
async def watched(
    folder: Path, beats: Beats = BEATS, absent_s: float = NEVER_S, balance_s: float = NEVER_S, started: int = 2
) -> AsyncIterator[Cluster]:
    """Two coordinators, both in sync everywhere (nobody ships anything here: what the server knows is looked at)."""
    async with Cluster(folder, groups=4, coordinators=BOTH) as cluster:
        for name in BOTH[:started]:
            await cluster.start_coordinator(name)
        here = cluster.coordination
        states = (await here.members(-1, 0)).groups
        await here.change_groups({group: (state, state._replace(in_sync=BOTH)) for group, state in states.items()})
        watch = CoordinatorWatch(here, beats, absent_s, balance_s, 0.01)
        try:
            yield cluster
        finally:
            await watch.stop()


def leaders(here: LocalCoordination) -> list[str]:
    return [state[1] for state in here.status()["group_states"].values()]


async def test_a_process_that_ends_is_lost_at_once_and_found_when_it_serves_again(tmp_path: Path) -> None:
    async with watched(tmp_path, detecting_beats(60.0)) as cluster:
        here = cluster.coordination
        await eventually(lambda: bool(cluster.coordinators[BOTH[0]].server._links), "the watch to dial")
        await cluster.crash_coordinator(BOTH[0])
        await eventually(lambda: here.status()["lost"] == [BOTH[0]], "the loss to be seen")
        assert leaders(here) == [BOTH[1]] * 4
        await cluster.start_coordinator(BOTH[0])
        assert here.status()["lost"] == []
        assert leaders(here) == [BOTH[1]] * 4


async def test_a_silent_coordinator_is_lost_and_found_when_it_can_be_dialled_again(tmp_path: Path) -> None:
    async with watched(tmp_path, detecting_beats(0.2)) as cluster:
        here = cluster.coordination
        # The coordinator's own beats come once a second, which is too late for who waits 0.2 s.
        await eventually(lambda: BOTH[0] in here.status()["lost"], "the silence to be heard")
        await eventually(lambda: BOTH[0] not in here.status()["lost"], "it to be found again")


async def test_links_of_coordinators_that_ended_are_forgotten(tmp_path: Path) -> None:
    async with watched(tmp_path) as cluster:
        server = cluster.coordinators[BOTH[0]].server
        await eventually(lambda: bool(server._links), "the watch to dial")
        link: Link = next(iter(server._links))
        link.abort()
        await eventually(lambda: link not in server._links, "the link to be forgotten")
        await eventually(lambda: bool(server._links), "the watch to dial again")


async def test_groups_do_not_wait_for_a_coordinator_that_does_not_come(tmp_path: Path) -> None:
    async with watched(tmp_path, absent_s=0.05, started=1) as cluster:
        here = cluster.coordination
        await eventually(lambda: leaders(here) == [BOTH[0]] * 4, "the absence to be seen")
        assert here.status()["lost"] == [BOTH[1]]
        assert (await here.members(-1, 0)).groups[1] == GroupState(1, BOTH[0], BOTH[:1])
        await cluster.start_coordinator(BOTH[1])
        assert here.status()["lost"] == []


async def test_leaderships_are_evened_out_when_nobody_comes_or_goes(tmp_path: Path) -> None:
    async with watched(tmp_path, balance_s=0.05) as cluster:
        here = cluster.coordination
        states = (await here.members(-1, 0)).groups
        moved = {g: (s, GroupState(s.epoch + 1, BOTH[0], BOTH)) for g, s in states.items() if s.leader == BOTH[1]}
        await here.change_groups(moved)
        await eventually(lambda: sorted(leaders(here)) == [BOTH[0]] * 2 + [BOTH[1]] * 2, "two groups each")
        version = (await here.members(-1, 0)).version
        await asyncio.sleep(0.1)
        assert (await here.members(-1, 0)).version == version  # and then it ends
