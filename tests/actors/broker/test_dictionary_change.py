"""Dictionaries that change under load, and what is wrong with them on the wire: real clients against a real broker.

The rules are those of `compression.wire`; every link gets every dictionary at once here, whether it pays or not (when
it pays: test_link_dictionaries). Clients: `lexicast.mqtt` (one of them stays on the first dictionary it was
given), plain paho with MQTT 5 and 3.1.1, Python clients that compress and that do not.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, ClassVar

import paho.mqtt.client as paho
import pytest
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion

import lexicast.mqtt as mqtt
from lexicast.actors.client.client import Client
from lexicast.actors.client.known_brokers import Endpoint
from lexicast.actors.mqtt.codec import encode_packet
from lexicast.actors.mqtt.codec.packets import V5, Disconnect, Publish
from lexicast.cluster.topics.names import dictionary_topic
from lexicast.compression.codecs import DEFLATE_PRESET, FIELDS, ZSTD, ZSTD_DENSE, Deflate
from lexicast.compression.dictionary import Dictionary, unpack_dictionary
from lexicast.compression.link_dictionaries import LinkDictionaries
from lexicast.compression.training import train
from lexicast.compression.wire import ALIAS_TOPIC, FIELDS_PROPERTY, USER_PROPERTY, Binding, Bindings, Recoder

from ...support.mqtt_harness import WAIT_S, Message, Raw, Served, close_clients, served

FAMILY = b"line/+"
NOT_AUTHORIZED, PAYLOAD_FORMAT_INVALID = 0x87, 0x99


def text(who: str, number: int) -> bytes:
    """A message of one publisher."""
    return b'{"publisher": "%s", "number": %d, "state": "running", "speed": %d}' % (who.encode(), number, number % 90)


def dictionary(version: int) -> Dictionary:
    """The family's dictionary number `version`; each has another codec than the one before."""
    codec = (ZSTD, DEFLATE_PRESET, ZSTD_DENSE)[version % 3]
    content = b"".join(text(who, version * 10 + n) for who in ("aware", "plain", "python") for n in range(4))
    return Dictionary(FAMILY, codec, content, created_us=version)


def eventually(true: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + WAIT_S
    while not true():
        assert time.monotonic() < deadline, f"{what} did not come true within {WAIT_S:.0f} s"
        time.sleep(0.002)


@pytest.fixture(scope="module", autouse=True)
def all_at_once() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LinkDictionaries, "is_due", lambda link, family, dictionary, *_: link.held(family) != dictionary)
        yield


@pytest.fixture(scope="module")
def broker() -> Iterator[Served]:
    with served() as there:
        yield there


@pytest.fixture(autouse=True)
async def no_clients_left() -> Any:
    yield
    await close_clients()


def python_client(there: Served, name: str, compress: bool) -> Client:
    coordination = there.cluster.coordination

    async def resolve() -> list[Endpoint]:
        members, info = await coordination.members(-1, 0), await coordination.cluster()
        return [Endpoint(m.name, m.addresses, info.cluster_id, info.key) for m in members.brokers.values()]

    return Client(resolve, client_id=name, compress=compress)


def announce(there: Served, version: int) -> None:
    """Publish a dictionary as sampling brokers do."""
    announce_made(there, dictionary(version))


def announce_made(there: Served, made: Dictionary) -> None:
    async def work() -> None:
        async with python_client(there, f"sampling-{made.created_us}", False) as client:
            await client.publish(dictionary_topic(made.family).decode(), made.pack(), retain=True)

    there.run(work())
    topic = made.family.replace(b"+", b"x")
    eventually(lambda: there.broker().engine.dictionaries.newest(topic) == made, "the broker's newest dictionary")


def restart(there: Served, meanwhile: Callable[[], None] = lambda: None) -> None:
    """Stop the broker, start it again on the same port."""
    there.cluster.config = there.cluster.config.replaced(mqtt__port=there.port)
    there.run(there.cluster.stop_broker("broker-0"))
    meanwhile()
    there.run(there.cluster.start_broker("broker-0"))


