"""Topic streams: frames, what a stream begins with and goes over to, and who can read a batch."""

from __future__ import annotations

import json
import random
import tracemalloc
import zlib
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lexicast.cluster.errors import DictionaryError
from lexicast.compression.codecs import DEFLATE_PRESET, FIELDS, Deflate
from lexicast.compression.dictionary import Dictionary
from lexicast.compression.link_dictionaries import BYTES_STREAM
from lexicast.compression.streams.frames import (
    FIRST_FRAME_TAG,
    KEY_TAG,
    PAST_BYTES,
    StreamPast,
    is_key_frame,
    key_frame_dictionary,
    past_frame,
)
from lexicast.compression.streams.readers import StreamReaders, TopicStreamReader
from lexicast.compression.streams.topic_stream import (
    KEY_INTERVAL,
    PAST_INTERVAL,
    TRIAL_FRAMES,
    TopicStream,
)
from lexicast.compression.streams.topic_streams import ASKED_EVERY, STREAMS_MAX, FrameBatch, Holds, TopicStreams
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
    return Dictionary(b"devices/+", DEFLATE_PRESET, b"".join(readings(seed, 20)), created_us=seed)


def field_model(seed: int) -> Dictionary:
    return train(readings(seed, 60), 64 * 1024, FIELDS, family=b"devices/+")


def nothing_held(_id: int) -> Dictionary | None:
    return None


def everybody(_dictionary: Dictionary, _last: FrameBatch | None) -> bool:
    return True


def nobody(_dictionary: Dictionary, _last: FrameBatch | None) -> bool:
    return False


def yes() -> bool:
    return True


def begun(held: Dictionary | None = None) -> TopicStream:
    stream = TopicStream()
    stream.begin(held)
    return stream


def frames(stream: TopicStream, messages: list[bytes]) -> list[bytes]:
    """Each message a batch of its own."""
    encoded = []
    for message in messages:
        assert not stream.rests(1, yes)
        encoded += stream.encode([message], ALWAYS)[0]
    return encoded


ANY = st.one_of(st.sampled_from(readings(3, 30)), st.binary(max_size=60))


@given(st.lists(ANY, max_size=30), st.sampled_from(["none", "bytes", "fields"]))
def test_frames_come_back_equal(messages: list[bytes], base: str) -> None:
    held = {"none": None, "bytes": dictionary(2), "fields": field_model(4)}[base]
    reader = TopicStreamReader()
    sent = frames(begun(held), messages)
    assert [reader.decode(frame, held) for frame in sent] == messages
    assert [is_key_frame(frame) for frame in sent] == [True, *[False] * len(sent)][: len(sent)]
    assert [key_frame_dictionary(frame) for frame in sent[:1]] == [held and held.id][: len(sent)]


@given(st.integers(0, 30), st.integers(1, 39), st.integers(0, 5_000))
def test_whoever_is_sent_the_past_reads_on_as_if_it_had_been_there(joined: int, count: int, length: int) -> None:
    messages = [each + random.Random(at).randbytes(length) for at, each in enumerate(readings(1, 40))]
    stream, reader = begun(dictionary(2)), TopicStreamReader()
    frames(stream, messages[:joined])
    batch = stream.encode(messages[joined : joined + count], ALWAYS)[0]
    first = stream.with_past(batch) if joined else batch[0]
    held = dictionary(2) if not joined else None
    assert [reader.decode(frame, held) for frame in [first, *batch[1:]]] == messages[joined : joined + count]
    for message in messages[joined + count :]:
        ((frame,), _) = stream.encode([message], ALWAYS)
        assert reader.decode(frame) == message


def test_the_past_is_as_long_as_deflate_looks_back_and_no_longer() -> None:
    past = StreamPast()
    for at in range(2_000):
        past.add(random.Random(at).randbytes(100), 50)
        if at != 1_999:
            past.end_batch()
    assert len(past.content()) == len(past) == PAST_BYTES
    assert past.content()[-100:] == random.Random(1_998).randbytes(100), "what came before the batch"
    assert PAST_BYTES // 2 - 400 < past.frame_bytes <= PAST_BYTES // 2
    past.end_batch()
    assert past.content()[-100:] == random.Random(1_999).randbytes(100)


