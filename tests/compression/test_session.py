"""The client's side: whatever the order of things, the program sees the right bytes in order, or an error."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lexicast.cluster.errors import DictionaryError
from lexicast.cluster.topics.names import dictionary_topic
from lexicast.compression.accounting import Traffic
from lexicast.compression.codecs import DEFLATE_PRESET, ZSTD
from lexicast.compression.dictionary import Dictionary
from lexicast.compression.link_history import HistoryReader
from lexicast.compression.session import ClientSession, Deliver, Fail, Fetch, Lost, Release, Step
from lexicast.compression.streams.topic_stream import TopicStream
from lexicast.compression.wire import ALIAS_TOPIC, HISTORY_TAG, AliasTable, Bindings, Recoder

FAMILY = b"cars/+/speed"
TOPIC = b"cars/1234/speed"
SHARED = Dictionary(FAMILY, ZSTD, b'{"speed": 120, "unit": "km/h"}' * 10, created_us=1)
NEWER = Dictionary(FAMILY, DEFLATE_PRESET, b'{"unit": "km/h", "speed": 99, "gear": 5}' * 10, created_us=2)


def message(n: int) -> bytes:
    return b'{"speed": %d, "unit": "km/h"}' % n


class Broker:
    """The broker's side of one connection, without a network."""

    def __init__(self) -> None:
        self.recoder, self.aliases = Recoder(), AliasTable()
        self.bindings = Bindings()
        for one in (SHARED, NEWER):
            self.recoder.add(one)

    def publish(self, payload: bytes, dictionary: Dictionary | None) -> bytes:
        tag, data = self.recoder.to_aware(*self.recoder.encode(payload, dictionary), self.aliases)
        return bytes((tag,)) + data

    def bind(self, session: ClientSession[int], *dictionaries: Dictionary) -> None:
        for one in dictionaries:
            alias = self.aliases.alias_for(one.id)
            assert session.incoming(-1, ALIAS_TOPIC, self.aliases.binding(alias).pack(), 0.0) == []

    def announce(self, session: ClientSession[int], dictionary: Dictionary) -> list[Step[int]]:
        return session.incoming(-1, dictionary_topic(dictionary.family), dictionary.pack(), 0.0)

    def receive(self, payload: bytes) -> bytes:
        return self.recoder.to_raw(*self.recoder.from_aware(payload, self.bindings))


def aware(**limits: float) -> tuple[ClientSession[int], Broker]:
    session: ClientSession[int] = ClientSession(**limits)  # type: ignore[arg-type]  # ints are floats here
    session.connected(True)
    return session, Broker()


def test_a_plain_connection_is_left_alone() -> None:
    session: ClientSession[int] = ClientSession()
    session.connected(False)
    assert session.outgoing(TOPIC, b"\x07payload", 0) == ((), b"\x07payload")
    assert session.incoming(1, TOPIC, b"\x07payload", 0.0) == [Deliver(1, b"\x07payload")]
    assert session.incoming(2, ALIAS_TOPIC, b"what", 0.0) == [Deliver(2, b"what")]


@pytest.mark.parametrize("dictionary", [None, SHARED, NEWER])
def test_tagged_payloads_arrive_raw(dictionary: Dictionary | None) -> None:
    session, broker = aware()
    if dictionary:
        assert broker.announce(session, dictionary) == []
        broker.bind(session, dictionary)
    for n, payload in enumerate([message(5), b"", b"x", b"long " * 50]):
        assert session.incoming(n, TOPIC, broker.publish(payload, dictionary), 0.0) == [Deliver(n, payload)]


def test_publishing_uses_the_newest_dictionary_of_the_family() -> None:
    session, broker = aware()
    first = session.outgoing(TOPIC, message(1) * 3, 5)
    assert (first.bindings, first.payload[0]) == ((), 1)
    broker.announce(session, SHARED)
    second = session.outgoing(TOPIC, message(1), 5)
    assert len(second.bindings) == 1
    broker.bindings.bind(second.bindings[0])
    assert broker.receive(second.payload) == message(1)
    assert session.outgoing(TOPIC, message(2), 5).bindings == ()
    broker.announce(session, NEWER)
    broker.announce(session, SHARED)  # an older one does not come back
    third = session.outgoing(TOPIC, message(3), 5)
    broker.bindings.bind(third.bindings[0])
    assert broker.bindings.dictionary_id(third.payload[0]) == NEWER.id
    assert broker.receive(third.payload) == message(3)
    assert session.outgoing(b"$sdc/x", b"raw", 5) == ((), b"raw")
    assert session.outgoing(TOPIC, b"", 5).payload == b"\x00"


