"""TAPD against a real broker: who gets a dictionary and when, what goes over the wire until then, old clients and new.

Each test has topics and a dictionary of its own, published as sampling brokers do.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager

import pytest

from lexicast.actors.mqtt.codec import encode_packet
from lexicast.actors.mqtt.codec.packets import Disconnect, Publish, PubRec, SubAck, Subscribe, SubscriptionOptions
from lexicast.cluster.topics.names import dictionary_topic
from lexicast.compression import link_history
from lexicast.compression.codecs import FIELDS
from lexicast.compression.dictionary import Dictionary
from lexicast.compression.link_history import HistoryWriter
from lexicast.compression.wire import ALIAS_TOPIC, FIELDS_PROPERTY, HISTORY_TAG

from ...support.aware_devices import USER, device, learn, old_device, python_client, reading
from ...support.mqtt_harness import Raw, Served, close_clients, served, unique

PAYLOAD_FORMAT_INVALID = 0x99
QUOTA_EXCEEDED = 0x97


def report(seed: int) -> bytes:
    """Of sixty kinds: more than a link's past holds."""
    kind = random.Random(seed).randrange(60)
    words = " ".join(random.Random(1_000_000 + kind * 20 + n).randbytes(6).hex() for n in range(12))
    return f"report {kind}: {words} {seed}".encode()


def useless(seed: int) -> bytes:
    return random.Random(seed).randbytes(100)


@pytest.fixture(scope="module")
def there() -> Iterator[Served]:
    with served(compression__stream_records_per_s=0) as running:
        yield running


@pytest.fixture(autouse=True)
async def no_clients_left() -> AsyncIterator[None]:
    yield
    await close_clients()


@contextmanager
def restricted(there: Served, rules: str) -> Iterator[None]:
    """Meanwhile there are rules."""

    async def take(text: str | None) -> None:
        there.broker().engine.rights.update(text, 1)

    there.run(take(rules))
    try:
        yield
    finally:
        there.run(take(None))


