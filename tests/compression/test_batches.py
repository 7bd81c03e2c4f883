"""Batches: several publications of one topic as one unit of a publisher's link."""

from __future__ import annotations

import json
import random
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lexicast.cluster.errors import DictionaryError
from lexicast.compression.codecs import FIELDS, ZSTD_DENSE
from lexicast.compression.dictionary import Dictionary
from lexicast.compression.link_history import HistoryReader
from lexicast.compression.opening import NoRoomError, Room
from lexicast.compression.session import ClientSession
from lexicast.compression.streams.batches import (
    AS_STREAM,
    BATCH_TAG,
    LAST_BATCHING_ALIAS,
    MESSAGES_MAX,
    TOPICS_MAX,
    Batched,
    Batcher,
    DueBatch,
    join_batch,
    pack_entry_columns,
    split_batch,
    take_apart,
    unpack_entry_columns,
)
from lexicast.compression.training import train
from lexicast.compression.wire import HISTORY_TAG, Bindings, Recoder

TOPIC = b"plant/1/t"
MESSAGES = st.lists(st.builds(Batched, st.binary(max_size=300), st.integers(0, 65_535)), min_size=1, max_size=30)


def readings(seed: int, count: int) -> list[bytes]:
    draw = random.Random(seed)
    return [
        json.dumps({"device": draw.randrange(50), "temperature": round(draw.gauss(20, 5), 2), "n": n}).encode()
        for n in range(count)
    ]


def model() -> Dictionary:
    return train(readings(1, 80), 64 * 1024, FIELDS, family=b"plant/+/t")


class Broker:
    """The other end of one connection."""

    def __init__(self, payload_bytes_max: int = 100_000) -> None:
        self.recoder = Recoder(payload_bytes_max=payload_bytes_max)
        self.bindings = Bindings()
        self.history = HistoryReader()

    def take(self, payload: bytes, room: Room | None = None) -> list[Batched]:
        return take_apart(payload, self.recoder, self.bindings, self._unfold, room or self.recoder.room())

    def _unfold(self, tagged: bytes) -> bytes:
        return b"\0" + self.history.payload(tagged[1:]) if tagged[:1] == bytes((HISTORY_TAG,)) else tagged


def connected(dictionary: Dictionary | None, history: bool = False) -> tuple[ClientSession[None], Broker]:
    session: ClientSession[None] = ClientSession()
    broker = Broker()
    session.connected(True, history=history, batches=True)
    if dictionary is not None:
        broker.recoder.add(dictionary)
        session.incoming(None, b"$sdc/plant%2F+%2Ft", b"", 0.0)
        session._recoder.add(dictionary)
        session._map.add(dictionary)
    return session, broker


@given(MESSAGES)
def test_batches_come_back_equal(messages: list[Batched]) -> None:
    assert split_batch(join_batch(messages)) == messages


@given(st.binary(max_size=200))
def test_garbage_is_no_batch_or_one_that_joins_to_as_many_bytes(data: bytes) -> None:
    with suppress(DictionaryError):
        assert len(join_batch(split_batch(data))) <= len(data)


@pytest.mark.parametrize("base", ["none", "history", "zstd", "fields"])
@given(st.lists(st.tuples(st.one_of(st.sampled_from(readings(2, 20)), st.binary(max_size=50)), st.integers(0, 9))))
def test_what_a_client_sends_as_one_the_broker_takes_apart(base: str, told: list[tuple[bytes, int]]) -> None:
    dictionary = {"zstd": Dictionary(b"plant/+/t", ZSTD_DENSE, b"".join(readings(1, 30))), "fields": model()}.get(base)
    session, broker = connected(dictionary, base == "history")
    for at in range(0, len(told), 7):
        messages = [Batched(*each) for each in told[at : at + 7]]
        sent = session.outgoing_batch(TOPIC, messages, 0)
        for binding in sent.bindings:
            broker.bindings.bind(binding)
        assert sent.payload[0] == BATCH_TAG
        assert broker.take(sent.payload) == messages


