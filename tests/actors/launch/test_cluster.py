"""The whole cluster under real Ray, as an operator runs it: killed actors, stop and start, several brokers.

One `lexicast up` serves most tests; what a killed actor's successor does is told by clients that never stop.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import paho.mqtt.client as paho
import pytest
from paho.mqtt.enums import CallbackAPIVersion

import lexicast
from lexicast.actors.client.client import Client

from ...support.harness import eventually

UP_TIMEOUT_S = 120.0
SETTLE_TIMEOUT_S = 60.0
# What a publisher may have under way when its broker dies, and sends again: at least once, says QoS 1.
INFLIGHT = 50


class Cluster:
    """A `lexicast up` of its own process."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.data_dir = folder / "data"
        self._ready = folder / "ready.json"
        self._ready.unlink(missing_ok=True)
        self._log = (folder / "up.log").open("w+")
        command = [sys.executable, "-m", "lexicast.actors.cli", "up", "--data-dir", str(self.data_dir)]
        self.process = subprocess.Popen(
            [*command, "--mqtt-port", "0", "--ready-file", str(self._ready), *options],
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
        )
        deadline = time.monotonic() + UP_TIMEOUT_S
        while not self._ready.exists():
            if self.process.poll() is not None or time.monotonic() > deadline:
                self.process.kill()
                self.process.wait()
                said = self.log()
                self._log.close()
                raise AssertionError(f"the cluster does not start: {said}")
            time.sleep(0.05)
        self.run = json.loads(self._ready.read_text())

    def log(self) -> str:
        """What `up` has printed."""
        self._log.seek(0)
        return self._log.read()

    @property
    def mqtt_port(self) -> int:
        """Where MQTT clients connect."""
        return int(self.run["mqtt_port"])

    def connect(self, **options: Any) -> Client:
        """A Python client."""
        return lexicast.connect(data_dir=self.data_dir, **options)

    def stop(self) -> int:
        """As Ctrl-C does; the exit code."""
        self.process.send_signal(signal.SIGINT)
        try:
            return self.process.wait(60)
        finally:
            if self.process.poll() is None:
                self.process.kill()
            self._log.close()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    running = Cluster(tmp_path_factory.mktemp("cluster"))
    yield running
    assert running.stop() == 0


class MqttPublisher:
    """Publishes QoS 1 messages with a window, and knows which were acknowledged."""

    def __init__(self, port: int, client_id: str) -> None:
        self.sent: list[bytes] = []
        self.acknowledged: list[bytes] = []
        self._by_id: dict[int, bytes] = {}
        self._client = paho.Client(CallbackAPIVersion.VERSION2, client_id=client_id, clean_session=False)
        self._client.max_inflight_messages_set(INFLIGHT)
        self._client.reconnect_delay_set(1, 1)
        self._client.on_publish = self._on_publish
        self._client.connect("127.0.0.1", port)
        self._client.loop_start()

    def _on_publish(self, client: Any, userdata: Any, packet_id: int, *rest: Any) -> None:
        self.acknowledged.append(self._by_id[packet_id])

    def publish(self, topic: str, payload: bytes) -> None:
        """Hand over one message."""
        info = self._client.publish(topic, payload, qos=1)
        self._by_id[info.mid] = payload
        self.sent.append(payload)

    async def settled(self) -> None:
        """Return when everything is acknowledged."""
        await eventually(lambda: len(self.acknowledged) == len(self.sent), "all are acknowledged", SETTLE_TIMEOUT_S)

    def close(self) -> None:
        """Disconnect."""
        self._client.disconnect()
        self._client.loop_stop()


class Reader:
    """A Python subscriber that keeps what it got."""

    def __init__(self, bus: Client, topic_filter: str) -> None:
        self.messages: list[lexicast.Message] = []
        self._subscription = bus.subscribe(topic_filter)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Reader]:
        """Read while the block runs."""
        async with self._subscription:
            task = asyncio.create_task(self._read())
            yield self
            task.cancel()
            await asyncio.wait([task])

    async def _read(self) -> None:
        async for message in self._subscription:
            self.messages.append(message)

    async def has(self, payloads: list[bytes]) -> None:
        """Return when all of `payloads` have arrived."""
        wanted = set(payloads)
        await eventually(lambda: wanted <= {m.payload for m in self.messages}, "all have arrived", SETTLE_TIMEOUT_S)


async def load_and_kill(
    cluster: Cluster, role: str, name: str
) -> tuple[Reader, MqttPublisher, list[bytes], list[bytes]]:
    """Publish through MQTT and Python, kill the actor in the middle; (reader, MQTT publisher, acknowledged to MQTT
    before the kill, all acknowledged to Python)."""
    publisher = MqttPublisher(cluster.mqtt_port, f"publisher-{name}")
    acknowledged: list[bytes] = []
    async with cluster.connect() as bus:
        reader = Reader(bus, f"{name}/#")
        async with reader.running():
            before: list[bytes] = []
            for number in range(800):
                publisher.publish(f"{name}/mqtt/{number % 7}", b"mqtt %d" % number)
                payloads = [b"python %d %d" % (number, i) for i in range(5)]
                await bus.publish_many([(f"{name}/python/{i}", payload) for i, payload in enumerate(payloads)])
                acknowledged += payloads
                if number == 300:
                    before = list(publisher.acknowledged)
                    os.kill(actor_pid(cluster, role), signal.SIGKILL)
            await publisher.settled()
            await reader.has(publisher.sent + acknowledged)
    publisher.close()
    return reader, publisher, before, acknowledged