@pytest.mark.parametrize("payload", [b"", b"x", bytes(4 << 20)], ids=["no byte", "one byte", "4 MiB"])
def test_the_past_takes_no_more_memory_whatever_the_payloads(payload: bytes) -> None:
    past = StreamPast(bytes(range(256)) * 256)
    tracemalloc.start()
    try:
        for _ in range(20_000 if len(payload) < 2 else 8):
            past.add(payload, 4)
            if len(payload) < 2:
                past.end_batch()
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 3 * PAST_BYTES
    assert past.frame_bytes <= 4 * PAST_BYTES


@given(st.lists(st.lists(st.binary(max_size=3_000), max_size=4), max_size=30))
def test_the_past_is_what_was_sent_before_the_batch(batches: list[list[bytes]]) -> None:
    past, sent = StreamPast(b"begin"), b"begin"
    for payloads in batches:
        past.end_batch()
        for payload in payloads:
            past.add(payload, 1 + len(payload))
        assert past.content() == sent[-PAST_BYTES:]
        sent += b"".join(payloads)


@given(st.sampled_from(["bytes", "fields"]), st.integers(0, 29), st.integers(1, 6))
def test_a_frame_after_a_hole_is_refused_by_its_check_and_then_every_one(base: str, lost: int, length: int) -> None:
    held = None if base == "bytes" else field_model(4)
    reader = TopicStreamReader(b"devices/1")
    messages = readings(3, 40)
    sent = frames(begun(held), messages)
    for frame in sent[: lost + 1]:
        reader.decode(frame, held)
    with pytest.raises(DictionaryError, match="topic stream of 'devices/1'"):
        # the check lets one in 31 through
        _ = [reader.decode(frame) for frame in sent[lost + 1 + length :][:3]]
    with pytest.raises(DictionaryError, match="does not follow"):
        reader.decode(sent[39])


@given(st.integers(0, 10_000), st.integers(1, 255), st.sampled_from(["next", "past"]))
def test_a_damaged_frame_is_an_error_or_another_payload_but_never_a_crash(at: int, flip: int, kind: str) -> None:
    stream, reader = begun(), TopicStreamReader(b"devices/1")
    sent = frames(stream, readings(1, 3))
    reader.decode(sent[0])
    reader.decode(sent[1])
    damaged = bytearray(sent[2] if kind == "next" else stream.with_past(sent[2:]))
    damaged[at % len(damaged)] ^= flip
    with suppress(DictionaryError):
        assert len(reader.decode(bytes(damaged), bytes_max=1_000)) <= 1_000


@given(st.binary(max_size=80), st.integers(0, 255))
def test_any_bytes_are_a_frame_or_an_error(data: bytes, first: int) -> None:
    with suppress(DictionaryError):
        TopicStreamReader().decode(bytes((first,)) + data, bytes_max=1_000)
    with suppress(DictionaryError):
        TopicStreamReader().decode(b"\xff\2" + data, bytes_max=1_000)


def test_a_cut_frame_and_one_before_any_key_frame_are_refused() -> None:
    sent = frames(begun(), readings(1, 2))
    reader = TopicStreamReader()
    with pytest.raises(DictionaryError, match="does not follow"):
        reader.decode(sent[1])
    for cut in range(4):
        with pytest.raises(DictionaryError, match="cut short"):
            reader.decode(sent[0][:cut])
    with pytest.raises(DictionaryError, match="kind 4"):
        reader.decode(b"\xff\4\0abc")
    assert key_frame_dictionary(b"") is key_frame_dictionary(sent[0]) is None


