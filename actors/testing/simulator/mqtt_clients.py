"""The MQTT clients of a story: sessions that publish and read at all qualities, lose their connections and come back,
mostly at another broker, sometimes while the old connection still stands; with wills and retained publications.

A client keeps what MQTT has it keep: publications without an answer are sent again, with their packet ids, when it has
connected again; of QoS 2 it knows what it has received and not completed.
"""

from __future__ import annotations

import asyncio
from itertools import count
from typing import Any

from lexicast.cluster.topics.names import matches

from ...mqtt.codec import PacketReader, encode_packet
from ...mqtt.codec.packets import (
    PUBACK,
    PUBCOMP,
    PUBREC,
    PUBREL,
    V5,
    AckRun,
    ConnAck,
    Connect,
    Disconnect,
    Publish,
    PublishRun,
    PubRec,
    SubAck,
    Subscribe,
    SubscriptionOptions,
    Will,
)
from ...mqtt.codec.properties import RECEIVE_MAXIMUM, SESSION_EXPIRY_S, USER_PROPERTY, WILL_DELAY_S
from .auditor import Auditor
from .broker_processes import BrokerProcesses
from .conditions import EVERYTHING, drawn_condition
from .scene import Scene
from .virtual import SimProcess

EXPIRY_S = 7 * 86_400
PACKET_BYTES_MAX = 1 << 20
# How long a client waits for CONNACK, and looks for a broker.
CONNECT_S = 2.0
LOOK_S = 0.05
REFUSED = 0x80
MQTT_TOPICS = (b"m/1", b"m/2", b"r/1", b"r/2")
MQTT_FILTERS = (b"m/#", b"m/1", b"r/+", b"#")
WILL_TOPIC = b"w"
RETAINED_TOPICS = (b"r/1", b"r/2")
RETAINED_FILTER = b"r/+"


class SentPublication:
    """A publication that a client has sent and that is not completed."""

    def __init__(self, publication: Publish) -> None:
        self.publication = publication
        # QoS 2: PUBREC has come, PUBREL is out.
        self.released = False


class MqttLine(asyncio.Protocol):
    """One connection of a client; what comes on another one than its newest the client does not see."""

    def __init__(self, client: SimMqttClient, broker: str, process: SimProcess, will: Will | None) -> None:
        self.client = client
        self.broker = broker
        self.process = process
        self.will = will
        self.transport: Any = None
        self.connected = False
        self.ended = asyncio.Event()
        self.answered = asyncio.Event()
        self._reader = PacketReader(PACKET_BYTES_MAX, from_client=False, version=V5)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        self.client.introduce(self)

    def data_received(self, data: bytes) -> None:
        for item in self._reader.feed(data):
            if self.client.line is self and not self.ended.is_set():
                self.client.take(self, item)
        if self._reader.error is not None:
            self.client.auditor.found(f"alive: {self.broker} sent {self.client.name} {self._reader.error}")

    def connection_lost(self, error: Exception | None) -> None:
        self.ended.set()
        self.answered.set()
        self.client.gone()

    def send(self, packet: Any) -> None:
        """Write a packet."""
        if not self.ended.is_set():
            self.transport.write(encode_packet(packet, V5))

    def drop(self) -> None:
        """End it, without a word."""
        if not self.ended.is_set():
            self.ended.set()
            self.transport.abort()


