"""What a bridge is dealt, in columns: the same as the messages of the blocks."""

from __future__ import annotations

import asyncio
from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lexicast.actors.bridge.dealt_records import DealtRecords
from lexicast.actors.client.decoder import Decoder
from lexicast.actors.client.dictionaries import Dictionaries
from lexicast.cluster.blocks import DEFLATE, PUBLICATIONS, QOS_MASK, RETAIN, Block, Meta, Run, pack_meta
from lexicast.cluster.clock import SystemClock
from lexicast.cluster.properties import CONTENT_TYPE

TOPICS = (b"a", b"a/b", "a/\N{SNOWMAN}".encode())
# Of a run: what it skips, its topic, flags, payloads.
RUNS = st.lists(
    st.tuples(
        st.integers(0, 2),
        st.integers(0, 2),
        st.sampled_from([0, 1, 2, 5]),
        st.lists(st.binary(max_size=3), min_size=1, max_size=3),
    ),
    min_size=1,
    max_size=5,
)


def block(runs: list[Run], payloads: list[bytes], first: int = 7) -> Block:
    meta = Meta(TOPICS, tuple(runs), (), (), (), ())
    last = first + sum([run.skip + run.count for run in runs]) - 1
    lengths = array("I", map(len, payloads)).tobytes()
    return Block(3, 1, first, last, 1, PUBLICATIONS, pack_meta(meta), lengths, b"".join(payloads))


def a_run(skip: int = 0, topic: int = 0, flags: int = 1, count: int = 1, **others: object) -> Run:
    return Run(skip, topic, flags, 0, 0, None, -1, count)._replace(**others)  # type: ignore[arg-type]  # by name


@given(RUNS)
def test_a_block_is_the_messages_that_a_client_makes_of_it(given_: list[tuple[int, int, int, list[bytes]]]) -> None:
    stored = block(
        [a_run(skip, topic, flags, len(some)) for skip, topic, flags, some in given_],
        [each for *_, some in given_ for each in some],
    )
    decoder = Decoder(Dictionaries(SystemClock()), _no_dictionary)
    messages = asyncio.run(decoder.decode(stored, 0)).messages
    records, told = DealtRecords(4), DealtRecords(4)
    assert records.add_block(stored)
    told.add_messages(messages)
    assert records.places == told.places == [(4, 3, each.position.offset) for each in messages]
    assert records.payloads == told.payloads == [each.payload for each in messages]
    assert records.topics == told.topics == [each.topic.encode() for each in messages]
    assert records.flags == told.flags
    assert [(flags & QOS_MASK, flags & RETAIN > 0) for flags in records.flags] == [(m.qos, m.retain) for m in messages]
    assert records.messages == [None] * len(messages)
    assert told.messages == messages


async def _no_dictionary(_: int) -> bytes | None:
    return None


@pytest.mark.parametrize(
    "run", [a_run(encoding=DEFLATE), a_run(expiry_ms=1), a_run(properties={CONTENT_TYPE: "text/plain"})]
)
def test_what_has_more_than_a_payload_is_left_to_its_messages(run: Run) -> None:
    records = DealtRecords(0)
    assert not records.add_block(block([a_run(), run], [b"1", b"2"]))
    assert len(records) == 0


def test_what_cannot_be_read_is_not_added() -> None:
    good = block([a_run()], [b"1"])
    for broken in (
        Block(3, 1, 7, 7, 1, PUBLICATIONS, b"\xc1", good.lengths, good.body),
        Block(3, 1, 7, 7, 1, PUBLICATIONS, good.meta_bytes, good.lengths, b""),
    ):
        records = DealtRecords(0)
        assert not records.add_block(broken)
        assert len(records) == 0


@given(st.lists(st.booleans(), min_size=1, max_size=9))
def test_those_that_are_wanted(wanted: list[bool]) -> None:
    records = DealtRecords(1)
    assert records.add_block(block([a_run(count=len(wanted))], [b"%d" % n for n in range(len(wanted))]))
    some = records.those(wanted)
    kept = [number for number, is_wanted in enumerate(wanted) if is_wanted]
    assert some.payloads == [b"%d" % n for n in kept]
    assert some.places == [(1, 3, 7 + n) for n in kept]
    assert len(some.topics) == len(some.flags) == len(some.messages) == len(some)
