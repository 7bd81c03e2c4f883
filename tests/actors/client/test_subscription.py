"""Batches of so many, time limits and callbacks of subscriptions, awaited and blocking; headers of messages."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from pathlib import Path
from random import Random

import pytest

import lexicast
from lexicast import sync
from lexicast.cluster.errors import TopicError, UsageError
from lexicast.testing import MemoryBroker

from ...support.harness import eventually

LONG_S = 60.0


@pytest.fixture
async def bus(broker: MemoryBroker, tmp_path: Path) -> AsyncIterator[lexicast.Client]:
    async with lexicast.connect(f"link:unix:{tmp_path}/s", key=broker.key, give_up_s=LONG_S) as made:
        yield made


@pytest.fixture
def blocking() -> Iterator[sync.SyncClient]:
    """A blocking client, its broker in an event loop of its own."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    made = MemoryBroker(4)
    address = asyncio.run_coroutine_threadsafe(made.listen("tcp:127.0.0.1:0"), loop).result(LONG_S)
    with sync.connect(f"link:{address}", key=made.key) as bus:
        yield bus

    async def end() -> None:
        made.close()
        await asyncio.sleep(0)  # lets the transports close

    asyncio.run_coroutine_threadsafe(end(), loop).result(LONG_S)
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


# -- batches


async def test_batches_of_so_many_lose_and_repeat_nothing_and_their_cursor_is_true(bus: lexicast.Client) -> None:
    await asyncio.gather(*[take_by_steps(bus, f"t{seed}", Random(seed)) for seed in range(20)])


async def take_by_steps(bus: lexicast.Client, level: str, random: Random) -> None:
    """A step of 0 takes one message by iteration. Whoever goes on at the cursor has the rest."""
    for at in range(4):  # blocks of several topic groups
        await bus.publish_many([(f"{level}/{n % 3}", b"%d" % (10 * at + n)) for n in range(6)])
    got: list[lexicast.Message] = []
    async with bus.subscribe(f"{level}/#", since="beginning") as subscription:
        for most in random.choices([0, 1, 2, 3, 7, 100], k=random.randrange(12)):
            if len(got) == 24:
                break
            batch = await subscription.next_batch(most) if most else [await anext(subscription)]
            assert 1 <= len(batch) <= max(1, most)
            got += batch
        cursor = subscription.cursor
    rest = [message async for message in bus.subscribe(f"{level}/#", since=cursor, until="now")]
    assert len(got) + len(rest) == 24
    assert {int(message.payload) for message in [*got, *rest]} == {10 * at + n for at in range(4) for n in range(6)}


async def test_a_batch_that_does_not_come_in_time_is_empty_and_loses_nothing(bus: lexicast.Client) -> None:
    async with bus.subscribe("t") as subscription:
        assert await subscription.next_batch(timeout_s=0.01) == []
        position = await bus.publish("t", "1")
        (message,) = await subscription.next_batch(timeout_s=LONG_S)
        assert message.position == position
        assert await subscription.next_batch(timeout_s=0.0) == []
        with pytest.raises(UsageError, match="most"):
            await subscription.next_batch(0)
        await subscription.close()
        with pytest.raises(StopAsyncIteration):
            await subscription.next_batch(timeout_s=LONG_S)


def test_batches_of_the_blocking_client(blocking: sync.SyncClient) -> None:
    with blocking.subscribe("t") as subscription:
        assert subscription.next_batch(timeout_s=0.01) == []
        blocking.publish_many([("t", b"%d" % n) for n in range(10)])
        got = [next(subscription).payload]
        for most in (2, 3):
            batch = subscription.next_batch(most, timeout_s=LONG_S)
            assert 1 <= len(batch) <= most
            got += [message.payload for message in batch]
        cursor = subscription.cursor
        assert subscription.position == batch[-1].position
        while len(got) < 10:
            got.append(next(subscription).payload)
        assert got == [b"%d" % n for n in range(10)]
        left = [message.payload for message in blocking.subscribe("t", since=cursor, until="now")]
        assert left == got[-len(left) :]
        assert len(left) == 9 - int(batch[-1].payload)
        subscription.close()
        with pytest.raises(StopIteration):
            subscription.next_batch()


# -- callbacks


