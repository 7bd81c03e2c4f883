"""The topic stream with key frames."""

from __future__ import annotations

import json
import random
import zlib
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lexicast.cluster.errors import DictionaryError
from lexicast.compression.codecs import DEFLATE_PRESET, FIELDS, Deflate
from lexicast.compression.dictionary import Dictionary
from lexicast.compression.topic_stream import (
    FRAMES_MAX,
    KEY_INTERVAL,
    STREAMS_MAX,
    FrameBatch,
    Primed,
    StreamReaders,
    TopicStream,
    TopicStreamReader,
    TopicStreams,
    key_frame_dictionary,
)
from lexicast.compression.training import train

ALWAYS = 1 << 30
"""What a standalone payload costs where the stream is always to win."""

ADMITTED = TopicStreams.ADMITTED_AFTER


def readings(seed: int, count: int) -> list[bytes]:
    draw = random.Random(seed)
    return [
        json.dumps({"device": f"d-{draw.randrange(50)}", "temperature": round(draw.gauss(20, 5), 2)}).encode()
        for _ in range(count)
    ]


def dictionary(seed: int) -> Dictionary:
    return Dictionary(b"devices/+", DEFLATE_PRESET, b"".join(readings(seed, 20)))


def field_model(seed: int) -> Dictionary:
    return train(readings(seed, 60), 64 * 1024, FIELDS, family=b"devices/+")


def nothing_held(_id: int) -> Dictionary | None:
    return None


def frames(stream: TopicStream, messages: list[bytes]) -> list[bytes]:
    """Each message a batch of its own."""
    encoded = []
    for message in messages:
        assert not stream.rests(1)
        encoded += stream.encode([message], ALWAYS)
    return encoded


@given(st.lists(st.binary(max_size=60), max_size=30), st.integers(1, 8), st.binary(max_size=100))
def test_frames_come_back_equal(messages: list[bytes], interval: int, content: bytes) -> None:
    held = Dictionary(b"f", DEFLATE_PRESET, content) if content else None
    reader = TopicStreamReader()
    sent = frames(TopicStream(Primed(held), key_interval=interval), messages)
    assert [reader.decode(frame, held) for frame in sent] == messages
    assert [key_frame_dictionary(frame) for frame in sent[::interval]] == [held and held.id] * len(sent[::interval])


@given(st.sets(st.integers(0, 39)), st.integers(0, 39))
def test_after_a_hole_nothing_is_read_until_the_next_key_frame(lost: set[int], joined: int) -> None:
    messages = readings(1, 40)
    reader = TopicStreamReader(b"line/x")
    is_in_step = False
    for number, frame in enumerate(frames(TopicStream(Primed(), key_interval=10), messages)):
        if number < joined or number in lost:
            is_in_step = False
            continue
        is_in_step = is_in_step or number % 10 == 0
        if is_in_step:
            assert reader.decode(frame) == messages[number]
        else:
            with pytest.raises(DictionaryError, match="topic stream of 'line/x'"):
                reader.decode(frame)


@given(st.integers(0, 10_000), st.integers(1, 255))
def test_a_damaged_frame_is_an_error_or_another_payload_but_never_a_crash(at: int, flip: int) -> None:
    held = dictionary(2)
    reader = TopicStreamReader(b"devices/1")
    sent = frames(TopicStream(Primed(held)), readings(1, 3))
    reader.decode(sent[0], held)
    damaged = bytearray(sent[1])
    damaged[at % len(damaged)] ^= flip
    with suppress(DictionaryError):
        assert len(reader.decode(bytes(damaged), bytes_max=1_000)) <= 1_000
        return
    with pytest.raises(DictionaryError, match=r"family .*, dictionary .*, topic stream of"):
        reader.decode(sent[2])


@given(st.lists(st.one_of(st.sampled_from(readings(3, 30)), st.binary(max_size=60)), max_size=30), st.integers(1, 8))
def test_frames_of_fields_come_back_equal(messages: list[bytes], interval: int) -> None:
    held = field_model(4)
    reader = TopicStreamReader()
    sent = frames(TopicStream(Primed(held), key_interval=interval), messages)
    assert [reader.decode(frame, held) for frame in sent] == messages
    assert all([(frame[0] == 0) == (at % interval == 0) for at, frame in enumerate(sent)])


@given(st.integers(0, 29), st.integers(1, 6))
def test_a_frame_of_fields_after_a_hole_is_refused(lost: int, length: int) -> None:
    held = field_model(4)
    reader = TopicStreamReader(b"devices/1")
    sent = frames(TopicStream(Primed(held)), readings(3, 40))
    for frame in sent[: lost + 1]:
        reader.decode(frame, held)
    with pytest.raises(DictionaryError, match=r"dictionary .*, topic stream of 'devices/1'.* is expected"):
        reader.decode(sent[lost + 1 + length])
    with pytest.raises(DictionaryError, match="does not follow"):
        reader.decode(sent[lost + 2 + length])


