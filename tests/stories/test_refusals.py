"""What a coordinator refuses, and what becomes of what it was asked for when it or its store fails."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lexicast.actors.broker.encoding import Grant
from lexicast.actors.loop.background import LoopEndedError
from lexicast.cluster.blocks import Block
from lexicast.cluster.config.tables import Config
from lexicast.cluster.errors import StoreError, StoreFullError, UnavailableError
from lexicast.cluster.positions import topic_group
from lexicast.compression.codecs import ZSTD
from lexicast.compression.dictionary import Dictionary
from lexicast.storage.log.stored_block import StoredBlock

from ..support.harness import (
    GROUPS,
    MIB,
    STORE,
    WAIT_S,
    Cluster,
    Stream,
    eventually,
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
