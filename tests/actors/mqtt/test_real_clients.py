"""Other people's MQTT clients against the broker: Mosquitto's, paho-mqtt, aiomqtt; and ours with its dictionaries."""

from __future__ import annotations

import asyncio
import queue
import shutil
import subprocess
from collections.abc import Iterator
from typing import Any

import aiomqtt
import paho.mqtt.client as paho
import pytest
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.subscribeoptions import SubscribeOptions

import lexicast.mqtt as ours

from ...support.mqtt_harness import HOST, Served, served, unique

WAIT_S = 60.0
VERSIONS = pytest.mark.parametrize("version", [4, 5])
QOS = pytest.mark.parametrize("qos", [0, 1, 2])


@pytest.fixture(scope="module")
def cluster() -> Iterator[Served]:
    with served() as running:
        yield running


@pytest.fixture
def port(cluster: Served) -> int:
    return cluster.port


# -- mosquitto_pub and mosquitto_sub

mosquitto = pytest.mark.skipif(
    not shutil.which("mosquitto_sub"), reason="mosquitto_pub and mosquitto_sub are not installed (mosquitto-clients)"
)


def command(program: str, port: int, version: int, *arguments: str) -> list[str]:
    """A command line."""
    return [program, "-h", HOST, "-p", str(port), "-V", "311" if version == 4 else "5", *arguments]


def mosquitto_pub(port: int, version: int, *arguments: str, lines: str | None = None) -> None:
    """Publish and wait."""
    program = command("mosquitto_pub", port, version, *arguments)
    done = subprocess.run(program, input=lines, capture_output=True, text=True, timeout=WAIT_S, check=False)
    assert (done.returncode, done.stderr) == (0, "")


class MosquittoSub:
    """mosquitto_sub; returns once it is subscribed."""

    def __init__(self, port: int, version: int, *arguments: str, until: str = "Subscribed") -> None:
        program = command("mosquitto_sub", port, version, "-d", "-F", "> %t|%q|%r|%p", *arguments)
        self._ends_by_itself = "-C" in arguments
        self.process = subprocess.Popen(["stdbuf", "-oL", *program], stdout=subprocess.PIPE, text=True)
        self.seen: list[str] = []
        self._until(until)

    def _until(self, what: str) -> str:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.seen.append(line.strip())
            if what in line:
                return line.strip()
        raise AssertionError(f"it ended before {what!r}: {self.seen}")

    def messages(self, count: int) -> list[tuple[str, int, int, str]]:
        """(topic, QoS, retain, payload) of the next publications."""
        found = []
        for _ in range(count):
            topic, qos, retain, payload = self._until("> ")[2:].split("|", 3)
            found.append((topic, int(qos), int(retain), payload))
        return found

    def end(self, kill: bool = False) -> None:
        """SIGTERM makes it say goodbye, SIGKILL does not. One that has got all it counts to says goodbye by itself,
        and a signal while it does makes it wait for itself for ever."""
        if kill:
            self.process.kill()
        elif not self._ends_by_itself:
            self.process.terminate()
        try:
            self.process.communicate(timeout=WAIT_S)
        finally:
            self.process.kill()


@mosquitto
@VERSIONS
@QOS
@pytest.mark.mqtt("MQTT-4.2.0-1")
def test_mosquitto_both_ways(port: int, version: int, qos: int) -> None:
    root = unique("m")
    subscriber = MosquittoSub(port, version, "-t", f"{root}/+", "-q", str(qos), "-C", "102")
    lines = "".join(f"{i}\n" for i in range(100))
    mosquitto_pub(port, version, "-t", f"{root}/lines", "-q", str(qos), "-l", lines=lines)
    mosquitto_pub(port, version, "-t", f"{root}/kept", "-q", str(qos), "-r", "-m", "kept")
    mosquitto_pub(port, version, "-t", f"{root}/empty", "-q", str(qos), "-n")
    # In order a topic; between topics the window of 20 lets later ones through.
    got = sorted(subscriber.messages(102), key=lambda message: message[0])
    assert got == [
        (f"{root}/empty", qos, 0, ""),
        (f"{root}/kept", qos, 0, "kept"),
        *[(f"{root}/lines", qos, 0, str(i)) for i in range(100)],
    ]
    subscriber.end()
    late = MosquittoSub(port, version, "-t", f"{root}/#", "-q", "2", "-C", "1")
    assert late.messages(1) == [(f"{root}/kept", qos, 1, "kept")]
    late.end()
    mosquitto_pub(port, version, "-t", f"{root}/kept", "-r", "-n")