def test_the_stream_goes_over_from_bytes_to_fields_and_back() -> None:
    streams, reader, messages = (
        TopicStreams(),
        StreamReaders({d.id: d for d in (dictionary(2), field_model(4))}.get),
        [],
    )
    for at, newest in enumerate((dictionary(2), field_model(4), dictionary(2))):
        for message in readings(at, ADMITTED + 3):
            if streams.takes(b"devices/1", 1, newest, 0):
                messages.append(message)
                (frame,) = streams.encode(b"devices/1", [message], ALWAYS, 0).frames
                assert reader.decode(b"devices/1", frame) == message
    assert len(messages) > 3 * ADMITTED - 10


def test_a_cut_frame_and_one_before_any_key_frame_are_refused() -> None:
    sent = frames(TopicStream(Primed()), readings(1, 2))
    reader = TopicStreamReader()
    with pytest.raises(DictionaryError, match="does not follow"):
        reader.decode(sent[1])
    for cut in (0, 1, 9, 10):
        with pytest.raises(DictionaryError, match="cut short"):
            reader.decode(sent[0][:cut])
    assert key_frame_dictionary(b"") is key_frame_dictionary(sent[0][:9]) is None


def test_a_key_frame_is_read_with_its_own_dictionary_alone() -> None:
    named, other = dictionary(2), dictionary(3)
    (frame,) = frames(TopicStream(Primed(named)), readings(1, 1))
    for held in (None, other):
        with pytest.raises(DictionaryError, match=f"{named.id:016x}, which is not held"):
            TopicStreamReader().decode(frame, held)
    with pytest.raises(DictionaryError, match=f"family unknown, dictionary {named.id:016x}"):
        StreamReaders(nothing_held).decode(b"devices/1", frame)


def test_a_bomb_is_stopped_at_the_limit() -> None:
    (frame,) = frames(TopicStream(Primed()), [b"\0" * 1_000_000])
    assert len(frame) < 2_000
    with pytest.raises(DictionaryError, match="more than 1000 bytes"):
        TopicStreamReader().decode(frame, bytes_max=1_000)
    with pytest.raises(DictionaryError, match="more than 1000 bytes"):
        StreamReaders(nothing_held, 1_000).decode(b"a", frame)
    ended = zlib.compressobj(9, zlib.DEFLATED, -15)
    with pytest.raises(DictionaryError, match="ends within"):
        TopicStreamReader().decode(b"\0\1" + bytes(8) + ended.compress(b"abc") + ended.flush())