def test_a_key_frame_is_read_with_its_own_dictionary_alone() -> None:
    named, other = dictionary(2), dictionary(3)
    (frame,) = frames(begun(named), readings(1, 1))
    for held in (None, other):
        with pytest.raises(DictionaryError, match=f"{named.id:016x}, which is not held"):
            TopicStreamReader().decode(frame, held)
    with pytest.raises(DictionaryError, match=f"family unknown, dictionary {named.id:016x}"):
        StreamReaders(nothing_held).decode(b"devices/1", frame)


def test_bombs_are_stopped_at_their_limits() -> None:
    (frame,) = frames(begun(), [b"\0" * 1_000_000])
    assert len(frame) < 2_000
    with pytest.raises(DictionaryError, match="more than 1000 bytes"):
        TopicStreamReader().decode(frame, bytes_max=1_000)
    with pytest.raises(DictionaryError, match="more than 1000 bytes"):
        StreamReaders(nothing_held, 1_000).decode(b"a", frame)
    ended = zlib.compressobj(9, zlib.DEFLATED, -15)
    with pytest.raises(DictionaryError, match="ends within"):
        TopicStreamReader().decode(b"\xff\0\0" + ended.compress(b"abc") + ended.flush())
    with pytest.raises(DictionaryError, match="too long"):
        TopicStreamReader().decode(past_frame(b"\xe0abc", b"\0" * (PAST_BYTES + 1)))