@mosquitto
@VERSIONS
def test_mosquitto_will_and_stored_session(port: int, version: int) -> None:
    root, name = unique("m"), unique("m")
    watcher = MosquittoSub(port, version, "-t", f"{root}/will", "-q", "1")
    will = ("--will-topic", f"{root}/will", "--will-payload", "gone", "--will-qos", "1")
    polite = MosquittoSub(port, version, "-t", "x", *will)
    polite.end()
    # `stdbuf` replaces itself by mosquitto_sub, so this kills the client.
    MosquittoSub(port, version, "-t", "x", *will).end(kill=True)
    assert watcher.messages(1) == [(f"{root}/will", 1, 0, "gone")]
    watcher.end()
    stored = ("-t", f"{root}/a", "-q", "1", "-c", "-i", name, *(("-x", "600") if version == 5 else ()))
    MosquittoSub(port, version, *stored).end()
    for number in range(5):
        mosquitto_pub(port, version, "-t", f"{root}/a", "-q", "1", "-m", str(number))
    back = MosquittoSub(port, version, *stored, "-C", "5", until="CONNACK")
    assert [payload for _, _, _, payload in back.messages(5)] == [str(n) for n in range(5)]
    back.end()


# -- paho-mqtt, and ours


def properties(packet: int, **values: Any) -> Any:
    """paho's Properties, which has no types."""
    make: Any = Properties
    made = make(packet)
    for name, value in values.items():
        setattr(made, name, value)
    return made


class Blocking:
    """A paho client in its own thread, and what it received."""

    def __init__(self, kind: type[paho.Client], port: int, version: int, name: str = "", **options: Any) -> None:
        self.client = kind(CallbackAPIVersion.VERSION2, name, protocol=MQTTProtocolVersion(version), **options)
        self.messages: queue.Queue[paho.MQTTMessage] = queue.Queue()
        self.events: queue.Queue[tuple[str, Any]] = queue.Queue()
        self.client.on_connect = lambda c, u, flags, reason, p: self.events.put(("connect", (flags, reason)))
        self.client.on_subscribe = lambda c, u, mid, reasons, p: self.events.put(("subscribe", reasons))
        self.client.on_disconnect = lambda c, u, flags, reason, p: self.events.put(("disconnect", reason))
        self.client.on_message = lambda c, u, message: self.messages.put(message)
        self._port = port
        self._seen: list[paho.MQTTMessage] = []

    def seen(self, count: int) -> list[paho.MQTTMessage]:
        """The first `count` messages of all."""
        self._seen += self.take(count - len(self._seen))
        return self._seen

    def connect(self, **options: Any) -> Any:
        """Connect; (flags, reason)."""
        self.client.connect(HOST, self._port, **options)
        self.client.loop_start()
        return self.event("connect")

    def event(self, kind: str) -> Any:
        """The next event, which must be of this kind."""
        name, value = self.events.get(timeout=WAIT_S)
        assert name == kind, (name, value)
        return value

    def subscribe(self, topic: str, **options: Any) -> list[int]:
        """Subscribe; the reason codes."""
        self.client.subscribe(topic, **options)
        return [reason.value for reason in self.event("subscribe")]

    def take(self, count: int) -> list[paho.MQTTMessage]:
        """The next messages."""
        return [self.messages.get(timeout=WAIT_S) for _ in range(count)]

    def end(self) -> None:
        """Disconnect, and end the thread."""
        self.client.disconnect()
        self.client.loop_stop()


@VERSIONS
@pytest.mark.parametrize("kind", [paho.Client, ours.Client])
def test_paho_and_ours_at_every_qos(port: int, version: int, kind: type[paho.Client]) -> None:
    root = unique("p")
    subscriber, publisher = Blocking(kind, port, version), Blocking(kind, port, version)
    plain = Blocking(paho.Client, port, 4)
    for client in (subscriber, publisher, plain):
        _, reason = client.connect()
        assert reason == 0
    assert subscriber.subscribe(f"{root}/#", qos=2) == [2]
    assert plain.subscribe(f"{root}/#", qos=1) == [1]
    payloads = [b"message %d: %s" % (n, b"the same words again and again " * (n % 4)) for n in range(90)]
    infos = [publisher.client.publish(f"{root}/a", payload, qos=n % 3) for n, payload in enumerate(payloads)]
    for info in infos:
        info.wait_for_publish(WAIT_S)
        assert info.is_published()
    for qos in (0, 1, 2):  # paho shows a message of QoS 2 when it is released, later ones of QoS 0 and 1 before it
        assert [m.payload for m in subscriber.seen(90) if m.qos == qos] == payloads[qos::3]
    # And it sends those of QoS 1 and 2 later when 20 are unanswered.
    assert [m.payload for m in plain.seen(90) if m.qos == 0] == payloads[0::3]
    assert sorted(m.payload for m in plain.seen(90) if m.qos == 1) == sorted(payloads[1::3] + payloads[2::3])
    for client in (subscriber, publisher, plain):
        client.end()


