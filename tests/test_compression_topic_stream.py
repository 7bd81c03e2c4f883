"""The topic stream with key frames, and batches."""

from __future__ import annotations

import json
import random
import zlib
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lexicast.cluster.errors import DictionaryError
from lexicast.compression.batching import Batcher, join, split
from lexicast.compression.codecs import Deflate
from lexicast.compression.topic_stream import HEADER_BYTES, KEY_INTERVAL, TopicStream, TopicStreamReader, TopicStreams

ALWAYS = 1 << 30
"""What a standalone payload costs where the stream is always to win."""


def readings(seed: int, count: int) -> list[bytes]:
    draw = random.Random(seed)
    return [
        json.dumps({"device": f"d-{draw.randrange(50)}", "temperature": round(draw.gauss(20, 5), 2)}).encode()
        for _ in range(count)
    ]


def frames(stream: TopicStream, messages: list[bytes]) -> list[bytes]:
    encoded = [stream.encode(message, ALWAYS) for message in messages]
    assert None not in encoded
    return [frame for frame in encoded if frame is not None]


@given(st.lists(st.binary(max_size=60), max_size=30), st.integers(1, 8), st.binary(max_size=100))
def test_frames_come_back_equal(messages: list[bytes], interval: int, dictionary: bytes) -> None:
    stream = TopicStream(dictionary, key_interval=interval)
    reader = TopicStreamReader(dictionary)
    assert [reader.decode(frame) for frame in frames(stream, messages)] == messages


@given(st.sets(st.integers(0, 39)), st.integers(0, 39))
def test_after_a_hole_nothing_is_read_until_the_next_key_frame(lost: set[int], joined: int) -> None:
    messages = readings(1, 40)
    reader = TopicStreamReader()
    in_step = False
    for number, frame in enumerate(frames(TopicStream(key_interval=10), messages)):
        if number < joined or number in lost:
            in_step = False
            continue
        in_step = in_step or number % 10 == 0
        if in_step:
            assert reader.decode(frame) == messages[number]
        else:
            with pytest.raises(DictionaryError, match="a topic stream"):
                reader.decode(frame)


@given(st.integers(0, 10_000), st.integers(1, 255))
def test_a_damaged_frame_is_an_error_or_another_payload_but_never_a_crash(at: int, flip: int) -> None:
    stream, reader = TopicStream(), TopicStreamReader(label="family 'f', stream 1")
    sent = frames(stream, readings(1, 3))
    reader.decode(sent[0])
    damaged = bytearray(sent[1])
    damaged[at % len(damaged)] ^= flip
    with suppress(DictionaryError):
        assert len(reader.decode(bytes(damaged), bytes_max=1_000)) <= 1_000
        return
    with pytest.raises(DictionaryError, match="family 'f', stream 1"):
        reader.decode(sent[2])


def test_a_cut_frame_and_one_before_any_key_frame_are_refused() -> None:
    sent = frames(TopicStream(), readings(1, 2))
    reader = TopicStreamReader()
    with pytest.raises(DictionaryError, match="does not follow"):
        reader.decode(sent[1])
    with pytest.raises(DictionaryError, match="cut short"):
        reader.decode(sent[0][:HEADER_BYTES])


def test_a_bomb_is_stopped_at_the_limit() -> None:
    (frame,) = frames(TopicStream(), [b"\0" * 1_000_000])
    assert len(frame) < 2_000
    with pytest.raises(DictionaryError, match="more than 1000 bytes"):
        TopicStreamReader().decode(frame, bytes_max=1_000)
    ended = zlib.compressobj(9, zlib.DEFLATED, -15)
    with pytest.raises(DictionaryError, match="ends within"):
        TopicStreamReader().decode(b"\0\0" + ended.compress(b"abc") + ended.flush())


def test_the_stream_beats_standalone_payloads() -> None:
    draw = random.Random(1)
    # what is said changes every 20 messages, to something that no dictionary knows
    messages = [random.Random(at // 20).randbytes(30).hex().encode() + draw.randbytes(5) for at in range(500)]
    content = b"".join(readings(2, 50))
    alone = Deflate(content=content)
    sent = sum(map(len, frames(TopicStream(content), messages)))
    assert sent < 0.4 * sum(len(alone.compress(message)) for message in messages)


def test_a_stream_that_loses_rests_for_seven_intervals() -> None:
    stream = TopicStream(key_interval=10)
    answers = [stream.encode(message, 1) is not None for message in readings(1, 100)]
    assert answers == [True] * 10 + [False] * 70 + [True] * 10 + [False] * 10


def test_whoever_joins_waits_for_the_key_frame() -> None:
    stream = TopicStream(key_interval=3)
    at_key = []
    for message in readings(1, 7):
        at_key.append(stream.at_key_frame)
        stream.encode(message, ALWAYS)
    assert at_key == [True, False, False, True, False, False, True]


def test_streams_are_bounded_and_begin_anew_with_a_new_dictionary() -> None:
    streams = TopicStreams[str](streams_max=2)
    first = streams.stream("a", 7, b"content")
    first.encode(b"x", ALWAYS)
    assert streams.stream("a", 7, b"content") is first
    assert streams.stream("a", 8, b"other") is not first
    streams.stream("b")
    streams.stream("c")
    assert len(streams) == 2
    assert streams.stream("a", 8, b"other").at_key_frame


@pytest.mark.parametrize("interval", [0, 257])
def test_arguments_out_of_range(interval: int) -> None:
    with pytest.raises(ValueError, match="key frame"):
        TopicStream(key_interval=interval)
    with pytest.raises(ValueError, match="at least one"):
        TopicStreams[str](0)
    assert KEY_INTERVAL <= 256


@given(st.lists(st.binary(max_size=300), min_size=1, max_size=30))
def test_batches_come_back_equal(messages: list[bytes]) -> None:
    assert split(join(messages)) == messages


@given(st.binary(max_size=200))
def test_garbage_is_no_batch_or_one_that_joins_to_itself(data: bytes) -> None:
    try:
        messages = split(data)
    except DictionaryError:
        return
    assert b"".join(messages) in join(messages) or len(messages) > 1


def test_a_batch_goes_when_full_or_when_the_first_has_waited() -> None:
    batcher = Batcher(3, bytes_max=100, delay_us=10)
    assert batcher.due_us is None
    assert batcher.add(b"a", 0) is None
    assert batcher.due_us == 10
    assert batcher.add(b"b", 5) is None
    assert split(batcher.add(b"c", 6) or b"") == [b"a", b"b", b"c"]
    assert split(batcher.add(b"x" * 100, 7) or b"") == [b"x" * 100]
    assert batcher.flush() is None
    batcher.add(b"d", 20)
    assert split(batcher.add(b"e", 30) or b"") == [b"d", b"e"]
    with pytest.raises(ValueError, match="messages"):
        Batcher(0)
    with pytest.raises(ValueError, match="batch"):
        join([])
    with pytest.raises(DictionaryError, match="empty"):
        split(b"")