async def test_callbacks_are_called_and_awaited_one_after_the_other(bus: lexicast.Client) -> None:
    called: list[bytes] = []

    async def slow(message: lexicast.Message) -> None:
        await asyncio.sleep(0)
        called.append(message.payload)

    subscriptions = [bus.subscribe("t"), bus.subscribe("t")]
    calling = [
        asyncio.create_task(subscriptions[0].call(slow)),
        asyncio.create_task(subscriptions[1].call(lambda message: called.append(message.payload))),
    ]
    await eventually(lambda: all([each.cursor for each in subscriptions]), "both to be registered")
    await bus.publish_many([("t", b"%d" % n) for n in range(5)])
    await eventually(lambda: len(called) == 10)
    assert [each for each in called if called.count(each) == 2] == called
    for each in subscriptions:
        await each.close()
    await asyncio.gather(*calling)


async def test_what_a_callback_raises_closes_the_subscription_and_is_raised(bus: lexicast.Client) -> None:
    await bus.publish("t", "no number")
    subscription = bus.subscribe("t", since="beginning")
    with pytest.raises(ValueError, match="invalid literal"):
        await subscription.call(lambda message: int(message.payload))
    with pytest.raises(StopAsyncIteration):
        await anext(subscription)


def test_callbacks_in_a_thread_of_their_own(blocking: sync.SyncClient) -> None:
    here, called = threading.get_ident(), list[tuple[bytes, bool]]()
    arrived = threading.Semaphore(0)

    def handle(message: lexicast.Message) -> None:
        called.append((message.payload, threading.get_ident() == here))
        blocking.publish("answers", message.payload)  # it may use the client
        arrived.release()

    with blocking.subscribe("t").start(handle) as subscription:
        blocking.publish_many([("t", b"1"), ("t", b"2")])
        for _ in range(2):
            assert arrived.acquire(timeout=LONG_S)
        with pytest.raises(UsageError, match="one callback"):
            subscription.start(handle)
    assert called == [(b"1", False), (b"2", False)]
    assert not [thread for thread in threading.enumerate() if thread.name == "lexicast-callback"]
    assert [message.payload for message in blocking.history("answers")] == [b"1", b"2"]


def test_what_a_callback_of_a_thread_raises_is_logged_and_raised_at_the_end(
    blocking: sync.SyncClient, caplog: pytest.LogCaptureFixture
) -> None:
    failing = threading.Event()

    def handle(message: lexicast.Message) -> None:
        failing.set()
        int(message.payload)

    blocking.publish("t", "no number")
    with pytest.raises(ValueError, match="invalid literal"), blocking.subscribe("t", since="beginning").start(handle):
        assert failing.wait(LONG_S)
    assert "the callback of t has ended" in caplog.text
    # What the block raises itself goes before.
    failing.clear()
    with suppress(KeyError), blocking.subscribe("t", since="beginning").start(handle):
        assert failing.wait(LONG_S)
        raise KeyError
    # In this thread it is raised at once.
    with pytest.raises(ValueError, match="invalid literal"):
        blocking.subscribe("t", since="beginning").call(handle)


def test_callbacks_end_with_their_client(blocking: sync.SyncClient, caplog: pytest.LogCaptureFixture) -> None:
    blocking.subscribe("t").start(lambda message: None)
    ended = blocking.subscribe("t").start(lambda message: ended.close())  # it may end itself
    blocking.publish_nowait("t", "1")
    (caller,) = [each for each in [ended._caller] if each is not None]
    caller.join(LONG_S)
    assert not caller.is_alive()
    blocking.close()
    for thread in [each for each in threading.enumerate() if each.name == "lexicast-callback"]:
        thread.join(LONG_S)
        assert not thread.is_alive()
    assert caplog.text == ""


# -- messages


async def test_headers_and_filters_of_messages(bus: lexicast.Client) -> None:
    twice = lexicast.Properties(user=(("unit", "km"), ("of", "1"), ("unit", "mi")))
    async with bus.subscribe("a/#") as subscription:
        await bus.publish("a/b", "1")
        await bus.publish("a/b", "2", properties=twice)
        plain, carrying = [await anext(subscription) for _ in range(2)]
    assert (plain.headers, carrying.headers) == ({}, {"unit": "km", "of": "1"})
    assert [plain.matches(each) for each in ("a/b", "a/+", "#", "a", "+", "b/#")] == [True] * 3 + [False] * 3
    with pytest.raises(TopicError):
        plain.matches("a#")