def actor_pid(cluster: Cluster, role: str) -> int:
    """The process that first was this actor."""
    pids = cluster.run["pids"][role]
    return int(pids[0] if isinstance(pids, list) else pids)


def check_order(messages: list[lexicast.Message]) -> None:
    """Offsets ascend in each group, epochs never go back."""
    last: dict[int, tuple[int, int]] = {}
    for message in messages:
        group, epoch, offset = message.position
        known_epoch, known_offset = last.get(group, (0, -1))
        assert offset > known_offset
        assert epoch >= known_epoch
        last[group] = (epoch, offset)


async def stored(cluster: Cluster, topic_filter: str) -> Counter[bytes]:
    async with cluster.connect() as bus:
        return Counter([message.payload async for message in bus.history(topic_filter)])


async def test_killed_coordinator_loses_and_doubles_nothing(cluster: Cluster) -> None:
    reader, publisher, _, acknowledged = await load_and_kill(cluster, "coordinators", "coordinator-killed")
    check_order(reader.messages)
    assert len({message.position.epoch for message in reader.messages}) > 1
    once = Counter(publisher.sent + acknowledged)
    assert Counter(message.payload for message in reader.messages) == once
    assert await stored(cluster, "coordinator-killed/#") == once


async def test_killed_broker_loses_nothing_and_doubles_only_what_was_under_way(cluster: Cluster) -> None:
    reader, publisher, before, acknowledged = await load_and_kill(cluster, "brokers", "broker-killed")
    check_order(reader.messages)
    counts = await stored(cluster, "broker-killed/#")
    assert set(counts) == set(publisher.sent + acknowledged)
    assert all(counts[payload] == 1 for payload in acknowledged)
    assert all(counts[payload] == 1 for payload in before)
    assert sum(counts.values()) - len(counts) <= INFLIGHT
    assert Counter(message.payload for message in reader.messages) == counts


async def test_killed_coordination_server_stops_no_data(cluster: Cluster) -> None:
    async with cluster.connect() as bus:
        os.kill(actor_pid(cluster, "coordination"), signal.SIGKILL)
        positions = [await bus.publish("coordination-killed/t", b"%d" % number) for number in range(50)]
    assert [p.offset for p in positions] == sorted({p.offset for p in positions})
    assert sum((await stored(cluster, "coordination-killed/#")).values()) == 50


@contextmanager
def staying(cluster: Cluster, on_message: Any = None) -> Iterator[paho.Client]:
    """The client of a persistent session, connected."""
    client = paho.Client(CallbackAPIVersion.VERSION2, client_id="stays", clean_session=False)
    client.on_message = on_message
    client.connect("127.0.0.1", cluster.mqtt_port)
    client.loop_start()
    try:
        yield client
    finally:
        client.disconnect()
        client.loop_stop()


async def test_down_and_up_keep_history_and_persistent_sessions(tmp_path: Path) -> None:
    first = Cluster(tmp_path, "--brokers", "2", "--coordinators", "2")
    subscribed = asyncio.Event()
    loop = asyncio.get_running_loop()

    def on_subscribe(*_: Any) -> None:
        loop.call_soon_threadsafe(subscribed.set)

    with staying(first) as subscriber:
        subscriber.on_subscribe = on_subscribe
        subscriber.subscribe("kept/#", qos=1)
        await asyncio.wait_for(subscribed.wait(), 30)
    topics = [f"kept/{number % 10}" for number in range(500)]
    async with first.connect() as bus:
        await bus.publish_many([(topic, b"%d" % number) for number, topic in enumerate(topics)])
        before = [(m.topic, m.payload, m.position) async for m in bus.history("kept/#")]
    assert first.stop() == 0

    second = Cluster(tmp_path, "--brokers", "2", "--coordinators", "2")
    try:
        async with second.connect() as bus:
            after = [(m.topic, m.payload, m.position) async for m in bus.history("kept/#")]
            position = await bus.publish("kept/0", b"new")
        assert sorted(after) == sorted(before)
        assert len(after) == 500
        assert position.epoch > max(p.epoch for _, _, p in before if p.group == position.group)
        missed: list[tuple[str, bytes]] = []
        with staying(second, lambda client, userdata, message: missed.append((message.topic, message.payload))):
            await eventually(lambda: len(missed) == 501, "what was missed has come", SETTLE_TIMEOUT_S)
        for topic in set(topics):
            sent = [b"%d" % number for number, name in enumerate(topics) if name == topic]
            assert [payload for name, payload in missed if name == topic and payload != b"new"] == sent
    finally:
        assert second.stop() == 0
