"""Blocks of one publication are read as one: what any block's way gives, or nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lexicast.cluster.blocks import CONTROL, PUBLICATIONS, RETAIN, Block, Mark, Meta, ProducerRun, Run, pack_meta
from lexicast.storage.file.keys import log_key
from lexicast.storage.log import block_format
from lexicast.storage.log.block_format import encode_block, sound_block, verified_head
from lexicast.storage.log.lone_blocks import lone_publication

META = Meta((b"dev/1",), (Run(0, 0, 1, 0, 0, None, -1, 1),), (), (), (), ())


def block_of(meta: Meta = META, payload: bytes = b"21.5", first: int = 40, last: int = 40) -> Block:
    """A block of one publication."""
    lengths = len(payload).to_bytes(4, "little")
    return Block(3, 2, first, last, 1_700_000_000_000_000, PUBLICATIONS, pack_meta(meta), lengths, payload)


def read(value: bytes, last: int = 40) -> Block | None:
    """What the way of a lone publication gives of a value under its key."""
    return lone_publication(memoryview(value), 3, last, log_key(3, last))


@given(
    payload=st.binary(max_size=40),
    skip=st.integers(0, 3),
    after=st.integers(0, 3),
    flags=st.sampled_from([0, 1, 2, RETAIN]),
    properties=st.sampled_from([None, {1: 1}]),
    known=st.booleans(),
)
def test_a_lone_publication_is_what_any_block_is(
    payload: bytes, skip: int, after: int, flags: int, properties: dict[int, int] | None, known: bool
) -> None:
    run = Run(skip, 0, flags, 0, 0, properties, 0 if known else -1, 1)
    origins = ("1",) if known else ()
    producers = (ProducerRun(b"p", 1, 7, 1),) if known else ()
    marks = (Mark(0, b"uid", 9),) if flags == 2 else ()
    meta = Meta((b"dev/1",), (run,), producers, marks, origins, ())
    block = block_of(meta, payload, 40 - skip - after, 40)
    value = encode_block(block, 0, 0, 0)
    expected, damaged = sound_block(value, verified_head(value, 3, 40))
    assert expected is not None
    assert not damaged
    found = read(value)
    assert found is not None
    assert (found.to_wire(), found.meta) == (expected.to_wire(), expected.meta)


def test_a_bit_that_flips_anywhere_leaves_a_block_to_the_general_way() -> None:
    value = encode_block(block_of(), 0, 0, 0)
    assert read(value) is not None
    for bit in range(8 * len(value)):
        damaged = bytearray(value)
        damaged[bit // 8] ^= 1 << bit % 8
        assert read(bytes(damaged)) is None
    for size in range(len(value)):
        assert read(value[:size]) is None
    assert read(value, last=41) is None


def test_what_is_no_lone_publication_is_left_to_the_general_way(monkeypatch: pytest.MonkeyPatch) -> None:
    two = replace(
        block_of(META._replace(runs=(META.runs[0]._replace(count=2),)), b"ab", 39, 40),
        lengths=(1).to_bytes(4, "little") * 2,
    )
    assert read(encode_block(two, 0, 0, 0)) is None
    expiring = block_of(META._replace(runs=(META.runs[0]._replace(expiry_ms=5),)))
    until_us = expiring.time_us + 5_000
    assert read(encode_block(expiring, 0, until_us, until_us)) is None
    assert read(encode_block(replace(block_of(), kind=CONTROL), 0, 0, 0)) is None
    assert read(encode_block(replace(block_of(), meta_bytes=b"\xc1"), 0, 0, 0)) is None
    monkeypatch.setattr(block_format, "FORMAT_VERSION", block_format.FORMAT_VERSION + 1)
    assert read(encode_block(block_of(), 0, 0, 0)) is None
