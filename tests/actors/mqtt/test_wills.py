"""Wills and ends of sessions over a whole cluster: whoever ends a connection, and whoever is left to say so."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from lexicast.actors.coordinator.session_owners import ORPHANED_S
from lexicast.actors.mqtt.codec.packets import V5, V311, PubAck, Publish, PubRec, Will
from lexicast.actors.mqtt.owning import owned_sessions
from lexicast.cluster.errors import StaleEpochError, StoreFullError

from ...support.harness import Cluster, Shifted, eventually
from ...support.mqtt_harness import Raw, close_clients, unique
from .test_sessions import Two

WAIT: dict[str, Any] = {"_17": 600}


@pytest.fixture
async def two(tmp_path: Path) -> AsyncIterator[Two]:
    async with Cluster(tmp_path, clock=Shifted()) as cluster:
        await cluster.start_coordinator()
        await cluster.start_broker("broker-0")
        await cluster.start_broker("broker-1")
        yield Two(cluster)
        await close_clients()


def later(two: Two, seconds: float) -> None:
    """Time passes."""
    clock = two.cluster.clock
    assert isinstance(clock, Shifted)
    clock.ahead_s += seconds


@pytest.mark.parametrize("version", [V311, V5])
@pytest.mark.parametrize("back_on", [0, 1])
async def test_a_session_that_was_to_end_with_its_connection_ends_when_another_takes_its_place(
    two: Two, version: int, back_on: int
) -> None:
    """[MQTT-3.1.2-6], [MQTT-3.1.4-3]: the old link is half open, the client comes back and wants its session."""
    name, topic, wills = unique(), unique(), unique()
    watcher = await Raw.connect(two.port(1))
    await watcher.subscribe(topic, wills, qos=2)
    old = await Raw.connect(two.port(0), name, version, clean=True, will=Will(wills.encode(), b"ended"))
    await old.subscribe(unique(), qos=1)
    old.send(Publish(topic.encode(), b"m1", 2, packet_id=1))
    await old.expect(PubRec)
    new = await Raw.connect(two.port(back_on), name, version, clean=False, **(WAIT if version == V5 else {}))
    assert not new.connack.session_present
    new.send(Publish(topic.encode(), b"m2", 2, packet_id=1))
    await new.expect(PubRec)
    assert sorted([m.payload for m in await watcher.messages(3)]) == [b"ended", b"m1", b"m2"]


async def test_the_will_of_a_session_without_expiry_waits_for_nothing(two: Two) -> None:
    name, wills = unique(), unique()
    watcher = await Raw.connect(two.port(1))
    await watcher.subscribe(wills)
    will = Will(wills.encode(), b"ended", properties={24: 60})
    await Raw.connect(two.port(0), name, will=will)
    await Raw.connect(two.port(1), name, clean=False)
    assert (await watcher.messages(1))[0].payload == b"ended"


async def test_who_takes_a_session_over_has_it_when_its_will_is_stored(
    two: Two, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From then on nobody but the old broker knows of that will, and it may die."""
    name, stored = unique(), asyncio.get_running_loop().create_future()
    asked: list[str] = []

    def publish(client_id: str, will: Will, user: str) -> asyncio.Future[bool]:
        asked.append(client_id)
        return stored

    await Raw.connect(two.port(0), name, clean=False, will=Will(b"wills", b"ended"), **WAIT)
    monkeypatch.setattr(two.broker(0).mqtt.sessions._wills, "publish", publish)
    taking = asyncio.create_task(Raw.connect(two.port(1), name, clean=False, **WAIT))
    await eventually(lambda: bool(asked))
    await asyncio.sleep(0.1)
    assert not taking.done()
    stored.set_result(True)
    assert (await taking).connack.session_present
    assert asked == [name]


@pytest.mark.parametrize("taken_over", [False, True])
async def test_a_will_is_out_in_the_end_although_neither_it_nor_its_session_could_be_stored(
    two: Two, monkeypatch: pytest.MonkeyPatch, taken_over: bool
) -> None:
    name, wills = unique(), unique()
    watcher = await Raw.connect(two.port(1))
    await watcher.subscribe(wills)
    client = await Raw.connect(two.port(0), name, clean=False, will=Will(wills.encode(), b"late", 1), **WAIT)
    sessions = two.broker(0).mqtt.sessions
    publish, ask = sessions._wills.publish, sessions._ask_home
    tries: list[str] = []

    def refused(client_id: str, will: Will, user: str) -> asyncio.Future[bool]:
        monkeypatch.setattr(sessions._wills, "publish", publish)
        found: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        found.set_result(False)
        return found

    async def full(method: str, client_id: str, *arguments: Any) -> Any:
        tries.append(method)
        if len(tries) > 1:
            monkeypatch.setattr(sessions, "_ask_home", ask)
        raise StaleEpochError("another has it") if taken_over else StoreFullError("full")

    monkeypatch.setattr(owned_sessions, "FULL_AGAIN_FIRST_S", 0.01)
    monkeypatch.setattr(sessions._wills, "publish", refused)
    monkeypatch.setattr(sessions, "_ask_home", full)
    client.abort()
    assert (await watcher.messages(1))[0].payload == b"late"
    assert tries == ["session_save"] * (1 if taken_over else 2)
    await eventually(lambda: not sessions.letting_go)