@pytest.mark.parametrize("base", ["none", "zstd", "fields"])
def test_batches_that_come_at_once_share_their_room(base: str) -> None:
    """Else one read off a socket, of small batches each of them allowed, becomes a gigabyte."""
    dictionary = {"zstd": Dictionary(b"plant/+/t", ZSTD_DENSE, b"".join(readings(1, 30))), "fields": model()}.get(base)
    session, broker = connected(dictionary)
    messages = [Batched(each, 0) for each in readings(3, 200)]
    room, refused = Room(30_000), 0
    for _ in range(10):
        sent = session.outgoing_batch(TOPIC, messages, 0)
        for binding in sent.bindings:
            broker.bindings.bind(binding)
        try:
            assert broker.take(sent.payload, room) == messages
        except NoRoomError:
            refused += 1
    assert 0 < (10 - refused) * sum([len(each.payload) for each in messages]) <= 30_000


def test_a_batch_takes_less_than_its_messages_one_by_one() -> None:
    for dictionary in (None, Dictionary(b"plant/+/t", ZSTD_DENSE, b"".join(readings(1, 30))), model()):
        session, _ = connected(dictionary)
        messages = readings(3, 20)
        packet = 5 + len(TOPIC)  # header, topic, no properties
        alone = sum([packet + len(session.outgoing(TOPIC, each, 0).payload) for each in messages])
        together = session.outgoing_batch(TOPIC, [Batched(each, 0) for each in messages], 0).payload
        assert packet + len(together) < alone / 2
        assert (together[1] == AS_STREAM) == (dictionary is not None and dictionary.codec == FIELDS)


def test_a_client_that_sends_batches_binds_no_alias_that_is_their_tag() -> None:
    session, _ = connected(None)
    for number in range(400):
        session._aliases.next_turn()
        assert session._aliases.alias_for(number + 2) <= LAST_BATCHING_ALIAS


def test_batches_are_for_topics_that_may_be_compressed() -> None:
    session, _ = connected(None)
    assert session.batches(TOPIC)
    assert not session.batches(b"$sdc/alias")
    session.connected(True, [b"secret/#"], batches=True)
    assert not session.batches(b"secret/a")
    session.connected(True)
    assert not session.batches(TOPIC)


@given(st.binary(max_size=60))
def test_whatever_a_peer_sends_as_a_batch_is_one_or_an_error(data: bytes) -> None:
    _, broker = connected(model())
    broker.bindings.bind(bytes((2,)) + model().id.to_bytes(8, "big"))
    for head in (b"", b"\0", b"\0\1", b"\1\2", b"\1\3", b"\2"):
        with suppress(DictionaryError):
            assert sum([len(each.payload) for each in broker.take(bytes((BATCH_TAG,)) + head + data)]) <= 100_000


def test_bombs_are_stopped() -> None:
    session, _ = connected(None)
    bomb = session.outgoing_batch(TOPIC, [Batched(b"\0" * 200_000, 0)], 0).payload
    with pytest.raises(DictionaryError, match="more than 100000 bytes"):
        Broker().take(bomb)
    with pytest.raises(DictionaryError, match="too many"):
        split_batch(b"\0" * (MESSAGES_MAX + 1))
    with pytest.raises(DictionaryError, match="empty"):
        split_batch(b"")
    with pytest.raises(DictionaryError, match="packet id 0"):
        split_batch(b"\1\0\0")
    with pytest.raises(DictionaryError, match="length"):
        split_batch(b"\xff" * 9)
    with pytest.raises(ValueError, match="batch"):
        join_batch([])


# -- columns of entries


@given(st.binary(max_size=400), st.binary(max_size=2_000))
def test_columns_come_back_equal(lengths: bytes, body: bytes) -> None:
    head, packed = pack_entry_columns(lengths, body)
    assert len(packed) <= len(lengths) + len(body)
    assert unpack_entry_columns(head, packed, 10_000) == (lengths, body)


