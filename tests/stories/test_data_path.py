"""The data path over real links and stores: publish, subscribe, catch up, crash, resend."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lexicast.actors.broker.dictionaries import waiting_blocks as stalled
from lexicast.actors.broker.encoding import Grant
from lexicast.actors.coordinator import past, peers
from lexicast.actors.coordinator.retained import RetainedRequests
from lexicast.actors.loop.background import LoopEndedError
from lexicast.cluster.blocks import RETAIN, Block
from lexicast.cluster.clock import ManualClock
from lexicast.cluster.config.tables import Config
from lexicast.cluster.errors import StoreError, StoreFullError, UnavailableError
from lexicast.cluster.positions import topic_group
from lexicast.compression.codecs import ZSTD
from lexicast.compression.dictionary import Dictionary
from lexicast.storage.log.stored_block import StoredBlock

from ..support.harness import GROUPS, MIB, STORE, WAIT_S, Cluster, EngineNode, Received, Stream, eventually


def numbered(start: int, count: int) -> list[bytes]:
    return [b"%d" % i for i in range(start, start + count)]


def in_order(received: list[Received]) -> bool:
    """Whether offsets ascend within each group."""
    last: dict[int, int] = {}
    for r in received:
        if r.offset <= last.get(r.group, -1):
            return False
        last[r.group] = r.offset
    return True


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


@pytest.mark.parametrize("seed", range(8))
async def test_a_past_cursor_while_publishing_goes_on_has_neither_gap_nor_double(tmp_path: Path, seed: int) -> None:
    choose = random.Random(seed)
    async with Cluster(tmp_path) as cluster:
        await cluster.start_coordinator()
        writer = await cluster.start_engine("writer")
        reader = writer if seed % 2 else await cluster.start_engine("reader")
        total = 600
        streams: list[Stream] = []

        async def publish() -> None:
            at = 0
            while at < total:
                count = min(choose.randint(1, 20), total - at)
                ack = writer.publish_later(b"t/%d" % choose.randrange(3), numbered(at, count), qos=choose.randint(0, 1))
                at += count
                if choose.random() < 0.5:
                    await ack

        async def join() -> None:
            for _ in range(5):
                await asyncio.sleep(choose.random() * 0.02)
                room = choose.choice([None, 1, 3])
                streams.append(await reader.subscribe(b"t/#", start=dict.fromkeys(range(GROUPS), 0), room=room))

        await asyncio.gather(publish(), join())
        for stream in streams:
            while len(stream.received) < total:
                if stream.blocked:
                    stream.give_room(choose.randint(1, 5))
                await asyncio.sleep(0)
            assert len({(r.group, r.offset) for r in stream.received}) == len(stream.received) == total
            assert in_order(stream.received)
            assert sorted(stream.received) == sorted(streams[0].received)


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


@pytest.mark.parametrize("cache_bytes", [1 << 20, 0], ids=["from the cache", "from the store"])
async def test_a_slow_subscriber_lags_and_catches_up(tmp_path: Path, cache_bytes: int) -> None:
    async with Cluster(tmp_path, config=Config().replaced(broker__cache_bytes_max=cache_bytes)) as cluster:
        await cluster.start_coordinator()
        broker = await cluster.start_engine("broker-0")
        slow = await broker.subscribe(b"a", room=1)
        quick = await broker.subscribe(b"a")
        for i in range(50):
            await broker.publish(b"a", [b"%d" % i], qos=i % 2)
        await quick.arrived(50)
        assert slow.payloads() == [b"0"]
        assert slow.lagging
        while len(slow.received) < 50:
            slow.give_room(7)
            await eventually(lambda: slow.blocked or not slow.lagging, "catching up")
        assert slow.received == quick.received
        slow.give_room(1 << 62)
        await broker.publish(b"a", [b"live"])
        assert (await slow.arrived(51))[-1].payload == b"live"


async def test_a_subscriber_that_drops_misses_qos0_and_goes_on(tmp_path: Path) -> None:
    async with Cluster(tmp_path) as cluster:
        await cluster.start_coordinator()
        broker = await cluster.start_engine("broker-0")
        drops = await broker.subscribe(b"a", room=1, drops=True)
        other = await broker.subscribe(b"a")
        await broker.publish(b"a", [b"1"], qos=0)
        await broker.publish(b"a", [b"2"], qos=0)
        await other.arrived(2)
        assert not drops.lagging
        drops.give_room(1 << 62)
        await broker.publish(b"a", [b"3"], qos=0)
        await drops.arrived(2)
        assert drops.payloads() == [b"1", b"3"]


async def test_a_broker_that_was_cut_off_gets_what_it_missed(tmp_path: Path) -> None:
    async with Cluster(tmp_path) as cluster:
        await cluster.start_coordinator()
        writer = await cluster.start_engine("writer")
        reader = await cluster.start_engine("reader")
        stream = await reader.subscribe(b"t/#")
        await writer.publish(b"t/1", [b"0"])
        await stream.arrived(1)
        for round_ in range(4):
            reader.cut_links()
            await writer.publish(b"t/1", numbered(10 * round_ + 1, 10), qos=round_ % 2)
        await stream.arrived(41)
        assert stream.payloads() == numbered(0, 41)


async def test_a_broker_that_dials_again_records_only_what_has_changed(tmp_path: Path) -> None:
    async with Cluster(tmp_path) as cluster:
        coordinator = await cluster.start_coordinator()
        broker = await cluster.start_engine("broker-0")
        await broker.subscribe(b"t/#", b"a/b")
        groups = coordinator.server.sequencer.groups
        await eventually(lambda: all([g.committed == g.next for g in groups.values()]), "the subscriptions' records")

        def cuts() -> dict[tuple[int, str], int]:
            store = coordinator.server.store
            return {
                (group, record.filter): cut for group in groups for record, cut in store.tables.subscriptions(group)
            }

        before = cuts()
        assert {filter for _, filter in before} == {"a/b"}  # wildcards are interest alone
        routing = coordinator.server.routing
        peer = routing.peers["broker-0"]
        broker.cut_links()
        await eventually(lambda: routing.peers["broker-0"] is not peer, "a new link")
        await broker.publish(b"t/1", [b"x"])
        assert cuts() == before
        coordinator = await cluster.restart_coordinator()
        await broker.publish(b"t/1", [b"y"])  # answered on a resumed link
        assert cuts() == before
        stream = await broker.subscribe(b"t/#")
        await broker.publish(b"t/1", [b"z"])
        assert (await stream.arrived(1))[0].payload == b"z"


async def test_what_a_broker_was_subscribed_to_before_a_crash_of_both_is_ended(tmp_path: Path) -> None:
    async with Cluster(tmp_path) as cluster:
        coordinator = await cluster.start_coordinator()
        broker = await cluster.start_engine("broker-0")
        await broker.subscribe(b"a")
        group = topic_group(b"a", GROUPS)

        def recorded() -> list[tuple[str, int]]:
            found = coordinator.server.store.tables.subscriptions(group)
            return [(record.filter, record.incarnation) for record, _ in found if record.filter == "a"]

        await eventually(lambda: recorded() == [("a", broker.engine.incarnation)], "the subscription's record")
        await cluster.crash_coordinator()
        await cluster.stop_broker("broker-0")
        coordinator = await cluster.start_coordinator()
        assert recorded() == [("a", broker.engine.incarnation)]
        broker = await cluster.start_engine("broker-0")
        await eventually(lambda: recorded() == [], "the end of the old subscription")
        await broker.subscribe(b"a")
        await eventually(lambda: recorded() == [("a", broker.engine.incarnation)], "the new subscription's record")


async def test_a_broker_whose_link_is_full_falls_behind_and_is_brought_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peers, "LINK_BACKLOG_BYTES_MAX", 1 << 20)
    monkeypatch.setattr(past, "READ_STEP_BYTES", 1 << 18)
    async with Cluster(tmp_path) as cluster:
        coordinator = await cluster.start_coordinator()
        writer = await cluster.start_engine("writer")
        reader = await cluster.start_engine("reader")
        stream = await reader.subscribe(b"t/#")
        for pipeline in reader.engine.coordinators.pipelines.values():
            assert pipeline.link is not None
            pipeline.link.pause_reading()
        peer = coordinator.server.routing.peers["reader"]
        sent = 0
        while not peer.behind:
            await writer.publish(b"t/%d" % (sent % 5), [b"%d-" % sent + bytes(100_000)], qos=sent % 2)
            sent += 1
        for _ in range(30):
            await writer.publish(b"t/%d" % (sent % 5), [b"%d-" % sent + bytes(50_000)])
            sent += 1
        late = asyncio.create_task(reader.subscribe(b"t/+"))
        for pipeline in reader.engine.coordinators.pipelines.values():
            assert pipeline.link is not None
            pipeline.link.resume_reading()
        await late
        for _ in range(10):
            await writer.publish(b"t/%d" % (sent % 5), [b"%d-" % sent])
            sent += 1
        await stream.arrived(sent)
        assert in_order(stream.received)
        assert sorted(int(p.split(b"-")[0]) for p in stream.payloads()) == list(range(sent))
        await eventually(lambda: not peer.behind, "being live again")
        await late.result().arrived(10)
        assert in_order(late.result().received)


async def test_heads_never_overtake_the_blocks_they_speak_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with Cluster(tmp_path) as cluster:
        server = (await cluster.start_coordinator()).server
        reader = await cluster.start_engine("reader")
        stream = await reader.subscribe(b"a")
        offer = peers.BrokerPeer.offer

        def offer_and_tell(peer: peers.BrokerPeer, block: Block) -> None:
            offer(peer, block)
            server.led.tell_heads(peer)  # at the worst moment: offered, not sent yet

        monkeypatch.setattr(peers.BrokerPeer, "offer", offer_and_tell)
        await reader.publish(b"a", [b"1"])
        await stream.arrived(1)


async def test_a_broker_that_comes_back_while_it_is_being_served_is_served_anew(tmp_path: Path) -> None:
    async with Cluster(tmp_path) as cluster:
        server = (await cluster.start_coordinator()).server
        writer, reader = await cluster.start_engine("writer"), await cluster.start_engine("reader")
        stream = await reader.subscribe(b"a")
        await writer.publish(b"a", [b"0"])
        await stream.arrived(1)
        group = topic_group(b"a", GROUPS)
        reader.engine.live.heads[group] -= 1  # so that it has something to be told
        async with server.past.reading:  # it has to wait for its turn
            reader.cut_links()
            await eventually(lambda: group in server.routing.peers["reader"].behind, "being behind")
            await eventually(lambda: not server.routing.peers["reader"].registering, "being served")
            await writer.publish(b"a", [b"1"])
            served = server.routing.peers["reader"]
            reader.cut_links()
            await eventually(lambda: server.routing.peers["reader"] is not served, "the next link")
        await stream.arrived(3)
        assert stream.payloads() == [b"0", b"0", b"1"]
        await eventually(lambda: not server.routing.peers["reader"].behind, "being live again")


async def test_while_a_dictionary_is_fetched_nothing_is_lost_doubled_or_overtaken(tmp_path: Path) -> None:
    async with Cluster(tmp_path) as cluster:
        server = (await cluster.start_coordinator()).server
        writer, reader = await cluster.start_engine("writer"), await cluster.start_engine("reader")
        held = writer.engine.dictionaries.hold(Dictionary(b"a", ZSTD, b"the words of this topic " * 20).pack())
        streams = [await reader.subscribe(b"a")]
        await writer.publish(b"a", [b"before"])
        await streams[0].arrived(1)
        fetched = server.requests.at_once["dictionary"]
        server.requests.at_once["dictionary"] = unavailable
        encoded = writer.engine.recoder.encode(b"the words of this topic", held)
        assert encoded.dictionary == held.id
        await writer.publish(b"a", [encoded.data], dictionary=held.id)
        await writer.publish(b"a", [b"behind"])
        group = topic_group(b"a", GROUPS)
        await eventually(lambda: len(reader.engine.live.waiting.blocks.get(group, ())) == 2, "two blocks that wait")
        assert streams[0].payloads() == [b"before"]
        streams.append(await reader.subscribe(b"a", start={group: 0}))
        streams.append(await reader.subscribe(b"a", b"#", start={group: 0}))
        fresh = await reader.subscribe(b"+")
        await writer.publish(b"a", [b"last"])
        server.requests.at_once["dictionary"] = fetched
        wanted = [b"before", encoded.data, b"behind", b"last"]
        for stream in streams:
            await stream.arrived(4)
        await fresh.arrived(1)
        await writer.publish(b"a", [b"end"])
        for stream in streams:
            await stream.arrived(5)
            assert stream.payloads() == [*wanted, b"end"]
        await fresh.arrived(2)
        assert fresh.payloads() == [b"last", b"end"]


def unavailable(*arguments: Any) -> Any:
    raise UnavailableError("not now")


async def test_a_dictionary_that_nobody_has_holds_nothing_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with Cluster(tmp_path) as cluster:
        server = (await cluster.start_coordinator()).server
        writer, reader = await cluster.start_engine("writer"), await cluster.start_engine("reader")
        held = writer.engine.dictionaries.hold(Dictionary(b"a", ZSTD, b"the words of this topic " * 20).pack())
        stream = await reader.subscribe(b"a")
        server.requests.at_once["dictionary"] = lambda *arguments: None
        await writer.publish(b"a", [writer.engine.recoder.encode(b"the words", held).data], dictionary=held.id)
        await writer.publish(b"a", [b"behind"])
        assert (await stream.arrived(2))[1].payload == b"behind"
        other = writer.engine.dictionaries.hold(Dictionary(b"a", ZSTD, b"other words of this topic " * 20).pack())
        monkeypatch.setattr(stalled, "BLOCKS_MAX", 3)
        server.requests.at_once["dictionary"] = unavailable
        await writer.publish(b"a", [b"x"], dictionary=other.id)
        for i in range(3):
            await writer.publish(b"a", [b"%d" % i])
        await stream.arrived(6)
        assert stream.payloads()[2:] == [b"x", b"0", b"1", b"2"]


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


async def test_a_full_store_refuses_and_says_so_and_goes_on_when_there_is_room(tmp_path: Path) -> None:
    async with Cluster(tmp_path) as cluster:
        coordinator = await cluster.start_coordinator()
        broker = await cluster.start_engine("broker-0")
        stream = await broker.subscribe(b"a")
        coordinator.server.store.room = lambda: False  # type: ignore[method-assign]  # a full disk
        assert "disk reserve" in await broker.publish(b"a", [b"refused"])
        del coordinator.server.store.room
        assert isinstance(await broker.publish(b"a", [b"stored"]), tuple)
        await stream.arrived(1)
        assert stream.payloads() == [b"stored"]


async def test_what_is_beyond_the_stores_limits_is_refused_or_split(tmp_path: Path) -> None:
    options = replace(STORE, block_bytes_max=2 * MIB, commit_bytes_max=5 * MIB // 2)
    async with Cluster(tmp_path, options=options) as cluster:
        coordinator = await cluster.start_coordinator()
        broker = await cluster.start_engine("broker-0")
        stream = await broker.subscribe(b"t/#")
        assert "stored as one" in await broker.publish(b"t/1", [bytes(MIB), bytes(MIB)])
        coordinator.disk.hold()
        acks = []
        for i in range(12):
            acks.append(broker.publish_later(b"t/%d" % (i % 3), [b"%d" % i + bytes(900_000)]))
        coordinator.disk.release()
        await asyncio.gather(*acks)
        await stream.arrived(12)
        assert coordinator.server.led.failure is None


async def test_a_coordinator_whose_store_failed_answers_nothing_and_its_successor_everything(tmp_path: Path) -> None:
    async with Cluster(tmp_path) as cluster:
        coordinator = await cluster.start_coordinator()
        broker = await cluster.start_engine("broker-0")
        stream = await broker.subscribe(b"a")
        coordinator.disk.hold()
        acks = [broker.publish_later(b"a", [b"%d" % i]) for i in range(3)]
        await eventually(lambda: coordinator.disk.waiting > 0, "the commit")
        coordinator.disk.die()
        await eventually(lambda: coordinator.server.led.failure is not None, "the failure")
        assert not any(ack.done() for ack in acks)
        await cluster.restart_coordinator()
        assert all(isinstance(result, tuple) for result in await asyncio.gather(*acks))
        await stream.arrived(3)
        assert stream.payloads() == [b"0", b"1", b"2"]


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


async def test_an_entry_that_is_no_entry_is_refused_and_its_neighbours_are_stored(tmp_path: Path) -> None:
    async with Cluster(tmp_path) as cluster:
        await cluster.start_coordinator()
        broker = await cluster.start_engine("broker-0")
        stream = await broker.subscribe(b"a")
        bad = await broker.publish(b"a", [b"x"], qos=3)
        assert "out of range" in bad
        assert isinstance(await broker.publish(b"a", [b"y"]), tuple)
        await stream.arrived(1)


async def test_a_coordinator_that_does_not_answer_is_unavailable_and_leaves_nothing_behind(tmp_path: Path) -> None:
    config = Config().replaced(link__request_timeout_s=0.2)
    async with Cluster(tmp_path, config=config) as cluster:
        await cluster.start_coordinator()
        broker = await cluster.start_engine("broker-0")
        before = len(broker.engine.subscriptions.filters)
        await cluster.crash_coordinator()
        stream = Stream(broker.engine)
        with pytest.raises(UnavailableError, match="subscribe"):
            await broker.engine.subscriptions.subscribe(stream, {b"a/#": Grant()})
        assert len(broker.engine.subscriptions.filters) == before
        assert stream.subscriptions == {}
        await cluster.start_coordinator()


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


async def test_a_coordinator_whose_store_takes_no_more_ends(tmp_path: Path) -> None:
    told: list[Any] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: told.append(context["exception"]))
    async with Cluster(tmp_path) as cluster:
        coordinator = await cluster.start_coordinator()
        broker = await cluster.start_engine("broker-0")

        def fails(blocks: object, apply: object = None) -> None:
            raise StoreError("I/O error")

        coordinator.server.store.commit = fails  # type: ignore[method-assign]  # a disk that fails
        sent = broker.publish_later(b"a/b", [b"1"])
        await eventually(lambda: bool(told), "the end of the coordinator")
        sent.cancel()
    # What makes an actor's process end, so that Ray starts it again (`actors.loop.background`).
    assert isinstance(told[0], LoopEndedError)
    assert "I/O error" in str(told[0])


async def test_a_dictionary_that_the_full_disk_refused_takes_along_what_refers_to_it(tmp_path: Path) -> None:
    async with Cluster(tmp_path) as cluster:
        coordinator = await cluster.start_coordinator()
        broker = await cluster.start_engine("broker-0")
        stream = await broker.subscribe(b"a")
        held = broker.engine.dictionaries.hold(Dictionary(b"a", ZSTD, b"the words of this topic " * 20).pack())
        words = broker.engine.recoder.encode(b"the words", held).data
        disk, waiting = coordinator.disk, coordinator.server.led.committer
        commit, refusals = disk.write, iter([StoreFullError("another process has filled the disk")] * 2)

        def full_at_first(blocks: Sequence[Block | StoredBlock], apply: Mapping[int, int] | None = None) -> None:
            if error := next(refusals, None):  # the dictionary with its publication, then without it
                raise error
            commit(blocks, apply)

        await waiting.drain()  # the subscription's record
        disk.write = full_at_first
        disk.hold()
        first = broker.publish_later(b"a", [words], dictionary=held.id)
        await eventually(lambda: disk.waiting == 1)
        later = broker.publish_later(b"a", [words], dictionary=held.id)
        plain = broker.publish_later(b"a", [b"plain"])
        before = waiting.waiting_records
        await eventually(lambda: waiting.waiting_records > before)
        disk.release()
        async with asyncio.timeout(WAIT_S):
            assert "filled the disk" in await first
            assert not isinstance(await later, tuple)
            await plain
        assert isinstance(await broker.publish(b"a", [words], dictionary=held.id), tuple)
        await stream.arrived(1)
        assert coordinator.server.store.tables.dictionary(topic_group(b"a", GROUPS), held.id) is not None
