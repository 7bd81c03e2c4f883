"""Shared subscriptions where brokers and coordinators die: nothing acknowledged to publishers is lost to a share, what
a dead broker's members held goes to others, and what was done long before is not dealt again."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from lexicast.actors.broker.server import BrokerServer
from lexicast.actors.coordinator.shares import led_shares
from lexicast.actors.mqtt.codec.packets import PubRec
from lexicast.cluster.config.tables import Config

from ..support.harness import Cluster, Coordinator, Shifted, eventually, silence
from ..support.mqtt_harness import Closed, Message, Raw, close_clients, unique

BOTH = ("coordinator-0", "coordinator-1")
CONFIG = Config().replaced(mqtt__share_expiry_s=3_600)


class Member:
    """A member that acknowledges what comes, and comes back where its broker's connection ends."""

    def __init__(self, port: int, filter: str) -> None:
        self.got: list[bytes] = []
        self._port = port
        self._filter = filter
        self._client: Raw | None = None
        self.task = asyncio.ensure_future(self._run())
        self.joined = asyncio.Event()

    async def _run(self) -> None:
        client = self._client = await Raw.connect(self._port, _33=50)
        assert await client.subscribe(self._filter, qos=1) == [1]
        self.joined.set()
        try:
            while True:
                self.got.append((await client.expect(Message)).payload)
        except Closed:
            pass

    async def stop(self) -> None:
        """The connection breaks."""
        if self._client is not None:
            self._client.abort()
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


async def published(port: int, topics: list[str], count: int, first: int = 0) -> set[bytes]:
    """Publish, acknowledged each; publications that are sent again after an end of the connection may come twice."""
    client = await Raw.connect(port)
    sent = set()
    for number in range(first, first + count):
        payload = b"%d" % number
        assert await client.publish(topics[number % len(topics)], payload, qos=1) == 0
        sent.add(payload)
    await client.disconnect()
    return sent


def in_sync(cluster: Cluster) -> set[int]:
    return {len(members) for _, _, members in cluster.coordination.status()["group_states"].values()}


def kill(cluster: Cluster, broker: BrokerServer) -> None:
    """Its links and sockets end, and nothing is told."""
    for pipeline in broker.engine.coordinators.pipelines.values():
        if pipeline.link is not None:
            silence(pipeline.link)
            pipeline.link.abort()


def open_records(coordinator: Coordinator) -> int:
    return sum(share["open_records"] for share in coordinator.server.shares.status().values())


async def test_what_members_of_a_dead_broker_hold_goes_to_others(tmp_path: Path) -> None:
    root = unique()
    async with Cluster(tmp_path, config=CONFIG) as cluster:
        coordinator = await cluster.start_coordinator()
        dying, other = await cluster.start_broker("broker-0"), await cluster.start_broker("broker-1")
        mute = await Raw.connect(dying.mqtt.port, _33=20)
        mute.answers = False
        await mute.subscribe(f"$share/g/{root}/#", qos=1)
        sent = await published(other.mqtt.port, [f"{root}/{n}" for n in range(8)], 60)
        held = await mute.messages(20)
        member = Member(other.mqtt.port, f"$share/g/{root}/#")
        await member.joined.wait()
        kill(cluster, dying)
        await eventually(lambda: set(member.got) == sent, "all to be the other broker's member's")
        assert len(member.got) == 60
        assert {message.payload for message in held} <= sent
        await eventually(lambda: open_records(coordinator) == 0)
        await member.stop()
        await close_clients()


async def test_qos_2_stays_with_its_member_where_its_brokers_link_breaks(tmp_path: Path) -> None:
    topic = unique()
    async with Cluster(tmp_path, config=CONFIG) as cluster:
        await cluster.start_coordinator()
        cut, other = await cluster.start_broker("broker-0"), await cluster.start_broker("broker-1")
        first, publisher = await Raw.connect(cut.mqtt.port), await Raw.connect(other.mqtt.port)
        first.answers = False
        await first.subscribe(f"$share/g/{topic}", qos=2)
        await publisher.publish(topic, b"once", qos=2)
        (got,) = await first.messages(1)
        second = await Raw.connect(other.mqtt.port)
        await second.subscribe(f"$share/g/{topic}", qos=2)
        (pipeline,) = cut.engine.coordinators.pipelines.values()
        broken = pipeline.link
        assert broken is not None
        broken.abort()
        await eventually(lambda: pipeline.link not in (None, broken))
        first.send(PubRec(got.packet_id))
        await first.ping()
        first.abort()
        await second.nothing(publisher, topic)
        await close_clients()