def test_an_expired_dictionary_is_not_used_but_still_read() -> None:
    session, broker = aware()
    expiring = Dictionary(FAMILY, ZSTD, SHARED.content, 1, expires_us=100)
    broker.announce(session, expiring)
    broker.bind(session, expiring)
    assert session.outgoing(TOPIC, message(1), 99).payload[0] >= 2
    assert session.outgoing(TOPIC, message(1), 100).payload[0] < 2
    assert session.incoming(1, TOPIC, broker.publish(message(7), expiring), 0.0) == [Deliver(1, message(7))]


def test_a_new_connection_binds_anew_and_keeps_what_it_learned() -> None:
    session, broker = aware()
    broker.announce(session, SHARED)
    assert session.outgoing(TOPIC, message(1), 5).bindings
    assert session.connected(True) == []
    again = session.outgoing(TOPIC, message(1), 5)
    assert len(again.bindings) == 1


def test_bindings_end_with_their_connection() -> None:
    session, broker = aware()
    broker.announce(session, SHARED)
    broker.bind(session, SHARED)
    data = broker.publish(message(1), SHARED)
    assert session.incoming(1, TOPIC, data, 0.0) == [Deliver(1, message(1))]
    session.connected(True)
    (failed,) = session.incoming(1, TOPIC, data, 0.0)
    assert isinstance(failed, Fail)
    assert "no dictionary is bound" in str(failed.error)


def test_messages_wait_in_order_for_a_missing_dictionary() -> None:
    session, broker = aware()
    broker.bind(session, SHARED)
    assert session.incoming(1, TOPIC, broker.publish(message(1), SHARED), 0.0) == [Fetch(dictionary_topic(FAMILY))]
    assert session.incoming(2, TOPIC, broker.publish(b"plain", None), 0.0) == []
    assert session.incoming(3, TOPIC, broker.publish(message(3), SHARED), 0.0) == []
    assert session.waiting == 3
    assert broker.announce(session, SHARED) == [
        Deliver(1, message(1)),
        Deliver(2, b"plain"),
        Deliver(3, message(3)),
        Release(dictionary_topic(FAMILY)),
    ]
    assert session.waiting == 0


def test_a_binding_replaced_while_messages_wait_does_not_change_their_meaning() -> None:
    session, broker = aware()
    broker.aliases = AliasTable(2)
    broker.bind(session, SHARED)
    session.incoming(1, TOPIC, broker.publish(message(1), SHARED), 0.0)
    broker.aliases.next_turn()
    broker.bind(session, NEWER)
    session.incoming(2, TOPIC, broker.publish(message(2), NEWER), 0.0)
    assert broker.announce(session, NEWER) == []
    assert broker.announce(session, SHARED)[:2] == [Deliver(1, message(1)), Deliver(2, message(2))]


def test_a_dictionary_that_does_not_come_fails_its_messages_and_no_others() -> None:
    session, broker = aware(fetch_s=5.0)
    broker.bind(session, SHARED)
    session.incoming(1, TOPIC, broker.publish(message(1), SHARED), 10.0)
    session.incoming(2, TOPIC, broker.publish(b"plain", None), 11.0)
    assert session.tick(14.9) == []
    failed, delivered, released = session.tick(15.0)
    assert isinstance(failed, Fail)
    assert failed.item == 1
    assert f"{SHARED.id:016x}" in str(failed.error)
    assert FAMILY.decode() in str(failed.error)
    assert delivered == Deliver(2, b"plain")
    assert released == Release(dictionary_topic(FAMILY))


@pytest.mark.parametrize("limits", [{"waiting_max": 3}, {"waiting_bytes_max": 40}])
def test_the_queue_is_bounded(limits: dict[str, float]) -> None:
    session, broker = aware(**limits)
    broker.bind(session, SHARED)
    steps = [step for n in range(50) for step in session.incoming(n, TOPIC, broker.publish(message(n), SHARED), 0.0)]
    failed = [step.item for step in steps if isinstance(step, Fail)]
    assert failed == list(range(len(failed)))
    assert session.waiting + len(failed) == 50
    assert session.waiting <= 13


def test_what_waits_is_fetched_again_or_given_up_on_a_new_connection() -> None:
    session, broker = aware()
    broker.bind(session, SHARED)
    session.incoming(1, TOPIC, broker.publish(message(1), SHARED), 0.0)
    session.incoming(2, TOPIC, broker.publish(b"plain", None), 0.0)
    assert session.connected(True) == [Fetch(dictionary_topic(FAMILY))]
    failed, delivered = session.connected(False)
    assert isinstance(failed, Fail)
    assert delivered == Deliver(2, b"plain")
    assert session.waiting == 0


