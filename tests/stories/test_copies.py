"""Groups with two copies: followers, joiners, and another coordinator that leads when one is lost.

Everything runs in one event loop: real stores, real links (`tests.support.harness`).
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from lexicast.cluster.blocks import PUBLICATIONS, Block
from lexicast.cluster.errors import StoreFullError
from lexicast.cluster.positions import topic_group
from lexicast.compression.codecs import ZSTD
from lexicast.compression.dictionary import Dictionary
from lexicast.storage.log.stored_block import StoredBlock
from lexicast.storage.set_aside import read_set_aside
from lexicast.storage.store import Store

from ..support.harness import GROUPS, WAIT_S, Cluster, Shifted, eventually

BOTH = ("coordinator-0", "coordinator-1")


def states(cluster: Cluster) -> dict[int, list[Any]]:
    """[epoch, leader, in-sync set] of each group."""
    found: dict[int, list[Any]] = cluster.coordination.status()["group_states"]
    return found


def in_sync(cluster: Cluster) -> list[int]:
    """How many members each group has."""
    return [len(members) for _, _, members in states(cluster).values()]


def alike(stores: list[Store], group: int) -> bool:
    """Whether all have applied as much of a group."""
    return len({store.applied_below(group) for store in stores}) == 1 and stores[0].applied_below(group) > 0


async def two(cluster: Cluster) -> None:
    """Start both coordinators; returns when every group has two copies."""
    await asyncio.gather(*[cluster.start_coordinator(name) for name in BOTH])
    await eventually(lambda: set(in_sync(cluster)) == {2}, "two copies of each group")


async def test_every_group_gets_a_second_copy_that_has_what_is_committed(tmp_path: Path) -> None:
    async with Cluster(tmp_path, coordinators=BOTH, copies=2) as cluster:
        await asyncio.gather(*[cluster.start_coordinator(name) for name in BOTH])
        broker = await cluster.start_engine("broker-0")
        await broker.publish(b"before/the/copy", [b"1", b"2"], qos=1)
        await eventually(lambda: set(in_sync(cluster)) == {2}, "two copies of each group")
        for i in range(20):
            await broker.publish(b"a/%d" % i, [b"x%d" % i], qos=1)
        stores = [cluster.coordinators[name].server.store for name in BOTH]
        for group in states(cluster):
            await eventually(partial(alike, stores, group), "both copies to be alike")
            logs = [[value for _, value in store.stored(group, 0, 1 << 20)] for store in stores]
            assert logs[0] == logs[1]


async def test_another_coordinator_leads_when_one_is_lost_and_nothing_acknowledged_is(tmp_path: Path) -> None:
    async with Cluster(tmp_path, coordinators=BOTH, copies=2) as cluster:
        await two(cluster)
        broker = await cluster.start_engine("broker-0")
        stream = await broker.subscribe(b"#")
        sent = []
        for i in range(30):
            payload = b"before %d" % i
            await broker.publish(b"t/%d" % (i % 8), [payload], qos=1)
            sent.append(payload)
        under_way = [broker.publish_later(b"t/%d" % (i % 8), [b"during %d" % i], qos=1) for i in range(30)]
        await cluster.lose_coordinator(BOTH[0])
        await asyncio.gather(*under_way)
        sent += [b"during %d" % i for i in range(30)]
        for i in range(30):
            payload = b"after %d" % i
            await broker.publish(b"t/%d" % (i % 8), [payload], qos=1)
            sent.append(payload)
        assert {leader for _, leader, _ in states(cluster).values()} == {BOTH[1]}
        records = await stream.arrived(len(sent))
        assert sorted(record.payload for record in records) == sorted(sent)
        places = [(record.group, record.offset) for record in records]
        assert len(set(places)) == len(places)
        for group in {group for group, _ in places}:
            offsets = [offset for own, offset in places if own == group]
            assert offsets == sorted(offsets)


async def test_one_that_comes_back_follows_and_may_lead_again(tmp_path: Path) -> None:
    async with Cluster(tmp_path, coordinators=BOTH, copies=2) as cluster:
        await two(cluster)
        broker = await cluster.start_engine("broker-0")
        stream = await broker.subscribe(b"#")
        sent = 0
        for turn in range(3):
            lost, other = BOTH[turn % 2], BOTH[1 - turn % 2]
            for i in range(10):
                await broker.publish(b"t/%d" % i, [b"%d/%d" % (turn, i)], qos=1)
                sent += 1
            await cluster.lose_coordinator(lost)
            for i in range(10):
                await broker.publish(b"t/%d" % i, [b"%d/%d again" % (turn, i)], qos=1)
                sent += 1
            assert all([leader, members] == [other, [other]] for _, leader, members in states(cluster).values())
            await cluster.start_coordinator(lost)
            await eventually(lambda: set(in_sync(cluster)) == {2}, "two copies of each group")
        records = await stream.arrived(sent)
        assert len({record.payload for record in records}) == sent


async def test_a_lost_follower_is_dropped_and_publishing_goes_on(tmp_path: Path) -> None:
    async with Cluster(tmp_path, coordinators=BOTH, copies=2) as cluster:
        await two(cluster)
        broker = await cluster.start_engine("broker-0")
        await broker.publish(b"a", [b"1"], qos=1)
        leader = states(cluster)[broker.engine.coordinators.group_of(b"a")][1]
        await cluster.crash_coordinator(next(name for name in BOTH if name != leader))
        await broker.publish(b"a", [b"2"], qos=1)


async def test_a_followers_full_disk_takes_nothing_of_other_groups_along(tmp_path: Path) -> None:
    async with Cluster(tmp_path, coordinators=BOTH, copies=2) as cluster:
        await two(cluster)
        broker = await cluster.start_engine("broker-0")
        leads = {group: state[1] for group, state in states(cluster).items()}
        topics = {broker.engine.coordinators.group_of(topic): topic for topic in [b"t/%d" % i for i in range(64)]}
        plain, worded = [topics[group] for group in sorted(topics) if leads[group] == BOTH[0]][:2]
        held = broker.engine.dictionaries.hold(Dictionary(worded, ZSTD, b"the words of this topic " * 20).pack())
        words = broker.engine.recoder.encode(b"the words", held).data
        await broker.publish(worded, [words], qos=1, dictionary=held.id)
        follower = cluster.coordinators[BOTH[1]]
        disk, committer = follower.disk, follower.server.led.committer
        commit, refusals = disk.write, iter([StoreFullError("another process has filled the disk")] * 2)

        def full_at_first(blocks: Sequence[Block | StoredBlock], apply: Mapping[int, int] | None = None) -> None:
            if error := next(refusals, None):
                raise error
            commit(blocks, apply)

        disk.write = full_at_first
        disk.hold()
        first = broker.publish_later(plain, [b"refused"], qos=1)
        await eventually(lambda: disk.waiting == 1, "the block at the follower's disk")
        before = committer.waiting_records
        second = broker.publish_later(worded, [words], qos=1, dictionary=held.id)
        await eventually(lambda: committer.waiting_records > before, "the block behind it")
        disk.release()
        async with asyncio.timeout(WAIT_S):
            assert all(isinstance(result, tuple) for result in await asyncio.gather(first, second))
        await eventually(lambda: set(in_sync(cluster)) == {2}, "two copies of each group")


async def test_leaderships_are_evened_out_while_brokers_publish_and_nothing_is_lost(tmp_path: Path) -> None:
    async with Cluster(tmp_path, coordinators=BOTH, copies=2) as cluster:
        await two(cluster)
        await cluster.lose_coordinator(BOTH[0])
        await cluster.start_coordinator(BOTH[0])
        await eventually(lambda: set(in_sync(cluster)) == {2}, "two copies of each group")
        broker = await cluster.start_engine("broker-0")
        stream = await broker.subscribe(b"#")
        sent, moved = [], 0
        for i in range(20):
            under_way = [broker.publish_later(b"t/%d" % j, [b"%d/%d" % (i, j)], qos=1) for j in range(16)]
            sent += [b"%d/%d" % (i, j) for j in range(16)]
            moved += len(cluster.coordination.balance(1))
            await asyncio.gather(*under_way)
        leaders = [state[1] for state in cluster.coordination.status()["group_states"].values()]
        assert moved == len(leaders) // 2
        assert sorted(leaders) == sorted(BOTH * moved)
        records = await stream.arrived(len(sent))
        assert sorted(record.payload for record in records) == sorted(sent)
        for group in {record.group for record in records}:
            offsets = [record.offset for record in records if record.group == group]
            assert offsets == sorted(set(offsets))


async def test_a_store_that_went_another_way_keeps_that_in_a_file_and_follows_anew(tmp_path: Path) -> None:
    """A leader's store is put back to what it was before: what the follower has beyond is what no leader has."""
    async with Cluster(tmp_path, coordinators=BOTH, copies=2) as cluster:
        await two(cluster)
        broker = await cluster.start_engine("broker-0")
        for i in range(16):
            await broker.publish(b"t/%d" % i, [b"before %d" % i], qos=1)
        for name in BOTH:
            await cluster.crash_coordinator(name)
        shutil.copytree(tmp_path / BOTH[0], tmp_path / "backup")
        await asyncio.gather(*[cluster.start_coordinator(name) for name in BOTH])
        await eventually(lambda: set(in_sync(cluster)) == {2}, "two copies of each group")
        for i in range(16):
            await broker.publish(b"t/%d" % i, [b"lost %d" % i], qos=1)
        stores = [cluster.coordinators[name].server.store for name in BOTH]
        for group in states(cluster):
            await eventually(partial(alike, stores, group), "both copies to be alike")
        led = [group for group, (_, leader, _) in states(cluster).items() if leader == BOTH[0]]
        lost = {b"lost %d" % i for i in range(16) if topic_group(b"t/%d" % i, GROUPS) in led}
        for name in BOTH:
            await cluster.crash_coordinator(name)
        shutil.rmtree(tmp_path / BOTH[0])
        shutil.copytree(tmp_path / "backup", tmp_path / BOTH[0])
        await asyncio.gather(*[cluster.start_coordinator(name) for name in BOTH])
        await eventually(lambda: set(in_sync(cluster)) == {2}, "two copies of each group")
        for i in range(16):
            await broker.publish(b"t/%d" % i, [b"after %d" % i], qos=1)
        stores = [cluster.coordinators[name].server.store for name in BOTH]
        for group in states(cluster):
            await eventually(partial(alike, stores, group), "both copies to be alike")
            logs = [[value for _, value in store.stored(group, 0, 1 << 20)] for store in stores]
            assert logs[0] == logs[1]
        files = cluster.coordinators[BOTH[1]].server.status()["copies"]["set_aside"]
        assert len(files) == len(led)
        kept = [block for name in files for block in read_set_aside(tmp_path / BOTH[1] / name)]
        payloads = {bytes(payload) for block in kept if block.kind == PUBLICATIONS for payload in block.payloads()}
        assert payloads == lost
        assert lost
        assert cluster.coordinators[BOTH[0]].server.status()["copies"]["set_aside"] == []
        await cluster.lose_coordinator(BOTH[0])  # and what it has is enough to lead
        for i in range(16):
            await broker.publish(b"t/%d" % i, [b"last %d" % i], qos=1)