class TestPublishers:
    async def test_a_publisher_begins_with_its_own_past_and_gets_the_dictionary_when_it_pays(
        self, there: Served
    ) -> None:
        topic = unique("own/")
        made = await learn(there, topic, of=report, size=16_000)
        onlooker = await Raw.connect(there.port)
        await onlooker.subscribe(topic, qos=1)
        publisher = await device(there)
        messages = [report(n) for n in range(400)]
        await publisher.publish(topic, *messages)
        assert publisher.dictionaries == [made.pack()], "once"
        first = next(at for at, tag in enumerate(publisher.tags) if tag not in (0, HISTORY_TAG))
        assert HISTORY_TAG not in publisher.tags[first:]
        # what had been carried would have saved what it costs, and hardly more than twice as much
        alone = [len(made.build().compress(message)) for message in messages]
        spared = [len(wire) - 1 - size for wire, size in zip(publisher.wire[:first], alone, strict=False)]
        assert 0.8 * len(made.pack()) <= sum(spared) <= 2.5 * len(made.pack())
        assert [message.payload for message in await onlooker.messages(400)] == messages

    async def test_one_that_sends_little_pays_for_nothing(self, there: Served) -> None:
        topic = unique("little/")
        await learn(there, topic)
        publisher = await device(there)
        await publisher.publish(topic, *[reading(n) for n in range(5)])
        assert publisher.dictionaries == []
        assert set(publisher.tags) == {HISTORY_TAG}
        assert len(publisher.wire[4]) < len(publisher.wire[0]) / 2, "its own past serves it"

    async def test_a_dictionary_that_saves_nothing_goes_nowhere(self, there: Served) -> None:
        topic = unique("useless/")
        await learn(there, topic, of=useless)
        publisher = await device(there)
        await publisher.publish(topic, *[reading(n) for n in range(150)])
        assert publisher.dictionaries == []

    async def test_a_client_of_an_older_release_deflates_until_it_pays(self, there: Served) -> None:
        topic = unique("older/")
        made = await learn(there, topic)
        publisher = await old_device(there)
        messages = [reading(n) for n in range(60)]
        await publisher.publish(topic, *messages)
        assert publisher.dictionaries == [made.pack()]
        assert publisher.tags[0] in (0, 1)
        assert publisher.tags[-1] >= 2
        assert HISTORY_TAG not in publisher.tags

    async def test_an_old_dictionary_is_prolonged(self, there: Served) -> None:
        topic = unique("prolonged/")
        made = await learn(there, topic)
        publisher = await old_device(there)
        await publisher.publish(topic, *[reading(n) for n in range(60)])
        await learn(there, topic, created_us=2, of=useless)
        await publisher.publish(topic, *[reading(n) for n in range(60)])
        assert publisher.dictionaries == [made.pack()], "the newer one saves nothing"
        assert publisher.tags[-1] >= 2

    async def test_what_a_client_still_has_is_not_sent_again(self, there: Served) -> None:
        topic = unique("again/")
        await learn(there, topic)
        first = await old_device(there)
        await first.publish(topic, *[reading(n) for n in range(60)])
        assert len(first.dictionaries) == 1
        again = await device(there)
        again.session = first.session
        again.session.connected(True, history=True)
        await again.publish(topic, *[reading(n) for n in range(60)])
        assert again.dictionaries == []
        assert all(tag >= 2 and tag != HISTORY_TAG for tag in again.tags)

    async def test_frames_of_repeats_are_part_of_the_past(self, there: Served) -> None:
        """A QoS 2 publication that is sent again is left out, and what follows it can be read."""
        topic = unique("repeat/")
        onlooker = await Raw.connect(there.port)
        await onlooker.subscribe(topic)
        client = (await device(there)).client
        client.answers = False
        past = HistoryWriter()
        for dup in (False, True):
            frame = past.frame(reading(1))
            assert frame is not None
            client.send(Publish(topic.encode(), bytes((HISTORY_TAG,)) + frame, 2, False, dup, 7, None))
            await client.expect(PubRec)
        frame = past.frame(reading(2))
        assert frame is not None
        await client.publish(topic, bytes((HISTORY_TAG,)) + frame, qos=1)
        assert [message.payload for message in await onlooker.messages(2)] == [reading(1), reading(2)]

    @pytest.mark.parametrize("asked", [True, False])
    async def test_frames_that_do_not_follow_end_the_connection(self, there: Served, asked: bool) -> None:
        past = HistoryWriter()
        past.frame(reading(1))
        frame = past.frame(reading(2))
        assert frame is not None
        client = (await device(there) if asked else await old_device(there)).client
        await client.publish("x/y", bytes((HISTORY_TAG,)) + frame)
        (farewell,) = [packet for packet in await client.closed() if isinstance(packet, Disconnect)]
        assert farewell.reason_code == PAYLOAD_FORMAT_INVALID

    async def test_what_a_read_becomes_is_bounded(self, there: Served, monkeypatch: pytest.MonkeyPatch) -> None:
        """160 KiB of frames that would be 160 MiB."""
        monkeypatch.setattr(link_history, "RATIO_MAX", 1e9)
        past, client = HistoryWriter(), (await device(there)).client
        frames = [past.frame(bytes(4 << 20)) for _ in range(40)]
        topic, packets = unique("bomb/").encode(), b""
        for frame in frames:
            assert frame is not None
            packets += encode_packet(Publish(topic, bytes((HISTORY_TAG,)) + frame, 0, False, False, 0, None), 5)
        client.send(packets)
        (farewell,) = [packet for packet in await client.closed() if isinstance(packet, Disconnect)]
        assert farewell.reason_code == QUOTA_EXCEEDED