def test_paho_version_5_options_and_properties(port: int) -> None:
    topic = unique("p")
    client = Blocking(paho.Client, port, 5, unique("p"))
    asked = properties(PacketTypes.CONNECT, SessionExpiryInterval=60)
    flags, _ = client.connect(clean_start=True, properties=asked)
    assert not flags.session_present
    identified = properties(PacketTypes.SUBSCRIBE, SubscriptionIdentifier=77)
    options = SubscribeOptions(qos=1, noLocal=False, retainAsPublished=True)
    assert client.subscribe(topic, options=options, properties=identified) == [1]
    carried = properties(
        PacketTypes.PUBLISH,
        ContentType="text/plain",
        ResponseTopic="reply",
        CorrelationData=b"\x01",
        UserProperty=[("a", "1"), ("a", "2")],
        MessageExpiryInterval=100,
    )
    client.client.publish(topic, b"x", 1, True, carried).wait_for_publish(WAIT_S)
    (message,) = client.take(1)
    got: Any = message.properties
    assert message.retain
    assert (got.ContentType, got.ResponseTopic, got.CorrelationData) == ("text/plain", "reply", b"\x01")
    assert (got.UserProperty, got.SubscriptionIdentifier) == ([("a", "1"), ("a", "2")], [77])
    assert 98 <= got.MessageExpiryInterval <= 100
    assert client.subscribe("$share/g/t", qos=1) == [1]
    client.client.publish(topic, b"", 1, True).wait_for_publish(WAIT_S)
    client.end()
    client.event("disconnect")
    client = Blocking(paho.Client, port, 5, client.client._client_id.decode())
    flags, _ = client.connect(clean_start=False, properties=asked)
    assert flags.session_present
    client.end()


@VERSIONS
def test_paho_takeover_and_offline_messages(port: int, version: int) -> None:
    name, topic = unique("p"), unique("p")

    def kept() -> tuple[Blocking, dict[str, Any]]:
        if version == 4:
            return Blocking(paho.Client, port, 4, name, clean_session=False), {}
        asked = properties(PacketTypes.CONNECT, SessionExpiryInterval=600)
        return Blocking(paho.Client, port, 5, name), {"clean_start": False, "properties": asked}

    first, options = kept()
    first.connect(**options)
    assert first.subscribe(topic, qos=2) == [2]
    second, options = kept()
    flags, _ = second.connect(**options)
    assert flags.session_present
    reason = first.event("disconnect")
    assert version == 4 or reason.value == 0x8E
    first.client.loop_stop()
    second.end()
    publisher = Blocking(paho.Client, port, version)
    publisher.connect()
    for number in range(30):
        publisher.client.publish(topic, b"%d" % number, qos=1 + number % 2).wait_for_publish(WAIT_S)
    third, options = kept()
    third.connect(**options)
    for qos in (1, 2):
        assert [m.payload for m in third.seen(30) if m.qos == qos] == [b"%d" % n for n in range(qos - 1, 30, 2)]
    third.end()
    publisher.end()


@pytest.mark.mqtt("MQTT-3.12.4-1", "MQTT-3.1.2-20")
def test_paho_keeps_itself_alive(port: int) -> None:
    clients = [Blocking(paho.Client, port, version) for version in (4, 5)]
    topic = unique("p")
    for client in clients:
        client.connect(keepalive=3)
        assert client.subscribe(topic, qos=1) == [1]
    other = Blocking(paho.Client, port, 5)
    other.connect()
    with pytest.raises(queue.Empty):
        clients[0].events.get(timeout=5.5)  # beyond 1.5 times the keep-alive: its pings are heard
    assert clients[1].events.empty()
    other.client.publish(topic, b"alive", 1)
    for client in clients:
        assert client.take(1)[0].payload == b"alive"
        client.end()
    other.end()


# -- aiomqtt


@VERSIONS
async def test_aiomqtt(port: int, version: int) -> None:
    topic = unique("a")
    protocol = aiomqtt.ProtocolVersion(version)
    will = aiomqtt.Will(f"{topic}/will", b"gone", 1)
    async with (
        aiomqtt.Client(HOST, port, protocol=protocol) as subscriber,
        aiomqtt.Client(HOST, port, protocol=protocol, will=will) as publisher,
    ):
        await subscriber.subscribe(f"{topic}/#", qos=2)
        for number in range(60):
            await publisher.publish(f"{topic}/{number % 7}", b"%d" % number, qos=number % 3)
        got = []
        async with asyncio.timeout(WAIT_S):
            async for message in subscriber.messages:
                got.append((str(message.topic), message.payload, message.qos))
                if len(got) == 60:
                    break
    by_topic: dict[str, list[int]] = {}
    for name, payload, qos in got:
        assert isinstance(payload, bytes)
        assert qos == int(payload) % 3
        by_topic.setdefault(name, []).append(int(payload))
    assert by_topic == {f"{topic}/{i}": list(range(i, 60, 7)) for i in range(7)}
