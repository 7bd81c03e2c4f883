"""Many laggards at once: one reader a group, pages shared by all that stand at the same place."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lexicast.actors.broker.encoding import Grant
from lexicast.actors.coordinator import past
from lexicast.cluster.blocks import Block, Meta
from lexicast.cluster.positions import topic_group

from ...support.harness import Cluster, Coordinator, EngineNode, Stream, eventually

GROUPS = 50
SESSIONS = 60


def fetches(coordinator: Coordinator) -> list[dict[str, Any]]:
    """The answers to `fetch` from now on."""
    answers: list[dict[str, Any]] = []
    requests = coordinator.server.requests
    fetch = coordinator.server.past.fetch

    async def noted(*arguments: Any) -> dict[str, Any]:
        answers.append(await fetch(*arguments))
        return answers[-1]

    requests.later["fetch"] = noted
    return answers


async def returned(broker: EngineNode, *filters: bytes) -> Stream:
    """A session that was away from the beginning on."""
    stream = Stream(broker.engine)
    stream.block()
    start = dict.fromkeys(range(GROUPS), 0)
    await broker.engine.subscriptions.subscribe(stream, dict.fromkeys(filters, Grant()), start=start)
    stream.give_room(1 << 60)
    return stream


async def test_sessions_that_return_one_after_the_other_share_what_is_fetched(tmp_path: Path) -> None:
    async with Cluster(tmp_path, groups=GROUPS) as cluster:
        answers = fetches(await cluster.start_coordinator())
        broker = await cluster.start_engine("broker-0")
        for number in range(3):
            topics = [*[b"own/%d/x" % session for session in range(SESSIONS)], b"all/x"]
            await asyncio.gather(*[broker.publish(topic, [b"%d" % number]) for topic in topics])
        for first in range(0, SESSIONS, 20):
            names = range(first, first + 20)
            streams = await asyncio.gather(*[returned(broker, b"own/%d/#" % n, b"all/+") for n in names])
            for session, stream in zip(names, streams, strict=True):
                await stream.arrived(6)
                assert stream.payloads(b"own/%d/x" % session) == stream.payloads(b"all/x") == [b"0", b"1", b"2"]
                assert len(stream.received) == 6
        # What was fetched for the first holds everything; 60 sessions of 50 groups would be 3,000.
        assert len(answers) <= 3
        await broker.publish(b"all/x", [b"live"])
        await streams[0].arrived(7)
        assert not streams[0].lagging


async def test_the_past_is_remembered_and_looked_through_as_it_was_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unpacking a block's runs costs a coordinator more than all else that it does for a page: nobody there needs them.
    What expires is read anew: it may have gone meanwhile."""
    unpacked: list[Block] = []
    unpack: Callable[[Block], Meta] = vars(Block)["meta"].fget

    def noted(self: Block) -> Meta:
        unpacked.append(self)
        return unpack(self)

    async with Cluster(tmp_path, groups=GROUPS) as cluster:
        coordinator = await cluster.start_coordinator()
        broker = await cluster.start_engine("broker-0")
        await broker.subscribe(b"own/#")
        for _ in range(2):
            await broker.publish(b"own/1", [b"stays"])
            await broker.publish(b"own/2", [b"goes"], expiry_ms=3_600_000)
            await broker.publish(b"other", [b"not wanted"])
        server = coordinator.server
        peer = server.routing.peers["broker-0"]
        groups = {topic: topic_group(topic, GROUPS) for topic in (b"own/1", b"own/2", b"other")}
        assert len(set(groups.values())) == 3
        size = server.store.read(groups[b"own/1"], 0, bytes_max=1, topics=past.everything).blocks[0].size_bytes
        reads: list[int] = []
        read = server.store.read

        def counted(group: int, *arguments: Any, **named: Any) -> Any:
            reads.append(group)
            return read(group, *arguments, **named)

        monkeypatch.setattr(server.store, "read", counted)
        monkeypatch.setattr(Block, "meta", property(noted))
        cursor = dict.fromkeys(groups.values(), 0)
        monkeypatch.setattr(past, "WHOLE_BYTES", size)  # a block a step, so the first one is looked through
        for _ in range(2):
            answer = await server.past.fetch(peer, cursor, None, 10_000)
        assert unpacked == []
        found = [Block.from_wire(wire).group for wire in answer["blocks"]]
        assert [found.count(groups[topic]) for topic in groups] == [2, 2, 0]
        assert [reads.count(groups[topic]) for topic in (b"own/1", b"own/2")] == [2, 4]


async def test_a_laggard_with_a_narrow_filter_does_not_drag_the_whole_log_over_the_link(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(past, "WHOLE_BYTES", 1)
    async with Cluster(tmp_path, groups=GROUPS) as cluster:
        answers = fetches(await cluster.start_coordinator())
        broker = await cluster.start_engine("broker-0")
        await broker.subscribe(b"#")  # the broker itself wants everything
        for number in range(100):
            await broker.publish(b"own/%d/x" % number, [b"x" * 1_000])
        stream = await returned(broker, b"own/7/#")
        await stream.arrived(1)
        assert [r.topic for r in stream.received] == [b"own/7/x"]
        assert sum(len(answer["blocks"]) for answer in answers) <= GROUPS  # and no more than one beside it a group


async def test_who_cannot_take_more_is_left_behind_and_holds_nobody_up(tmp_path: Path) -> None:
    async with Cluster(tmp_path, groups=GROUPS) as cluster:
        await cluster.start_coordinator()
        broker = await cluster.start_engine("broker-0")
        for number in range(30):
            await broker.publish(b"all/%d" % number, [b"%d" % number])
        slow, quick = Stream(broker.engine), await returned(broker, b"all/+")
        slow.block()
        await broker.engine.subscriptions.subscribe(slow, {b"all/#": Grant()}, start=dict.fromkeys(range(GROUPS), 0))
        slow.give_room(2)
        await quick.arrived(30)

        def all_there() -> bool:
            if slow.blocked:
                slow.give_room(3)
            return len(slow.received) >= 30

        await eventually(all_there, "the rest, three blocks at a time")
        assert sorted(slow.payloads()) == sorted(quick.payloads())
        assert len(slow.received) == 30