class Program:
    """An MQTT client of any kind that keeps what it gets and publishes numbered messages."""

    # Within one QoS an MQTT client's messages stay in order; paho sends QoS 0 past what waits for its window.
    QOS: ClassVar[dict[str, int]] = {"plain": 0, "aware": 1, "old": 2}

    def __init__(self, client: paho.Client, name: str, port: int) -> None:
        self.client, self.name = client, name
        self.got: list[tuple[str, bytes]] = []
        self.errors: list[Exception] = []
        self.sent = 0
        self._acknowledged = 0
        self._subscribed = threading.Event()
        client.on_message = lambda _client, _userdata, m: self.got.append((m.topic, bytes(m.payload)))
        client.on_subscribe = lambda *_: self._subscribed.set()
        client.on_publish = self._on_publish
        if isinstance(client, mqtt.Client):
            client.on_sdc_error = lambda _client, _userdata, _message, error: self.errors.append(error)
        client.reconnect_delay_set(1, 1)
        client.connect("127.0.0.1", port)
        client.loop_start()
        eventually(client.is_connected, f"{name} connected")

    def subscribe(self, topic_filter: str) -> None:
        self.client.subscribe(topic_filter, qos=1)
        assert self._subscribed.wait(WAIT_S)

    def publish(self, count: int) -> None:
        for _ in range(count):
            qos = self.QOS[self.name]
            self.client.publish(f"line/{self.name}", text(self.name, self.sent), qos=qos)
            self.sent += 1

    def _on_publish(self, *_: Any) -> None:
        self._acknowledged += 1

    def published(self) -> bool:
        return self._acknowledged == self.sent

    def close(self) -> None:
        self.client.disconnect()
        self.client.loop_stop()


def aware(name: str) -> mqtt.Client:
    return mqtt.Client(CallbackAPIVersion.VERSION2, client_id=name)


def plain(name: str, version: MQTTProtocolVersion) -> paho.Client:
    return paho.Client(CallbackAPIVersion.VERSION2, client_id=name, protocol=version)


@contextmanager
def program(client: paho.Client, name: str, port: int) -> Iterator[Program]:
    made = Program(client, name, port)
    try:
        yield made
    finally:
        made.close()


def stay_on_the_first_dictionary(client: mqtt.Client) -> None:
    """From the first one on, newer ones are read with, but never published with."""
    families, add = client._sdc._map, client._sdc._map.add

    def add_first(dictionary: Dictionary) -> bool:
        return not families.dictionaries() and add(dictionary)

    families.add = add_first  # type: ignore[method-assign]  # a client that does not keep up


class PythonPrograms:
    """Two Python clients, in the broker's loop: one subscribes, one publishes."""

    def __init__(self, there: Served) -> None:
        self._there = there
        self.got: list[tuple[str, bytes]] = []
        self.sent = 0

    async def start(self) -> None:
        self._reader = await python_client(self._there, "python-subscriber", True).open()
        self._writer = await python_client(self._there, "python", True).open()
        self._subscription = await self._reader.subscribe("line/#").__aenter__()
        self._reading = asyncio.create_task(self._read())

    async def _read(self) -> None:
        async for message in self._subscription:
            self.got.append((message.topic, message.payload))

    async def publish(self, count: int) -> None:
        numbers = range(self.sent, self.sent + count)
        await self._writer.publish_many([("line/python", text("python", number)) for number in numbers])
        self.sent += count

    async def stop(self) -> None:
        self._reading.cancel()
        await asyncio.wait([self._reading])
        await self._reader.close()
        await self._writer.close()


def in_order(got: list[tuple[str, bytes]]) -> dict[str, list[bytes]]:
    by_topic: dict[str, list[bytes]] = defaultdict(list)
    for topic, payload in got:
        by_topic[topic].append(payload)
    return by_topic


