"""Many that return at once, while others leave, subscribe, are slow, and publications go on: each gets all, once."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

from lexicast.actors.broker.catching_up import readers
from lexicast.actors.broker.encoding import Grant
from lexicast.actors.broker.subscriber import Subscriber

from ...support.harness import Cluster, EngineNode, Stream, eventually

GROUPS = 20
RETURNING = 30
BEFORE = 5


async def away(broker: EngineNode, *filters: bytes) -> Stream:
    """A session that was away from the beginning on, and takes nothing yet."""
    stream = Stream(broker.engine)
    stream.block()
    start = dict.fromkeys(range(GROUPS), 0)
    await broker.engine.subscriptions.subscribe(stream, dict.fromkeys(filters, Grant()), start=start)
    return stream


async def publish(broker: EngineNode, number: int) -> None:
    """One message to each, and one to all."""
    topics = [*[b"own/%d/x" % session for session in range(RETURNING)], b"all/x"]
    await asyncio.gather(*[broker.publish(topic, [b"%d" % number]) for topic in topics])


def numbers(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("share", [readers.AT_ONCE_SHARE, 1 << 30])
async def test_each_gets_all_that_it_missed_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, share: int
) -> None:
    """`share`: the past is at hand, or is too long for that."""
    monkeypatch.setattr(readers, "AT_ONCE_SHARE", share)
    chance = random.Random(seed)
    async with Cluster(tmp_path, groups=GROUPS) as cluster:
        await cluster.start_coordinator()
        broker = await cluster.start_engine("broker-0")
        for number in range(BEFORE):
            await publish(broker, number)
        streams = await asyncio.gather(*[away(broker, b"own/%d/#" % n, b"all/+") for n in range(RETURNING)])
        slow = {number for number in range(RETURNING) if chance.random() < 0.2}
        gone = {number for number in range(RETURNING) if chance.random() < 0.2}
        fewer = {number for number in range(RETURNING) if chance.random() < 0.2} - gone
        work = asyncio.create_task(publish(broker, BEFORE))
        for number, stream in enumerate(streams):
            stream.give_room(1 if number in slow else 1 << 60)
            if chance.random() < 0.3:
                await asyncio.sleep(0)
            if number in gone:
                broker.engine.subscriptions.leave(stream)
            if number in fewer:
                broker.engine.subscriptions.unsubscribe(stream, b"all/+")
        await work
        await publish(broker, BEFORE + 1)

        def all_there() -> bool:
            for number, stream in enumerate(streams):
                if number in slow and number not in gone and stream.blocked:
                    stream.give_room(2)
            return all(
                len(stream.payloads(b"own/%d/x" % number)) >= BEFORE + 2
                for number, stream in enumerate(streams)
                if number not in gone
            )

        await eventually(all_there, "what each missed")
        await eventually(
            lambda: all(
                all_there() and len(stream.payloads(b"all/x")) >= BEFORE + 2
                for number, stream in enumerate(streams)
                if number not in gone | fewer
            ),
            "what all missed",
        )
        for number, stream in enumerate(streams):
            own, shared = stream.payloads(b"own/%d/x" % number), stream.payloads(b"all/x")
            if number in gone:
                assert own == numbers(len(own))
            else:
                assert own == numbers(BEFORE + 2)
            assert shared == numbers(len(shared)) if number in gone | fewer else shared == numbers(BEFORE + 2)


async def test_a_group_in_which_nothing_was_missed_costs_a_session_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = 0
    caught_up = Subscriber.caught_up

    def counted(self: Subscriber, group: int) -> None:
        nonlocal left
        left += 1
        caught_up(self, group)

    monkeypatch.setattr(Subscriber, "caught_up", counted)
    async with Cluster(tmp_path, groups=GROUPS) as cluster:
        await cluster.start_coordinator()
        broker = await cluster.start_engine("broker-0")
        await publish(broker, 0)
        streams = await asyncio.gather(*[away(broker, b"own/%d/#" % n, b"all/+") for n in range(RETURNING)])
        for stream in streams:
            stream.give_room(1 << 60)
        for stream in streams:
            await stream.arrived(2)
        await eventually(lambda: not any(stream.lagging for stream in streams))
        assert left <= 2 * RETURNING  # it was each group of each session