async def test_a_joiner_counts_where_nothing_is_left_of_the_end_of_its_leaders_log(tmp_path: Path) -> None:
    """Without another block; and it knows the offsets that were given, should it lead."""
    clock = Shifted()
    async with Cluster(tmp_path, coordinators=BOTH, copies=2, clock=clock) as cluster:
        await two(cluster)
        broker = await cluster.start_engine("broker-0")
        await cluster.lose_coordinator(BOTH[1])
        for i in range(16):
            await broker.publish(b"t/%d" % i, [b"short-lived"], qos=1, expiry_ms=1_000)
        store = cluster.coordinators[BOTH[0]].server.store
        used = {topic_group(b"t/%d" % i, GROUPS) for i in range(16)}
        lasts = {group: store.applied_end(group)[1] for group in used}
        clock.ahead_s = 3_600.0

        def discarded() -> bool:
            return all(
                (store.stored(group, last, 1) or [(last + 1, b"")])[0][0] > last for group, last in lasts.items()
            )

        await eventually(discarded, "expiry")
        await cluster.start_coordinator(BOTH[1])
        await eventually(lambda: set(in_sync(cluster)) == {2}, "two copies of each group")
        other = cluster.coordinators[BOTH[1]].server.store
        assert {group: other.applied_end(group) for group in lasts} == {g: store.applied_end(g) for g in lasts}
        await cluster.lose_coordinator(BOTH[0])
        for i in range(16):
            await broker.publish(b"t/%d" % i, [b"after"], qos=1)
        await cluster.restart_coordinator(BOTH[1])
        assert all(other.applied_end(group)[1] > last for group, last in lasts.items())


async def test_what_was_delivered_is_found_again_before_it_is_in_the_log(tmp_path: Path) -> None:
    """A broker asks for it, to send it again to a client that has come back, and takes what is not there for gone."""
    async with Cluster(tmp_path, coordinators=BOTH, copies=2) as cluster:
        await two(cluster)
        broker = await cluster.start_engine("broker-0")
        group = topic_group(b"a", GROUPS)
        server = cluster.coordinators[states(cluster)[group][1]].server
        for _ in range(100):  # the log follows a tenth of a second later, if this process is not held up meanwhile
            ((_, _, offset),) = await broker.publish(b"a", [b"payload"], qos=1)
            if server.sequencer.groups[group].applied <= offset:
                break
        else:
            raise AssertionError("whatever is acknowledged is in the log at once")
        found = server.past.records(server.routing.peers["broker-0"], group, [offset, offset + 1])
        assert [record.payload for wire in found for record in Block.from_wire(wire).records()] == [b"payload"]
