"""The data path over real links and stores: publish, subscribe, catch up, crash, resend."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from lexicast.actors.broker.encoding import Grant
from lexicast.actors.coordinator.retained import RetainedRequests
from lexicast.cluster.blocks import RETAIN, Block
from lexicast.cluster.clock import ManualClock
from lexicast.cluster.positions import topic_group

from ..support.harness import (
    GROUPS,
    Cluster,
    EngineNode,
    Stream,
    eventually,
    in_order,
    numbered,
)


async def test_a_publication_reaches_a_subscriber(tmp_path: Path) -> None:
    async with Cluster(tmp_path) as cluster:
        await cluster.start_coordinator()
        broker = await cluster.start_engine("broker-0")
        stream = await broker.subscribe(b"a/#")
        result = await broker.publish(b"a/b", [b"1", b"2"])
        got = await stream.arrived(2)
        assert [r.payload for r in got] == [b"1", b"2"]
        assert result == ((2, got[0].epoch, got[0].offset),)


async def test_all_brokers_see_the_same_order_and_only_what_they_want(tmp_path: Path) -> None:
    async with Cluster(tmp_path) as cluster:
        await cluster.start_coordinator()
        brokers = [await cluster.start_engine(f"broker-{i}") for i in range(3)]
        everything = [await broker.subscribe(b"#") for broker in brokers]
        some = await brokers[0].subscribe(b"a/0", b"a/+")
        none = await brokers[1].subscribe(b"b/#")
        await asyncio.gather(
            *[
                b.publish(b"a/%d" % (i % 3), [b"%d-%d" % (n, i)], qos=i % 2)
                for n, b in enumerate(brokers)
                for i in range(60)
            ]
        )
        for stream in [*everything, some]:
            await stream.arrived(180)
        by_group = [sorted(stream.received, key=lambda r: r.group) for stream in everything]
        assert by_group[0] == by_group[1] == by_group[2]
        assert sorted(some.received) == sorted(everything[0].received)
        assert in_order(some.received)
        assert none.received == []


async def test_qos1_is_neither_seen_nor_acknowledged_before_it_is_durable(tmp_path: Path) -> None:
    async with Cluster(tmp_path) as cluster:
        coordinator = await cluster.start_coordinator()
        broker = await cluster.start_engine("broker-0")
        stream = await broker.subscribe(b"a")
        group = coordinator.server.sequencer.groups[topic_group(b"a", GROUPS)]
        await eventually(lambda: group.committed == group.next, "the subscription's record")
        coordinator.disk.hold()
        assert await broker.publish(b"a", [b"at once"], qos=0)
        await stream.arrived(1)
        safe = broker.publish_later(b"a", [b"safe"], qos=1)
        await eventually(lambda: coordinator.server.led.published_records == 2, "the publication")
        behind = await broker.publish(b"a", [b"behind"], qos=0)
        assert behind
        await eventually(lambda: coordinator.disk.waiting == 1, "the commit")
        assert stream.payloads() == [b"at once"]
        assert not safe.done()
        coordinator.disk.release()
        await safe
        await stream.arrived(3)
        assert stream.payloads() == [b"at once", b"safe", b"behind"]


async def test_what_waits_for_the_disk_is_fetched_in_bounded_answers(tmp_path: Path) -> None:
    """Delivered and not yet durable may be 64 MiB: an answer holds what was asked for and about a block more."""
    async with Cluster(tmp_path) as cluster:
        coordinator = await cluster.start_coordinator()
        broker = await cluster.start_engine("broker-0")
        stream = await broker.subscribe(b"a")
        past, group = coordinator.server.past, topic_group(b"a", GROUPS)
        await broker.publish(b"a", [b"0" * 1_000])
        coordinator.disk.hold()
        for number in range(1, 40):
            await broker.publish(b"a", [b"%d" % number * 1_000], qos=0)
            await stream.arrived(number + 1)
        peer, cursor, answers = coordinator.server.routing.peers["broker-0"], {group: 0}, 0
        found: list[Block] = []
        while True:
            answer = await past.fetch(peer, cursor, [b"#"], 5_000)
            blocks = [Block.from_wire(wire) for wire in answer["blocks"]]
            assert 0 < sum([block.size_bytes for block in blocks]) < 8_000
            found, cursor, answers = found + blocks, answer["cursor"], answers + 1
            if answer["live"]:
                break
        assert [block.last for block in found] == [received.offset for received in stream.received]
        assert answers > 8
        coordinator.disk.release()


async def test_a_crash_under_load_loses_nothing_acknowledged_and_stores_nothing_twice(tmp_path: Path) -> None:
    async with Cluster(tmp_path) as cluster:
        coordinator = await cluster.start_coordinator()
        brokers = [await cluster.start_engine(f"broker-{i}") for i in range(2)]
        streams = [await broker.subscribe(b"t/#") for broker in brokers]
        acks: dict[bytes, asyncio.Future[Any]] = {}

        async def publish(broker: EngineNode, name: int) -> None:
            for i in range(300):
                payload = b"%d-%d" % (name, i)
                acks[payload] = broker.publish_later(b"t/%d" % (i % 7), [payload], qos=1)
                if i % 10 == 0:
                    await asyncio.sleep(0.001)

        async def crash() -> None:
            for _ in range(3):
                have = len(streams[0].received)
                await streams[0].arrived(min(have + 1, 600))
                await cluster.restart_coordinator()

        await asyncio.gather(crash(), *[publish(broker, n) for n, broker in enumerate(brokers)])
        results = dict(zip(acks, await asyncio.gather(*acks.values()), strict=True))
        for stream in streams:
            await stream.arrived(600)
            assert in_order(stream.received)
            assert sorted(stream.payloads()) == sorted(results)
            assert sorted(stream.received) == sorted(streams[0].received)
        epochs = {r.epoch for r in streams[0].received}
        assert len(epochs) > 1
        store = cluster.coordinators["coordinator-0"].server.store
        stored = [
            record.payload for group in range(GROUPS) for block in _blocks(store, group) for record in block.records()
        ]
        assert sorted(stored) == sorted(results)
        assert coordinator is not cluster.coordinators["coordinator-0"]


def _blocks(store: Any, group: int) -> list[Any]:
    found: list[Any] = []
    offset = 0
    while True:
        result = store.read(group, offset, topics=lambda topic: True)
        found += result.blocks
        if result.next_offset == offset:
            return found
        offset = result.next_offset


async def test_an_unacknowledged_batch_is_answered_after_the_crash_with_its_new_place(tmp_path: Path) -> None:
    async with Cluster(tmp_path) as cluster:
        coordinator = await cluster.start_coordinator()
        broker = await cluster.start_engine("broker-0")
        stream = await broker.subscribe(b"a")
        first = await broker.publish(b"a", [b"kept"])
        coordinator.disk.hold()
        later = broker.publish_later(b"a", [b"lost with the disk"])
        await eventually(lambda: coordinator.disk.waiting > 0, "the commit")
        await cluster.restart_coordinator()
        result = await later
        assert result[0][1] == first[0][1] + 1
        assert result[0][2] > first[0][2] + 1
        await stream.arrived(2)
        assert stream.payloads() == [b"kept", b"lost with the disk"]


async def test_a_repeat_after_a_cut_link_is_answered_with_its_first_place(tmp_path: Path) -> None:
    async with Cluster(tmp_path) as cluster:
        coordinator = await cluster.start_coordinator()
        broker = await cluster.start_engine("broker-0")
        stream = await broker.subscribe(b"a")
        coordinator.disk.hold()
        ack = broker.publish_later(b"a", [b"x"])
        await eventually(lambda: coordinator.server.led.published_records == 1, "the publication")
        peers_now = coordinator.server.routing.peers
        before = peers_now["broker-0"]
        broker.cut_links()
        await eventually(lambda: peers_now["broker-0"] is not before, "a new link")
        coordinator.disk.release()
        assert ack.done() is False
        result = await ack
        await stream.arrived(1)
        await broker.publish(b"a", [b"y"])
        assert stream.received[0].offset == result[0][2]
        assert [r.payload for r in await stream.arrived(2)] == [b"x", b"y"]


async def test_retained_publications_come_at_the_cut(tmp_path: Path) -> None:
    async with Cluster(tmp_path) as cluster:
        coordinator = await cluster.start_coordinator()
        broker = await cluster.start_engine("broker-0")
        await broker.publish(b"r/1", [b"old", b"new"], retain=RETAIN)
        await broker.publish(b"r/2", [b"gone"], retain=RETAIN)
        await broker.publish(b"r/2", [b""], retain=RETAIN)
        await broker.publish(b"r/3", [b"plain"])
        coordinator.disk.hold()
        await broker.publish(b"r/4", [b"not yet on disk"], qos=0, retain=RETAIN)
        await broker.publish(b"r/1", [b"newest"], qos=0, retain=RETAIN)
        # They are cut now; what is retained is looked for when all before the cut is on disk.
        filters = [b"r/#", b"r/#", b"r/1"]
        subscribing = [asyncio.create_task(broker.subscribe(topic_filter)) for topic_filter in filters]
        peer = coordinator.server.routing.peers["broker-0"]
        await eventually(lambda: {b"r/#", b"r/1"} <= peer.filters, "the cuts")
        coordinator.disk.release()
        streams = await asyncio.gather(*subscribing)
        await broker.publish(b"r/1", [b"live"])
        for stream in streams[:2]:
            await stream.arrived(3)
            assert sorted(stream.payloads()) == [b"live", b"newest", b"not yet on disk"]
            assert stream.payloads(b"r/1") == [b"newest", b"live"]
        await streams[2].arrived(2)
        assert streams[2].payloads() == [b"newest", b"live"]


async def test_retained_publications_come_in_bounded_pages_whatever_their_number_and_size(tmp_path: Path) -> None:
    async with Cluster(tmp_path) as cluster:
        coordinator = await cluster.start_coordinator()
        broker = await cluster.start_engine("broker-0")
        wanted = {b"r/%d/%s" % (number, side): b"%d" % number * 2_000 for number in range(150) for side in (b"a", b"b")}
        wanted |= {b"r/%d" % number: b"x" * 300_000 for number in range(10)}
        await asyncio.gather(*[broker.publish(topic, [body], retain=RETAIN) for topic, body in wanted.items()])
        peer, after = coordinator.server.routing.peers["broker-0"], None
        retained = RetainedRequests(coordinator.server.led)
        pages: list[list[tuple[bytes, Block]]] = []
        while not pages or after is not None:
            filters = [b"nothing/+", b"r/#", b"r/7", b"+/+/b"]
            page = await retained.retained(peer, filters, range(GROUPS), after, 50_000)
            after = page["after"]
            pages.append([(filters[number], Block.from_wire(wire)) for number, wire in page["blocks"]])
        assert max([sum([block.size_bytes for _, block in page]) for page in pages]) < 50_000 + 301_000
        found = [(name, *next(iter(block.records()))[1::7]) for page in pages for name, block in page]
        assert len(found) == len(set(found))
        assert {(topic, body) for name, topic, body in found if name == b"r/#"} == set(wanted.items())
        assert [topic for name, topic, _ in found if name == b"r/7"] == [b"r/7"]
        assert len([name for name, _, _ in found if name == b"+/+/b"]) == 150
        # What expires or is cleared is found no more, what comes is.
        await broker.publish(b"r/7", [b""], retain=RETAIN)
        await broker.publish(b"r/new", [b"y"], retain=RETAIN)
        stream = await broker.subscribe(b"r/+")
        assert sorted(r.topic for r in stream.received) == sorted(
            [*[b"r/%d" % n for n in range(10) if n != 7], b"r/new"]
        )


async def test_a_group_whose_last_blocks_have_expired_is_read_to_its_end(tmp_path: Path) -> None:
    clock = ManualClock()
    async with Cluster(tmp_path, clock=clock) as cluster:
        coordinator = await cluster.start_coordinator()
        broker = await cluster.start_engine("broker-0")
        await broker.publish(b"a", [b"short-lived"], expiry_ms=1_000)
        clock.advance(3_600)
        store = coordinator.server.store
        group = topic_group(b"a", GROUPS)
        await eventually(lambda: not any(b.kind == 0 for b in store.read(group, 0, expired=True).blocks), "expiry")
        stream = await broker.subscribe(b"a", start={group: 0})
        await broker.publish(b"a", [b"next"])
        await stream.arrived(1)
        assert stream.payloads() == [b"next"]


async def test_subscriptions_are_counted_once_a_subscriber(tmp_path: Path) -> None:
    async with Cluster(tmp_path) as cluster:
        coordinator = await cluster.start_coordinator()
        broker = await cluster.start_engine("broker-0")
        first, second = await broker.subscribe(b"a"), await broker.subscribe(b"a")
        await broker.engine.subscriptions.subscribe(first, {b"a": Grant()})
        stranger = Stream(broker.engine)
        assert not broker.engine.subscriptions.unsubscribe(stranger, b"a")
        stranger.closed = True
        await broker.engine.subscriptions.subscribe(stranger, {b"a": Grant()})
        await broker.engine.subscriptions.subscribe(stranger, {b"b": Grant()})
        broker.engine.subscriptions.leave(first)
        assert b"a" in broker.engine.subscriptions.filters
        assert b"b" not in broker.engine.subscriptions.filters
        await broker.publish(b"a", [b"x"])
        await second.arrived(1)
        broker.engine.subscriptions.leave(second)
        assert b"a" not in broker.engine.subscriptions.filters
        peer = coordinator.server.routing.peers["broker-0"]
        await eventually(
            lambda: len(peer.filters) == len(broker.engine.subscriptions.filters),
            "the end of the back-end subscription",
        )


async def test_a_clock_that_jumps_back_and_forth_loses_and_doubles_nothing(tmp_path: Path) -> None:
    clock = ManualClock()
    start_us = clock.time_us()
    async with Cluster(tmp_path, clock=clock) as cluster:
        await cluster.start_coordinator()
        broker = await cluster.start_engine("broker-0")
        live = await broker.subscribe(b"t/#")
        for at, jump in enumerate([0, 3_600, -7_200, 60, -60, 86_400, -86_400]):
            clock.jump(jump)
            await broker.publish(b"t/%d" % (at % 2), numbered(10 * at, 10), qos=at % 2)
            if at == 3:
                await cluster.restart_coordinator()
        await live.arrived(70)
        past = await broker.subscribe(
            b"t/#", start=await broker.engine.coordinators.offsets_at([b"t/#"], start_us - 10 * 86_400_000_000)
        )
        await broker.publish(b"t/0", [b"70"])
        await past.arrived(71)
        await live.arrived(71)
        assert sorted(map(int, past.payloads())) == sorted(map(int, live.payloads())) == list(range(71))
        assert in_order(past.received)
        # Times are stamped so that they ascend: a time is found again whatever the clock did since.
        late = await broker.subscribe(
            b"t/#", start=await broker.engine.coordinators.offsets_at([b"t/#"], start_us + 3_600_000_000)
        )
        await late.arrived(61)
        assert sorted(map(int, late.payloads())) == list(range(10, 71))


async def test_two_coordinators_share_the_groups(tmp_path: Path) -> None:
    names = ("coordinator-0", "coordinator-1")
    async with Cluster(tmp_path, coordinators=names) as cluster:
        for name in names:
            await cluster.start_coordinator(name)
        broker = await cluster.start_engine("broker-0")
        stream = await broker.subscribe(b"#")
        await asyncio.gather(*[broker.publish(b"t/%d" % i, [b"%d" % i]) for i in range(40)])
        await stream.arrived(40)
        assert len({r.group for r in stream.received}) == GROUPS
        past = await broker.subscribe(b"#", start=dict.fromkeys(range(GROUPS), 0))
        await past.arrived(40)
        assert sorted(past.received) == sorted(stream.received)
        await cluster.restart_coordinator("coordinator-1")
        await asyncio.gather(*[broker.publish(b"t/%d" % i, [b"again"]) for i in range(40)])
        await stream.arrived(80)


async def test_the_harness_starts_whole_brokers(tmp_path: Path) -> None:
    async with Cluster(tmp_path) as cluster:
        await cluster.start_coordinator()
        broker = await cluster.start_broker("broker-0")
        assert broker.engine.coordinators.complete