def test_forged_and_misplaced_dictionaries_are_refused() -> None:
    session, _ = aware()
    packed = bytearray(SHARED.pack())
    packed[60] ^= 1
    for topic, payload in [
        (dictionary_topic(FAMILY), bytes(packed)),
        (dictionary_topic(b"other/+"), SHARED.pack()),
        (b"$sdc/%zz", SHARED.pack()),
        (ALIAS_TOPIC, b"\x02short"),
    ]:
        (failed,) = session.incoming(9, topic, payload, 0.0)
        assert isinstance(failed, Fail)
        assert failed.item is None
        assert isinstance(failed.error, DictionaryError)
    assert session.incoming(9, dictionary_topic(FAMILY), b"", 0.0) == []  # a retained dictionary was cleared
    assert session.outgoing(TOPIC, message(1), 0).payload[0] < 2


@given(st.binary(max_size=60))
def test_garbage_ends_in_an_error_or_in_bytes_but_nothing_else(payload: bytes) -> None:
    session, broker = aware()
    broker.announce(session, SHARED)
    broker.bind(session, SHARED)
    (step,) = session.incoming(1, TOPIC, payload, 0.0)
    assert isinstance(step, Deliver | Fail)


def test_traffic_is_counted_by_family() -> None:
    session, broker = aware()
    broker.announce(session, SHARED)
    broker.bind(session, SHARED)
    sent = session.outgoing(TOPIC, message(1), 5)
    data = broker.publish(message(2), SHARED)
    session.incoming(1, TOPIC, data, 0.0)
    assert session.sent.snapshot() == {FAMILY: Traffic(1, len(message(1)), len(sent.payload), 9)}
    counted = session.received.snapshot()
    assert counted[FAMILY] == Traffic(1, len(message(2)), len(data), len(SHARED.pack()))
    assert counted[b""] == Traffic(0, 0, 0, 9)


@settings(max_examples=150)
@given(seed=st.integers(0, 2**32))
def test_any_interleaving_delivers_in_order_the_right_bytes(seed: int) -> None:
    """Dictionaries may come before, among or long after the messages that need them."""
    draw = random.Random(seed)
    session, broker = aware()
    broker.bind(session, SHARED, NEWER)
    steps: list[Step[int]] = []
    for n in range(30):
        if draw.random() < 0.1:
            steps += broker.announce(session, draw.choice([SHARED, NEWER]))
        steps += session.incoming(n, TOPIC, broker.publish(message(n), draw.choice([None, SHARED, NEWER])), 0.0)
    for one in (SHARED, NEWER):
        steps += broker.announce(session, one)
    delivered = [step for step in steps if isinstance(step, Deliver)]
    assert delivered == [Deliver(n, message(n)) for n in range(30)]
    assert not any(isinstance(step, Fail) for step in steps)


# -- topic streams


def streamed(count: int, dictionary: Dictionary | None = None) -> list[bytes]:
    """Tagged frames of `message(0)` and so on."""
    stream = TopicStream()
    stream.begin(dictionary)
    return [stream.encode([message(n)], 1 << 30)[0][0] for n in range(count)]


def streaming(**limits: float) -> tuple[ClientSession[int], Broker]:
    session, broker = aware(**limits)
    session.connected(True, streams=True)
    return session, broker


@pytest.mark.parametrize("dictionary", [None, SHARED, NEWER])
def test_frames_are_read_whatever_stands_between_them(dictionary: Dictionary | None) -> None:
    session, broker = streaming()
    if dictionary:
        assert broker.announce(session, dictionary) == []
        broker.bind(session, dictionary)
    for n, frame in enumerate(streamed(5, dictionary)):
        assert session.incoming(n, TOPIC, frame, 0.0) == [Deliver(n, message(n))]
        assert session.incoming(n, TOPIC, broker.publish(b"alone", dictionary), 0.0) == [Deliver(n, b"alone")]


def test_255_is_an_alias_where_streams_were_not_agreed_on() -> None:
    session, _ = aware()
    (failed,) = session.incoming(1, TOPIC, streamed(1)[0], 0.0)
    assert isinstance(failed, Fail)
    assert "alias 255" in str(failed.error)


def test_frames_wait_in_order_for_the_dictionary_of_their_key_frame() -> None:
    session, broker = streaming()
    frames = streamed(3, SHARED)
    assert [type(step) for step in session.incoming(0, TOPIC, frames[0], 0.0)] == [Fetch]
    assert session.incoming(1, TOPIC, frames[1], 0.0) == []
    # a new connection: what has come is still read as that of the old one, and a new stream beside it
    assert [type(step) for step in session.connected(True, streams=True)] == [Fetch]
    assert session.incoming(2, TOPIC, streamed(1)[0], 0.0) == []
    steps = broker.announce(session, SHARED)
    assert steps[:3] == [Deliver(0, message(0)), Deliver(1, message(1)), Deliver(2, message(0))]
    assert session.waiting == 0


