"""The past as Python clients ask a broker for it: which coordinators that asks, and from where on."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from lexicast.actors.broker.coordinators import Coordinators
from lexicast.actors.broker.python_clients.history import beginning_of, count_page, history_page, last_page
from lexicast.cluster.points_in_time import FOREVER_US
from lexicast.cluster.positions import topic_group

from ...support.harness import GROUPS, Cluster, EngineNode

NAMES = ("coordinator-0", "coordinator-1")
TOPICS = [b"t/%d" % at for at in range(9)]


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[EngineNode]:
    async with Cluster(tmp_path, coordinators=NAMES) as cluster:
        for name in NAMES:
            await cluster.start_coordinator(name)
        node = await cluster.start_engine("broker-0")
        await asyncio.gather(*[node.publish(topic, [topic]) for topic in TOPICS])
        yield node


def counted(coordinators: Coordinators) -> Counter[str]:
    """How often each coordinator is asked for offsets from now on."""
    asked: Counter[str] = Counter()
    for name, pipeline in coordinators.pipelines.items():
        call = pipeline.call

        def counting(done: Any, method: str, *arguments: Any, name: str = name, call: Any = call) -> None:
            asked[name] += method == "offsets_at"
            call(done, method, *arguments)

        pipeline.call = counting  # type: ignore[method-assign]  # to be counted
    return asked


@pytest.mark.parametrize(
    "filters", [(b"t/#", b"+/0", b"t/1"), tuple(TOPICS), (b"t/3",), tuple([b"w/%d/#" % at for at in range(50)])]
)
async def test_each_coordinator_is_asked_once_where_the_past_begins(
    node: EngineNode, filters: tuple[bytes, ...]
) -> None:
    coordinators = node.engine.coordinators
    asked = counted(coordinators)
    start = await beginning_of(coordinators, filters, ("time", 5))
    wild = any(b"#" in each for each in filters)
    groups = set(range(GROUPS)) if wild else {topic_group(each, GROUPS) for each in filters}
    assert start is not None
    assert start.keys() == groups
    concerned = {coordinators.leader_of(group).member.name for group in groups}
    assert asked == dict.fromkeys(concerned, 1)


async def test_an_empty_cursor_begins_nowhere(node: EngineNode) -> None:
    coordinators = node.engine.coordinators
    for filters in ((b"#",), tuple(TOPICS)):
        for since, some in ((("cursor", {}), False), (None, True), (("cursor", dict.fromkeys(range(GROUPS), 0)), True)):
            page = await history_page(coordinators, filters, since, FOREVER_US, None, 1 << 20)
            count = await count_page(coordinators, filters, since, FOREVER_US, None)
            last = await last_page(coordinators, filters, since, FOREVER_US, 1, None, 1 << 20)
            assert [bool(page["blocks"]), bool(count["count"]), bool(last["blocks"])] == [some] * 3
            assert some or (page["done"], count["done"], last["after"]) == (True, True, None)