async def test_a_coordinator_that_dies_loses_nothing_of_a_share(tmp_path: Path) -> None:
    root = unique()
    topics = [f"{root}/{n}" for n in range(8)]
    async with Cluster(tmp_path, config=CONFIG) as cluster:
        coordinator = await cluster.start_coordinator()
        broker = await cluster.start_broker("broker-0")
        mute = await Raw.connect(broker.mqtt.port, _33=10)
        mute.answers = False
        await mute.subscribe(f"$share/g/{root}/#", qos=1)
        member = Member(broker.mqtt.port, f"$share/g/{root}/#")
        await member.joined.wait()
        sent = await published(broker.mqtt.port, topics, 40)
        held = {message.payload for message in await mute.messages(10)}
        # What was done a while ago is saved: it does not come again.
        before = set(member.got)

        def saved() -> bool:
            (told,) = coordinator.server.shares.status().values()
            # The mute one's topics wait behind what it holds.
            expected = {"unsaved_groups": 0, "open_records": len(sent) - len(set(member.got))}
            return bool(told == {**told, **expected})

        await eventually(saved, "where the share stands to be saved")
        before = set(member.got)
        await cluster.crash_coordinator()
        await cluster.start_coordinator()
        sent |= await published(broker.mqtt.port, topics, 40, first=40)
        mute.abort()
        await eventually(lambda: set(member.got) == sent, "everything to have come")
        assert sum(member.got.count(payload) for payload in before) == len(before)
        assert held <= set(member.got)
        await member.stop()
        await close_clients()


async def test_a_share_goes_on_with_the_coordinator_that_leads_next(tmp_path: Path) -> None:
    root = unique()
    topics = [f"{root}/{n}" for n in range(8)]
    async with Cluster(tmp_path, coordinators=BOTH, copies=2, config=CONFIG) as cluster:
        await asyncio.gather(*[cluster.start_coordinator(name) for name in BOTH])
        await eventually(lambda: in_sync(cluster) == {2}, "two copies of each group")
        broker = await cluster.start_broker("broker-0")
        members = [Member(broker.mqtt.port, f"$share/g/{root}/#") for _ in range(3)]
        for member in members:
            await member.joined.wait()
        sent = await published(broker.mqtt.port, topics, 40)
        await cluster.lose_coordinator("coordinator-0")
        sent |= await published(broker.mqtt.port, topics, 40, first=40)
        await eventually(lambda: {p for m in members for p in m.got} == sent, "everything to have come")
        for member in members:
            await member.stop()
        later = await published(broker.mqtt.port, topics, 8, first=80)
        # Where the share stands is known with nobody there, and by whoever leads.
        last = Member(broker.mqtt.port, f"$share/g/{root}/#")
        await eventually(lambda: later <= set(last.got), "what came while nobody was there")
        await last.stop()
        await close_clients()


async def test_a_share_that_nobody_is_in_is_forgotten_in_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(led_shares, "LINGER_S", 0.1)
    topic, clock = unique(), Shifted()
    async with Cluster(tmp_path, config=CONFIG, clock=clock) as cluster:
        coordinator = await cluster.start_coordinator()
        broker = await cluster.start_broker("broker-0")
        first = await Raw.connect(broker.mqtt.port)
        await first.subscribe(f"$share/g/{topic}", qos=1)
        await first.disconnect()
        await eventually(lambda: not coordinator.server.shares.status())
        await published(broker.mqtt.port, [topic], 1)
        clock.ahead_s = 3_000
        second = await Raw.connect(broker.mqtt.port)
        await second.subscribe(f"$share/g/{topic}", qos=1)
        assert (await second.expect(Message)).payload == b"0"
        await second.disconnect()
        await eventually(lambda: not coordinator.server.shares.status())
        await published(broker.mqtt.port, [topic], 1, first=1)
        clock.ahead_s = 3_000 + 3_601
        third = await Raw.connect(broker.mqtt.port)
        await third.subscribe(f"$share/g/{topic}", qos=1)
        publisher = await Raw.connect(broker.mqtt.port)
        await third.nothing(publisher, topic)
        await close_clients()
