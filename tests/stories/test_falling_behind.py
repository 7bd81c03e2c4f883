"""Who falls behind, is cut off or asks for the past gets what it missed, in order: real stores, real links."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest

from lexicast.actors.broker.dictionaries import waiting_blocks as stalled
from lexicast.actors.coordinator import past, peers
from lexicast.cluster.blocks import Block
from lexicast.cluster.config.tables import Config
from lexicast.cluster.errors import UnavailableError
from lexicast.cluster.positions import topic_group
from lexicast.compression.codecs import ZSTD
from lexicast.compression.dictionary import Dictionary

from ..support.harness import (
    GROUPS,
    Cluster,
    Stream,
    eventually,
    in_order,
    numbered,
)


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