def test_everything_arrives_in_order_through_six_changes_under_load() -> None:
    with served() as there, ExitStack() as stack:
        port = there.port
        v5, v311 = MQTTProtocolVersion.MQTTv5, MQTTProtocolVersion.MQTTv311

        def enter(client: paho.Client, name: str) -> Program:
            return stack.enter_context(program(client, name, port))

        subscribers = [
            enter(aware("aware-subscriber"), "s1"),
            enter(plain("plain-5", v5), "s2"),
            enter(plain("plain-311", v311), "s3"),
        ]
        for subscriber in subscribers:
            subscriber.subscribe("line/#")
        old = aware("old")
        stay_on_the_first_dictionary(old)
        publishers = [enter(aware("aware"), "aware"), enter(old, "old"), enter(plain("plain", v311), "plain")]
        python = PythonPrograms(there)
        there.run(python.start())
        stack.callback(lambda: there.run(python.stop()))
        for version in range(1, 7):
            changing = threading.Thread(target=announce, args=(there, version))
            changing.start()
            for _ in range(8):
                for publisher in publishers:
                    publisher.publish(10)
                there.run(python.publish(10))
            changing.join()
            # A few more, so that every version is really published with.
            eventually(lambda: all(publisher.published() for publisher in publishers), "acknowledgements")
            publishers[0].publish(1)
            eventually(partial(holds, publishers[0], version), "the aware publisher's newest dictionary")
            for publisher in publishers:
                publisher.publish(10)
        expected = {f"line/{p.name}": [text(p.name, n) for n in range(p.sent)] for p in publishers}
        expected["line/python"] = [text("python", n) for n in range(python.sent)]
        total = sum(map(len, expected.values()))
        everybody = [subscriber.got for subscriber in subscribers] + [python.got]
        eventually(lambda: all(len(got) >= total for got in everybody), "all messages at all subscribers")
        for got in everybody:
            assert in_order(got) == expected
        assert [error for one in subscribers + publishers for error in one.errors] == []
        used = ids_in_the_log(there)
        assert {dictionary(version).id for version in range(1, 7)} <= used["line/aware"]
        assert used["line/old"] == {dictionary(1).id}, "the old client stayed on the first dictionary"


def holds(one: Program, version: int) -> bool:
    assert isinstance(one.client, mqtt.Client)
    return dictionary(version).id in {held.id for held in one.client._sdc._map.dictionaries()}


def ids_in_the_log(there: Served) -> dict[str, set[int]]:
    """The dictionaries that each topic's stored payloads are compressed with."""
    found: dict[str, set[int]] = defaultdict(set)
    for coordinator in there.cluster.coordinators.values():
        for group in range(there.broker().engine.groups):
            for block in coordinator.server.store.read(group, 0).blocks:
                for run in block.meta.runs if block.kind == 0 else ():
                    if run.encoding >= 2:
                        found[block.meta.topics[run.topic].decode()].add(block.meta.dictionaries[run.encoding - 2])
    return found


def test_a_restarted_broker_begins_with_new_aliases_on_new_connections() -> None:
    with served() as there:
        announce(there, 1)
        with (
            program(aware("publisher"), "aware", there.port) as publisher,
            program(aware("subscriber"), "s", there.port) as subscriber,
        ):
            subscriber.subscribe("line/#")
            publisher.publish(30)
            eventually(lambda: len(subscriber.got) == 30, "what was published before the restart")
            restart(there, lambda: publisher.publish(3))  # sent with aliases of the new connection
            eventually(lambda: len(there.broker().mqtt.sessions.owners) == 2, "both connected again")
            eventually(subscriber.client.is_connected, "CONNACK")
            subscriber._subscribed.clear()
            subscriber.subscribe("line/#")
            publisher.publish(30)
            eventually(publisher.published, "acknowledgements")
            last = text("aware", publisher.sent - 1)
            eventually(lambda: subscriber.got[-1][1] == last, "the last message")
            later = [payload for _, payload in subscriber.got if payload in {text("aware", n) for n in range(33, 63)}]
            assert later == [text("aware", n) for n in range(33, 63)]
            assert not subscriber.errors
            assert not publisher.errors
            assert dictionary(1).id in ids_in_the_log(there)["line/aware"]


