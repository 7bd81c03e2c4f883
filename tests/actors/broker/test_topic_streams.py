"""Topic streams over real sockets: MQTT sessions, `lexicast.mqtt` and Python clients, joining late, slow, resuming."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from paho.mqtt.enums import CallbackAPIVersion

import lexicast
import lexicast.mqtt as mqtt
from lexicast.actors.client.decoder import Frames
from lexicast.actors.mqtt.codec.packets import SubAck, Subscribe, SubscriptionOptions
from lexicast.cluster.topics.names import dictionary_topic
from lexicast.compression.codecs import ZSTD_DENSE
from lexicast.compression.dictionary import Dictionary
from lexicast.compression.streams.frames import is_frame
from lexicast.compression.streams.topic_stream import KEY_INTERVAL, TRIAL_FRAMES
from lexicast.compression.streams.topic_streams import TopicStreams
from lexicast.compression.streams.zstd_blocks import ZstdReader
from lexicast.compression.wire import LOST_TOPIC, STREAMS_PROPERTY, USER_PROPERTY, ZSTD_PROPERTY

from ...support.aware_devices import Aware, python_client
from ...support.mqtt_harness import WAIT_S, Message, Raw, Served, close_clients, served

TOPIC, FAMILY = "line/a", b"line/+"
BOTH: Any = {"_38": [USER_PROPERTY, STREAMS_PROPERTY]}
WITH_ZSTD: Any = {"_38": [USER_PROPERTY, STREAMS_PROPERTY, ZSTD_PROPERTY]}
ADMITTED = TopicStreams.ADMITTED_AFTER
USER = 38


def text(number: int) -> bytes:
    return b'{"state": "running", "number": %d, "speed": %d}' % (number, number % 90)


@pytest.fixture(scope="module")
def there() -> Iterator[Served]:
    with served(compression__stream_records_per_s=1_000_000) as running:
        yield running


@pytest.fixture(scope="module")
def without() -> Iterator[Served]:
    with served(compression__stream_records_per_s=0) as running:
        yield running


@pytest.fixture(autouse=True)
async def no_clients_left() -> AsyncIterator[None]:
    """Before the brokers stop (at the module's end): they wait for whoever is connected."""
    yield
    await close_clients()


class Reader(Aware):
    """Remembers which payloads came as frames; `of_zstd`: key frames of streams of zstd."""

    def __init__(self, client: Raw) -> None:
        super().__init__(client)
        self.streamed: list[bool] = []
        self.of_zstd = 0

    def read(self, message: Message) -> list[bytes]:
        got = super().read(message)
        self.streamed += [is_frame(message.payload)] * len(got)
        self.of_zstd += message.payload.startswith(b"\xff\3")
        return got


async def reader(there: Served, topic: str, qos: int = 0, **options: Any) -> Reader:
    client = await Raw.connect(there.port, **(BOTH | options))
    await client.subscribe(topic, qos=qos)
    return Reader(client)


async def publish(client: Raw, topic: str, numbers: range, qos: int = 0) -> None:
    for number in numbers:
        await client.publish(topic, text(number), qos)
    assert await client.ping() == []


def article(number: int) -> bytes:
    """2 KB of what was said before, some of it further back than DEFLATE looks."""
    draw = random.Random(number)
    return (
        b"".join([random.Random(draw.randrange(60)).randbytes(500).hex().encode() for _ in range(2)]) + b"%d" % number
    )


async def publish_articles(client: Raw, topic: str, numbers: range) -> None:
    for number in numbers:
        await client.publish(topic, article(number), 1)
        if number % 20 == 0:
            assert await client.ping() == []
    assert await client.ping() == []


def learn(there: Served, version: int) -> Dictionary:
    made = Dictionary(FAMILY, ZSTD_DENSE, b"".join(map(text, range(version, version + 40))), created_us=version)

    async def work() -> None:
        async with python_client(there) as client:
            await client.publish(dictionary_topic(FAMILY).decode(), made.pack(), retain=True)
        until = time.monotonic() + WAIT_S
        while there.broker().engine.dictionaries.newest(TOPIC.encode()) != made:
            assert time.monotonic() < until
            await asyncio.sleep(0.002)

    there.run(work())
    return made


async def test_frames_arrive_from_the_key_frame_on_whatever_the_qos(there: Served) -> None:
    publisher = await Raw.connect(there.port)
    first = [await reader(there, "join/a", qos) for qos in (0, 1)]
    await publish(publisher, "join/a", range(ADMITTED + 4), qos=1)
    for each in first:
        assert await each.take(ADMITTED + 4) == [text(n) for n in range(ADMITTED + 4)]
        assert each.streamed[-1]
    late = await reader(there, "join/a")
    numbers = range(100, 103 + KEY_INTERVAL)
    await publish(publisher, "join/a", numbers, qos=1)
    for each in (*first, late):
        assert await each.take(len(numbers)) == [text(n) for n in numbers]
        assert each.streamed[-1]
    assert not late.streamed[0]
    assert all(first[0].streamed[-len(numbers) :])


async def test_a_client_that_cannot_read_a_stream_says_so(there: Served) -> None:
    publisher, asked = await Raw.connect(there.port), await reader(there, "lost/a")
    await publish(publisher, "lost/a", range(30))
    await asked.take(30)
    assert asked.streamed == [True] * 30
    await asked.client.publish(LOST_TOPIC.decode(), b"lost/a")
    assert await asked.client.ping() == []
    for first in range(30, 300, 30):
        await publish(publisher, "lost/a", range(first, first + 30))
        assert await asked.take(30) == [text(n) for n in range(first, first + 30)]
    assert (asked.streamed[30], asked.streamed[-1]) == (False, True)


async def test_who_does_not_ask_or_limits_its_packets_is_not_told_and_gets_none(there: Served) -> None:
    publisher = await Raw.connect(there.port)
    asked = await reader(there, "ask/a")
    others = [
        await reader(there, "ask/a", _38=[USER_PROPERTY]),
        await reader(there, "ask/a", _38=[USER_PROPERTY, ("sdc-streams", "1")]),
        await reader(there, "ask/a", _39=10_000),
    ]
    for other in others:
        assert STREAMS_PROPERTY not in [tuple(pair) for pair in (other.client.connack.properties or {}).get(USER, [])]
    await publish(publisher, "ask/a", range(50))
    for each in (asked, *others):
        assert await each.take(50) == [text(n) for n in range(50)]
    assert asked.streamed[-1]
    assert not any([any(other.streamed) for other in others])


async def test_a_broker_that_is_told_not_to_sends_none(without: Served) -> None:
    publisher, asked = await Raw.connect(without.port), await reader(without, "off/a")
    await publish(publisher, "off/a", range(50))
    assert await asked.take(50) == [text(n) for n in range(50)]
    assert not any(asked.streamed)
    assert without.broker().status()["streamed_records"] == 0


async def test_a_slow_session_is_caught_up_standalone_and_joins_again(there: Served) -> None:
    publisher = await Raw.connect(there.port)
    slow = await reader(there, "slow/a", receive_bytes=4_096)
    await publish(publisher, "slow/a", range(100))
    assert await slow.take(100) == [text(n) for n in range(100)]
    assert slow.streamed[-1]
    slow.client.stop_reading()
    # 6 MB on the link, which is more than the sockets take; what all have in common makes frames pay
    same = random.Random(-1).randbytes(200).hex()
    padded = [text(n) + (same + random.Random(n).randbytes(2_000).hex()).encode() for n in range(3_000)]
    for payload in padded:
        await publisher.publish("slow/a", payload)
    assert await publisher.ping() == []
    slow.client.start_reading()
    assert await slow.take(len(padded)) == padded
    assert not all(slow.streamed[100:])
    numbers = range(12 * KEY_INTERVAL)
    await publish(publisher, "slow/a", numbers, qos=1)
    assert await slow.take(len(numbers)) == [text(n) for n in numbers]
    assert slow.streamed[-1]


async def test_what_is_sent_again_after_a_broken_link_is_standalone(there: Served) -> None:
    publisher = await Raw.connect(there.port)
    session: dict[str, Any] = {"client_id": "again", "clean": False, "_17": 600}
    first = await reader(there, "again/a", 1, **session)
    await publish(publisher, "again/a", range(40), qos=1)
    assert await first.take(40) == [text(n) for n in range(40)]
    first.client.answers = False
    await publish(publisher, "again/a", range(40, 50), qos=1)
    assert await first.take(10) == [text(n) for n in range(40, 50)]
    assert all(first.streamed[-10:])
    first.client.abort()
    await publish(publisher, "again/a", range(50, 60), qos=1)
    second = Reader(await Raw.connect(there.port, **(BOTH | session)))
    assert await second.take(20) == [text(n) for n in range(40, 60)]
    assert not any(second.streamed)
    await publish(publisher, "again/a", range(60, 60 + KEY_INTERVAL), qos=1)
    assert await second.take(KEY_INTERVAL) == [text(n) for n in range(60, 60 + KEY_INTERVAL)]
    assert second.streamed[-1]


async def test_a_window_in_time_beside_a_subscription_is_standalone(there: Served) -> None:
    publisher = await Raw.connect(there.port)
    both = await reader(there, "window/a", 1)
    await publish(publisher, "window/a", range(30))
    await both.take(30)
    await subscribe_since(both.client, "window/#", "10m")
    past = await both.take(30)
    assert past == [text(n) for n in range(30)]
    numbers = range(30, 30 + 2 * KEY_INTERVAL)  # past a key frame, where whoever takes frames would join
    await publish(publisher, "window/a", numbers, qos=1)
    got = await both.take(2 * len(numbers))
    assert sorted(got) == sorted([text(n) for n in numbers] * 2)
    assert both.streamed[-2 * len(numbers) :].count(True) == len(numbers)


async def subscribe_since(client: Raw, topic: str, since: str) -> None:
    options = [(topic.encode(), SubscriptionOptions(1))]
    client.send(Subscribe(client.next_id(), options, None, {USER: [("since", since)]}))
    assert (await client.expect(SubAck)).reason_codes == [1]


def wait(true: Any, what: str) -> None:
    until = time.monotonic() + 3 * WAIT_S
    while not true():
        assert time.monotonic() < until, f"{what} did not come true"
        time.sleep(0.002)


def test_paho_programs_read_through_a_change_of_dictionary(there: Served) -> None:
    got: list[bytes] = []
    frames: list[bytes] = []
    errors: list[Exception] = []
    client = mqtt.Client(CallbackAPIVersion.VERSION2, client_id="reader")
    client.on_message = lambda _client, _userdata, message: got.append(bytes(message.payload))
    client.on_sdc_error = lambda _client, _userdata, _message, error: errors.append(error)
    subscribed: list[int] = []
    client.on_subscribe = lambda *_: subscribed.append(1)
    incoming = client._sdc.incoming

    def counting(item: Any, topic: bytes, payload: bytes, now_s: float) -> Any:
        if is_frame(payload) and not topic.startswith(b"$sdc/"):
            frames.append(payload)
        return incoming(item, topic, payload, now_s)

    client._sdc.incoming = counting  # type: ignore[method-assign]  # looks, and changes nothing
    writer = mqtt.Client(CallbackAPIVersion.VERSION2, client_id="writer")
    for each in (client, writer):
        each.connect("127.0.0.1", there.port)
        each.loop_start()
    try:
        wait(lambda: client.is_connected() and writer.is_connected(), "both connected")
        client.subscribe(TOPIC, qos=1)
        wait(lambda: subscribed, "SUBACK")
        sent = 0
        for version in range(1, 4):
            learn(there, version)
            for _ in range(150):
                writer.publish(TOPIC, text(sent), qos=1)
                sent += 1
        wait(lambda: len(got) >= sent, "everything arrived")
        assert got == [text(n) for n in range(sent)]
        assert not errors
        assert len(frames) > sent // 2
    finally:
        for each in (client, writer):
            each.disconnect()
            each.loop_stop()


async def test_a_program_may_refuse_streams(there: Served) -> None:
    client = mqtt.Client(CallbackAPIVersion.VERSION2, sdc_streams=False)
    client.connect("127.0.0.1", there.port)
    client.loop_start()
    try:
        await asyncio.to_thread(wait, lambda: client.sdc_aware, "dictionary-aware")
        assert client._sdc._streams is None
    finally:
        client.disconnect()
        client.loop_stop()


async def test_long_messages_go_over_to_zstd_for_who_reads_it_and_standalone_to_who_does_not(there: Served) -> None:
    publisher = await Raw.connect(there.port)
    reading = [await reader(there, "long/a", qos, **WITH_ZSTD) for qos in (0, 1)]
    other = await reader(there, "long/a")
    count = 4 * TRIAL_FRAMES
    await publish_articles(publisher, "long/a", range(count))
    late = await reader(there, "long/a", **WITH_ZSTD)
    more = range(count, count + 2 * KEY_INTERVAL)
    await publish_articles(publisher, "long/a", more)
    for each in (*reading, other):
        assert await each.take(count) == [article(n) for n in range(count)]
    for each in (*reading, other, late):
        assert await each.take(len(more)) == [article(n) for n in more]
    for each in reading:
        assert each.of_zstd == 2, "it went over, and began anew for the late one"
        assert each.streamed[-1]
    assert late.of_zstd == 1
    assert late.streamed[-1]
    assert other.of_zstd == 0
    assert other.streamed[0]
    assert not other.streamed[-1]


async def test_where_few_read_zstd_the_stream_stays_one_of_deflate(there: Served) -> None:
    publisher = await Raw.connect(there.port)
    one = await reader(there, "long/b", **WITH_ZSTD)
    others = [await reader(there, "long/b") for _ in range(2)]
    count = 4 * TRIAL_FRAMES
    await publish_articles(publisher, "long/b", range(count))
    for each in (one, *others):
        assert await each.take(count) == [article(n) for n in range(count)]
        assert each.of_zstd == 0
        assert each.streamed[-1]


def test_python_clients_read_streams_of_zstd(there: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[ZstdReader] = []
    real = ZstdReader.decompress

    def counting(self: ZstdReader, data: bytes, number: int, *, bytes_max: int) -> bytes:
        if self not in made:
            made.append(self)
        return real(self, data, number, bytes_max=bytes_max)

    monkeypatch.setattr(ZstdReader, "decompress", counting)
    count = 4 * TRIAL_FRAMES

    async def work() -> None:
        async with python_client(there) as bus, bus.subscribe("py/long") as subscription:
            for number in range(count):
                await bus.publish("py/long", article(number))
            async with asyncio.timeout(3 * WAIT_S):
                assert [(await anext(subscription)).payload for _ in range(count)] == [article(n) for n in range(count)]

    there.run(work(), 10 * WAIT_S)
    assert len(made) == 1


def test_python_clients_join_late_let_go_and_come_back(there: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    reading: list[Frames] = []
    real = Frames.read

    def counting(self: Frames, topic: bytes, frames: list[bytes], group: int, end: int) -> list[bytes]:
        if self not in reading:
            reading.append(self)
        return real(self, topic, frames, group, end)

    monkeypatch.setattr(Frames, "read", counting)

    async def take(subscription: lexicast.Subscription, count: int) -> list[bytes]:
        async with asyncio.timeout(3 * WAIT_S):
            return [(await anext(subscription)).payload for _ in range(count)]

    async def work() -> None:
        async with python_client(there) as bus, bus.subscribe("py/a") as first:
            for number in range(40):
                await bus.publish("py/a", text(number))
            async with bus.subscribe("py/#", buffer_bytes=2_000) as late, bus.subscribe("py/a", slow="drop") as drops:
                await bus.publish_many([("py/a", text(number)) for number in range(40, 400)])
                assert await take(late, 360) == [text(n) for n in range(40, 400)]
                assert await take(drops, 360) == [text(n) for n in range(40, 400)]
                for number in range(400, 400 + 2 * KEY_INTERVAL):
                    await bus.publish("py/a", text(number))
                    assert await take(late, 1) == [text(number)]
            assert await take(first, 400 + 2 * KEY_INTERVAL) == [text(n) for n in range(400 + 2 * KEY_INTERVAL)]

    there.run(work(), 10 * WAIT_S)
    assert len(reading) >= 2, "the first one's frames, and the late one's after it came back"
