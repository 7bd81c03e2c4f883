"""Packets put together publication by publication are those of a block of these publications."""

from __future__ import annotations

from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lexicast.actors.broker.content.choosing import BlockChoice
from lexicast.actors.broker.content.record_packets import Alike, RecordPackets, alike_of
from lexicast.actors.broker.encoding import LINK, BlockView, Encoder, Grant, Kind
from lexicast.actors.mqtt.codec.packets import V5, V311
from lexicast.cluster.blocks import DEFLATE, FIRST_DICTIONARY, PUBLICATIONS, RAW, RETAIN, Block, Meta, Run, pack_meta
from lexicast.cluster.properties import CONTENT_TYPE, USER_PROPERTY
from lexicast.compression.codecs import Deflate
from lexicast.compression.wire import AliasTable, Recoder

TOPICS = (b"a", b"b/c")
MISSING = 77
PROPERTIES = {CONTENT_TYPE: "application/json", USER_PROPERTY: [("x", "y")]}
KINDS = [Kind(LINK), Kind(V311), Kind(V5), Kind(V5, packet_bytes_max=30), Kind(V311, aware=True), Kind(V5, aware=True)]
GRANTS = [Grant(), Grant(retain_as_published=True), Grant(ids=(3,)), Grant(retain_as_published=True, ids=(1, 2))]

# Topic, RETAIN, encoding, expiry in ms, properties; payloads of a run.
_runs = st.tuples(
    st.integers(0, 1),
    st.booleans(),
    st.sampled_from([RAW, RAW, DEFLATE, FIRST_DICTIONARY]),
    st.sampled_from([0, 0, 1, 60_000]),
    st.sampled_from([None, PROPERTIES]),
    st.lists(st.binary(max_size=40), min_size=1, max_size=3),
)
_blocks = st.lists(_runs, min_size=1, max_size=4)


def view_of(made: list[tuple[int, bool, int, int, dict[int, object] | None, list[bytes]]]) -> BlockView:
    """A block of these runs, looked at a second after it was published; what names a dictionary nobody can read."""
    runs, payloads, deflate = [], list[bytes](), Deflate()
    for topic, retain, encoding, expiry_ms, properties, some in made:
        runs.append(Run(0, topic, RETAIN * retain, encoding, expiry_ms, properties, -1, len(some)))
        payloads += [deflate.compress(each) if encoding == DEFLATE else each for each in some]
    meta = Meta(TOPICS, tuple(runs), (), (), (), (MISSING,))
    lengths = array("I", map(len, payloads)).tobytes()
    block = Block(0, 1, 5, 4 + len(payloads), 0, PUBLICATIONS, pack_meta(meta), lengths, b"".join(payloads))
    return BlockView(block, 1_000_000)


@pytest.mark.parametrize("kind", KINDS, ids=str)
@given(_blocks, st.sampled_from(GRANTS), st.data())
def test_a_part_is_the_packets_of_its_publications(
    kind: Kind, made: list[tuple[int, bool, int, int, dict[int, object] | None, list[bytes]]], grant: Grant,
    data: st.DataObject,
) -> None:  # fmt: skip
    view, encoder = view_of(made), Encoder(Recoder(), AliasTable(), lambda topic: None)
    choice = BlockChoice(view, encoder)
    packets = RecordPackets(choice, encoder, alike_of(kind, grant))
    numbers = st.lists(st.integers(0, view.block.count - 1), min_size=1, unique=True).map(sorted)
    for _ in range(2):  # what was made for one part is there for the next
        records = data.draw(numbers)
        part, grants = choice.of_picks([(record, (grant,)) for record in records])
        expected = encoder.shared(kind, part, grants)
        found = packets.encoded(records)
        assert found.data == expected.data
        assert found.records == (expected.records if expected.data else 0)
        assert found.aliases >= expected.aliases


def test_what_is_alike_is_the_same_object() -> None:
    first, second = (alike_of(Kind(V5), Grant(ids=(number,))) for number in (1, 1))
    assert isinstance(first, Alike)
    assert first is second
    assert first is not alike_of(Kind(V5), Grant(ids=(2,)))