async def test_a_restarted_broker_fetches_an_old_dictionary_that_a_client_still_uses() -> None:
    with served() as there:
        await asyncio.to_thread(announce, there, 1)
        old, data = dictionary(1), [Recoder().encode(text("aware", n), dictionary(1)).data for n in range(3)]
        first = await aware_raw(there)
        await first.publish(ALIAS_TOPIC.decode(), Binding(1, 7, old.id).pack())
        await first.publish("line/x", b"\x07" + data[0], qos=1)
        await asyncio.to_thread(announce, there, 2)  # what is retained now
        await asyncio.to_thread(restart, there)
        assert old.id not in there.broker().engine.recoder
        reader, again = await Raw.connect(there.port), await aware_raw(there)
        await reader.subscribe("line/x")
        binding, later = Publish(ALIAS_TOPIC, Binding(1, 8, old.id).pack()), Publish(b"line/x", b"\x08" + data[1])
        again.send(encode_packet(binding, V5) + encode_packet(later, V5))  # in one piece: the second has to wait
        await again.publish("line/x", b"\x08" + data[2], qos=1)
        assert [m.payload for m in await reader.messages(2)] == [text("aware", 1), text("aware", 2)]
        await close_clients()


# -- what is wrong on the wire


async def aware_raw(broker: Served, *questions: tuple[str, str]) -> Raw:
    client = await Raw.connect(broker.port, _38=[USER_PROPERTY, *questions])
    assert client.connack.properties is not None
    assert USER_PROPERTY in [tuple(pair) for pair in client.connack.properties[38]]
    return client


@pytest.mark.parametrize(
    ("topic", "payload"),
    [
        pytest.param("line/x", b"", id="no tag byte"),
        pytest.param("line/x", b"\x07data", id="an alias that is not bound"),
        pytest.param(ALIAS_TOPIC.decode(), b"\x02\x00\x00", id="half a binding"),
        pytest.param(ALIAS_TOPIC.decode(), b"", id="an empty binding"),
        pytest.param(ALIAS_TOPIC.decode(), Binding(1, 1, 77).pack(), id="the tag of DEFLATE as an alias"),
        pytest.param(ALIAS_TOPIC.decode(), Binding(1, 2, 1).pack(), id="an id that no dictionary has"),
    ],
)
async def test_malformed_tags_and_bindings_end_the_connection(broker: Served, topic: str, payload: bytes) -> None:
    client = await aware_raw(broker)
    await client.publish(topic, payload)
    (farewell,) = [packet for packet in await client.closed() if isinstance(packet, Disconnect)]
    assert farewell.reason_code == PAYLOAD_FORMAT_INVALID


async def test_a_dictionary_that_the_broker_does_not_know_ends_the_connection(broker: Served) -> None:
    client, onlooker = await aware_raw(broker), await Raw.connect(broker.port)
    await onlooker.subscribe("line/x")
    await client.publish(ALIAS_TOPIC.decode(), Binding(1, 2, 0x1234567890ABCDEF).pack())
    await client.publish("line/x", b"\x02data", qos=0)
    (farewell,) = [packet for packet in await client.closed() if isinstance(packet, Disconnect)]
    assert farewell.reason_code == PAYLOAD_FORMAT_INVALID
    await onlooker.nothing(await Raw.connect(broker.port), "line/x")


