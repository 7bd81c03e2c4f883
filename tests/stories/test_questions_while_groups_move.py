"""Questions that are answered in pages, and releases, while the groups that they concern get other leaders.

Everything runs in one event loop: real stores, real links (`tests.support.harness`).
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from lexicast.actors.broker.feeds.last_feed import LastFeed
from lexicast.actors.broker.feeds.retained_feed import RetainedFeed
from lexicast.actors.broker.python_clients.history import count_page, history_page, last_page
from lexicast.actors.mqtt.releases import forget_ids
from lexicast.cluster.blocks import RETAIN, Block
from lexicast.cluster.errors import LedElsewhereError
from lexicast.cluster.points_in_time import FOREVER_US
from lexicast.cluster.positions import topic_group

from ..support.harness import GROUPS, Cluster, EngineNode, eventually

BOTH = ("coordinator-0", "coordinator-1")
TOPICS = [b"q/%d" % i for i in range(60)]
SESSION = b"session"
ALL = dict.fromkeys(range(GROUPS), 1 << 40)


@asynccontextmanager
async def two(folder: Path) -> AsyncIterator[tuple[Cluster, EngineNode]]:
    """Two coordinators that have every group, and a broker; three publications of 9 KB on each topic, the last one
    retained."""
    async with Cluster(folder, coordinators=BOTH, copies=2) as cluster:
        await asyncio.gather(*[cluster.start_coordinator(name) for name in BOTH])
        await copied(cluster)
        broker = await cluster.start_engine("broker-0")
        for turn in range(3):
            retain = RETAIN if turn == 2 else 0
            bodies = [b"%s/%d " % (topic, turn) + b"x" * 9_000 for topic in TOPICS]
            published = zip(TOPICS, bodies, strict=True)
            await asyncio.gather(*[broker.publish(topic, [body], retain=retain) for topic, body in published])
        yield cluster, broker


async def copied(cluster: Cluster) -> None:
    def in_sync() -> set[int]:
        return {len(members) for _, _, members in cluster.coordination.status()["group_states"].values()}

    await eventually(lambda: in_sync() == {2}, "two copies of each group")


async def move(cluster: Cluster, broker: EngineNode, some: int = GROUPS) -> None:
    """The first `some` groups get their other member as leader; returns when the broker knows."""
    moved = {}
    for group, state in (await cluster.coordination.members(-1, 0)).groups.items():
        if group < some:
            leader = BOTH[1 - BOTH.index(state.leader)]
            assert await cluster.coordination.change_group(
                group, state, state._replace(epoch=state.epoch + 1, leader=leader)
            )
            moved[group] = leader
    coordinators = broker.engine.coordinators

    def known() -> bool:
        found = {group: coordinators.pipeline_of(group) for group in moved}
        return all(pipeline and pipeline.member.name == moved[group] for group, pipeline in found.items())

    await eventually(known, "the broker to know the new leaders")


def names(blocks: list[Block]) -> Counter[bytes]:
    """What is in blocks: topic and turn."""
    return Counter(record.payload.split()[0] for block in blocks for record in block.records())


@pytest.mark.parametrize("some", [1, GROUPS // 2, GROUPS])
async def test_retained_publications_come_once_each(tmp_path: Path, some: int) -> None:
    async with two(tmp_path) as (cluster, broker):
        feed = RetainedFeed(broker.engine.coordinators, {b"q/#": ALL, b"q/7": ALL})
        found = []
        while not feed.done:
            found += await feed.page()
            await move(cluster, broker, some)
            await copied(cluster)
        assert names([block for name, block in found if name == b"q/#"]) == Counter([t + b"/2" for t in TOPICS])
        assert names([block for name, block in found if name == b"q/7"]) == {b"q/7/2": 1}


@pytest.mark.parametrize("some", [GROUPS // 2, GROUPS])
async def test_the_last_publications_of_each_topic_come_once_each(tmp_path: Path, some: int) -> None:
    wanted = Counter([b"%s/%d" % (topic, turn) for topic in TOPICS for turn in (1, 2)])
    async with two(tmp_path) as (cluster, broker):
        feed, found = LastFeed(broker.engine.coordinators, b"q/#", 2, ALL, None, FOREVER_US), list[Block]()
        while not feed.done:
            found += [block for _, block in await feed.page()]
            await move(cluster, broker, some)
            await copied(cluster)
        assert names(found) == wanted

        found, after, pages = [], None, 0
        while pages == 0 or after is not None:
            page = await last_page(broker.engine.coordinators, (b"q/#",), None, FOREVER_US, 2, after, 100_000)
            found += [Block.from_wire(wire) for wire in page["blocks"]]
            after, pages = page["after"], pages + 1
            if pages % 4 == 1:
                await move(cluster, broker, some)
                await copied(cluster)
        assert pages > 4
        assert names(found) == wanted


async def test_history_and_counting_go_on_with_the_leaders_of_the_day(tmp_path: Path) -> None:
    async with two(tmp_path) as (cluster, broker):
        coordinators = broker.engine.coordinators
        found, cursor, counted, pages = list[Block](), None, 0, 0
        while pages == 0 or cursor:
            # Asked while groups move, and not after.
            moving = asyncio.create_task(move(cluster, broker, GROUPS // 2)) if pages % 5 == 0 else None
            page = await history_page(coordinators, (b"q/#",), None, FOREVER_US, cursor, 100_000)
            found += [Block.from_wire(wire) for wire in page["blocks"]]
            cursor, pages = page["cursor"], pages + 1
            if moving is not None:
                await moving
                await copied(cluster)
        assert names(found) == Counter([b"%s/%d" % (topic, turn) for topic in TOPICS for turn in range(3)])
        cursor = None
        while cursor is None or cursor:
            told = await count_page(coordinators, (b"q/#",), None, FOREVER_US, cursor)
            counted, cursor = counted + told["count"], told["cursor"]
            await move(cluster, broker, GROUPS // 2)
            await copied(cluster)
        assert counted == 3 * len(TOPICS)


async def test_a_release_reaches_whoever_leads_and_the_id_is_free_again(tmp_path: Path) -> None:
    async with two(tmp_path) as (cluster, broker):
        topic = TOPICS[0]
        group = topic_group(topic, GROUPS)
        first = await broker.publish(topic, [b"one"], qos=2, mark=(SESSION, 1, [7]))
        assert await broker.publish(topic, [b"one"], qos=2, mark=(SESSION, 1, [7])) == first
        both: list[dict[int | None, list[int]]] = [{group: [7]}, {None: [7]}]
        for wanted in both:
            moving = asyncio.create_task(move(cluster, broker))
            await forget_ids(broker.engine, SESSION, 1, wanted)
            await moving
            await copied(cluster)
            again = await broker.publish(topic, [b"another"], qos=2, mark=(SESSION, 1, [7]))
            assert again != first, "what was released was taken for a repeat"
            first = again


async def test_who_does_not_lead_a_group_releases_nothing(tmp_path: Path) -> None:
    async with two(tmp_path) as (cluster, broker):
        state = (await cluster.coordination.members(-1, 0)).groups[0]
        other = cluster.coordinators[BOTH[1 - BOTH.index(state.leader)]]
        peer = other.server.routing.peers["broker-0"]
        with pytest.raises(LedElsewhereError):
            await other.server.requests.release(peer, [0], SESSION, 1, (7,))
        assert broker.engine.coordinators.complete
