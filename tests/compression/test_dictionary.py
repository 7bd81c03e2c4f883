"""Dictionaries: identity, packed form, and refusal of everything that is not one."""

from __future__ import annotations

import dataclasses
import random
import struct
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lexicast.cluster.errors import DictionaryError
from lexicast.compression import dictionary as module
from lexicast.compression.codecs import DEFLATE_PRESET, ZSTD
from lexicast.compression.dictionary import (
    CONTENT_BYTES_MAX,
    NEVER_US,
    PACKED_BYTES_MAX,
    Dictionary,
    content_id,
    unpack_dictionary,
)

CONTENT = b'{"temperature": 20.5, "unit": "C"}' * 20


def example(**changes: object) -> Dictionary:
    fields: dict[str, object] = {
        "family": b"devices/+/t",
        "codec": ZSTD,
        "content": CONTENT,
        "created_us": 5,
        "expires_us": 99,
        "samples": 50,
    }
    return Dictionary(**(fields | changes))  # type: ignore[arg-type]  # the fields are mixed on purpose


def forged(body: bytes) -> bytes:
    """A body with a checksum that fits."""
    return body + struct.pack(">I", zlib.crc32(body))


@given(
    family=st.binary(min_size=1, max_size=200),
    codec=st.sampled_from([ZSTD, DEFLATE_PRESET]),
    content=st.binary(min_size=1, max_size=3_000),
    created_us=st.integers(0, NEVER_US),
    expires_us=st.integers(0, NEVER_US),
    samples=st.integers(0, 2**31 - 1),
)
def test_packed_dictionaries_come_back_equal(**fields: object) -> None:
    dictionary = Dictionary(**fields)  # type: ignore[arg-type]  # hypothesis names the fields
    back = unpack_dictionary(dictionary.pack())
    assert back == dictionary
    assert back.id == dictionary.id


def test_the_id_depends_on_codec_and_content_alone() -> None:
    assert example().id == content_id(ZSTD, CONTENT) == example(family=b"x", created_us=7, expires_us=NEVER_US).id
    assert example().id != example(codec=DEFLATE_PRESET).id
    assert example().id != example(content=CONTENT + b"x").id


def test_the_id_is_written_down() -> None:
    """A change of the hash would orphan every stored payload."""
    assert content_id("zstd-3", b"content") == 0x1EDC6BD58EFD6F7C


def test_content_travels_compressed() -> None:
    assert len(example().pack()) < len(CONTENT) / 4


@given(at=st.integers(0, 10_000), flip=st.integers(1, 255))
def test_a_flipped_byte_is_found(at: int, flip: int) -> None:
    packed = bytearray(example().pack())
    packed[at % len(packed)] ^= flip
    with pytest.raises(DictionaryError):
        unpack_dictionary(bytes(packed))


@given(length=st.integers(0, 10_000))
def test_a_cut_is_found(length: int) -> None:
    packed = example().pack()
    with pytest.raises(DictionaryError):
        unpack_dictionary(packed[: length % len(packed)])


@given(data=st.binary(max_size=400))
def test_garbage_is_refused_also_behind_a_fitting_checksum(data: bytes) -> None:
    for packed in (
        data,
        forged(b"SD\x02" + data),
        forged(b"SD\x02\x01\x01" + data),
        forged(example().pack()[:9] + data),
    ):
        try:
            dictionary = unpack_dictionary(packed)
        except DictionaryError:
            continue
        # what is well formed is a dictionary of its own, never one with the example's id
        assert dictionary.id != example().id


def test_a_forged_content_never_gets_anothers_id() -> None:
    """The id is not sent: it is computed from what came."""
    wanted = example()
    changed = example(content=CONTENT[:-1] + b"!")
    assert unpack_dictionary(changed.pack()).id == content_id(ZSTD, CONTENT[:-1] + b"!") != wanted.id


def test_a_dictionary_bomb_is_stopped() -> None:
    def bomb(how: int, length: int, data: bytes) -> bytes:
        numbers = b"".join(map(module._varint, (0, 0, 0, length, 1)))
        return forged(b"SD\x02\x01" + bytes((how,)) + numbers + b"f" + data)

    with pytest.raises(DictionaryError, match="at most"):
        unpack_dictionary(bomb(module._ZSTD, CONTENT_BYTES_MAX + 1, b"\0" * 100))
    with pytest.raises(DictionaryError, match="cannot be decompressed"):
        unpack_dictionary(bomb(module._ZSTD, 1_000, module._squeezer().compress(b"\0" * 10**7)))
    deflate = zlib.compressobj(9, zlib.DEFLATED, -15)
    with pytest.raises(DictionaryError, match="more than 1000 bytes"):
        unpack_dictionary(bomb(module._DEFLATE, 1_000, deflate.compress(b"\0" * 10**7) + deflate.flush()))
    with pytest.raises(DictionaryError, match="at most"):
        unpack_dictionary(b"S" * (PACKED_BYTES_MAX + 1))


def test_newer_formats_and_codecs_say_update() -> None:
    body = bytearray(example().pack()[:-4])
    body[3] = 200
    with pytest.raises(DictionaryError, match="unknown codec number 200: update lexicast"):
        unpack_dictionary(forged(bytes(body)))
    body[3:5] = (1, 7)
    with pytest.raises(DictionaryError, match="packed in an unknown way"):
        unpack_dictionary(forged(bytes(body)))
    body[2] = 9
    with pytest.raises(DictionaryError, match="format version 9"):
        unpack_dictionary(forged(bytes(body)))


def test_a_difference_is_smaller_and_needs_the_previous_one() -> None:
    draw = random.Random(1)
    first = example(content=draw.randbytes(2_000))
    second = example(content=first.content[500:] + b"new", created_us=6)
    packed = second.pack(first)
    assert len(packed) < 100 < 1_000 < len(second.pack())
    assert unpack_dictionary(packed, {first.id: first}.get) == second
    with pytest.raises(DictionaryError, match=f"devices/.*{first.id:016x}, which is not held"):
        unpack_dictionary(packed)
    assert unpack_dictionary(example(content=b"x" * 9).pack(first)).content == b"x" * 9


@given(previous=st.binary(min_size=1, max_size=500), content=st.binary(min_size=1, max_size=500))
def test_differences_come_back_equal(previous: bytes, content: bytes) -> None:
    first, second = example(content=previous), example(content=previous + content + previous)
    assert unpack_dictionary(second.pack(first), {first.id: first}.get) == second


@pytest.mark.parametrize(
    "changes",
    [
        {"codec": "lzma"},
        {"family": b""},
        {"content": b""},
        {"content": b"x" * (CONTENT_BYTES_MAX + 1)},
        {"codec": DEFLATE_PRESET, "content": b"x" * 32_768},
        {"created_us": -1},
        {"expires_us": 2**63},
        {"samples": 2**31},
    ],
)
def test_fields_out_of_range_are_refused(changes: dict[str, object]) -> None:
    with pytest.raises(DictionaryError):
        example(**changes)


def test_a_forged_trained_dictionary_is_refused_when_used() -> None:
    """Right id, but tables that zstd cannot read."""
    bad = example(content=bytes.fromhex("37a430ec") + b"\xff" * 300)
    codec = bad.build()
    with pytest.raises(DictionaryError, match=f"{bad.id:016x}"):
        codec.compress(b"abc")
    with pytest.raises(DictionaryError, match=f"{bad.id:016x}"):
        codec.decompress(b"abcdef")
    assert dataclasses.replace(bad, content=CONTENT).build().compress(b"abc")
