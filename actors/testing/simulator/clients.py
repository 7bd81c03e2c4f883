"""The clients of a story: publishers of all qualities, who send again, and readers, who go from broker to broker."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import msgpack

from lexicast.cluster.blocks import Block
from lexicast.cluster.content.parsed import predicate
from lexicast.cluster.errors import LexicastError
from lexicast.cluster.positions import topic_group

from ...broker.encoding import LINK, Grant, Kind
from ...broker.engine import BrokerEngine
from ...broker.pipelines.entries import GroupEntryBuilder, SealedEntry
from ...broker.subscriber import Subscriber
from .auditor import Auditor
from .broker_processes import BrokerProcesses
from .conditions import EVERYTHING, StoryCondition
from .scene import GROUPS, TOPICS, Scene

# After so long without an answer a client tries elsewhere.
PATIENCE_S = 1.0
LOOK_S = 0.05


class SimReader:
    """A client that reads one filter: what it has seen, whichever brokers it got it from."""

    def __init__(self, name: str, topic_filter: bytes, since: dict[int, int], condition: StoryCondition) -> None:
        self.name = name
        self.filter = topic_filter
        self.condition = condition
        self.since = since
        self.places: set[tuple[int, int]] = set()
        self.last: dict[int, int] = {}
        # Where it is now; what comes from elsewhere it does not see.
        self.stream: SimStream | None = None


class SimStream(Subscriber):
    """A reader at one broker. It hands on what it gets, and now and then has no room."""

    __slots__ = ("auditor", "cursor", "reader", "scene")

    def __init__(self, scene: Scene, auditor: Auditor, engine: BrokerEngine, reader: SimReader) -> None:
        super().__init__(engine.subscriptions, Kind(LINK))
        self.scene = scene
        self.auditor = auditor
        self.reader = reader
        self.cursor: dict[int, int] = {}

    def write(self, data: bytes) -> None:
        """Take one block."""
        block, reader = Block.from_wire(msgpack.unpackb(data, use_list=False)), self.reader
        if reader.stream is not self:
            return
        for record in block.records():
            self.scene.transcript.say(reader.name, f"sees {record.payload!r} at {block.group}:{record.offset}")
            if not reader.condition.wants(record.topic, record.payload):
                self.auditor.found(f"unwanted: {reader.name} sees {record.payload!r}, wants {reader.condition.where}")
            before = reader.last.get(block.group, -1)
            if record.offset <= before:
                self.auditor.found(f"order: {reader.name} sees {block.group}:{record.offset} after {before}")
            reader.last[block.group] = record.offset
            reader.places.add((block.group, record.offset))
            self.auditor.delivered(block.group, record.offset, record.flags, record.payload)
        self.cursor[block.group] = block.last + 1
        if self.scene.choose.random() < 0.1:
            self.block()
            self.scene.loop.call_later(self.scene.choose.random() * 0.1, self.go_on)

    def go_on(self) -> None:
        """There is room again."""
        if not self.closed:
            self.unblock()


class Clients:
    """All of them."""

    def __init__(self, scene: Scene, brokers: BrokerProcesses, auditor: Auditor) -> None:
        self.scene = scene
        self.brokers = brokers
        self.auditor = auditor
        self.readers: list[SimReader] = []

    def _any_broker(self) -> str | None:
        """A broker that runs."""
        running = sorted(self.brokers.engines)
        return self.scene.choose.choice(running) if running else None

    def _at_broker(self, who: str, what: str, work: Callable[[BrokerEngine], Any]) -> None:
        """Have something done by some broker; where none runs, nothing."""
        name = self._any_broker()
        if name is None:
            return
        self.scene.transcript.say(who, f"{what} at {name}")
        engine = self.brokers.engines[name]

        def do() -> None:
            try:
                work(engine)
            except LexicastError as error:
                self.scene.transcript.say(who, f"is refused: {error}")

        self.brokers.processes[name].do(do)

    def _answered(self, who: str, payloads: Sequence[bytes], result: Any) -> None:
        """The result of an entry: a text is a refusal."""
        if isinstance(result, str):
            self.scene.transcript.say(who, f"is refused: {result}")
        else:
            self.scene.transcript.say(who, f"has the acknowledgement of {b' '.join(payloads).decode()}")
            self.auditor.acknowledged.update(payloads)

    # -- publishers

    def publish(self, payload: bytes) -> None:
        """Somebody publishes once. What the broker has not answered before it died is nobody's promise."""
        choose = self.scene.choose
        qos = choose.randint(0, 1)
        payloads = [self.scene.payload(payload + b"/%d" % i) for i in range(choose.choice([1, 1, 5]))]
        kept = payloads if qos else []
        for each in payloads:
            self.auditor.sent(each)
        topic = choose.choice(TOPICS)
        done = partial(self._answered, "a client", kept)
        what = f"publishes {b' '.join(payloads).decode()} on {topic.decode()} at QoS {qos}"
        self._at_broker("a client", what, lambda e: e.coordinators.publish(topic, qos, payloads, "origin", done))

    def publish_marked(self, payload: bytes, packet_id: int) -> None:
        """A QoS 2 publication, sent again over other brokers and never released."""
        topic, payload = self.scene.choose.choice(TOPICS), self.scene.payload(payload)
        self.auditor.sent(payload)

        def send() -> None:
            mark = (b"session", 0, [packet_id])
            done = partial(self._answered, "a session", [payload])
            what = f"publishes {payload.decode()} on {topic.decode()} at QoS 2"
            self._at_broker(
                "a session", what, lambda e: e.coordinators.publish(topic, 2, [payload], "origin", done, mark)
            )

        self._send_now_and_then(send)

    def publish_again(self, producer: bytes, sequence: int, count: int) -> None:
        """A client that is its own producer sends an entry, and again, perhaps over another broker."""
        who, topic = f"producer {producer.decode()}", self.scene.choose.choice(TOPICS)
        builder = GroupEntryBuilder(topic_group(topic, GROUPS))
        payloads = [self.scene.payload(b"%s-%d" % (producer, sequence + i)) for i in range(count)]
        for each in payloads:
            self.auditor.sent(each)
        builder.add(topic, 1, payloads, "client")
        sealed = builder.seal(producer, 1, sequence)

        def send() -> None:
            done = partial(self._answered, who, payloads)
            what = f"sends {b' '.join(payloads).decode()} on {topic.decode()}"
            entry = SealedEntry(sealed.wire, [done], (), sealed.size_bytes)
            self._at_broker(who, what, lambda e: e.coordinators.forward(entry, count))

        self._send_now_and_then(send)

    def _send_now_and_then(self, send: Callable[[], None]) -> None:
        choose = self.scene.choose
        for _ in range(choose.randint(1, 3)):
            self.scene.at(self.scene.loop.time() + choose.random() * 0.5, send)

    # -- readers

    async def read(
        self, name: str, topic_filter: bytes, until_s: float, condition: StoryCondition = EVERYTHING
    ) -> None:
        """A reader from its start to the end of the story, at one broker after the other; from `until_s` on it stays
        where it is as long as that is there."""
        scene = self.scene
        groups = range(GROUPS) if topic_filter in (b"#", b"b/+") else [topic_group(topic_filter, GROUPS)]
        start = dict.fromkeys(groups, 0) if scene.choose.random() < 0.6 else None
        reader = SimReader(name, topic_filter, start or {}, condition)
        where = predicate(condition.where) if condition.where else None
        while True:
            broker = self._any_broker()
            if broker is None:
                await asyncio.sleep(LOOK_S)
                continue
            engine, process = self.brokers.engines[broker], self.brokers.processes[broker]
            wanted = topic_filter.decode() + (f" where {condition.where}" if where is not None else "")
            scene.transcript.say(name, f"subscribes to {wanted} at {broker} from {start or 'now'}")
            stream = reader.stream = SimStream(scene, self.auditor, engine, reader)
            stream.block()
            subscribing = engine.subscriptions.subscribe(stream, {topic_filter: Grant(where=where)}, start=start)
            task = scene.loop.create_task(subscribing, context=process.context.copy())
            # Not awaited: in a process that is killed it never ends.
            await asyncio.wait([task], timeout=PATIENCE_S)
            if not task.done() or task.exception() is not None:
                task.cancel()
                scene.transcript.say(name, f"is not served by {broker}")
                process.do(engine.subscriptions.leave, stream)
                continue
            stream.cursor = engine.subscriptions.cursor_of(stream)
            if reader not in self.readers:
                reader.since = start or dict(stream.cursor)
                self.readers.append(reader)
            process.do(stream.go_on)
            leaves_s = scene.loop.time() + scene.choose.random() * 4
            await self._stay(broker, leaves_s, until_s)
            scene.transcript.say(name, f"leaves {broker}")
            reader.stream = None
            process.do(engine.subscriptions.leave, stream)
            start = dict(stream.cursor)

    async def _stay(self, broker: str, leaves_s: float, until_s: float) -> None:
        """Return when the broker is gone, or when it is time to leave."""
        engine, loop = self.brokers.engines.get(broker), self.scene.loop
        while engine is not None and self.brokers.engines.get(broker) is engine:
            if leaves_s < loop.time() < until_s:
                return
            await asyncio.sleep(LOOK_S)
