"""The history by the index and by a scan of the log: a real coordinator and store, asked as a broker asks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from lexicast.actors.broker.feeds.last_feed import LastFeed
from lexicast.actors.coordinator import last_publications, topic_filters
from lexicast.actors.loop.turns import Turns
from lexicast.cluster.blocks import Block
from lexicast.cluster.clock import SystemClock
from lexicast.cluster.errors import IndexNotReadyError, UsageError
from lexicast.cluster.points_in_time import FOREVER_US
from lexicast.cluster.positions import topic_group
from lexicast.cluster.topics.names import matches
from lexicast.storage.log_reader import ReadResult

from ...support.harness import GROUPS, Cluster, Coordinator, EngineNode

DEVICES = 40
KINDS = (b"temp", b"state")


Between = Callable[[Any], Awaitable[None]]


class Asked:
    """A coordinator that holds some past, and how a broker asks it."""

    def __init__(self, coordinator: Coordinator, node: EngineNode) -> None:
        self.coordinator = coordinator
        self.node = node
        self.store = coordinator.server.store
        self.scans = 0
        read = self.store.read

        def counted(*arguments: Any, **more: Any) -> ReadResult:
            self.scans += 1
            return read(*arguments, **more)

        self.store.read = counted  # type: ignore[method-assign]  # to be counted

    async def ask(self, method: str, *arguments: Any) -> Any:
        """One request to the coordinator."""
        pipeline = self.node.engine.coordinators.pipeline_of(0)
        assert pipeline is not None
        return await pipeline.request(method, *arguments)

    async def history(
        self, *filters: bytes, until_us: int = FOREVER_US, bytes_max: int = 1 << 20, since: int = 0
    ) -> list[tuple[int, int, bytes, bytes]]:
        """All pages: (group, offset, topic, payload), in order within each group."""
        cursor = dict.fromkeys(range(GROUPS), since)
        found: list[tuple[int, int, bytes, bytes]] = []
        while cursor:
            page = await self.ask("history", cursor, list(filters), until_us, bytes_max)
            found += rows(page["blocks"])
            cursor = {g: at for g, at in {**cursor, **page["cursor"]}.items() if g not in page["done"]}
        return sorted(found)

    async def count(self, *filters: bytes, until_us: int = FOREVER_US) -> int:
        """All pages."""
        cursor, found = dict.fromkeys(range(GROUPS), 0), 0
        while cursor:
            page = await self.ask("count", cursor, list(filters), until_us)
            found += page["count"]
            cursor = {g: at for g, at in {**cursor, **page["cursor"]}.items() if g not in page["done"]}
        return found

    async def last(
        self,
        *filters: bytes,
        count: int,
        since: int = 0,
        until_us: int = FOREVER_US,
        bytes_max: int = 1 << 20,
        between: Between | None = None,
    ) -> list[tuple[bytes, bytes]]:
        """All pages: (topic, payload), as they come. `between` is called after each with the place where it ends."""
        found: list[tuple[bytes, bytes]] = []
        after = None
        while True:
            asked = (dict.fromkeys(range(GROUPS), since), None, until_us, after, bytes_max)
            page = await self.ask("last", list(filters), count, *asked)
            found += [row[2:] for row in rows(page["blocks"])]
            after = page["after"]
            if after is None:
                return found
            if between is not None:
                await between(after)


def rows(blocks: list[Any]) -> list[tuple[int, int, bytes, bytes]]:
    parsed = [Block.from_wire(wire) for wire in blocks]
    return [(block.group, r.offset, r.topic, r.payload) for block in parsed for r in block.records()]


@asynccontextmanager
async def asked(folder: Path) -> AsyncIterator[Asked]:
    async with Cluster(folder) as cluster:
        coordinator = await cluster.start_coordinator()
        yield Asked(coordinator, await cluster.start_engine("broker-0"))


async def fill(past: Asked, rounds: int = 3) -> None:
    """Every device publishes each kind, so often."""
    for at in range(rounds):
        await asyncio.gather(
            *[
                past.node.publish(b"dev/%d/%s" % (device, kind), [b"%d:%d" % (at, device)])
                for device in range(DEVICES)
                for kind in KINDS
            ]
        )


def expected(everything: list[tuple[int, int, bytes, bytes]], *filters: bytes) -> list[tuple[int, int, bytes, bytes]]:
    return [row for row in everything if any(matches(each, row[2]) for each in filters)]


async def test_what_an_exact_topic_has_published_is_found_without_a_scan(tmp_path: Path) -> None:
    async with asked(tmp_path) as past:
        await fill(past)
        found = await past.history(b"dev/7/temp")
        assert [payload for _, _, _, payload in found] == [b"0:7", b"1:7", b"2:7"]
        assert past.scans == 0
        assert await past.history(b"dev/nobody/temp") == []
        assert past.scans == 0


@pytest.mark.parametrize("filters", [(b"dev/7/#",), (b"dev/+/state",), (b"#",), (b"dev/1/+", b"dev/2/temp"), (b"+",)])
async def test_few_topics_come_by_the_index_and_many_by_a_scan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, filters: tuple[bytes, ...]
) -> None:
    monkeypatch.setattr(topic_filters, "TOPICS_FEW", 8)
    async with asked(tmp_path) as past:
        await fill(past)
        with monkeypatch.context() as index:
            index.setattr(past.store.by_topic, "find", lambda *_: None)
            everything = await past.history(b"#")
        assert len(everything) == 3 * DEVICES * len(KINDS)
        assert past.scans > 0
        past.scans = 0
        for bytes_max in (1 << 20, 1):
            assert await past.history(*filters, bytes_max=bytes_max) == expected(everything, *filters)
        assert await past.count(*filters) == len(expected(everything, *filters))
        wide = filters in [(b"#",), (b"dev/+/state",)]
        assert bool(past.scans) == wide


async def test_what_is_published_meanwhile_is_not_missed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A topic that is new since the filter's topics were found is in no look-up: the scan of what came since has it."""
    async with asked(tmp_path) as past:
        await fill(past, 1)
        decide = topic_filters.TopicFilters._decide

        async def late(self: topic_filters.TopicFilters, turns: Turns) -> None:
            await decide(self, turns)
            monkeypatch.setattr(topic_filters.TopicFilters, "_decide", decide)
            await past.node.publish(b"dev/7/new", [b"late"])
            await past.node.publish(b"dev/7/temp", [b"late"])

        monkeypatch.setattr(topic_filters.TopicFilters, "_decide", late)
        found = await past.history(b"dev/7/#")
        assert [payload for _, _, topic, payload in found if topic != b"dev/7/state"].count(b"late") == 2


