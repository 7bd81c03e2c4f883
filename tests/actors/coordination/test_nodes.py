"""Nodes that come, are drained and go, as the coordination server decides."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from lexicast.actors.coordination.server import CoordinationServer
from lexicast.cluster.errors import UsageError
from lexicast.cluster.leadership import GroupState
from lexicast.cluster.membership import BROKER, COORDINATOR, Member
from lexicast.storage.registry import Registry

HERE, THERE = "coordinator-0", "coordinator-1"


def member(name: str, node: str) -> Member:
    return Member(name, 0, ("tcp:127.0.0.1:1",), node, 1, location=f"rack of {node}")


@asynccontextmanager
async def serving(folder: Path, run: str = "run") -> AsyncIterator[CoordinationServer]:
    """Two coordinators on nodes a and b, a broker on each; groups 0 and 2 are led on a, 1 and 3 on b."""
    made = CoordinationServer(Registry(folder), 4, (HERE, THERE), run=run)
    try:
        cluster_id = (await made.cluster(wait=False)).cluster_id or None
        await asyncio.gather(*[made.open_groups(name, {}, cluster_id) for name in (HERE, THERE)])
        for name, node in ((HERE, "a"), (THERE, "b")):
            await made.register(COORDINATOR, member(name, node))
        await made.register(BROKER, member("broker-0", "a"))
        await made.register(BROKER, member("broker-1", "b"))
        yield made
    finally:
        made.close()


async def copied(server: CoordinationServer) -> None:
    """Both coordinators have every group."""
    for group in range(4):
        state = (await server.members(-1, 0)).groups[group]
        other = THERE if state.leader == HERE else HERE
        assert await server.change_group(group, state, state._replace(in_sync=(state.leader, other)))


async def shed(server: CoordinationServer, name: str) -> None:
    """The leaders give the copies of `name` up."""
    for group, state in (await server.members(-1, 0)).groups.items():
        left = tuple(each for each in state.in_sync if each != name)
        assert await server.change_group(group, state, state._replace(in_sync=left))


async def test_a_node_that_is_drained_leads_no_more_and_may_be_removed_when_it_holds_nothing(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        await copied(server)
        await server.drain_node("b", True)
        assert (await server.members(-1, 0)).leaving == {"b"}
        assert (await server.members(-1, 0)).sites()[THERE] == ("b", "rack of b", True)
        assert server.is_leaving()
        assert set(server.balance(1)) <= {1, 3}  # a few at a time
        server.balance(10)
        assert not server.is_leaving()
        assert {state.leader for state in (await server.members(-1, 0)).groups.values()} == {HERE}
        assert server.status()["nodes"]["b"]["copies"] == 4
        with pytest.raises(UsageError, match=r"4 copies of topic groups: `lexicast node drain b`"):
            await server.remove_node("b")
        await shed(server, THERE)
        before = (await server.members(-1, 0)).version
        await server.remove_node("b")
        after = await server.members(before, 0)
        assert after.version > before
        assert (set(after.coordinators), set(after.brokers), after.leaving) == ({HERE}, {"broker-0"}, frozenset())
        assert server.coordinators() == (HERE,)
        assert set(server.status()["nodes"]) == {"a"}
        with pytest.raises(UsageError, match="no coordinator of this cluster"):
            await server.open_groups(THERE, {}, None)


async def test_what_is_drained_is_drained_after_a_restart_and_not_after_a_new_start(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        await server.drain_node("b", True)
    async with serving(tmp_path) as server:
        assert server.status()["nodes"]["b"]["leaving"]
        await server.drain_node("b", False)
        assert not server.status()["nodes"]["b"]["leaving"]
        await server.drain_node("b", True)
    async with serving(tmp_path, run="another") as server:
        assert not server.status()["nodes"]["b"]["leaving"]


async def test_homes_outlive_members_and_starts(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        await server.leave(COORDINATOR, THERE)
        assert server.status()["nodes"]["b"]["serving"] == ["broker-1"]
    again = CoordinationServer(Registry(tmp_path), 4, (), run="another")
    try:
        assert again.status()["homes"][COORDINATOR] == {HERE: "a", THERE: "b"}
    finally:
        again.close()


async def test_the_last_node_that_stays_is_not_drained_and_a_stranger_is_none(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        await server.drain_node("b", True)
        with pytest.raises(UsageError, match="a is the last node"):
            await server.drain_node("a", True)
        with pytest.raises(UsageError, match=r"no node 'c': `lexicast node list` shows a, b"):
            await server.drain_node("c", True)
        with pytest.raises(UsageError, match="no node 'c'"):
            await server.remove_node("c")


async def test_a_node_that_is_away_is_removed_unless_it_has_what_nobody_else_has(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        incarnation = (await server.members(-1, 0)).coordinators[THERE].incarnation
        server.lost(COORDINATOR, THERE, incarnation)
        with pytest.raises(UsageError, match="b is away and has what 2 topic groups have nowhere else"):
            await server.remove_node("b")
        server.found(COORDINATOR, THERE, incarnation)
        await copied(server)
        assert set(server.lost(COORDINATOR, THERE, incarnation)) == {1, 3}
        await shed(server, THERE)
        await server.remove_node("b")
        assert "b" not in server.status()["nodes"]


async def test_coordinators_join_a_cluster_that_is_founded(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        await server.add_coordinators({"coordinator-2": "c"})
        assert server.coordinators() == (HERE, THERE, "coordinator-2")
        assert await server.open_groups("coordinator-2", {}, None) == {}
        await server.register(COORDINATOR, member("coordinator-2", "c"))
        assert server.status()["nodes"]["c"]["coordinators"] == ["coordinator-2"]
        with pytest.raises(UsageError, match="no name for a member"):
            await server.add_coordinators({"a/b": "c"})
    async with serving(tmp_path) as server:
        assert server.coordinators() == (HERE, THERE, "coordinator-2")
        assert (await server.members(-1, 0)).groups[0] == GroupState(2, HERE, (HERE,))
