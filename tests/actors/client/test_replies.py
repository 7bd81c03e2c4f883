"""Requests and replies of the Python client."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

import lexicast
import lexicast.sync
from lexicast.actors.client.replies import PREFIX, reply_topic
from lexicast.cluster.errors import LexicastError, NoReplyError, NotAuthorizedError, UnavailableError, UsageError
from lexicast.testing import MemoryBroker

from ...support.harness import eventually
from ...support.mqtt_harness import HOST, Message, Raw, Served, close_clients, served

LONG_S = 60.0


@asynccontextmanager
async def connected(broker: MemoryBroker, tmp_path: Path) -> AsyncIterator[lexicast.Client]:
    async with lexicast.connect(f"link:unix:{tmp_path}/s", key=broker.key, client_id="me", give_up_s=LONG_S) as bus:
        yield bus


async def test_each_request_gets_its_own_reply_whatever_their_order(broker: MemoryBroker, tmp_path: Path) -> None:
    async with connected(broker, tmp_path) as bus, bus.subscribe("double") as requests:
        asking = [asyncio.create_task(bus.request("double", b"%d" % n, properties={"n": str(n)})) for n in range(20)]
        asked = [await anext(requests) for _ in asking]
        for request in reversed(asked):
            assert request.headers == {"n": request.payload.decode()}
            await bus.reply(request, b"%d" % (2 * int(request.payload)), properties={"of": request.headers["n"]})
        replies = await asyncio.gather(*asking)
        assert [(int(reply.payload), reply.headers["of"]) for reply in replies] == [(2 * n, str(n)) for n in range(20)]
        assert {reply.topic.rpartition("/")[0] for reply in replies} == {"replies/me"}
        assert len({reply.topic for reply in replies}) == 1


async def test_the_first_reply_counts_and_late_ones_do_no_harm(broker: MemoryBroker, tmp_path: Path) -> None:
    async with connected(broker, tmp_path) as bus, bus.subscribe("rpc/#") as requests:
        with pytest.raises(NoReplyError, match=r"'rpc/late' within 0\.0 s: does anybody serve"):
            await bus.request("rpc/late", "?", timeout_s=0.03)
        late = await anext(requests)
        asking = asyncio.create_task(bus.request("rpc/now", "?"))
        request = await anext(requests)
        await bus.reply(late, "too late")
        for answer in ("first", "second"):
            await bus.reply(request, answer)
        assert (await asking).payload == b"first"
        # Neither stands in the way of what follows.
        asking = asyncio.create_task(bus.request("rpc/then", "?"))
        await bus.reply(await anext(requests), "third")
        assert (await asking).payload == b"third"


async def test_a_reply_comes_also_where_the_link_has_broken(broker: MemoryBroker, tmp_path: Path) -> None:
    async with connected(broker, tmp_path) as bus, bus.subscribe("rpc") as requests:
        asking = asyncio.create_task(bus.request("rpc", "?", timeout_s=LONG_S))
        request = await anext(requests)
        broker.cut()
        await bus.reply(request, "here")
        assert (await asking).payload == b"here"


async def test_who_waits_is_told_that_the_client_is_closed(broker: MemoryBroker, tmp_path: Path) -> None:
    async with connected(broker, tmp_path) as bus:
        asking = asyncio.create_task(bus.request("nobody", "?", timeout_s=LONG_S))
        await eventually(lambda: bus.statistics["published"] == 1)
    with pytest.raises(UnavailableError, match="closed"):
        await asking
    with pytest.raises(UnavailableError, match="closed"):
        await bus.request("nobody", "?")


async def test_what_no_request_is(broker: MemoryBroker, tmp_path: Path) -> None:
    assert issubclass(NoReplyError, TimeoutError)
    assert issubclass(NoReplyError, LexicastError)
    async with connected(broker, tmp_path) as bus, bus.subscribe("a") as messages:
        await bus.publish("a", "1", properties={"unit": "min"})
        with pytest.raises(UsageError, match="'a' asks for no reply"):
            await bus.reply(await anext(messages), "2")
        for wrong in (0.0, -1.0, float("nan")):
            with pytest.raises(UsageError, match="timeout_s"):
                await bus.request("a", "1", timeout_s=wrong)


def test_topics_of_replies_are_topics_and_nobody_guesses_them() -> None:
    assert reply_topic("ada/1").startswith(f"{PREFIX}ada/1/")
    assert reply_topic("ada") != reply_topic("ada")
    for wild in ("+", "a/#", "\0", "x" * 2_000):
        assert wild not in reply_topic(wild)


# -- at the real cluster


@pytest.fixture(scope="module")
def cluster() -> Iterator[Served]:
    with served() as running:
        yield running


def at(running: Served) -> str:
    return f"link:tcp:{HOST}:{running.port}"


async def test_mqtt_devices_ask_and_answer(cluster: Served) -> None:
    """Response topic and correlation data are MQTT 5's."""
    async with lexicast.connect(at(cluster), give_up_s=LONG_S) as bus, bus.subscribe("service") as requests:
        device = await Raw.connect(cluster.port)
        await device.subscribe("device/ask", qos=1)
        asking = asyncio.create_task(bus.request("device/ask", "how warm?", timeout_s=LONG_S))
        asked = await device.expect(Message)
        assert (asked.payload, asked.properties[8].rpartition("/")[0]) == (b"how warm?", f"replies/{bus.client_id}")
        await device.publish(asked.properties[8], b"21", qos=1, _9=asked.properties[9])
        assert (await asking).payload == b"21"

        await device.subscribe("device/answers", qos=1)
        await device.publish("service", b"?", qos=1, _8="device/answers", _9=b"\1\2")
        await bus.reply(await anext(requests), "42")
        answer = await device.expect(Message)
        assert (answer.topic, answer.payload, answer.properties[9]) == ("device/answers", b"42", b"\1\2")
    await close_clients()


def test_blocking_clients_ask_and_answer(cluster: Served) -> None:
    with lexicast.sync.connect(at(cluster)) as server, lexicast.sync.connect(at(cluster)) as bus:
        with server.subscribe("sum", since="now").start(
            lambda request: server.reply(request, str(sum(map(int, request.payload.split()))))
        ):
            for qos in (0, 1):
                assert bus.request("sum", "2 3", timeout_s=LONG_S, qos=qos).payload == b"5"
        with pytest.raises(NoReplyError):
            bus.request("sum", "2 3", timeout_s=0.05)


async def test_a_rule_of_the_client_id_lets_users_read_their_replies_and_no_others() -> None:
    rules = b"topic readwrite service\ntopic write replies/#\npattern read replies/%c/#\n"
    with served(rules=rules) as running:
        async with (
            lexicast.connect(at(running), client_id="asking", give_up_s=LONG_S) as bus,
            bus.subscribe("service") as requests,
        ):
            serving = asyncio.create_task(requests.call(lambda request: bus.reply(request, "5")))
            assert (await bus.request("service", "?", timeout_s=LONG_S)).payload == b"5"
            with pytest.raises(NotAuthorizedError, match="replies/"):
                await anext(bus.subscribe("replies/other/#"))
            await requests.close()
            await serving
        # No rule of the client id has it where that can stand in no topic.
        async with lexicast.connect(at(running), client_id="a+", give_up_s=LONG_S) as bus:
            with pytest.raises(NotAuthorizedError, match="replies/"):
                await bus.request("service", "?")