async def test_what_is_delivered_and_not_yet_durable_is_part_of_the_past(tmp_path: Path) -> None:
    async with asked(tmp_path) as past:
        await past.node.publish(b"a", [b"durable"])
        past.coordinator.disk.hold()
        await past.node.publish(b"a", [b"delivered"], qos=0)
        assert [row[3] for row in await past.history(b"a")] == [b"durable", b"delivered"]
        past.coordinator.disk.release()


async def test_history_ends_before_its_until(tmp_path: Path) -> None:
    async with asked(tmp_path) as past:
        await past.node.publish(b"a", [b"1"])
        until_us = past.coordinator.server.led.clock.time_us()
        await past.node.publish(b"a", [b"2"])
        for filters in ((b"a",), (b"a", *[b"other/%d" % at for at in range(9)])):
            assert [row[3] for row in await past.history(*filters, until_us=until_us)] == [b"1"]
            assert await past.count(*filters, until_us=until_us) == 1


async def test_before_everything_there_is_nothing(tmp_path: Path) -> None:
    async with asked(tmp_path) as past:
        await past.node.publish(b"a", [b"1"])
        for filters in ((b"a",), (b"#",)):
            assert (await past.history(*filters, until_us=1), await past.count(*filters, until_us=1)) == ([], 0)


async def test_an_index_that_breaks_while_it_answers_is_followed_by_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with asked(tmp_path) as past:
        await fill(past)
        span = past.store.by_topic.span

        def broken(*arguments: Any) -> Any:
            past.store._index.broken = True
            return span(*arguments)

        monkeypatch.setattr(past.store.by_topic, "span", broken)
        assert [row[3] for row in await past.history(b"dev/7/temp")] == [b"0:7", b"1:7", b"2:7"]
        assert past.scans > 0


async def test_catching_up_with_few_topics_uses_the_index_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lexicast.actors.coordinator.past.WHOLE_BYTES", 1)
    wanted, other = (b"t/%d" % n for n in [n for n in range(99) if topic_group(b"t/%d" % n, GROUPS) == 1][:2])
    async with asked(tmp_path) as past:
        for at in range(3):
            await past.node.publish(other, [b"of no interest"])
            await past.node.publish(wanted, [b"%d" % at])
        page = await past.ask("fetch", {1: 0}, [wanted], 1 << 20)
        assert [row[3] for row in rows(page["blocks"])] == [b"0", b"1", b"2"]
        # The first step reads whatever comes; the rest would be another scan at least.
        assert (page["whole"], page["live"], past.scans) == ((), (1,), 1)