class SimMqttClient:
    """See the module's docstring."""

    def __init__(
        self, scene: Scene, brokers: BrokerProcesses, auditor: Auditor, process: SimProcess, name: str
    ) -> None:
        self.scene, self.brokers, self.auditor, self.process, self.name = scene, brokers, auditor, process, name
        choose = scene.choose
        self.filter = choose.choice(MQTT_FILTERS)
        self.qos = choose.choice([1, 2])
        dice = scene.content_dice
        self.condition = drawn_condition(dice) if scene.content and dice.random() < 0.8 else EVERYTHING
        self.line: MqttLine | None = None
        # Whether there is a session, as CONNACK has said; when SUBACK came; what was seen at QoS 1 and 2, in the order
        # of first sights. (Of QoS 0 some is sent anew behind what an earlier connection left unacknowledged.)
        self.has_session = False
        self.subscribed_s: float | None = None
        self.seen: dict[bytes, None] = {}
        # What came as retained, by topic.
        self.retained: dict[bytes, bytes] = {}
        self.under_way: dict[int, SentPublication] = {}
        self._received: set[int] = set()
        self._connections = 0
        self._wills_s = choose.choice([0, 0, 1])
        # Wills that have to go out, and the process of the broker that was to see that they do.
        self._wills_due: dict[bytes, SimProcess] = {}

    def _say(self, what: str) -> None:
        self.scene.transcript.say(self.name, what)

    # -- connections

    async def live(self, until_s: float) -> None:
        """Connect, and again, until `until_s`; from then on stay connected."""
        loop, choose = self.scene.loop, self.scene.choose
        while True:
            line = await self._connected()
            if line is None:
                await asyncio.sleep(LOOK_S)
                continue
            stays_s = choose.random() * 2.0
            while not line.ended.is_set():
                if loop.time() < until_s and stays_s < 0:
                    break
                await asyncio.sleep(LOOK_S)
                stays_s -= LOOK_S
            if not line.ended.is_set():
                self._leave(line)
            else:
                self._lost_will(line)
            await asyncio.sleep(choose.random() * 0.3)

    def _leave(self, line: MqttLine) -> None:
        """End the connection one way or the other; or let it be, and come at another broker."""
        match self.scene.choose.choice(["politely", "rudely", "not at all"]):
            case "politely":
                self._say(f"disconnects from {line.broker}")
                line.send(Disconnect())
                line.ended.set()
                self.scene.at(self.scene.loop.time() + 0.1, self.process.do, line.transport.abort)
            case "rudely":
                self._say(f"drops its connection to {line.broker}")
                self.process.do(line.drop)
                self._lost_will(line)
            case _:
                self._say(f"comes again, still connected to {line.broker}")
                self._lost_will(line)

    def _lost_will(self, line: MqttLine) -> None:
        if line.will is not None and not self._wills_s:
            self._wills_due[line.will.payload] = line.process

    async def _connected(self) -> MqttLine | None:
        running = sorted(self.brokers.listeners)
        if not running:
            return None
        broker = self.scene.choose.choice(running)
        self._connections += 1
        will = None
        if self.scene.choose.random() < 0.5:
            delay = {WILL_DELAY_S: self._wills_s} if self._wills_s else None
            will = Will(WILL_TOPIC, b"will-%s-%d" % (self.name.encode(), self._connections), 1, False, delay)
            self.auditor.may_double.add(will.payload)  # at least once
        process, listener = self.brokers.processes[broker], self.brokers.listeners[broker]
        line = self.line = MqttLine(self, broker, process, will)
        self._say(f"connects to {broker}{' with a will' if will else ''}")
        self.scene.network.connect(self.process, line, process, listener.accept)
        try:
            async with asyncio.timeout(CONNECT_S):
                await line.answered.wait()
        except TimeoutError:
            self._say(f"has no answer from {broker}")
            self.process.do(line.drop)
        return line if line.connected and not line.ended.is_set() else None

    def introduce(self, line: MqttLine) -> None:
        """Say who it is."""
        properties = {SESSION_EXPIRY_S: EXPIRY_S, RECEIVE_MAXIMUM: self.scene.choose.choice([1, 5, 100])}
        line.send(Connect(V5, self.name, False, 0, line.will, properties=properties))

    # -- what comes

    def take(self, line: MqttLine, item: Any) -> None:
        """A packet of the broker."""
        match item:
            case ConnAck():
                self._welcomed(line, item)
            case PublishRun():
                for at, payload in enumerate(item.payloads):
                    self._delivered(line, item, payload, item.packet_ids[at] if item.packet_ids else 0)
            case AckRun():
                for packet_id in item.packet_ids:
                    self._acked(line, item.kind, packet_id)
            case SubAck():
                if max(item.reason_codes) >= REFUSED:
                    line.drop()
                elif self.subscribed_s is None:
                    self.subscribed()
            case Disconnect():
                self._say(f"is sent away by {line.broker}: 0x{item.reason_code:02x}")
                line.drop()
            case _ if hasattr(item, "packet_id"):
                # With a reason of its own: PUBACK, PUBREC, PUBCOMP.
                if getattr(item, "reason_code", 0) >= REFUSED:
                    self._say(f"is refused {item.packet_id}: 0x{item.reason_code:02x}")
                    self.under_way.pop(item.packet_id, None)
                else:
                    self._acked(line, PUBREC if isinstance(item, PubRec) else PUBACK, item.packet_id)

    def _welcomed(self, line: MqttLine, connack: ConnAck) -> None:
        line.answered.set()
        if connack.reason_code:
            self._say(f"is refused by {line.broker}: 0x{connack.reason_code:02x}")
            line.drop()
            return
        self._say(f"is connected to {line.broker}{', its session goes on' if connack.session_present else ''}")
        line.connected = True
        if self.has_session and not connack.session_present:
            self.auditor.found(f"sessions: {line.broker} knows nothing of the session of {self.name}")
        self.has_session = True
        for packet_id, sent in list(self.under_way.items()):
            if sent.released:
                line.send(AckRun(PUBREL, [packet_id]))
            else:
                sent.publication.dup = True
                if sent.publication.qos == 1:
                    self.auditor.may_double.add(sent.publication.payload)
                line.send(sent.publication)
        if self.subscribed_s is None:
            where = {USER_PROPERTY: [("where", self.condition.where)]} if self.condition.where else None
            line.send(Subscribe(1, [(self.filter, SubscriptionOptions(self.qos))], properties=where))

    def _delivered(self, line: MqttLine, run: PublishRun, payload: bytes, packet_id: int) -> None:
        self._say(f"gets {payload!r} on {run.topic.decode()}{' again' if run.dup else ''} from {line.broker}")
        if run.qos == 1:
            line.send(AckRun(PUBACK, [packet_id]))
        elif run.qos == 2:
            line.send(AckRun(PUBREC, [packet_id]))
        self.saw(line, run, payload)

    def subscribed(self) -> None:
        """SUBACK has come."""
        self._say(f"is subscribed to {self.filter.decode()}")
        self.subscribed_s = self.scene.loop.time()

    def gone(self) -> None:
        """A connection of its has ended."""

    def saw(self, line: MqttLine, run: PublishRun, payload: bytes) -> None:
        """It has got a publication."""
        if not matches(self.filter, run.topic):
            self.auditor.found(f"subscribers: {self.name} gets {run.topic!r}, it wants {self.filter!r}")
        if not self.condition.wants(run.topic, payload):
            self.auditor.found(f"unwanted: {self.name} gets {payload!r}, it wants {self.condition.where}")
        if run.qos:
            self.auditor.seen_by_session(payload)
        if run.retain:
            self.retained[run.topic] = payload
        elif run.qos:
            self.seen.setdefault(payload)

    def _acked(self, line: MqttLine, kind: int, packet_id: int) -> None:
        if kind == PUBREL:
            line.send(AckRun(PUBCOMP, [packet_id]))
            return
        sent = self.under_way.get(packet_id)
        if sent is None:
            return
        if kind in (PUBACK, PUBREC) and not sent.released:
            self._say(f"has the acknowledgement of {sent.publication.payload!r}")
            self.auditor.acknowledged.add(sent.publication.payload)
        if kind == PUBREC:
            sent.released = True
            line.send(AckRun(PUBREL, [packet_id]))
        else:
            del self.under_way[packet_id]

    # -- what it publishes

    def publish(self, payload: bytes) -> None:
        """Publish once, if it is connected."""
        line, choose, payload = self.line, self.scene.choose, self.scene.payload(payload)
        qos, topic = choose.choice([0, 1, 1, 2, 2]), choose.choice(MQTT_TOPICS)
        if line is None or not line.connected or line.ended.is_set():
            return
        # The least that is free: ids are used again as soon as they may be.
        packet_id = next(i for i in count(1) if i not in self.under_way) if qos else 0
        publication = Publish(topic, payload, qos, topic in RETAINED_TOPICS, False, packet_id)
        self._say(f"publishes {payload!r} on {topic.decode()} at QoS {qos}")
        self.auditor.sent(payload)
        if qos:
            self.under_way[packet_id] = SentPublication(publication)
        self.process.do(line.send, publication)

    # -- what it lacks in the end

    def missing(self) -> list[bytes]:
        """What it is owed and has not got."""
        if self.subscribed_s is None:
            return []
        return self.auditor.missing(self.filter, self.subscribed_s, self.seen, self.condition.wants)

    def lacking(self) -> str:
        """What is still to come."""
        if self.line is None or not self.line.connected or self.line.ended.is_set():
            return f"{self.name} is not connected"
        if self.under_way:
            waiting = [sent.publication.payload for sent in self.under_way.values()]
            return f"{self.name} has no answer to {waiting}"
        if self.subscribed_s is None:
            return f"{self.name} is not subscribed"
        missing = self.missing()
        if missing:
            return f"{self.name} ({self.filter!r}) has not got {missing[:3]} of {len(missing)}"
        # Where a disk was full only the broker knows of a will that was refused as its session was taken over; and by a
        # clock that is ahead one that was refused is due too late.
        jumped = any(clock.ahead_s for clock in self.scene.clocks.values())
        lost = {
            will for will, process in self._wills_due.items() if self.scene.was_full and (jumped or not process.alive)
        }
        unpublished = sorted(self._wills_due.keys() - lost - self.auditor.places.keys())
        if unpublished:
            return f"wills: {unpublished} are not out"
        will = self.line.will
        if will is not None and will.payload in self.auditor.places:
            self.auditor.found(f"wills: {will.payload!r} is out, but {self.name} is connected")
        return ""
