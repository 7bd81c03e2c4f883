"""Codecs: round trips on generated messages of many shapes; damage, cuts and bombs end in DictionaryError."""

from __future__ import annotations

import contextlib
import json
import random
import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lexicast.cluster.blocks import DEFLATE, FIRST_DICTIONARY, RAW
from lexicast.cluster.errors import DictionaryError
from lexicast.compression import codecs, deflate
from lexicast.compression.codecs import CODECS, DEFLATE_PRESET, ZSTD, Codec, Deflate
from lexicast.compression.training import train


def telemetry(seed: int, count: int) -> list[bytes]:
    draw = random.Random(seed)
    return [
        json.dumps(
            {
                "device": f"d-{draw.randrange(500)}",
                "temperature": round(draw.gauss(20, 5), 2),
                "ok": draw.random() < 0.9,
            }
        ).encode()
        for _ in range(count)
    ]


def rows(seed: int, count: int) -> list[bytes]:
    draw = random.Random(seed)
    words = ["carefully", "final", "deposits", "sleep", "quickly", "regular", "packages", "furiously", "even"]
    return [
        b"|".join(str(draw.randrange(10**6)).encode() for _ in range(5)) + b"|" + draw.choice(words).encode()
        for _ in range(count)
    ]


def noise(seed: int, count: int) -> list[bytes]:
    draw = random.Random(seed)
    return [draw.randbytes(draw.randrange(1, 200)) for _ in range(count)]


CORPORA = {"telemetry": telemetry, "rows": rows, "noise": noise}


def codec_for(name: str, samples: list[bytes]) -> Codec:
    return train(samples, 4096, name, family=b"devices/+/telemetry").build()


@pytest.fixture(scope="module", params=[ZSTD, DEFLATE_PRESET, "plain"])
def codec(request: pytest.FixtureRequest) -> Codec:
    return Deflate() if request.param == "plain" else codec_for(request.param, telemetry(1, 100))


@pytest.mark.parametrize("corpus", CORPORA)
@pytest.mark.parametrize("name", [*CODECS, "plain"])
def test_every_codec_gives_every_message_back(name: str, corpus: str) -> None:
    messages = CORPORA[corpus](7, 400)
    codec = Deflate() if name == "plain" else codec_for(name, messages[:100])
    for message in messages:
        assert codec.decompress(codec.compress(message), bytes_max=len(message)) == message


@given(payload=st.binary(max_size=2_000))
def test_any_bytes_round_trip(codec: Codec, payload: bytes) -> None:
    assert codec.decompress(codec.compress(payload), bytes_max=len(payload)) == payload


@pytest.mark.parametrize(
    "payload", [b"\0" * 5_000, b"ab" * 200_000, random.Random(3).randbytes(300_000), b"x" * 131_072]
)
def test_runs_and_payloads_of_several_blocks_round_trip(codec: Codec, payload: bytes) -> None:
    assert codec.decompress(codec.compress(payload), bytes_max=len(payload)) == payload


def test_a_dictionary_makes_similar_messages_much_smaller(codec: Codec) -> None:
    messages = telemetry(9, 200)
    sent = sum(len(codec.encode(message)[1]) for message in messages)
    share = sent / sum(map(len, messages))
    assert share < (0.95 if codec.kind == DEFLATE else 0.45)


def test_stripped_frames_spend_one_byte() -> None:
    codec = codec_for(ZSTD, telemetry(1, 100))
    data = codec.compress(telemetry(2, 1)[0])
    assert not data[1:].startswith(codecs.FULL_FRAME)
    assert data[1:3] != codecs._FRAME_HEADER


@pytest.mark.parametrize("name", CODECS)
def test_what_does_not_get_smaller_is_sent_raw(name: str) -> None:
    codec = codec_for(name, telemetry(1, 100))
    payload = random.Random(5).randbytes(64)
    assert codec.encode(payload) == (RAW, payload)
    kind, data = codec.encode(telemetry(2, 1)[0])
    assert kind == FIRST_DICTIONARY
    assert len(data) < len(telemetry(2, 1)[0])
    assert Deflate().encode(b"a" * 50)[0] == DEFLATE