def test_the_stream_beats_standalone_payloads() -> None:
    draw = random.Random(1)
    # what is said changes every 20 messages, to something that no dictionary knows
    messages = [random.Random(at // 20).randbytes(30).hex().encode() + draw.randbytes(5) for at in range(500)]
    held = dictionary(2)
    alone = Deflate(content=held.content)
    sent = sum(map(len, frames(TopicStream(Primed(held)), messages)))
    assert sent < 0.4 * sum(len(alone.compress(message)) for message in messages)


def test_a_stream_that_loses_rests_for_seven_intervals_then_longer_and_not_after_it_gained() -> None:
    stream = TopicStream(Primed(), key_interval=10)
    answers = []
    for number, message in enumerate(readings(1, 340)):
        answers.append(not stream.rests(1))
        if answers[-1]:
            stream.encode([message], 1 if number < 230 or number >= 250 else ALWAYS)
    lost, gained = [True] * 10, [True] * 10
    assert answers[:240] == lost + [False] * 70 + lost + [False] * 140 + gained
    assert answers[240:] == gained + lost + [False] * 70 + lost


def test_a_stream_that_is_losing_is_left_before_its_interval_ends() -> None:
    stream = TopicStream(Primed())
    answers = []
    for message in readings(1, 100):
        answers.append(not stream.rests(1))
        if answers[-1]:
            stream.encode([message], 1)
    assert answers == [True] * 25 + [False] * 75
    assert stream.at_key_frame


def test_whoever_joins_waits_for_the_key_frame() -> None:
    stream = TopicStream(Primed(), key_interval=3)
    at_key = []
    for message in readings(1, 7):
        at_key.append(stream.at_key_frame)
        stream.encode([message], ALWAYS)
    assert at_key == [True, False, False, True, False, False, True]


def test_a_key_frame_waits_for_the_beginning_of_a_batch_but_not_for_ever() -> None:
    stream = TopicStream(Primed(), key_interval=3)
    assert [frame[0] == 0 for frame in stream.encode(readings(1, 5), ALWAYS)] == [True, False, False, False, False]
    assert [frame[0] == 0 for frame in stream.encode(readings(1, 2), ALWAYS)] == [True, False]
    keys = [at for at, frame in enumerate(stream.encode(readings(2, 600), ALWAYS)) if frame[0] == 0]
    assert keys == [FRAMES_MAX - 2, 2 * FRAMES_MAX - 2]


def batch(
    streams: TopicStreams, topic: bytes, count: int = 1, held: Dictionary | None = None, at_us: int = 0
) -> FrameBatch:
    """The topic's next batch, which must be streamed."""
    while not streams.takes(topic, count, held, at_us):
        pass  # not admitted yet
    return streams.encode(topic, readings(1, count), ALWAYS, at_us)


def test_a_topic_is_admitted_when_it_has_had_some_messages() -> None:
    streams = TopicStreams()
    answers = [streams.takes(b"a", 1, None, 0) for _ in range(ADMITTED + 2)]
    assert answers == [False] * (ADMITTED - 1) + [True] * 3
    for topic in range(10_000):
        assert not streams.takes(b"%d" % topic, 1, None, 0)
    assert len(streams) == 1


def test_streams_are_bounded_and_the_least_recently_used_goes_when_it_was_idle() -> None:
    streams = TopicStreams(streams_max=2)
    first, second = batch(streams, b"a"), batch(streams, b"b", at_us=1)
    assert {first.slot, second.slot} == {0, 1}
    assert not any([streams.takes(b"c", ADMITTED, None, TopicStreams.IDLE_US - 1) for _ in range(10)])
    third = batch(streams, b"c", at_us=TopicStreams.IDLE_US)
    assert len(streams) == 2
    assert third.slot == first.slot
    assert third.is_key
    assert not third._replace(is_key=False).follows({first.slot: first.number})
    assert not streams.takes(b"a", ADMITTED - 1, None, TopicStreams.IDLE_US)


def test_a_new_dictionary_begins_with_a_key_frame_that_names_it() -> None:
    streams = TopicStreams()
    old, new = dictionary(2), dictionary(3)
    assert batch(streams, b"a", held=old).dictionary == old
    after = batch(streams, b"a", held=old)
    assert (after.is_key, after.dictionary) == (False, None)
    changed = batch(streams, b"a", held=new)
    assert (changed.is_key, changed.dictionary) == (True, new)
    assert key_frame_dictionary(changed.frames[0]) == new.id
    assert batch(streams, b"a", 400, held=new).dictionary == new  # a key frame within


class Session:
    """A receiver, and what its sender knows of it."""

    def __init__(self) -> None:
        self.taken: dict[int, int] = {}
        self.held: dict[int, Dictionary] = {}
        self.readers = StreamReaders(self.held.get)
        self.got: list[bytes] = []

    def send(self, topic: bytes, made: FrameBatch | None, payloads: list[bytes]) -> None:
        """A batch as frames where that can be, else standalone."""
        if made is None or not made.follows(self.taken):
            self.got += payloads
            return
        if made.dictionary is not None:
            self.held[made.dictionary.id] = made.dictionary
        self.got += [self.readers.decode(topic, frame) for frame in made.frames]
        self.taken[made.slot] = made.number


STORIES = st.lists(
    st.tuples(
        st.sampled_from([b"a", b"b", b"c"]),
        st.integers(1, 120),
        st.sampled_from(["", "", "", "miss", "standalone", "join", "new", "over"]),
    ),
    max_size=60,
)


@given(STORIES, st.integers(1, 3))
def test_whatever_is_missed_every_session_reads_exactly_what_was_sent(
    story: list[tuple[bytes, int, str]], streams_max: int
) -> None:
    streams, sessions, sent = TopicStreams(streams_max), [Session()], [0]
    everything: list[bytes] = []
    version, now_us, held = 1, 0, None
    for number, (topic, count, event) in enumerate(story):
        payloads = readings(number, count)
        now_us += TopicStreams.IDLE_US if event == "over" else 1
        if event == "new":
            version += 1
            held = dictionary(version)
        if event == "join":
            sessions.append(Session())
            sent.append(len(everything))
        made = None
        if streams.takes(topic, count, held, now_us):
            made = streams.encode(topic, payloads, ALWAYS if number % 3 else 0, now_us)
        everything += payloads
        for session in sessions:
            is_first = session is sessions[0]
            if event == "miss" and is_first:  # dropped or filtered: it gets this from elsewhere, later
                session.got += payloads
            else:
                session.send(topic, None if event == "standalone" and is_first else made, payloads)
    for session, since in zip(sessions, sent, strict=True):
        assert session.got == everything[since:]


def test_a_receiver_keeps_every_reader_that_its_sender_has_a_stream_for() -> None:
    streams, session = TopicStreams(), Session()
    names = [b"t/%d" % number for number in range(STREAMS_MAX + 40)]
    draw = random.Random(7)
    for step in range(4_000):
        topic = draw.choice(names)
        now_us = step * 200_000
        payloads = [b"%d" % step]
        made = None
        if streams.takes(topic, ADMITTED, None, now_us):
            made = streams.encode(topic, payloads, ALWAYS, now_us)
        session.send(topic, made, payloads)
    assert session.got == [b"%d" % step for step in range(4_000)]
    assert len(session.readers) == STREAMS_MAX


@pytest.mark.parametrize("interval", [0, 257])
def test_arguments_out_of_range(interval: int) -> None:
    with pytest.raises(ValueError, match="key frame"):
        TopicStream(Primed(), key_interval=interval)
    with pytest.raises(ValueError, match="streams"):
        TopicStreams(interval)
    assert KEY_INTERVAL <= FRAMES_MAX
