"""The Python client and dictionaries: compressed on the way out, fetched where missing, never wrong bytes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

import lexicast
from lexicast.actors.client.client import Client
from lexicast.actors.client.dictionaries import Dictionaries
from lexicast.cluster.blocks import DEFLATE, FIRST_DICTIONARY, RAW, Meta, ProducerRun, Run, pack_meta
from lexicast.cluster.clock import ManualClock
from lexicast.cluster.errors import DictionaryError
from lexicast.cluster.positions import topic_group
from lexicast.compression.codecs import PAYLOAD_BYTES_MAX, Deflate
from lexicast.compression.dictionary import Dictionary
from lexicast.testing import MemoryBroker

WORDS = b'{"sensor": "temperature", "unit": "celsius", "place": "roof", "value": '
NOISE = bytes(range(256))


def make_dictionary(codec: str = "deflate-9", family: bytes = b"t/+") -> Dictionary:
    return Dictionary(family, codec, WORDS * 3, created_us=1)


@pytest.fixture
async def broker() -> AsyncIterator[MemoryBroker]:
    broker = MemoryBroker(4)
    yield broker
    broker.close()


async def connect(broker: MemoryBroker, compress: bool = True) -> Client:
    return lexicast.connect(f"link:{await broker.listen('tcp:127.0.0.1:0')}", key=broker.key, compress=compress)


def stored(broker: MemoryBroker) -> list[tuple[int, int]]:
    """(encoding, payload bytes) of every record."""
    return [(r.encoding, len(r.payload)) for log in broker._logs.values() for block in log for r in block.records()]


@pytest.mark.parametrize("codec", ["deflate-9", "zstd-3"])
async def test_payloads_are_stored_compressed_and_read_as_published(broker: MemoryBroker, codec: str) -> None:
    dictionary = make_dictionary(codec)
    payloads = [WORDS + b"%d}" % i for i in range(50)]
    broker.announce(dictionary.id, dictionary.pack())
    async with await connect(broker) as publisher, await connect(broker) as reader:
        async with reader.subscribe("t/1") as subscription:
            await publisher.publish_many([("t/1", p) for p in payloads])
            got: list[bytes] = []
            while len(got) < len(payloads):
                got += [m.payload for m in await subscription.next_batch()]
        saved = publisher.statistics["bytes_saved"]
    assert got == payloads
    assert {encoding for encoding, _ in stored(broker)} == {FIRST_DICTIONARY}
    assert saved == sum(map(len, payloads)) - sum(size for _, size in stored(broker)) > 2_000


async def test_pushed_dictionary_is_used_from_then_on_and_no_other_family_is(broker: MemoryBroker) -> None:
    dictionary = make_dictionary()
    async with await connect(broker) as bus:
        await bus.publish("t/1", WORDS)
        broker.announce(dictionary.id, dictionary.pack())
        await bus.status()  # what was sent before the answer has arrived
        await bus.publish("t/1", WORDS)
        await bus.publish("u/1", WORDS)
        await bus.publish("t/1", NOISE)  # would become longer
        await bus.publish("t/1", b"")
    assert sorted(encoding for encoding, _ in stored(broker)) == [RAW] * 4 + [FIRST_DICTIONARY]


async def test_compress_false_publishes_raw_and_still_reads(broker: MemoryBroker) -> None:
    dictionary = make_dictionary()
    broker.announce(dictionary.id, dictionary.pack())
    async with await connect(broker, compress=False) as plain, await connect(broker) as other:
        await plain.publish("t/1", WORDS)
        await other.publish("t/1", WORDS + b"2")
        assert [m.payload async for m in plain.history("t/1")] == [WORDS, WORDS + b"2"]
    assert [encoding for encoding, _ in stored(broker)] == [RAW, FIRST_DICTIONARY]


async def test_missing_dictionary_is_fetched_once(broker: MemoryBroker) -> None:
    dictionary = make_dictionary()
    broker.announce(dictionary.id, dictionary.pack())
    async with await connect(broker) as bus:
        await bus.publish_many([("t/1", WORDS)] * 3)
    del broker.dictionaries[dictionary.id]
    async with await connect(broker) as bus:
        broker.dictionaries[dictionary.id] = dictionary.pack()  # not pushed
        for _ in range(2):
            assert [m.payload async for m in bus.history("t/1")] == [WORDS] * 3
    assert [arguments for method, arguments in broker.requests if method == "dictionary"] == [(dictionary.id,)]


@pytest.mark.parametrize("wrong", ["missing", "damaged", "another"])
async def test_payload_without_its_dictionary_is_an_error_and_the_rest_goes_on(
    broker: MemoryBroker, wrong: str
) -> None:
    dictionary = make_dictionary()
    broker.announce(dictionary.id, dictionary.pack())
    async with await connect(broker) as bus:
        await bus.publish_many([("t/1", NOISE), ("t/1", NOISE)])
        await bus.publish_many([("t/1", WORDS)] * 3)
        await bus.publish_many([("t/1", b"after")])
    good = broker.dictionaries.pop(dictionary.id)
    async with await connect(broker) as bus:
        if wrong == "damaged":
            broker.dictionaries[dictionary.id] = good[:-1] + b"\0"
        elif wrong == "another":
            broker.dictionaries[dictionary.id] = replace(dictionary, content=NOISE * 2).pack()
        async with bus.subscribe("t/1", since="beginning") as subscription:
            assert [(await anext(subscription)).payload for _ in range(2)] == [NOISE, NOISE]
            with pytest.raises(DictionaryError):
                await anext(subscription)
            assert (await anext(subscription)).payload == b"after"
        past = [m async for m in bus.history("t/1")]
        assert [m.payload for m in past] == [NOISE, NOISE, b"", b"", b"", b"after"]
        assert [bool(m.damaged) for m in past] == [False, False, True, True, True, False]
        assert (past[2].topic, past[2].position.offset) == ("t/1", past[1].position.offset + 1)
        assert bus.statistics["undecodable"] == 3


async def test_one_damaged_payload_of_many_costs_itself(broker: MemoryBroker) -> None:
    dictionary = make_dictionary()
    good = dictionary.build().compress(WORDS)
    bodies = [good, b"\xff", b"\xff", good]
    run = Run(0, 0, 1, FIRST_DICTIONARY, 0, None, -1, len(bodies))
    meta = Meta((b"t/1",), (run,), (ProducerRun(b"p" * 16, 1, 1, len(bodies)),), (), (), (dictionary.id,))
    lengths = b"".join(len(body).to_bytes(4, "little") for body in bodies)
    broker.announce(dictionary.id, dictionary.pack())
    broker.store([(topic_group(b"t/1", 4), pack_meta(meta), lengths, b"".join(bodies))])
    async with await connect(broker) as bus:
        assert [m.payload async for m in bus.history("t/1")] == [WORDS, b"", b"", WORDS]
        assert [m.payload async for m in bus.history("t/1", limit=2)] == [WORDS, b""]
        async with bus.subscribe("t/1", since="beginning") as subscription:
            assert (await anext(subscription)).payload == WORDS
            with pytest.raises(DictionaryError):
                await anext(subscription)
            assert (await anext(subscription)).payload == WORDS


async def test_no_payload_is_longer_than_the_cluster_says(broker: MemoryBroker) -> None:
    bomb = Deflate().compress(bytes(PAYLOAD_BYTES_MAX + 1))
    run = Run(0, 0, 1, DEFLATE, 0, None, -1, 1)
    meta = Meta((b"t/1",), (run,), (ProducerRun(b"p" * 16, 1, 1, 1),), (), (), ())
    broker.store([(topic_group(b"t/1", 4), pack_meta(meta), len(bomb).to_bytes(4, "little"), bomb)])
    async with await connect(broker) as bus:
        (message,) = [m async for m in bus.history("t/1")]
    assert message.damaged


async def test_deflate_without_dictionary_is_read(broker: MemoryBroker) -> None:
    body = Deflate().compress(WORDS * 4)
    run = Run(0, 0, 1, DEFLATE, 0, None, -1, 1)
    meta = Meta((b"t/1",), (run,), (ProducerRun(b"p" * 16, 1, 1, 1),), (), (), ())
    broker.store([(topic_group(b"t/1", 4), pack_meta(meta), len(body).to_bytes(4, "little"), body)])
    async with await connect(broker) as bus:
        (message,) = [m async for m in bus.history("t/1")]
    assert message.payload == WORDS * 4
    assert message.publisher is None


def test_expired_dictionary_is_not_used() -> None:
    clock = ManualClock(time_us=1_000)
    dictionaries = Dictionaries(clock)
    dictionary = replace(make_dictionary(), expires_us=2_000_000)
    dictionaries.announce(dictionary.pack())
    compress = dictionaries.compressor()
    assert compress is not None
    assert compress(b"t/1", [WORDS])[0] == dictionary.id
    clock.advance(3)
    compress = dictionaries.compressor()
    assert compress is not None
    assert compress(b"t/1", [WORDS]) == (None, [WORDS])