async def test_a_will_that_waits_survives_its_broker_and_the_coordinator(two: Two) -> None:
    name, wills = unique(), unique()
    watcher = await Raw.connect(two.port(1), wills + "watcher", clean=False, **WAIT)
    await watcher.subscribe(wills, qos=1)
    will = Will(wills.encode(), b"too late", 1, properties={24: 60})
    client = await Raw.connect(two.port(0), name, clean=False, will=will, **WAIT)
    client.abort()
    await eventually(lambda: not two.broker(0).mqtt.sessions.owners)
    await eventually(lambda: not two.broker(0).mqtt.sessions.letting_go)
    await two.crash_broker(0)
    await two.cluster.restart_coordinator()
    later(two, 59)
    assert await watcher.ping() == []
    later(two, 1)
    assert (await watcher.messages(1))[0].payload == b"too late"


async def test_the_will_of_a_broker_that_never_comes_back(two: Two) -> None:
    wills = unique()
    watcher = await Raw.connect(two.port(1))
    await watcher.subscribe(wills)
    await Raw.connect(two.port(0), clean=False, will=Will(wills.encode(), b"gone"), **WAIT)
    await two.crash_broker(0)
    later(two, ORPHANED_S)
    assert (await watcher.messages(1))[0].payload == b"gone"


async def test_a_broker_that_stops_in_order_publishes_the_wills_of_its_clients_before(two: Two) -> None:
    """[MQTT-3.1.2-8]: the server closes the connection, and the client has not said that it should."""
    wills = unique()
    watcher = await Raw.connect(two.port(1))
    await watcher.subscribe(wills)
    for number in range(20):
        await Raw.connect(two.port(0), will=Will(f"{wills}".encode(), b"%d" % number, number % 3))
    await two.cluster.stop_broker("broker-0")
    assert sorted([int(m.payload) for m in await watcher.messages(20)]) == list(range(20))


async def test_what_was_to_be_told_of_those_who_left_is_told_after_the_whole_cluster_was_stopped(
    tmp_path: Path,
) -> None:
    wills = unique()
    clock = Shifted()
    async with Cluster(tmp_path, clock=clock) as cluster:
        await cluster.start_coordinator()
        broker = await cluster.start_broker("broker-0")
        watcher = await Raw.connect(broker.mqtt.port, "watcher", V311, clean=False)
        await watcher.subscribe(wills, qos=1)
        at_once, waits = Will(wills.encode(), b"at once", 1), Will(wills.encode(), b"waited", 1, properties={24: 60})
        await Raw.connect(broker.mqtt.port, clean=False, will=at_once, **WAIT)
        await Raw.connect(broker.mqtt.port, clean=False, will=waits, **WAIT)
        await watcher.disconnect()
    await close_clients()
    clock.ahead_s = 100
    async with Cluster(tmp_path, clock=clock) as cluster:
        await cluster.start_coordinator()
        broker = await cluster.start_broker("broker-0")
        watcher = await Raw.connect(broker.mqtt.port, "watcher", V311, clean=False)
        assert [m.payload for m in await watcher.messages(2)] == [b"at once", b"waited"]
        await close_clients()


async def test_a_client_that_is_back_on_another_broker_keeps_its_will_back(two: Two) -> None:
    name, wills = unique(), unique()
    watcher = await Raw.connect(two.port(1))
    await watcher.subscribe(wills, qos=1)
    will = Will(wills.encode(), b"never", properties={24: 60})
    client = await Raw.connect(two.port(0), name, clean=False, will=will, **WAIT)
    client.abort()
    await eventually(lambda: not two.broker(0).mqtt.sessions.owners)
    client = await Raw.connect(two.port(1), name, clean=False, **WAIT)
    later(two, 60)
    publisher = await Raw.connect(two.port(0))
    await watcher.nothing(publisher, wills)
    client.send(Publish(wills.encode(), b"last", 1, packet_id=1))
    await client.expect(PubAck)
    assert (await watcher.messages(1))[0].payload == b"last"
