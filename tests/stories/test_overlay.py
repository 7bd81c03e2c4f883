"""Matchers that form an overlay, on real links: questions and conditions go over several hops, and nothing is lost."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest

from lexicast.actors.broker.encoding import Grant
from lexicast.actors.broker.matching import cell_reports
from lexicast.actors.matcher import server as matcher_server
from lexicast.actors.matcher.overlay.relay import DETOURS_MAX
from lexicast.cluster.config.tables import Config
from lexicast.cluster.content.parsed import predicate
from lexicast.cluster.hpartition import planning
from lexicast.cluster.membership import MATCHER
from lexicast.cluster.skipcloud.identifiers import CloudShape

from ..support.harness import WAIT_S, Cluster, Stream, eventually

if TYPE_CHECKING:
    from lexicast.actors.broker.server import BrokerServer

# Views of one contact a child: of twelve matchers each knows some, and many a question takes more than one hop.
SPARSE = CloudShape(2, 3, contacts_a_child=1)
MATCHERS = 12


@pytest.fixture
async def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Cluster]:
    """A coordinator, a broker, and matchers that form an overlay."""
    monkeypatch.setattr(matcher_server, "CYCLE_S", 0.05)
    async with Cluster(tmp_path, config=Config().replaced(node__matchers=1)) as cluster:
        cluster.overlay = SPARSE
        await cluster.start_coordinator()
        await cluster.start_broker("broker-0")
        for number in range(MATCHERS):
            await cluster.start_matcher(f"matcher-{number}")
        yield cluster


def broker_of(cluster: Cluster) -> BrokerServer:
    found: BrokerServer = cast("BrokerServer", cluster.nodes["broker-0"])
    return found


def matching(cluster: Cluster) -> dict[str, Any]:
    """What the coordinator says of it."""
    said: dict[str, Any] = cluster.coordinators["coordinator-0"].server.status()["matching"]
    return said


async def subscribed(cluster: Cluster, where: str) -> Stream:
    broker = broker_of(cluster)
    stream = Stream(broker.engine)
    await broker.engine.subscriptions.subscribe(stream, {b"flights/#": Grant(where=predicate(where))})
    return stream


async def published(cluster: Cluster, numbers: range) -> None:
    """One publication a number, each acknowledged."""
    for number in numbers:
        done: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        payloads = [json.dumps({"delay": number}).encode()]
        broker_of(cluster).engine.coordinators.publish(b"flights/UA", 1, payloads, "tester", done.set_result)
        await done


async def all_told(cluster: Cluster, conditions: int) -> None:
    """Return when all matchers know so many conditions."""
    cluster.coordination.plan_cells()
    await eventually(
        lambda: all([len(matcher.conditions.table) == conditions for matcher in cluster.matchers.values()]),
        f"{conditions} conditions at {len(cluster.matchers)} matchers",
    )


def cells_are_there(cluster: Cluster) -> bool:
    """Whether the broker asks by cells; they are planned meanwhile."""
    cluster.coordination.plan_cells()
    told = broker_of(cluster).engine.subscriptions.told_conditions
    return told is not None and told.map.cells is not None


async def test_questions_and_conditions_go_over_hops_to_matchers_without_links(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With cells, so that two matchers and no others may be asked about a publication."""
    for module, name, value in (
        (planning, "CONDITIONS_MIN", 1),
        (planning, "EVENTS_MIN", 4),
        (cell_reports, "REPORT_S", 0.02),
        (cell_reports, "LOOK_S", 0.002),
    ):
        monkeypatch.setattr(module, name, value)
    late = await subscribed(cluster, "delay > 300")
    await all_told(cluster, 1)
    await eventually(lambda: matching(cluster)["filters"] == 1)
    links = matching(cluster)["matchers"]
    assert links < MATCHERS, "a coordinator is linked to its entries"
    await published(cluster, range(200))
    await eventually(lambda: cells_are_there(cluster), "cells")
    await published(cluster, range(200))
    await published(cluster, range(300, 320))
    assert [json.loads(p)["delay"] for p in (await late.arrived(19), late.payloads())[1]] == list(range(301, 320))
    said = matching(cluster)
    assert said["withheld_records"] >= 20
    assert said["overlay"]["entries"] <= links
    assert said["overlay"]["routed"] > 0
    assert said["overlay"]["hops_max"] >= 2
    assert said["overlay"]["hops_max"] <= SPARSE.levels + 1 + DETOURS_MAX


async def test_hops_die_and_nothing_is_lost_and_questions_go_other_ways(cluster: Cluster) -> None:
    some = await subscribed(cluster, "delay < 1000")
    none = await subscribed(cluster, "delay > 1000")
    await all_told(cluster, 2)
    await eventually(lambda: matching(cluster)["filters"] == 1)
    for number in range(MATCHERS - 3):
        await published(cluster, range(number * 20, number * 20 + 10))
        await cluster.crash_matcher(f"matcher-{number}")
        await published(cluster, range(number * 20 + 10, number * 20 + 20))
    count = (MATCHERS - 3) * 20
    assert [json.loads(p)["delay"] for p in (await some.arrived(count), some.payloads())[1]] == list(range(count))
    assert not none.received
    for number in range(MATCHERS - 3):
        await cluster.coordination.leave(MATCHER, f"matcher-{number}")
    await all_told(cluster, 2)
    broker_of(cluster).engine.subscriptions.leave(some)
    await eventually(lambda: matching(cluster)["filters"] == 1)
    before = matching(cluster)["withheld_records"]
    async with asyncio.timeout(WAIT_S):  # who was asked and dead is asked again after a while
        while matching(cluster)["withheld_records"] == before:
            await published(cluster, range(10))


async def test_what_is_told_one_is_spread_and_few_ask_the_coordination_server(cluster: Cluster) -> None:
    await all_told(cluster, 0)
    overlays = [matcher.overlay for matcher in cluster.matchers.values()]
    assert None not in overlays
    gates = [overlay for overlay in overlays if overlay is not None and overlay.is_entry_of("")]
    assert 1 <= len(gates) < MATCHERS / 2
    await cluster.start_broker("broker-1")
    version = cluster.coordination.status()["version"]
    await eventually(
        lambda: (
            all([overlay is not None and overlay.roster is not None for overlay in overlays])
            and all([set(o.roster.brokers) == {"broker-0", "broker-1"} for o in overlays if o is not None and o.roster])
        ),
        f"all have the roster of version {version}",
    )


async def test_matchers_are_linked_to_all_again_when_they_are_few(cluster: Cluster) -> None:
    late = await subscribed(cluster, "delay > 30")
    await all_told(cluster, 1)
    for matcher in cluster.matchers.values():
        matcher.beyond = 5
    for number in range(5, MATCHERS):
        await cluster.stop_matcher(f"matcher-{number}")
        await published(cluster, range(number, number + 1))
    await eventually(lambda: all([matcher.overlay is None for matcher in cluster.matchers.values()]))
    await eventually(lambda: matching(cluster)["matchers"] == 5, "a link to each")
    await all_told(cluster, 1)
    await published(cluster, range(28, 34))
    assert [json.loads(p)["delay"] for p in (await late.arrived(3), late.payloads())[1]] == [31, 32, 33]
    for matcher in cluster.matchers.values():
        matcher.beyond = 4
    await cluster.start_matcher("matcher-9")
    await eventually(lambda: all([matcher.overlay is not None for matcher in cluster.matchers.values()]))
    await all_told(cluster, 1)
    await published(cluster, range(34, 44))
    assert len(await late.arrived(13)) == 13