@given(st.binary(max_size=8), st.binary(max_size=100))
def test_whatever_a_peer_sends_as_columns_is_bounded_or_an_error(head: bytes, packed: bytes) -> None:
    for told in (head, b"\0\0\0\1\1", b"\0\0\0\1\0"):
        with suppress(DictionaryError):
            assert sum(map(len, unpack_entry_columns(told, packed, 1_000))) <= 1_000


def test_columns_that_are_a_bomb_or_cut_short_are_refused() -> None:
    head, packed = pack_entry_columns(b"abcd", b"\0" * 100_000)
    with pytest.raises(DictionaryError, match="more than 1000"):
        unpack_entry_columns(head, packed, 1_000)
    for wrong in (packed[:-1], packed + b"x"):
        with pytest.raises(DictionaryError, match="cut short"):
            unpack_entry_columns(head, wrong, 200_000)
    with pytest.raises(DictionaryError, match="lengths"):
        unpack_entry_columns(b"\0\0\0\5\0", b"abc", 1_000)
    with pytest.raises(DictionaryError, match="head"):
        unpack_entry_columns(b"", b"abc", 1_000)


# -- gathering


def test_a_batch_goes_when_full_or_when_the_first_has_waited() -> None:
    batcher: Batcher[str] = Batcher(0.5, 100, messages_max=3)
    assert batcher.due_s is None
    assert batcher.add(b"a", "1", 10, 1.0) == []
    assert batcher.add(b"b", "x", 10, 1.2) == []
    assert batcher.due_s == 1.5
    assert batcher.add(b"a", "2", 10, 1.3) == []
    assert batcher.add(b"a", "3", 10, 1.4) == [DueBatch(b"a", ["1", "2", "3"])]
    assert batcher.due_s == 1.7
    assert batcher.due(1.6) == []
    assert batcher.due(1.7) == [DueBatch(b"b", ["x"])]
    assert batcher.add(b"a", "4", 60, 2.0) == []
    assert batcher.add(b"a", "5", 60, 2.1) == [DueBatch(b"a", ["4"])], "a batch is no longer than it may be"
    assert batcher.add(b"a", "6", 40, 2.2) == [DueBatch(b"a", ["5", "6"])]
    assert batcher.flush(b"a") == batcher.flush_all() == []


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 60), st.floats(0, 0.4))))
def test_whatever_comes_goes_in_order_and_in_time(story: list[tuple[int, int, float]]) -> None:
    batcher: Batcher[tuple[int, float]] = Batcher(0.5, 100, messages_max=4)
    now_s, sent = 0.0, list[tuple[bytes, tuple[int, float]]]()
    told: list[tuple[bytes, tuple[int, float]]] = []

    def take(due: list[DueBatch[tuple[int, float]]]) -> None:
        for topic, entries in due:
            assert 1 <= len(entries) <= 4
            assert all([now_s - since < 0.95 for _, since in entries])
            told.extend([(topic, each) for each in entries])

    for number, (name, size, pause_s) in enumerate(story):
        now_s += pause_s
        take(batcher.due(now_s))
        topic = b"t/%d" % name
        sent.append((topic, (number, now_s)))
        take(batcher.add(topic, (number, now_s), size, now_s))
    take(batcher.flush_all())
    for topic in {topic for topic, _ in sent}:
        assert [each for each in told if each[0] == topic] == [each for each in sent if each[0] == topic]


def test_what_waits_is_bounded() -> None:
    batcher: Batcher[int] = Batcher(10, 100)
    gone = [batcher.add(b"%d" % number, number, 1, 0.0) for number in range(TOPICS_MAX + 1)]
    assert gone == [*[[]] * TOPICS_MAX, [DueBatch(b"0", [0])]]
    for bad in ((0.0, 1), (1.0, 0)):
        with pytest.raises(ValueError, match="batch_s"):
            Batcher(*bad)
