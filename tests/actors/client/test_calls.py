"""The client's byte stream over batched calls instead of a socket (`call_link`), without Ray."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from lexicast.actors.broker.actor import BrokerActor
from lexicast.actors.client.client import Client
from lexicast.actors.client.known_brokers import Endpoint
from lexicast.actors.link import call_link
from lexicast.actors.link.call_link import CallLinks, dial_calls
from lexicast.actors.link.link import WRITE_HIGH_BYTES
from lexicast.cluster.config.tables import Config
from lexicast.cluster.errors import AuthenticationError, PeerError, UnavailableError
from lexicast.testing import MemoryBroker


class Calls:
    """What RayBrokerCalls does, without Ray: every call takes a turn of the event loop and may fail."""

    def __init__(self, broker: MemoryBroker) -> None:
        self.broker = broker
        self.sends: list[int] = []
        self.down = False

    async def _turn(self) -> CallLinks:
        await asyncio.sleep(0)
        if self.down:
            raise UnavailableError("the actor is gone")
        return self.broker.calls

    async def client_open(self, name: str) -> str:
        return (await self._turn()).open(name)

    async def client_send(self, token: str, data: bytes) -> None:
        self.sends.append(len(data))
        await (await self._turn()).send(token, data)

    async def client_receive(self, token: str, wait_s: float) -> bytes:
        return await (await self._turn()).receive(token, wait_s)

    async def client_close(self, token: str) -> None:
        (await self._turn()).close(token)


@pytest.fixture
async def broker() -> AsyncIterator[MemoryBroker]:
    broker = MemoryBroker(4)
    yield broker
    broker.close()


def client_of(broker: MemoryBroker, calls: Calls, **options: Any) -> Client:
    async def resolve() -> list[Endpoint]:
        # the first address leads nowhere: calls are what is left
        return [Endpoint("b", ("unix:/nonexistent/socket",), broker.cluster_id, broker.key, calls, "the handle")]

    return Client(resolve, **options)


async def test_same_api_over_calls(broker: MemoryBroker) -> None:
    calls = Calls(broker)
    async with client_of(broker, calls) as bus, bus.subscribe("t/#") as subscription:
        assert bus.broker == "the handle"
        positions = await bus.publish_many([("t/1", b"%d" % i) for i in range(20_000)])
        got: list[Any] = []
        while len(got) < 20_000:
            got += await subscription.next_batch()
    assert [m.position for m in got] == positions
    assert [m.payload for m in got] == [b"%d" % i for i in range(20_000)]
    assert len(broker.calls) == 0
    await asyncio.sleep(0)
    assert broker.links == []


async def test_writes_during_a_call_join_the_next_one(broker: MemoryBroker) -> None:
    calls = Calls(broker)
    async with client_of(broker, calls) as bus:
        await asyncio.gather(*[bus.publish("t", b"%d" % i) for i in range(1_000)])
        assert len(calls.sends) < 20


async def test_stream_that_breaks_is_replaced(broker: MemoryBroker) -> None:
    calls = Calls(broker)
    async with client_of(broker, calls) as bus, bus.subscribe("t") as subscription:
        for i in range(3):
            broker.calls.close_all()
            await bus.publish("t", b"%d" % i)
            assert (await anext(subscription)).payload == b"%d" % i
        assert bus.statistics["links"] >= 3
        calls.down = True
        broker.calls.close_all()
        publishing = asyncio.create_task(bus.publish("t", b"late"))
        await asyncio.sleep(0.05)
        assert not publishing.done()
        calls.down = False
        await publishing
        assert (await anext(subscription)).payload == b"late"


async def test_wrong_key_is_refused(broker: MemoryBroker) -> None:
    with pytest.raises((AuthenticationError, PeerError, UnavailableError)):
        await dial_calls(Calls(broker), b"wrong" * 8, "", ("client", "c", 1), lambda link: None)
    assert broker.links == []


async def test_idle_stream_is_dropped(broker: MemoryBroker) -> None:
    calls = CallLinks(broker.key, broker.cluster_id, broker.opened, broker.info, idle_s=0.05)
    token = calls.open("c")
    assert len(calls) == 1
    assert await calls.receive(token, 10) != b""  # the challenge
    assert await calls.receive(token, 10) == b""  # nothing more: returns well before it is idle
    await asyncio.sleep(0.1)
    assert len(calls) == 0
    with pytest.raises(UnavailableError, match="unknown stream"):
        await calls.receive(token, 1)
    with pytest.raises(UnavailableError, match="unknown stream"):
        await calls.send(token, b"x")
    calls.close(token)


async def test_number_of_streams_is_bounded(broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(call_link, "CLIENTS_MAX", 2)
    tokens = [broker.calls.open("a"), broker.calls.open("b")]
    with pytest.raises(UnavailableError, match="another broker"):
        broker.calls.open("c")
    broker.calls.close(tokens[0])
    broker.calls.open("c")


class Recorder(asyncio.Protocol):
    def __init__(self) -> None:
        self.events: list[str] = []
        self.data = b""

    def data_received(self, data: bytes) -> None:
        self.data += data

    def pause_writing(self) -> None:
        self.events.append("pause")

    def resume_writing(self) -> None:
        self.events.append("resume")

    def connection_lost(self, error: Exception | None) -> None:
        self.events.append(f"lost {error}")


async def test_transport_pauses_its_writer_bounds_its_buffer_and_keeps_order() -> None:
    protocol = Recorder()
    transport = call_link._Buffered(protocol, 4 * WRITE_HIGH_BYTES)
    transport.write(bytes(WRITE_HIGH_BYTES))
    assert protocol.events == []
    transport.write(b"1")
    assert protocol.events == ["pause"]
    assert transport.take().endswith(b"\x001")
    assert protocol.events == ["pause", "resume"]
    transport.write(bytes(4 * WRITE_HIGH_BYTES + 1))
    await asyncio.sleep(0)
    assert protocol.events[2:] == [f"lost the other side has let {4 * WRITE_HIGH_BYTES + 1} bytes gather"]


async def test_close_lets_what_has_gathered_out_first() -> None:
    protocol = Recorder()
    transport = call_link._Buffered(protocol, None)
    big = bytes(range(256)) * (call_link.CALL_BYTES_MAX // 128)
    transport.write(big)
    transport.close()
    transport.write(b"after the end")
    assert transport.is_closing()
    assert not transport.ended
    assert transport.take() + transport.take() == big


async def test_send_returns_when_the_link_reads_again(broker: MemoryBroker) -> None:
    calls = CallLinks(broker.key, broker.cluster_id, broker.opened, broker.info)
    token = calls.open("c")
    link, _ = calls._streams[token]
    link.pause_reading()
    sending = asyncio.create_task(calls.send(token, b""))
    await asyncio.sleep(0)
    assert not sending.done()
    link.resume_reading()
    await sending
    calls.close(token)


class Defect(Calls):
    """A broker actor that has started again, and whose methods fail in a way that nobody foresaw."""

    async def _turn(self) -> CallLinks:
        if self.down:
            raise AttributeError("'BrokerActor' object has no attribute '_calls'")
        return await super()._turn()


async def test_a_client_gives_up_whatever_a_broker_fails_with(broker: MemoryBroker) -> None:
    calls = Defect(broker)
    async with client_of(broker, calls, give_up_s=0.3) as bus, bus.subscribe("t") as subscription:
        await bus.publish("t", b"")
        await anext(subscription)
        calls.down = True
        broker.cut()
        with pytest.raises(UnavailableError, match="_calls"):
            await anext(subscription)
        with pytest.raises(UnavailableError, match="_calls"):
            await bus.publish("t", b"")


async def test_a_broker_that_is_starting_says_so_to_who_calls() -> None:
    class Starting(BrokerActor):
        """Never ready."""

        async def start(self) -> None:
            await asyncio.get_running_loop().create_future()

    actor = Starting("broker-0", Config().as_dict())
    calls = (
        actor.client_open("c"),
        actor.client_send("t", b""),
        actor.client_receive("t", 0.0),
        actor.client_close("t"),
    )
    for call in calls:
        with pytest.raises(UnavailableError, match="is starting"):
            await call
    await actor.stop()
    asyncio.get_running_loop().set_exception_handler(None)
