"""The Python client against a broker in memory, over real sockets: publishing, subscribing, losing the link."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

import lexicast
from lexicast.actors.client.client import Client
from lexicast.actors.client.publisher import QUEUE_RECORDS_MAX
from lexicast.actors.client.sent_window import WINDOW
from lexicast.cluster.errors import (
    AuthenticationError,
    IndexNotReadyError,
    PublishRefusedError,
    TopicError,
    UnavailableError,
    UsageError,
)
from lexicast.cluster.positions import Position, topic_group
from lexicast.testing import MemoryBroker

from ...support.harness import eventually

GROUPS = 4


class Broker(MemoryBroker):
    """One that can keep its acknowledgements back."""

    def __init__(self, **options: Any) -> None:
        super().__init__(GROUPS, **options)
        self.holding = False
        self.held: list[tuple[Any, int, Any]] = []
        self.received = asyncio.Event()
        self.answer_subscribe: Any = self.on_subscribe_plain

    def on_subscribe(self, *arguments: Any) -> Any:
        return self.answer_subscribe(*arguments)

    def on_subscribe_plain(self, *arguments: Any) -> dict[str, Any]:
        return super().on_subscribe(*arguments)

    def publish(self, link: Any, tag: int, entries: Any) -> None:
        self.received.set()
        if self.holding:
            self.held.append((link, tag, entries))
        else:
            super().publish(link, tag, entries)

    def release(self) -> None:
        self.holding = False
        for link, tag, entries in self.held:
            super().publish(link, tag, entries)
        self.held.clear()


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    broker = Broker()
    yield broker
    broker.close()


@asynccontextmanager
async def connected(broker: MemoryBroker, **options: Any) -> AsyncIterator[Client]:
    address = await broker.listen("tcp:127.0.0.1:0")
    async with asyncio.timeout(90), lexicast.connect(f"link:{address}", key=broker.key, **options) as bus:
        yield bus


async def take(subscription: lexicast.Subscription, count: int) -> list[bytes]:
    return [(await anext(subscription)).payload for _ in range(count)]


async def test_the_last_messages_are_waited_for_while_the_index_is_made_anew(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lexicast.actors.client.internals.INDEX_RETRY_S", 0.01)
    on_last, refusals = broker.on_last, 3

    def last(*arguments: Any) -> Any:
        nonlocal refusals
        refusals -= 1
        if refusals >= 0:
            raise IndexNotReadyError("the index is being made anew")
        return on_last(*arguments)

    monkeypatch.setattr(broker, "on_last", last)
    async with connected(broker, give_up_s=30.0) as bus:
        await bus.publish_many([("t", b"1"), ("t", b"2")])
        assert [m.payload async for m in bus.history("t", last=1)] == [b"2"]
    refusals = 1_000_000
    async with connected(broker, give_up_s=0.3) as bus:
        with pytest.raises(IndexNotReadyError, match="made anew"):
            _ = [m async for m in bus.history("t", last=1)]
    assert refusals > 1_000_000 - 50


# -- publishing


async def test_publish_returns_the_position_and_consecutive_ones_grow(broker: Broker) -> None:
    async with connected(broker) as bus:
        first = await bus.publish("a/b", b"1")
        second = await bus.publish("a/b", "2")
    assert first == Position(topic_group(b"a/b", GROUPS), 1, 1)
    assert second == first._replace(offset=2)


async def test_message_carries_everything_that_was_published(broker: Broker) -> None:
    properties = lexicast.Properties(
        user=(("unit", "km"), ("unit", "mi")), content_type="text/plain", response_topic="r", correlation_data=b"\0"
    )
    async with connected(broker, client_id="me") as bus, bus.subscribe("a/+") as subscription:
        position = await bus.publish("a/ü", "hällo", qos=2, expiry_s=5, properties=properties)
        message = await anext(subscription)
        await bus.publish("a/b", b"", properties={"k": "v"})
        plain = await anext(subscription)
    assert (message.topic, message.payload, message.qos) == ("a/ü", "hällo".encode(), 2)
    assert (message.position, message.publisher, message.retain) == (position, "me", False)
    assert message.properties == properties
    assert message.time.tzinfo is not None
    assert plain.properties is not None
    assert plain.properties.get("k") == "v"
    assert plain.payload == b""


async def test_what_is_published_while_the_window_is_full_joins_the_next_message(broker: Broker) -> None:
    async with connected(broker) as bus:
        broker.holding = True
        tasks = []
        for i in range(WINDOW):
            tasks.append(asyncio.create_task(bus.publish("t", b"%d" % i)))
            await eventually(lambda: len(broker.held) == len(tasks))
        tasks += [asyncio.create_task(bus.publish("t", b"late %d" % i)) for i in range(50)]
        for _ in range(3):  # whatever was sent meanwhile has arrived
            await bus.status()
        assert len(broker.held) == WINDOW
        broker.release()
        positions = await asyncio.gather(*tasks)
    assert [p.offset for p in positions] == list(range(1, WINDOW + 51))


async def test_publish_many_gives_positions_in_the_order_of_the_messages(broker: Broker) -> None:
    messages = [(f"t/{i % 7}", b"%d" % i) for i in range(10_000)]
    async with connected(broker) as bus, bus.subscribe("t/#") as subscription:
        positions = await bus.publish_many(iter(messages))
        by_position: dict[Position, tuple[str, bytes]] = {}
        while len(by_position) < len(messages):
            for message in await subscription.next_batch():
                by_position[message.position] = (message.topic, message.payload)
    assert [by_position[position] for position in positions] == messages


async def test_nothing_is_lost_or_doubled_when_links_break_under_way(broker: Broker) -> None:
    async with connected(broker) as bus, bus.subscribe("t/#") as subscription:
        publishing = asyncio.create_task(bus.publish_many((f"t/{i % 3}", b"%d" % i) for i in range(30_000)))
        got: dict[str, list[int]] = {}
        seen = 0
        while seen < 30_000:
            for message in await subscription.next_batch():
                got.setdefault(message.topic, []).append(int(message.payload))
                seen += 1
                if seen % 7_000 == 0:
                    broker.cut()
        positions = await publishing
        assert bus.statistics["links"] > 1
    assert len(set(positions)) == 30_000
    assert got == {f"t/{k}": list(range(k, 30_000, 3)) for k in range(3)}


async def test_unacknowledged_entries_are_sent_again_unchanged_and_stored_once(broker: Broker) -> None:
    async with connected(broker) as bus:
        broker.holding = True
        task = asyncio.create_task(bus.publish("t", b"once"))
        await eventually(lambda: broker.held)
        (_, _, entries), *_ = broker.held
        first = broker.store(entries)  # stored, but its acknowledgement is lost with the link
        broker.held.clear()
        broker.cut()
        await eventually(lambda: broker.held)
        assert broker.held[0][2] == entries
        broker.release()
        position = await task
        history = [m.payload async for m in bus.history("t")]
    assert first == [((1, 1, position.offset),)]
    assert history == [b"once"]


async def test_refused_publications_raise_and_the_others_are_stored(broker: Broker) -> None:
    bad = topic_group(b"bad", GROUPS)
    good = next(t for t in "abcdefgh" if topic_group(t.encode(), GROUPS) != bad)
    broker.refuse = lambda group: "the disk is full" if group == bad else None
    async with connected(broker) as bus:
        with pytest.raises(PublishRefusedError, match="the disk is full"):
            await bus.publish("bad", b"x")
        with pytest.raises(lexicast.PublishManyRefusedError, match=r"1 of 3 .*the disk is full") as caught:
            await bus.publish_many([(good, b"1"), ("bad", b"2"), (good, b"3")])
        assert [p is None for p in caught.value.positions] == [False, True, False]
        assert bus.statistics["refused"] == 2
        broker.refuse = lambda group: None
        assert (await bus.publish("bad", b"y")).group == bad


async def test_full_queue_makes_publishers_wait_and_nowait_raise(broker: Broker) -> None:
    async with connected(broker) as bus:
        broker.holding = True
        messages = [("t", b"")] * (3 * QUEUE_RECORDS_MAX)
        many = asyncio.ensure_future(bus.publish_many(messages))
        await eventually(lambda: not bus.internals.publisher._room.is_set())
        with pytest.raises(UnavailableError, match="wait already"):
            bus.publish_nowait("t", b"")
        waiting = asyncio.create_task(bus.publish("t", b"last"))
        await asyncio.sleep(0)
        assert not waiting.done()
        assert bus.statistics["unacknowledged"] < 1.8 * QUEUE_RECORDS_MAX
        broker.release()
        positions = await many
        assert len(positions) == 3 * QUEUE_RECORDS_MAX
        await waiting


@pytest.mark.parametrize(
    ("topic", "payload", "options", "error"),
    [
        ("a/+", b"", {}, TopicError),
        ("", b"", {}, TopicError),
        ("a\0", b"", {}, TopicError),
        ("\ud800", b"", {}, UsageError),
        ("a", {"not": "bytes"}, {}, UsageError),
        ("a", bytes(2 * 1024 * 1024), {}, UsageError),
        ("a", b"", {"qos": 3}, UsageError),
        ("a", b"", {"expiry_s": 0}, UsageError),
        ("a", b"", {"properties": {"a": 1}}, UsageError),
    ],
)
async def test_mistakes_of_the_caller_raise_and_change_nothing(
    broker: Broker, topic: str, payload: Any, options: dict[str, Any], error: type[Exception]
) -> None:
    async with connected(broker) as bus:
        with pytest.raises(error):
            await bus.publish(topic, payload, **options)
        with pytest.raises(error):
            await bus.publish_many([("fine", b"x"), (topic, payload)], **options)
        await bus.publish("fine", b"y")
        assert [m.payload async for m in bus.history("#")] == [b"y"]


@pytest.mark.parametrize("given", [["a/b"], ["ab"], {"ab": b"x"}, [("a", b"x", 1)], [7]], ids=str)
async def test_what_is_no_pair_is_told_and_nothing_of_it_published(broker: Broker, given: Any) -> None:
    async with connected(broker) as bus:
        with pytest.raises(UsageError, match=r"no \(topic, payload\) pair"):
            await bus.publish_many(given)
        assert [m async for m in bus.history("#")] == []


async def test_close_waits_for_acknowledgements(broker: Broker) -> None:
    async with connected(broker) as bus:
        bus.publish_nowait("t", b"late")
        await bus.flush()
        bus.publish_nowait("t", b"later")
    assert sum(block.count for log in broker._logs.values() for block in log) == 2
    with pytest.raises(UnavailableError, match="closed"):
        await bus.publish("t", b"")


# -- subscribing


async def test_retained_messages_come_first_and_only_from_before_the_cut(broker: Broker) -> None:
    async with connected(broker) as bus:
        await bus.publish("s/1", b"old", retain=True)
        await bus.publish("s/1", b"new", retain=True)
        await bus.publish("s/2", b"gone", retain=True)
        await bus.publish("s/2", b"", retain=True)
        async with bus.subscribe("s/+") as subscription:
            await bus.publish("s/1", b"live", retain=True)
            got = [await anext(subscription) for _ in range(2)]
    assert [(m.payload, m.retain) for m in got] == [(b"new", True), (b"live", False)]


async def test_retained_message_from_after_the_cut_is_not_given_twice(broker: Broker) -> None:
    async with connected(broker) as bus:
        positions = await bus.publish_many([("s", b"1"), ("s", b"2")], retain=True)  # in one block
        group = positions[1].group

        def late(*arguments: Any) -> dict[str, Any]:
            """The retained message is read a moment after the cut was taken, so that it is delivered live as well."""
            reply = broker.on_subscribe_plain(*arguments)
            return {"cursor": {**reply["cursor"], group: reply["cursor"][group] - 1}, "retained": reply["retained"]}

        broker.answer_subscribe = late
        async with bus.subscribe("s") as subscription:
            got = [await anext(subscription)]
            await bus.publish("s", b"3")
            got.append(await anext(subscription))
    assert [(m.payload, m.retain) for m in got] == [(b"2", False), (b"3", False)]


async def test_since_takes_positions_cursors_times_and_beginning(broker: Broker) -> None:
    async with connected(broker) as bus:
        positions = await bus.publish_many([("t", b"%d" % i) for i in range(5)])
        await bus.publish("other", b"x")
        after_two = (positions[2], str(positions[2]), {positions[0].group: positions[3].offset})
        for since in after_two:
            async with bus.subscribe("t", since=since) as subscription:
                assert await take(subscription, 2) == [b"3", b"4"]
        for start in ("beginning", "1h", "26w"):
            async with bus.subscribe("t", since=start) as subscription:
                assert await take(subscription, 5) == [b"%d" % i for i in range(5)]
        with pytest.raises(UsageError, match="exact topic alone"):
            bus.subscribe("+", since=positions[0])
        with pytest.raises(UsageError, match="group"):
            bus.subscribe("t", since=positions[0]._replace(group=positions[0].group + 1))


async def test_cursor_resumes_a_wildcard_without_loss_or_duplicate(broker: Broker) -> None:
    async with connected(broker) as bus:
        async with bus.subscribe("t/#") as subscription:
            await bus.publish_many([(f"t/{i}", b"%d" % i) for i in range(20)])
            first = set(await take(subscription, 7))
            cursor = subscription.cursor
        await bus.publish_many([(f"t/{i}", b"%d" % i) for i in range(20, 30)])
        async with bus.subscribe("t/#", since=cursor) as subscription:
            rest = await take(subscription, 23)
    assert first.isdisjoint(rest)
    assert first | set(rest) == {b"%d" % i for i in range(30)}


async def test_slow_consumer_lets_go_of_its_stream_and_catches_up(broker: Broker) -> None:
    async with connected(broker) as bus:
        slow = bus.subscribe("t", buffer_bytes=20_000)
        quick = bus.subscribe("t")
        async with slow, quick:
            for start in range(0, 3_000, 100):
                await bus.publish_many([("t", b"%d" % i) for i in range(start, start + 100)])
            await eventually(lambda: len(broker.streams) == 1)
            assert slow.feed._buffered < 40_000
            assert await take(quick, 3_000) == [b"%d" % i for i in range(3_000)]
            assert await take(slow, 3_000) == [b"%d" % i for i in range(3_000)]
            await bus.publish("t", b"live again")
            assert await take(slow, 1) == [b"live again"]


async def test_slow_drop_counts_what_it_drops(broker: Broker) -> None:
    async with connected(broker) as bus, bus.subscribe("t", slow="drop", buffer_bytes=5_000) as subscription:
        for start in range(0, 2_000, 100):
            await bus.publish_many([("t", b"%d" % i) for i in range(start, start + 100)])
        await bus.publish("t", b"end")
        got = len(await subscription.next_batch())
        while subscription.feed._buffer:
            got += len(await subscription.next_batch())
    assert subscription.dropped > 0
    assert got + subscription.dropped == 2_001


async def test_repeats_are_dropped_by_position(broker: Broker) -> None:
    async with connected(broker) as bus, bus.subscribe("t") as subscription:
        await bus.publish_many([("t", b"1"), ("t", b"2")])
        ((link, stream),) = broker.streams
        broker._replay(link, stream, (b"t",), dict.fromkeys(range(GROUPS), 0))
        await bus.publish("t", b"3")
        assert await take(subscription, 3) == [b"1", b"2", b"3"]
    assert subscription.feed.repeats == 2


async def test_until_in_the_past_reads_history_and_ends(broker: Broker) -> None:
    async with connected(broker) as bus:
        await bus.publish_many([("t", b"%d" % i) for i in range(3)])
        async with asyncio.timeout(60):
            got = [m.payload async for m in bus.subscribe("t", since="beginning", until="now")]
        assert [m async for m in bus.subscribe("t", until="1h")] == []
    assert got == [b"0", b"1", b"2"]


async def test_break_out_of_a_loop_lets_the_broker_forget_the_stream(broker: Broker) -> None:
    async with connected(broker) as bus:
        await bus.publish("t", b"1")
        async for message in bus.subscribe("t", since="beginning"):
            assert message.payload == b"1"
            break
        gc.collect()
        await eventually(lambda: not broker.streams)


async def test_cancelled_wait_loses_nothing(broker: Broker) -> None:
    async with connected(broker) as bus, bus.subscribe("t") as subscription:
        for i in range(3):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.01):
                    await anext(subscription)
            await bus.publish("t", b"%d" % i)
            assert await take(subscription, 1) == [b"%d" % i]


async def test_refused_subscription_raises(broker: Broker) -> None:
    async with connected(broker) as bus:
        with pytest.raises(TopicError):
            bus.subscribe("a/#/b")
        with pytest.raises(UsageError, match="group="):
            bus.subscribe("$share/g/a")
        broker.answer_subscribe = refuse
        with pytest.raises(UnavailableError, match="not today"):
            await anext(bus.subscribe("a"))


def refuse(*arguments: Any) -> Any:
    raise UnavailableError("not today")


async def test_held_subscription_outlives_a_refusal_while_the_broker_recovers(broker: Broker) -> None:
    async with connected(broker) as bus, bus.subscribe("t") as subscription:
        broker.answer_subscribe = refuse
        broker.cut()
        waiting = asyncio.create_task(take(subscription, 1))
        await eventually(lambda: [m for m, _ in broker.requests].count("subscribe") >= 2)
        broker.answer_subscribe = broker.on_subscribe_plain
        await bus.publish("t", b"1")
        assert await waiting == [b"1"]


async def test_history_is_paged_and_limited(broker: Broker) -> None:
    broker.history_bytes = 1_000
    async with connected(broker) as bus:
        for i in range(40):
            await bus.publish(f"t/{i % 5}", b"%d" % i + bytes(100), retain=i == 7)
        everything = [m async for m in bus.history("t/#")]
        assert [m.payload[:2] async for m in bus.history("t/1", limit=3)] == [b"1\0", b"6\0", b"11"]
        assert [m async for m in bus.history("t/1", limit=0)] == []
        with pytest.raises(UsageError):
            await anext(bus.history("t", limit=-1))
    assert len({m.position for m in everything}) == 40
    assert [m.payload[:1] for m in everything if m.retain] == [b"7"]
    assert [m for m, _ in broker.requests].count("history") > 5


# -- life


async def test_wrong_key_is_refused_at_once(broker: Broker) -> None:
    address = await broker.listen("tcp:127.0.0.1:0")
    with pytest.raises((AuthenticationError, UnavailableError)):
        async with lexicast.connect(f"link:{address}", key=b"wrong" * 8):
            pass


async def test_no_broker_is_one_clear_error() -> None:
    with pytest.raises(UnavailableError, match="no broker can be reached"):
        async with lexicast.connect("link:unix:/nonexistent/socket", key=b"k"):
            pass


async def test_use_before_connecting_is_a_clear_error() -> None:
    bus = lexicast.connect("link:unix:/nonexistent/socket", key=b"k")
    with pytest.raises(UsageError, match="async with"):
        await bus.publish("t", b"")
    with pytest.raises(UsageError, match="async with"):
        bus.subscribe("t")


async def test_give_up_fails_everything_that_waits(broker: Broker) -> None:
    async with connected(broker, give_up_s=0.1) as bus:
        subscription = bus.subscribe("t")
        async with subscription:
            waiting = asyncio.create_task(anext(subscription))
            broker.holding = True
            publishing = asyncio.create_task(bus.publish("t", b""))
            await eventually(lambda: broker.held)
            broker.close()
            for task in (waiting, publishing):
                with pytest.raises(UnavailableError, match="no broker for"):
                    await task
        with pytest.raises(UnavailableError, match="no broker for"):
            await bus.publish("t", b"")


async def test_another_cluster_at_the_same_address_is_refused(broker: Broker) -> None:
    async with connected(broker, give_up_s=0.1) as bus:
        broker.cluster_id, broker.groups = "another", 9
        for server in broker._servers:
            server.close()
        host, _, port = bus.broker_name.rpartition(":")
        await broker.listen(f"{host}:{port}")
        broker.cut()
        with pytest.raises(UnavailableError, match="another cluster"):
            await bus.publish("t", b"")


async def test_status_and_broker_handle(broker: Broker) -> None:
    async with connected(broker) as bus:
        assert (await bus.status())["broker"] == "memory"
        with pytest.raises(UnavailableError, match="actor handle"):
            _ = bus.broker


async def test_client_that_a_broker_sends_nonsense_comes_back(broker: Broker) -> None:
    async with connected(broker) as bus, bus.subscribe("t") as subscription:
        for nonsense in ((99,), (2, 77, []), (3,), (7, b"not a dictionary"), (3, 1, [(1, 2)])):
            broker.links[0].send(nonsense)
            await bus.publish("t", b"1")
            assert await take(subscription, 1) == [b"1"]


async def test_next_batch_gives_all_that_is_at_hand(broker: Broker) -> None:
    async with connected(broker) as bus, bus.subscribe("t/#") as subscription:
        for at in range(3):  # a block each
            await bus.publish(f"t/{at}", b"%d" % at)
        await bus.status()  # what was sent before the answer has arrived
        batch = await subscription.next_batch()
        assert [m.payload for m in batch] == [b"0", b"1", b"2"]
        cursor = subscription.cursor
        await bus.publish("t/3", b"3")
        async with bus.subscribe("t/#", since=cursor) as rest:
            assert [m.payload for m in await rest.next_batch()] == [b"3"]
