"""TAPD with Python clients against a real broker: what comes over TCP links, and when; old clients and old brokers.

Each test has topics and a dictionary of its own, published as sampling brokers do.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from lexicast.actors.broker.python_clients.session import PythonClientSession
from lexicast.actors.client.internals import ClientInternals
from lexicast.actors.link.link import Link
from lexicast.cluster.blocks import PUBLICATIONS, Run
from lexicast.cluster.protocol.messages import DICTIONARY

from ...support.aware_devices import learn, python_client, reading
from ...support.mqtt_harness import Served, served, unique


@pytest.fixture(scope="module")
def there() -> Iterator[Served]:
    with served(compression__stream_records_per_s=0) as running:
        yield running


class TestPythonClients:
    async def test_over_tcp_dictionaries_come_as_they_pay(self, there: Served) -> None:
        topic = unique("python/")
        made = await learn(there, topic)
        messages = [reading(n) for n in range(100)]

        async def work() -> tuple[list[bytes], list[int], list[int], dict[str, int]]:
            async with (
                python_client(there, client_id=unique("w")) as writer,
                python_client(there, client_id=unique("r")) as reader,
                reader.subscribe(topic) as subscription,
            ):
                await writer.status()
                before = len([d for d in writer.dictionaries() if d.family == topic.encode()])
                for message in messages:
                    await writer.publish(topic, message)
                got = [(await anext(subscription)).payload for _ in messages]
                held = [d.id for c in (writer, reader) for d in c.dictionaries() if d.family == topic.encode()]
                return got, [before], held, writer.internals.publisher.counts()

        got, before, held, _ = await asyncio.to_thread(lambda: there.run(work()))
        assert got == messages
        assert before == [0]
        assert held == [made.id, made.id]

    async def test_one_whose_link_is_new_is_not_told_again(self, there: Served) -> None:
        topic = unique("relinked/")
        made = await learn(there, topic)

        async def work() -> list[tuple[int, int]]:
            async with python_client(there, client_id=unique("w")) as writer:
                for n in range(100):
                    await writer.publish(topic, reading(n))
                link = writer.internals.connection.link
                assert link is not None
                link.close()
                await writer.publish(topic, reading(100))
                links = there.broker().clients.links()
                return [(link.taken, link.held(topic.encode())) for link in links]

        assert await asyncio.to_thread(lambda: there.run(work())) == [(0, made.id)]

    async def test_what_does_not_ask_is_told_of_all(self, there: Served) -> None:
        """Clients of an older release, sampling brokers."""
        topic = unique("told/")
        made = await learn(there, topic)

        async def work() -> list[int]:
            async with python_client(there, client_id=unique("c"), compress=False) as client:
                await client.status()
                return [d.id for d in client.dictionaries() if d.family == topic.encode()]

        assert await asyncio.to_thread(lambda: there.run(work())) == [made.id]

    async def test_a_broker_of_an_older_release_refuses_and_tells_of_all(
        self, there: Served, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        topic = unique("older/")
        made = await learn(there, topic)

        def begin(session: PythonClientSession, link: Link, message: tuple[Any, ...]) -> bool:
            session._begun = True
            for dictionary in there.broker().engine.dictionaries.families.dictionaries():
                session._tell(dictionary)
            return False

        monkeypatch.setattr(PythonClientSession, "_begin", begin)

        async def work() -> tuple[bool, list[int]]:
            async with python_client(there, client_id=unique("c")) as client:
                await client.status()
                await client.publish(topic, reading(1))
                dictionaries = client.internals.dictionaries
                return dictionaries.deflates, [d.id for d in dictionaries.announced() if d.family == topic.encode()]

        assert await asyncio.to_thread(lambda: there.run(work())) == (False, [made.id])

    async def test_one_that_publishes_little_deflates(self, there: Served, monkeypatch: pytest.MonkeyPatch) -> None:
        topic = unique("few/")
        await learn(there, topic)
        pushed: list[object] = []
        taken = ClientInternals.on_message

        def seen(client: ClientInternals, message: tuple[Any, ...]) -> None:
            pushed.append(message[0])
            taken(client, message)

        monkeypatch.setattr(ClientInternals, "on_message", seen)

        async def work() -> list[int]:
            async with python_client(there, client_id=unique("c")) as client:
                await client.status()
                await client.publish_many([(topic, reading(n) * 3) for n in range(3)])
                return [run.encoding for run in stored_runs(there, topic)]

        assert await asyncio.to_thread(lambda: there.run(work())) == [1]
        assert DICTIONARY not in pushed


def stored_runs(there: Served, topic: str) -> list[Run]:
    runs: list[Run] = []
    for coordinator in there.cluster.coordinators.values():
        for group in range(there.broker().engine.groups):
            for block in coordinator.server.store.read(group, 0).blocks:
                if block.kind != PUBLICATIONS:
                    continue
                runs += [run for run in block.meta.runs if block.meta.topics[run.topic] == topic.encode()]
    return runs