async def test_clients_cannot_publish_dictionaries(broker: Served) -> None:
    forged = Dictionary(b"forged/+", ZSTD, b"evil content " * 30, created_us=2**60).pack()
    for client in (await aware_raw(broker), await Raw.connect(broker.port)):
        payload = forged if client.connack.properties and 38 not in client.connack.properties else b"\0" + forged
        for topic in (dictionary_topic(b"forged/+").decode(), "$sampling/forged/%2B"):
            assert await client.publish(topic, payload, qos=1, retain=True) == NOT_AUTHORIZED
    assert broker.broker().engine.dictionaries.newest(b"forged/x") is None
    reader = await Raw.connect(broker.port)
    await reader.subscribe(dictionary_topic(b"forged/+").decode(), "$sampling/#")
    assert [packet for packet in await reader.ping() if isinstance(packet, Message)] == []


async def test_a_damaged_payload_reaches_nobody_as_wrong_bytes(broker: Served) -> None:
    await asyncio.to_thread(announce, broker, 1)
    made = dictionary(1)
    publisher, reader = await aware_raw(broker), await Raw.connect(broker.port)
    with program(aware("damaged-reader"), "s", broker.port) as subscriber:
        await asyncio.to_thread(subscriber.subscribe, "line/damaged")
        await reader.subscribe("line/damaged")
        await publisher.publish(ALIAS_TOPIC.decode(), Binding(1, 9, made.id).pack())
        whole = Recoder().encode(text("aware", 1), made).data
        for data in (whole[:-2], whole[:1], whole + b"more", b"", bytes(reversed(whole))):
            await publisher.publish("line/damaged", b"\x09" + data, qos=1)
        await publisher.publish("line/damaged", b"\x09" + whole, qos=1)
        assert (await reader.expect(Message)).payload == text("aware", 1)
        await asyncio.to_thread(eventually, lambda: bool(subscriber.got), "the whole one")
        assert subscriber.got == [("line/damaged", text("aware", 1))]
        assert len(subscriber.errors) == 5
        assert all(f"{made.id:016x}" in str(error) and "line/+" in str(error) for error in subscriber.errors)


async def test_a_late_joiner_is_given_the_dictionary_before_what_needs_it(broker: Served) -> None:
    await asyncio.to_thread(announce, broker, 2)
    made = dictionary(2)
    publisher = await aware_raw(broker)
    await publisher.publish(ALIAS_TOPIC.decode(), Binding(1, 50, made.id).pack())
    data = Recoder().encode(text("aware", 7), made).data
    await publisher.publish("line/late", bytes([50]) + data, qos=1, retain=True)
    joiner = await aware_raw(broker)
    await joiner.subscribe("line/late")
    announced, bound, message = await joiner.messages(3)
    assert announced.topic == dictionary_topic(FAMILY).decode()
    assert unpack_dictionary(announced.payload) == made
    bindings = Bindings()
    assert bound.topic == ALIAS_TOPIC.decode()
    assert bindings.bind(bound.payload) == [made.id]
    assert (bindings.dictionary_id(message.payload[0]), message.payload[1:]) == (made.id, data)


async def test_a_client_that_does_not_know_field_models_is_never_sent_one(broker: Served) -> None:
    texts = [text("aware", number) for number in range(60)]
    made = train(texts, 65_536, FIELDS, family=b"prose/+", created_us=2_000_000)
    await asyncio.to_thread(announce_made, broker, made)
    knowing, other = await aware_raw(broker, FIELDS_PROPERTY), await aware_raw(broker)
    for client in (knowing, other):
        await client.subscribe("prose/fields")
    publisher = await aware_raw(broker, FIELDS_PROPERTY)
    await publisher.publish(ALIAS_TOPIC.decode(), Binding(1, 60, made.id).pack())
    data = Recoder().encode(texts[7], made).data
    await publisher.publish("prose/fields", bytes([60]) + data, qos=1)
    announced, _, message = await knowing.messages(3)
    assert unpack_dictionary(announced.payload) == made
    assert message.payload[1:] == data
    (message,) = await other.messages(1)
    tag, payload = message.payload[0], message.payload[1:]
    assert (Deflate().decompress(payload) if tag else payload) == texts[7]
    await other.publish("prose/fields", b"\x00" + texts[8], qos=1)
    (message,) = await other.messages(1)
    assert message.topic == "prose/fields"
