"""Batches of Python clients: what waits for a while crosses a TCP link compressed as one, and is stored as it is."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

import lexicast
from lexicast.actors.client.client import Client
from lexicast.cluster.errors import UsageError
from lexicast.cluster.protocol.messages import PACKED, PUBLISH

from ...support.aware_devices import python_client
from ...support.mqtt_harness import WAIT_S, Served, served

LONG_S = 30.0


def text(number: int) -> bytes:
    return b'{"state": "running", "number": %d, "speed": %d}' % (number, number % 90)


@pytest.fixture(scope="module")
def there() -> Iterator[Served]:
    with served(compression__optout=["secret/#"]) as running:
        yield running


@pytest.fixture(scope="module")
def without() -> Iterator[Served]:
    with served(compression__enabled=False) as running:
        yield running


def sent_by(client: Client) -> list[Any]:
    """What the client gives its link from now on, but for requests."""
    sent: list[Any] = []
    link: Any = client.internals.connection.link
    send = link.send

    def seen(message: Any) -> None:
        if message[0] in (PUBLISH, PACKED):
            sent.append(message)
        send(message)

    link.send = seen
    return sent


def test_what_waits_is_packed_and_everybody_gets_single_messages(there: Served) -> None:
    async def work() -> None:
        async with python_client(there, batch_s=0.2) as bus, python_client(there) as other:
            sent = sent_by(bus)
            async with other.subscribe("batch/a") as subscription:
                calls = [asyncio.create_task(bus.publish("batch/a", text(n), qos=n % 3)) for n in range(300)]
                async with asyncio.timeout(WAIT_S):
                    got = [await anext(subscription) for _ in range(300)]
                    positions = await asyncio.gather(*calls)
        assert [(each.payload, each.qos) for each in got] == [(text(n), n % 3) for n in range(300)]
        assert [each.position for each in got] == positions
        assert {message[0] for message in sent} == {PACKED}
        assert len(sent) <= 3
        packed = sum([len(entry[3]) for message in sent for entry in message[2]])
        assert packed < sum([len(text(n)) for n in range(300)]) / 5

    there.run(work(), 5 * WAIT_S)


def test_a_batch_goes_when_it_is_full_or_the_client_leaves(there: Served) -> None:
    async def work() -> None:
        async with python_client(there) as other, other.subscribe("full/a") as subscription:
            async with python_client(there, batch_s=LONG_S, batch_bytes=1_000) as bus:
                sent = sent_by(bus)
                bus.publish_nowait("full/a", b"x" * 900)
                await asyncio.sleep(0)
                assert not sent
                bus.publish_nowait("full/a", b"y" * 200)
                async with asyncio.timeout(WAIT_S):
                    assert [len((await anext(subscription)).payload) for _ in range(2)] == [900, 200]
                bus.publish_nowait("full/a", b"z")
            async with asyncio.timeout(WAIT_S):
                assert (await anext(subscription)).payload == b"z"

    there.run(work(), 5 * WAIT_S)


def test_what_nobody_may_compress_is_not_packed(there: Served) -> None:
    async def work() -> None:
        async with python_client(there, batch_s=0.01) as bus:
            sent = sent_by(bus)
            await bus.publish("secret/a", b"s" * 500)
            assert [(message[0], message[2][0][3]) for message in sent] == [(PUBLISH, b"s" * 500)]

    there.run(work(), 5 * WAIT_S)


def test_a_broker_that_does_not_unpack_gets_them_as_they_are(without: Served) -> None:
    async def work() -> None:
        async with python_client(without, batch_s=0.01) as bus:
            sent = sent_by(bus)
            await bus.publish("plain/a", b"s" * 500)
            assert [message[0] for message in sent] == [PUBLISH]

    without.run(work(), 5 * WAIT_S)


def test_an_entry_that_cannot_be_unpacked_is_refused_by_itself(there: Served) -> None:
    async def work() -> None:
        async with python_client(there, batch_s=0.01) as bus:
            link: Any = bus.internals.connection.link
            results: asyncio.Queue[Any] = asyncio.Queue()
            publisher: Any = bus.internals.publisher
            acknowledged = publisher.acknowledged
            publisher.acknowledged = lambda tag, told: results.put_nowait(told)
            for wrong in (b"", b"\0\0\0\1\1"):
                link.send((PACKED, 1_000, [(0, b"\x90", wrong, b"\xff\xff")]))
            async with asyncio.timeout(WAIT_S):
                refused = [await results.get() for _ in range(2)]
            assert all([isinstance(told[0], str) for told in refused])
            publisher.acknowledged = acknowledged
            await bus.publish("after/a", b"x")

    there.run(work(), 5 * WAIT_S)


@pytest.mark.parametrize("bounds", [{"batch_s": -1.0}, {"batch_bytes": 0}])
def test_bounds_that_are_none(bounds: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="batch_s"):
        lexicast.connect("link:unix:/nowhere", key=b"k" * 32, **bounds)