def test_the_stream_needs_no_dictionary_to_beat_standalone_payloads() -> None:
    draw = random.Random(1)
    # what is said changes every 20 messages, to something that no dictionary knows
    messages = [random.Random(at // 20).randbytes(30).hex().encode() + draw.randbytes(5) for at in range(500)]
    alone = Deflate(content=dictionary(2).content)
    sent = sum(map(len, frames(begun(), messages)))
    assert sent < 0.4 * sum(len(alone.compress(message)) for message in messages)


def test_a_stream_is_as_short_as_one_of_each_subscriber_but_for_a_byte_a_message() -> None:
    messages = readings(5, 1_000)
    alone = zlib.compressobj(9, zlib.DEFLATED, -15, 8)
    each = sum([len(alone.compress(m)) + len(alone.flush(zlib.Z_SYNC_FLUSH)) - 4 for m in messages])
    assert sum(map(len, frames(begun(), messages))) < each + 1.02 * len(messages)


# -- resting


def rest_answers(stream: TopicStream, gains: list[bool]) -> list[bool]:
    """Whether each message went as a frame."""
    answers = []
    for message, gain in zip(readings(1, len(gains)), gains, strict=True):
        answers.append(not stream.rests(1, yes))
        if answers[-1]:
            stream.encode([message], ALWAYS if gain else 1)
    return answers


def test_a_stream_that_loses_rests_for_seven_intervals_then_longer_and_begins_anew() -> None:
    stream = begun()
    rest = 7 * KEY_INTERVAL
    answers = rest_answers(stream, [False] * (25 + rest + 25 + 2 * rest + 1))
    assert answers == [True] * 25 + [False] * rest + [True] * 25 + [False] * 2 * rest + [True]


def test_a_stream_that_gained_over_an_interval_rests_no_longer_than_at_first() -> None:
    stream = begun()
    rest = 7 * KEY_INTERVAL
    answers = rest_answers(stream, [False] * (25 + rest) + [True] * (KEY_INTERVAL + 1) + [False] * (2 * rest))
    again = answers[25 + rest + KEY_INTERVAL :]
    assert again.index(False) < KEY_INTERVAL + 30
    assert again[again.index(False) :].index(True) == rest


def test_a_stream_does_not_rest_where_few_have_what_standalone_payloads_take() -> None:
    stream = begun()
    for message in readings(1, 500):
        assert not stream.rests(1, lambda: False)
        stream.encode([message], 1)


# -- going over


def test_the_stream_goes_over_to_a_model_that_is_shorter_and_that_most_have() -> None:
    streams, model, reader = TopicStreams(), field_model(4), TopicStreamReader()
    held: list[bool] = [False]

    def holds(_dictionary: Dictionary, last: FrameBatch | None) -> bool:
        return last is not None and held[0]

    used, compared = [], 0
    for at, message in enumerate(readings(9, 400)):
        held[0] = at >= 200
        assert streams.takes(b"devices/1", 1, model if at >= 20 else None, holds, 0)
        batch = streams.encode(b"devices/1", [message], ALWAYS, 0)
        assert reader.decode(batch.frames[0], batch.dictionary) == message
        used.append(batch.model)
        if batch.comparison is not None:
            compared += batch.comparison.messages
            assert batch.comparison[:3] == (model.id, BYTES_STREAM, 1)
    assert used[:201] == [None] * 201
    assert used[200 + ASKED_EVERY :] == [model] * (200 - ASKED_EVERY)
    assert compared == TRIAL_FRAMES


def test_the_stream_stays_one_of_bytes_where_a_model_does_worse() -> None:
    other = train([b"%d;%d;%d" % (n, n * n, 7 * n) for n in range(60)], 64 * 1024, FIELDS, family=b"devices/+")
    streams = TopicStreams()
    for message in readings(9, 400):
        streams.takes(b"devices/1", 1, None, everybody, 0)
        streams.encode(b"devices/1", [message], ALWAYS, 0)
    for message in readings(10, 600):
        assert streams.takes(b"devices/1", 1, other, everybody, 0)
        assert streams.encode(b"devices/1", [message], ALWAYS, 0).model is None


def test_a_new_dictionary_of_bytes_changes_nothing() -> None:
    streams = TopicStreams()
    old, new = dictionary(2), dictionary(3)
    first = batch(streams, b"a", held=old)
    assert (first.is_key, first.dictionary) == (True, old)
    after = batch(streams, b"a", held=new)
    assert (after.is_key, after.dictionary) == (False, None)
    assert after.comparison is not None
    assert after.comparison[:3] == (new.id, BYTES_STREAM, 1)


def test_a_stream_begins_with_a_dictionary_that_most_have_and_else_with_nothing() -> None:
    streams = TopicStreams()
    assert batch(streams, b"a", held=dictionary(2)).dictionary == dictionary(2)
    assert batch(streams, b"b", held=dictionary(2), holds=nobody).dictionary is None


def test_a_stream_of_fields_begins_anew_for_who_waits_and_no_oftener_than_allowed() -> None:
    streams, model = TopicStreams(), field_model(4)
    keys = []
    for at in range(3 * KEY_INTERVAL):
        made = batch(streams, b"a", held=model)
        keys.append(made.is_key)
        made.waited = made.waited or at >= 2 * KEY_INTERVAL - 50
    places = [number for number, is_key in enumerate(keys) if is_key]
    assert places[0] == 0
    assert places[1] == 2 * KEY_INTERVAL - 49, "as soon as somebody waits"
    assert places[2:] == [places[1] + KEY_INTERVAL]


# -- many streams


def batch(
    streams: TopicStreams,
    topic: bytes,
    count: int = 1,
    held: Dictionary | None = None,
    at_us: int = 0,
    holds: Holds = everybody,
) -> FrameBatch:
    """The topic's next batch, which must be streamed."""
    while not streams.takes(topic, count, held, holds, at_us):
        pass  # not admitted yet
    return streams.encode(topic, readings(1, count), ALWAYS, at_us)


def test_a_topic_is_admitted_at_once_and_where_there_is_a_dictionary_when_it_has_had_some_messages() -> None:
    streams = TopicStreams()
    assert streams.takes(b"a", 1, None, everybody, 0)
    held = dictionary(2)
    answers = [streams.takes(b"b", 1, held, everybody, 0) for _ in range(ADMITTED + 2)]
    assert answers == [False] * (ADMITTED - 1) + [True] * 3
    for topic in range(10_000):
        assert not streams.takes(b"%d" % topic, 1, held, everybody, 0)
    assert len(streams) == 2


def test_streams_are_bounded_and_the_least_recently_used_goes_when_it_was_idle() -> None:
    streams = TopicStreams(streams_max=2)
    first, second = batch(streams, b"a"), batch(streams, b"b", at_us=1)
    assert {first.slot, second.slot} == {0, 1}
    assert not any([streams.takes(b"c", ADMITTED, None, everybody, TopicStreams.IDLE_US - 1) for _ in range(10)])
    third = batch(streams, b"c", at_us=TopicStreams.IDLE_US)
    assert len(streams) == 2
    assert third.slot == first.slot
    assert third.is_key
    fourth = batch(streams, b"c", at_us=TopicStreams.IDLE_US)
    assert not fourth.follows({first.slot: first.number})
    assert fourth.follows({third.slot: third.number})
    assert not streams.takes(b"a", 1, None, everybody, TopicStreams.IDLE_US)


def test_who_is_out_of_step_is_sent_the_past_when_it_has_missed_as_much() -> None:
    streams = TopicStreams()
    messages = readings(1, 400)
    missed: dict[int, int] = {}
    costs, waited_bytes, since = [], 0, None
    for at, message in enumerate(messages):
        assert streams.takes(b"a", 1, None, everybody, 0)
        made = streams.encode(b"a", [message], len(Deflate().compress(message)), 0)
        if at < 200:
            continue
        if made.is_earned(missed, False):
            since = at
            costs.append(len(made.with_past()[0]))
            break
        waited_bytes += made.spared_bytes
    assert since is not None
    assert not missed
    assert costs[0] / 2 < waited_bytes < costs[0] * 4
    for _ in range(PAST_INTERVAL - 1):
        streams.takes(b"a", 1, None, everybody, 0)
        assert streams.encode(b"a", [b"x" * 10], 10, 0).past_bytes is None, "another takes a millisecond"


class Session:
    """A receiver, and what its sender knows of it."""

    def __init__(self) -> None:
        self.taken: dict[int, int] = {}
        self.missed: dict[int, int] = {}
        self.held: dict[int, Dictionary] = {}
        self.readers = StreamReaders(self.held.get)
        self.got: list[bytes] = []

    def send(self, topic: bytes, made: FrameBatch | None, payloads: list[bytes]) -> None:
        """A batch as frames where that can be, else standalone."""
        if made is None:
            self.got += payloads
            return
        sent = made.frames
        if not made.follows(self.taken):
            made.waited = True
            if not made.is_earned(self.missed, False):
                self.got += payloads
                return
            sent = made.with_past()
        if made.dictionary is not None:
            self.held[made.dictionary.id] = made.dictionary
        self.got += [self.readers.decode(topic, frame) for frame in sent]
        self.taken[made.slot] = made.number


STORIES = st.lists(
    st.tuples(
        st.sampled_from([b"a", b"b", b"c"]),
        st.integers(1, 120),
        st.sampled_from(["", "", "", "miss", "standalone", "join", "bytes", "model", "over"]),
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
        if event in ("bytes", "model"):
            version += 1
            held = dictionary(version) if event == "bytes" else field_model(version % 3)
        if event == "join":
            sessions.append(Session())
            sent.append(len(everything))
        made = None
        if streams.takes(topic, count, held, everybody, now_us):
            made = streams.encode(topic, payloads, 100 * len(payloads) if number % 3 else 0, now_us)
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
        if streams.takes(topic, 1, None, everybody, now_us):
            made = streams.encode(topic, payloads, ALWAYS, now_us)
        session.send(topic, made, payloads)
    assert session.got == [b"%d" % step for step in range(4_000)]
    assert len(session.readers) == STREAMS_MAX


def test_arguments_out_of_range() -> None:
    for number in (0, STREAMS_MAX + 1):
        with pytest.raises(ValueError, match="streams"):
            TopicStreams(number)
    assert FIRST_FRAME_TAG < KEY_TAG
