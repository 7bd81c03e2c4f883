"""A topic stream is one publisher's: whoever comes second finds nothing to measure."""

from __future__ import annotations

import random
from array import array

from hypothesis import given
from hypothesis import strategies as st

from lexicast.actors.broker.encoding import BlockView, Encoder
from lexicast.actors.broker.streaming import Streamer
from lexicast.actors.broker.topic_publishers import TopicPublishers
from lexicast.cluster.blocks import PUBLICATIONS, Block, Meta, Run, pack_meta
from lexicast.compression.opted_out_topics import OptedOut
from lexicast.compression.wire import AliasTable, Recoder

TOPIC = b"bank/statements"
SECRET = b'{"account": "7731-4402", "balance": 1234.56}'


def nothing(topic: bytes) -> None:
    """No dictionary."""


class Broker:
    """What makes frames."""

    def __init__(self, users: bool) -> None:
        recoder = Recoder()
        self._encoder = Encoder(recoder, AliasTable(), nothing)
        self._streamer = Streamer(recoder, nothing, OptedOut([]), 1_000_000, users)
        self._offset = 0

    def publish(self, publisher: str, *payloads: bytes) -> list[bytes] | None:
        """Their frames; None where they go standalone."""
        meta = Meta((TOPIC,), (Run(0, 0, 1, 0, 0, None, 0, len(payloads)),), (), (), (publisher,), ())
        first, self._offset = self._offset, self._offset + len(payloads)
        lengths = array("I", map(len, payloads)).tobytes()
        last = first + len(payloads) - 1
        block = Block(0, 1, first, last, 0, PUBLICATIONS, pack_meta(meta), lengths, b"".join(payloads), meta)
        view = BlockView(block, 1_000_000 * (1 + first))
        self._streamer.stream(view, self._encoder, {0}, False)
        return view.frames.get(0)


class TestLengths:
    def test_a_guess_says_nothing_where_there_are_users(self) -> None:
        broker = Broker(users=True)
        assert broker.publish("victim", *[SECRET] * 20)
        for guess in (SECRET, b'{"account": "0000-0000", "balance": 0000.00}'):
            assert broker.publish("attacker", guess) is None
        assert broker.publish("victim", SECRET) is None

    def test_it_would_say_all_else(self) -> None:
        broker = Broker(users=False)
        assert broker.publish("victim", *[SECRET] * 20)
        (right,) = broker.publish("attacker", SECRET) or ()
        (wrong,) = broker.publish("attacker", bytes(random.Random(1).randbytes(len(SECRET)))) or ()
        assert len(right) < len(wrong) / 3

    def test_what_is_the_attackers_first_is_never_in_anothers_stream(self) -> None:
        broker = Broker(users=True)
        assert broker.publish("attacker", *[SECRET] * 20)
        assert broker.publish("victim", SECRET) is None
        assert broker.publish("attacker", SECRET) is None


class TestTopicPublishers:
    @given(st.lists(st.tuples(st.sampled_from([b"a", b"b", b"c", b"d"]), st.sampled_from("xyz")), max_size=60))
    def test_no_stream_ever_holds_two_publishers_messages(self, events: list[tuple[bytes, str]]) -> None:
        streams: dict[bytes, set[str]] = {}
        known = TopicPublishers(lambda topic: streams.pop(topic, None), topics_max=2)
        for topic, publisher in events:
            if known.one(topic, [publisher]):
                streams.setdefault(topic, set()).add(publisher)
            assert all(len(whose) == 1 for whose in streams.values())

    def test_two_at_once_and_unknown_ones_are_several(self) -> None:
        known = TopicPublishers(lambda topic: None)
        assert not known.one(b"t", ["a", "b"])
        assert not known.one(b"t", ["a"])
        assert not known.one(b"u", [None])
        assert known.one(b"v", ["a", "a"])