def test_a_key_frame_that_was_given_up_takes_the_rest_with_it_and_the_broker_is_told_once() -> None:
    session, broker = streaming(fetch_s=1)
    frames = streamed(3, SHARED)
    for n in range(2):
        session.incoming(n, TOPIC, frames[n], 0.0)
    steps = session.tick(2.0)
    assert [step.item for step in steps if isinstance(step, Fail)] == [0, 1]
    assert broker.announce(session, SHARED) == []
    assert steps.count(Lost(TOPIC)) == 1
    (failed,) = session.incoming(2, TOPIC, frames[2], 3.0)
    assert isinstance(failed, Fail)
    assert "topic stream of 'cars/1234/speed'" in str(failed.error)
    again = streamed(1, SHARED)
    assert session.incoming(3, TOPIC, again[0], 3.0) == [Deliver(3, message(0))]


def test_damaged_frames_name_family_and_id_and_a_bomb_is_stopped() -> None:
    session, broker = streaming(payload_bytes_max=1_000)
    broker.announce(session, SHARED)
    frames = streamed(2, SHARED)
    assert session.incoming(0, TOPIC, frames[0], 0.0) == [Deliver(0, message(0))]
    other = bytes((224 + (frames[1][0] - 223) % 31,))
    for wrong in (frames[1][:2], frames[1][:2] + b"\xff\xff", other + frames[1][1:]):
        assert session.incoming(0, TOPIC, frames[0], 0.0) == [Deliver(0, message(0))]
        failed, lost = session.incoming(1, TOPIC, wrong, 0.0)
        assert isinstance(failed, Fail)
        assert f"family 'cars/+/speed', dictionary {SHARED.id:016x}" in str(failed.error)
        assert lost == Lost(TOPIC)
    bomb = TopicStream().encode([b"\0" * 100_000], 1)[0][0]
    failed, *_ = session.incoming(2, TOPIC, bomb, 0.0)
    assert isinstance(failed, Fail)
    assert "more than 1000 bytes" in str(failed.error)


class TestHeld:
    def test_what_it_has_from_before_is_said_first(self) -> None:
        session, broker = aware()
        assert session.held() == ()
        broker.announce(session, SHARED)
        session.connected(True)
        again = Broker()
        again.bindings.bind(b"".join(session.held()))
        bindings, payload = session.outgoing(TOPIC, message(7), 0)
        assert bindings == (), "said already"
        assert again.receive(payload) == message(7)
        session.connected(False)
        assert session.held() == ()


class TestOwnPast:
    def test_only_with_a_broker_that_reads_it(self) -> None:
        session: ClientSession[int] = ClientSession()
        for reads, tags in ((True, {HISTORY_TAG}), (False, {0, 1})):
            session.connected(True, history=reads)
            sent = [session.outgoing(TOPIC, message(n) * 3, 0).payload for n in range(5)]
            assert {payload[0] for payload in sent} <= tags

    def test_each_connection_has_a_past_of_its_own(self) -> None:
        session: ClientSession[int] = ClientSession()
        for _ in range(2):
            session.connected(True, history=True)
            reader = HistoryReader()
            for n in range(20):
                sent = session.outgoing(TOPIC, message(n) * 3, 0).payload
                assert reader.payload(sent[1:]) == message(n) * 3

    def test_a_dictionary_takes_its_place_where_there_is_one(self) -> None:
        session: ClientSession[int] = ClientSession()
        session.connected(True, history=True)
        broker = Broker()
        reader = HistoryReader()
        assert reader.payload(session.outgoing(TOPIC, message(1) * 3, 0).payload[1:]) == message(1) * 3
        broker.announce(session, SHARED)
        bindings, payload = session.outgoing(TOPIC, message(2), 0)
        broker.bindings.bind(b"".join(bindings))
        assert broker.receive(payload) == message(2)
        # another family's payloads go on where the past was
        other = session.outgoing(b"other/topic", message(3) * 3, 0).payload
        assert other[0] == HISTORY_TAG
        assert reader.payload(other[1:]) == message(3) * 3

    def test_what_is_opted_out_or_not_shorter_goes_raw(self) -> None:
        session: ClientSession[int] = ClientSession()
        session.connected(True, [b"secret/#"], history=True)
        assert session.outgoing(b"secret/x", b"a" * 100, 0).payload == b"\0" + b"a" * 100
        assert session.outgoing(TOPIC, bytes(range(200)), 0).payload == b"\0" + bytes(range(200))
        assert session.outgoing(TOPIC, b"", 0).payload == b"\0"