class TestSubscribers:
    @pytest.mark.parametrize("qos", [0, 1])
    async def test_a_subscriber_gets_deflate_until_the_dictionary_pays(self, there: Served, qos: int) -> None:
        topic = unique("down/")
        made = await learn(there, topic)
        subscriber = await device(there)
        await subscriber.client.subscribe(topic, qos=qos)
        plain = await Raw.connect(there.port)
        messages = [reading(n) for n in range(100)]
        for message in messages:
            await plain.publish(topic, message, qos=1)
        assert await subscriber.take(100) == messages
        assert subscriber.dictionaries == [made.pack()]
        assert subscriber.tags[0] in (0, 1)
        first = next(at for at, tag in enumerate(subscriber.tags) if tag >= 2)
        assert all(tag >= 2 for tag in subscriber.tags[first:])
        assert sum(map(len, subscriber.wire)) + len(made.pack()) < sum(map(len, messages)) / 2

    async def test_who_knows_no_field_models_gets_the_newest_dictionary_of_bytes(self, there: Served) -> None:
        topic = unique("fields/")
        of_bytes = await learn(there, topic, size=4_000)
        model = await learn(there, topic, 2, codec=FIELDS, size=64 * 1024)
        old, new = await old_device(there), await device(there, FIELDS_PROPERTY)
        for each in (old, new):
            await each.client.subscribe(topic)
        plain = await Raw.connect(there.port)
        messages = [reading(n) for n in range(200)]
        for message in messages:
            await plain.publish(topic, message, qos=1)
        assert await old.take(200) == await new.take(200) == messages
        assert (old.dictionaries, new.dictionaries) == ([of_bytes.pack()], [model.pack()])
        assert old.tags[-1] >= 2
        publisher = await old_device(there)
        await publisher.publish(topic, *messages)
        assert publisher.dictionaries == [of_bytes.pack()]
        assert publisher.tags[-1] >= 2

    async def test_links_with_and_without_it_read_the_same(self, there: Served) -> None:
        topic = unique("both/")
        made = await learn(there, topic)
        publisher, old = await device(there), await old_device(there)
        await old.client.subscribe(topic)
        await publisher.publish(topic, *[reading(n) for n in range(100)])
        await old.take(100)
        late, plain = await old_device(there), await Raw.connect(there.port)
        for each in (late.client, plain):
            await each.subscribe(topic)
        messages = [reading(n) for n in range(3)]
        await publisher.publish(topic, *messages)
        assert publisher.tags[-1] >= 2, "the publisher uses it"
        assert await old.take(3) == messages
        assert await late.take(3) == messages
        assert [message.payload for message in await plain.messages(3)] == messages
        assert old.dictionaries == [made.pack()]
        assert late.dictionaries == []
        assert set(late.tags) <= {0, 1}, "recoded at the edge"
        assert old.tags[-1] >= 2

    async def test_a_subscriber_with_the_newest_needs_no_older_one(self, there: Served) -> None:
        """A publisher that is prolonged does not make others pay for its dictionary."""
        topic = unique("edge/")
        await learn(there, topic)
        publisher = await device(there)
        await publisher.publish(topic, *[reading(n) for n in range(100)])
        made = await learn(there, topic, created_us=2)
        newest = Dictionary(made.family, made.codec, made.content[1:], created_us=3)

        async def announce() -> None:
            async with python_client(there, client_id=unique("sampling"), compress=False) as client:
                await client.publish(dictionary_topic(made.family).decode(), newest.pack(), retain=True)

        await asyncio.to_thread(lambda: there.run(announce()))
        subscriber = await old_device(there)
        await subscriber.client.subscribe(topic)
        messages = [reading(n) for n in range(100)]
        await publisher.publish(topic, *messages)
        assert await subscriber.take(100) == messages
        assert subscriber.dictionaries == [newest.pack()]

    @pytest.mark.parametrize("qos", [0, 1])
    async def test_what_a_condition_chooses_comes_in_the_form_for_the_link(self, there: Served, qos: int) -> None:
        topic = unique("chosen/")
        made = await learn(there, topic)
        subscriber = await old_device(there)
        wanted = [(topic.encode(), SubscriptionOptions(qos))]
        subscriber.client.send(Subscribe(9, wanted, None, {USER: [("where", "temperature >= 20")]}))
        await subscriber.client.expect(SubAck)
        plain = await Raw.connect(there.port)
        messages = [reading(n) for n in range(150)]
        for message in messages:
            await plain.publish(topic, message, qos=1)
        chosen = [message for message in messages if json.loads(message)["temperature"] >= 20]
        assert await subscriber.take(len(chosen)) == chosen
        assert subscriber.tags[0] in (0, 1)
        assert subscriber.tags[-1] >= 2
        assert subscriber.dictionaries == [made.pack()]

    async def test_a_subscriber_that_returns_is_not_sent_again_what_it_says_that_it_has(self, there: Served) -> None:
        topic = unique("returns/")
        await learn(there, topic)
        first = await old_device(there)
        await first.client.subscribe(topic)
        plain = await Raw.connect(there.port)
        for n in range(60):
            await plain.publish(topic, reading(n), qos=1)
        await first.take(60)
        again = await old_device(there)
        again.session = first.session
        again.session.connected(True)
        for binding in again.session.held():
            await again.client.publish(ALIAS_TOPIC.decode(), binding)
        await again.client.subscribe(topic)
        await plain.publish(topic, reading(61), qos=1)
        assert await again.take(1) == [reading(61)]
        assert again.dictionaries == []
        assert again.tags[0] >= 2

    @pytest.mark.parametrize(
        ("rules", "who"),
        [
            ("topic #", {"publisher", "subscriber"}),
            ("topic BASE/+", {"publisher", "subscriber"}),
            ("topic write #\ntopic read BASE/a", set()),
            ("topic write BASE/a\ntopic read #", {"publisher", "subscriber"}),
            ("topic #\ntopic deny BASE/b", set()),
            ("topic BASE/a", set()),
        ],
    )
    async def test_only_who_may_read_all_of_a_family_gets_its_dictionary(
        self, there: Served, rules: str, who: set[str]
    ) -> None:
        base = unique("secret/")
        await learn(there, f"{base}/+")
        with restricted(there, rules.replace("BASE", base)):
            publisher, subscriber = await old_device(there), await old_device(there)
            await subscriber.client.subscribe(f"{base}/a")
            messages = [reading(n) for n in range(400)]
            await publisher.publish(f"{base}/a", *messages)
            assert await subscriber.take(400) == messages
            await subscriber.client.subscribe(f"$sdc/{base}/+")  # nor as a retained message
            await subscriber.look()
            await publisher.look()
        got = {"publisher": publisher.dictionaries, "subscriber": subscriber.dictionaries}
        assert {name for name, dictionaries in got.items() if dictionaries} == who


class TestStatus:
    async def test_sums_and_the_worst(self) -> None:
        with served(compression__stream_records_per_s=0) as there:
            made = await learn(there, "sums")
            publisher = await old_device(there)
            await publisher.publish("sums", *[reading(n) for n in range(60)])
            links = there.broker().status()["links"]
            paid = len(made.pack()) + 9
            assert (links["links"], links["with_dictionary"], links["dictionaries"]) == (1, 1, 1)
            assert links["paid_bytes"] == paid
            assert links["saved_bytes"] > 0
            assert links["worst_bytes"] == min(0, links["saved_bytes"] - paid)
            await publisher.publish("sums", *[reading(n) for n in range(600)])
            await publisher.client.disconnect()
            later = there.broker().status()["links"]
            assert (later["links"], later["paid_bytes"]) == (1, paid), "counted on when the client has gone"
            assert later["saved_bytes"] > links["saved_bytes"]
            await close_clients()