def last_of_each(everything: list[tuple[int, int, bytes, bytes]], count: int) -> list[tuple[bytes, bytes]]:
    topics = sorted({row[2] for row in everything})
    return [row[2:] for topic in topics for row in [r for r in everything if r[2] == topic][-count:]]


async def test_the_last_of_each_topic_come_topic_by_topic(tmp_path: Path) -> None:
    async with asked(tmp_path) as past:
        await fill(past)
        everything = await past.history(b"#")
        past.scans = 0
        for count in (1, 2, 99):
            for bytes_max in (1 << 20, 1):
                got = await past.last(b"dev/7/+", b"dev/8/#", b"dev/7/temp", count=count, bytes_max=bytes_max)
                wanted = [expected(everything, each) for each in (b"dev/7/+", b"dev/8/#")]
                assert got == [row for each in wanted for row in last_of_each(each, count)]
        assert await past.last(b"dev/+/state", count=1) == last_of_each(expected(everything, b"dev/+/state"), 1)
        assert await past.last(b"nobody", count=1) == []
        assert past.scans == 0


async def test_many_filters_give_each_topic_once_and_are_not_tried_one_by_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = 0

    def counted(topic_filter: bytes, topic: bytes) -> bool:
        nonlocal tried
        tried += 1
        return matches(topic_filter, topic)

    monkeypatch.setattr(last_publications, "matches", counted)
    async with asked(tmp_path) as past:
        await fill(past, 1)
        devices = [b"dev/%d/#" % device for device in range(DEVICES)]
        others = [b"none/%d/+" % number for number in range(300)]
        found = await past.last(*others, *devices[::2], *devices, b"dev/+/temp", b"#", b"#", count=1)
    order = [*range(0, DEVICES, 2), *range(1, DEVICES, 2)]
    assert [topic for topic, _ in found] == [b"dev/%d/%s" % (at, kind) for at in order for kind in (b"state", b"temp")]
    assert tried < 100


@pytest.mark.parametrize("bytes_max", [1, 200, 1 << 20])
@pytest.mark.parametrize("count", [1, 4, 7, 11, 99])
async def test_the_last_may_begin_and_go_on_within_a_block(tmp_path: Path, count: int, bytes_max: int) -> None:
    a, b = [b"t/%d" % n for n in range(99) if topic_group(b"t/%d" % n, GROUPS) == 1][:2]
    async with asked(tmp_path) as past:
        for at in range(3):
            parts = [(a, 3), (b, 2), (a, 1), (b, 3)]
            await asyncio.gather(
                *[past.node.publish(topic, [b"%d.%d" % (at, n)] * size) for n, (topic, size) in enumerate(parts)]
            )
        everything = await past.history(b"t/+")
        assert len({row[1] for row in everything}) == 27
        got = await past.last(b"t/+", count=count, bytes_max=bytes_max)
        assert got == last_of_each(everything, count)


def last_payloads(found: list[tuple[bytes, bytes]], topic: bytes) -> list[bytes]:
    return [payload for name, payload in found if name == topic]


async def test_topics_that_appear_between_pages_move_nothing(tmp_path: Path) -> None:
    async with asked(tmp_path) as past:
        for topic in (b"t/b", b"t/d"):
            for at in range(5):
                await past.node.publish(topic, [b"%d" % at])
        new = iter(range(99))

        async def between(place: Any) -> None:
            # Before the topic of which some was given, in its place's name order, and behind it; and more of its own.
            at = next(new)
            for topic in (b"t/a%d" % at, b"t/b", b"t/c%d" % at, b"t/d"):
                await past.node.publish(topic, [b"new"])

        found = await past.last(b"t/+", count=3, bytes_max=1, between=between)
        assert last_payloads(found, b"t/b") == [b"2", b"3", b"4"]
        # That one was begun later: its last three are of that time.
        assert len(last_payloads(found, b"t/d")) == 3
        assert last_payloads(found, b"t/d")[-1] == b"new"
        assert not [topic for topic, _ in found if topic.startswith(b"t/a")]


class Tomorrow(SystemClock):
    """A day on."""

    def time_us(self) -> int:
        return super().time_us() + 86_400_000_000