@given(data=st.data())
def test_deflate_cut_anywhere_is_refused(data: st.DataObject) -> None:
    codec = codec_for(data.draw(st.sampled_from([DEFLATE_PRESET])), telemetry(1, 100))
    whole = codec.compress(data.draw(st.sampled_from(telemetry(4, 50))))
    cut = whole[: data.draw(st.integers(0, len(whole) - 1))]
    with pytest.raises(DictionaryError, match="cut short"):
        codec.decompress(cut)
    with pytest.raises(DictionaryError, match="follow its end"):
        codec.decompress(whole + b"\0")


def test_zstd_cut_anywhere_is_refused_but_for_the_check_bytes_odds() -> None:
    """zstd alone takes 0.7% of the cuts for good; 1 in 256 of those passes the check byte."""
    codec = codec_for(ZSTD, telemetry(1, 100))
    tried = taken = 0
    for message in telemetry(4, 300):
        whole = codec.compress(message)
        for length in range(len(whole)):
            tried += 1
            with contextlib.suppress(DictionaryError):
                codec.decompress(whole[:length])
                taken += 1
    assert tried > 5_000
    assert taken <= tried / 5_000


@settings(max_examples=300)
@given(garbage=st.binary(max_size=300))
def test_garbage_raises_nothing_but_dictionary_error(codec: Codec, garbage: bytes) -> None:
    payload = b""
    with contextlib.suppress(DictionaryError):
        payload = codec.decompress(garbage, bytes_max=10_000)
    assert len(payload) <= 10_000


@pytest.mark.parametrize("bytes_max", [0, 1, 999, 100_000, 9_999_999])
def test_a_bomb_is_stopped_at_the_limit(codec: Codec, bytes_max: int) -> None:
    bomb = codec.compress(b"\0" * 10_000_000)
    assert len(bomb) < 20_000
    with pytest.raises(DictionaryError, match="the payload cannot be decompressed"):
        codec.decompress(bomb, bytes_max=bytes_max)
    small = codec.compress(b"abc" * 400)
    if bytes_max < 1_200:
        with pytest.raises(DictionaryError):
            codec.decompress(small, bytes_max=bytes_max)


def test_errors_name_the_family_and_the_id() -> None:
    dictionary = train(telemetry(1, 100), 4096, ZSTD, family=b"devices/+/telemetry")
    with pytest.raises(DictionaryError, match=rf"devices/\+/telemetry.*{dictionary.id:016x}"):
        dictionary.build().decompress(b"\x00" * 40)


def test_a_whole_frame_may_not_hide_in_a_stripped_one() -> None:
    codec = codec_for(ZSTD, telemetry(1, 100))
    payload = b"run" * 100_000
    data = codec.compress(payload)
    assert data[1:4] == codecs.FULL_FRAME
    assert data[0] == zlib.crc32(payload) & 0xFF
    with pytest.raises(DictionaryError):
        codec.decompress(data + b"\0")


@pytest.mark.parametrize("more", [-1, 0, 1])
def test_deflate_finds_what_lies_at_the_far_end_of_its_content(more: int) -> None:
    """The small window is taken only where it reaches as far back as the large one."""
    head, tail = random.Random(1).randbytes(200), b"tail"
    filling = random.Random(2).randbytes(deflate._SMALL_WINDOW_BYTES + more - 2 * len(head) - len(tail))
    codec = Deflate("test", head + filling + tail)
    payload = head
    assert len(codec._content) + len(payload) == deflate._SMALL_WINDOW_BYTES + more
    large = codec._primed(-15)
    data = codec.compress(payload)
    assert data == large.compress(payload) + large.flush()
    assert len(data) < 20
    assert codec.decompress(data) == payload