@pytest.mark.parametrize("rest", [b"expires", b"goes"])
async def test_what_expires_or_goes_between_pages_is_not_made_up_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rest: bytes
) -> None:
    async with asked(tmp_path) as past:
        for topic in (b"t/a", b"t/b"):
            for at in range(6):
                await past.node.publish(topic, [b"%d" % at], expiry_ms=60_000 if topic == b"t/a" and at > 3 else 0)
        find = past.store.by_topic.find

        def found_but(*arguments: Any, **more: Any) -> Any:
            found = find(*arguments, **more)
            return found and ([topic for topic in found[0] if topic.name != b"t/a"], found[1])

        async def between(place: Any) -> None:
            if rest == b"expires":
                monkeypatch.setattr(past.store.by_topic, "clock", Tomorrow())
            else:
                monkeypatch.setattr(past.store.by_topic, "find", found_but)

        found = await past.last(b"t/+", count=3, bytes_max=1, between=between)
        assert found == [(b"t/a", b"3"), *[(b"t/b", b"%d" % at) for at in (3, 4, 5)]]


async def test_places_that_are_none_are_refused(tmp_path: Path) -> None:
    async with asked(tmp_path) as past:
        for at in range(9):
            await past.node.publish(b"t/a", [b"%d" % at])
        since = dict.fromkeys(range(GROUPS), 0)
        for place in ((2, None, None), (0, None, (b"u/a", 0, 9)), (1, None, (b"t/a", 0, 9))):
            with pytest.raises(UsageError, match="none of these filters"):
                await past.ask("last", [b"t/+"], 1, since, None, FOREVER_US, place, 1 << 20)
        # Whatever it says, it leads to nothing before `since` and nothing beyond what is asked for.
        offsets = [row[1] for row in await past.history(b"t/a")]
        group = topic_group(b"t/a", GROUPS)
        forged = (0, b"\xff" * 481, (b"t/a", 0, 2**60))
        asked_for = ([b"t/+"], 1, {group: offsets[2]}, {group: offsets[5]}, FOREVER_US, forged, 1 << 20)
        page = await past.ask("last", *asked_for)
        assert [row[3] for row in rows(page["blocks"])] == [b"2", b"3", b"4"]
        assert page["after"] is None


async def test_without_the_index_the_last_are_not_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with asked(tmp_path) as past:
        await fill(past)
        past.scans = 0
        index, coordinators = past.store._index, past.node.engine.coordinators
        for broken in (True, False):
            index.broken, index.complete = broken, False
            with pytest.raises(IndexNotReadyError, match=r"made anew.*ask again"):
                await past.last(b"dev/7/+", count=1)
            calls, request = 0, coordinators.pipelines["coordinator-0"].call

            def counting(*arguments: Any, request: Any = request) -> None:
                nonlocal calls
                calls += 1
                request(*arguments)

            monkeypatch.setattr(coordinators.pipelines["coordinator-0"], "call", counting)
            feed = LastFeed(coordinators, b"dev/7/+", 1, {0: 99}, None, FOREVER_US)
            with pytest.raises(IndexNotReadyError):
                await feed.page()
            assert (calls, feed.done, past.scans) == (1, False, 0)
            monkeypatch.undo()


async def test_an_index_that_breaks_says_so_when_the_last_are_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with asked(tmp_path) as past:
        await fill(past)
        last_entries = past.store.by_topic.last_entries

        def broken(*arguments: Any) -> Any:
            past.store._index.broken = True
            return last_entries(*arguments)

        monkeypatch.setattr(past.store.by_topic, "last_entries", broken)
        with pytest.raises(IndexNotReadyError):
            await past.last(b"dev/7/temp", count=1)


async def test_the_last_lie_between_since_and_until_and_before_the_cut(tmp_path: Path) -> None:
    async with asked(tmp_path) as past:
        for at in range(3):
            await past.node.publish(b"a", [b"%d" % at])
        until_us = past.coordinator.server.led.clock.time_us()
        await past.node.publish(b"a", [b"3"])
        group = topic_group(b"a", GROUPS)
        offsets = [row[1] for row in await past.history(b"a")]
        assert await past.last(b"a", count=2, until_us=until_us) == [(b"a", b"1"), (b"a", b"2")]
        assert await past.last(b"a", count=9, since=offsets[1]) == [(b"a", b"%d" % at) for at in (1, 2, 3)]
        page = await past.ask("last", [b"a"], 2, {group: 0}, {group: offsets[2]}, FOREVER_US, None, 1 << 20)
        assert [row[3] for row in rows(page["blocks"])] == [b"0", b"1"]


async def test_what_is_not_yet_durable_is_waited_for(tmp_path: Path) -> None:
    async with asked(tmp_path) as past:
        await past.node.publish(b"a", [b"durable"])
        past.coordinator.disk.hold()
        await past.node.publish(b"a", [b"delivered"], qos=0)
        answer = asyncio.ensure_future(past.last(b"a", count=1))
        await asyncio.sleep(0.01)
        past.coordinator.disk.release()
        assert await answer == [(b"a", b"delivered")]
