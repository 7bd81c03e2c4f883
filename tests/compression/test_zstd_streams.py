"""Topic streams of zstd: lossless for every byte string, bounded whatever comes, tried where messages are long."""

from __future__ import annotations

import itertools
import random
import tracemalloc
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lexicast.cluster.errors import DictionaryError
from lexicast.compression.codecs import DEFLATE_PRESET, FIELDS, FULL_FRAME
from lexicast.compression.dictionary import Dictionary
from lexicast.compression.streams.readers import StreamReaders, TopicStreamReader
from lexicast.compression.streams.topic_stream import KEY_INTERVAL, TRIAL_FRAMES, ZSTD_TRIED_BYTES, TopicStream
from lexicast.compression.streams.topic_streams import ASKED_EVERY, STREAMS_MAX, FrameBatch, TopicStreams, nobody_reads
from lexicast.compression.streams.zstd_blocks import ZSTD_STREAMS_MAX, ZstdReader, ZstdWriter
from lexicast.compression.training import train

ALWAYS = 1 << 30
BLOCK = 128 * 1024
MOST = 4 << 20
KEY = b"\xff\3"


def article(number: int, length: int = 2_000) -> bytes:
    """A text of words that came before, some of them long ago: DEFLATE looks back 32 KiB, zstd further."""
    draw = random.Random(number)
    pieces = [random.Random(draw.randrange(60)).randbytes(700).hex().encode() for _ in range(length // 1_400 + 1)]
    return b"".join(pieces)[: length - 8] + b"%08d" % number


def everybody(_last: FrameBatch | None) -> bool:
    return True


def holds(_dictionary: Dictionary, _last: FrameBatch | None) -> bool:
    return True


def sent_through(
    streams: TopicStreams, topic: bytes, messages: list[bytes], read_zstd: bool = True, now_us: int = 0
) -> list[FrameBatch]:
    """Each message a batch of its own."""
    made = []
    for message in messages:
        assert streams.takes(topic, 1, None, holds, now_us, everybody if read_zstd else nobody_reads)
        made.append(streams.encode(topic, [message], ALWAYS, now_us))
    return made


ANY = st.one_of(
    st.binary(max_size=300),
    st.builds(article, st.integers(0, 9), st.integers(1_500, 5_000)),
    st.sampled_from(
        [b"", b"a" * 300_000, random.Random(1).randbytes(BLOCK), random.Random(2).randbytes(2 * BLOCK + 1)]
    ),
)


class TestBlocks:
    @given(st.lists(ANY, max_size=12))
    @settings(deadline=None)
    def test_every_byte_string_comes_back(self, messages: list[bytes]) -> None:
        writer, reader = ZstdWriter(), ZstdReader()
        for number, message in enumerate(messages):
            data = writer.compress(message, number)
            assert reader.decompress(data, number, bytes_max=len(message)) == message

    def test_a_block_is_sent_without_its_header(self) -> None:
        writer = ZstdWriter()
        assert not writer.compress(article(1), 0).startswith(FULL_FRAME)
        assert len(writer.compress(article(1), 1)) < 16

    def test_no_frame_becomes_more_than_a_block_longer_than_it_may(self) -> None:
        bomb = FULL_FRAME + (BLOCK << 3 | 2).to_bytes(3, "little") * 1
        run = bomb + b"x"
        assert ZstdReader().decompress(run, 0, bytes_max=BLOCK) == b"x" * BLOCK
        many = FULL_FRAME + ((BLOCK << 3 | 2).to_bytes(3, "little") + b"x") * 100_000
        tracemalloc.start()
        try:
            with pytest.raises(DictionaryError, match="more than 1000000 bytes"):
                ZstdReader().decompress(many, 0, bytes_max=1_000_000)
            _, most = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert most < 4_000_000

    @pytest.mark.parametrize(
        "data",
        [
            FULL_FRAME + b"\x01\x00\x00",  # the last block of a frame
            FULL_FRAME + b"\x0e\x00\x00x",  # of the kind that is reserved
            FULL_FRAME + (BLOCK + 1 << 3 | 2).to_bytes(3, "little") + b"x",  # longer than a block
            FULL_FRAME + b"\x18\x00",  # cut in a header
            FULL_FRAME + b"\x18\x00\x00ab",  # cut
            bytes(BLOCK + 1),
            b"\0",
        ],
        ids=["last", "reserved", "long", "cut header", "cut", "long content", "no block"],
    )
    def test_what_are_no_blocks_is_refused(self, data: bytes) -> None:
        with pytest.raises(DictionaryError):
            ZstdReader().decompress(data, 0, bytes_max=MOST)

    @given(st.binary(max_size=200), st.booleans())
    def test_any_bytes_are_a_payload_of_its_room_or_an_error(self, data: bytes, is_full: bool) -> None:
        reader = ZstdReader()
        reader.decompress(ZstdWriter().compress(article(1), 0), 0, bytes_max=MOST)
        with suppress(DictionaryError):
            assert len(reader.decompress(FULL_FRAME * is_full + data, 1, bytes_max=1_000)) <= 1_000

    @given(st.integers(0, 10_000), st.integers(1, 255), st.integers(0, 3))
    def test_a_damaged_or_cut_frame_is_an_error_or_another_payload(self, at: int, flip: int, cut: int) -> None:
        writer, reader = ZstdWriter(), ZstdReader()
        reader.decompress(writer.compress(article(1), 0), 0, bytes_max=MOST)
        damaged = bytearray(writer.compress(article(2), 1))
        damaged[at % len(damaged)] ^= flip
        with suppress(DictionaryError):
            assert len(reader.decompress(bytes(damaged[: len(damaged) - cut]), 1, bytes_max=3_000)) <= 3_000


class TestFrames:
    @given(st.lists(ANY, min_size=1, max_size=8))
    @settings(deadline=None)
    def test_frames_come_back_equal(self, messages: list[bytes]) -> None:
        stream, reader = TopicStream(), TopicStreamReader()
        stream.begin(None, of_zstd=True)
        frames = stream.encode(messages, ALWAYS)[0]
        assert frames[0].startswith(KEY)
        assert [reader.decode(frame) for frame in frames] == messages
        assert reader.of_zstd

    def test_a_frame_after_a_hole_is_refused(self) -> None:
        stream, reader = TopicStream(), TopicStreamReader()
        stream.begin(None, of_zstd=True)
        frames = stream.encode([article(at) for at in range(9)], ALWAYS)[0]
        reader.decode(frames[0])
        with pytest.raises(DictionaryError):
            _ = [reader.decode(frame) for frame in frames[2:5]]
        with pytest.raises(DictionaryError, match="no key frame"):
            reader.decode(frames[8])

    @given(st.binary(max_size=100))
    def test_any_key_frame_is_a_payload_or_an_error(self, data: bytes) -> None:
        with suppress(DictionaryError):
            assert len(TopicStreamReader().decode(KEY + data, bytes_max=1_000)) <= 1_000


LONG = [article(at) for at in range(4 * TRIAL_FRAMES)]


class TestGoingOver:
    def test_long_messages_go_over_when_it_pays_and_most_can_read_it(self) -> None:
        for read_zstd in (True, False):
            made = sent_through(TopicStreams(), b"a", LONG, read_zstd)
            kinds = [batch.of_zstd for batch in made]
            assert not any(kinds[: 2 * TRIAL_FRAMES])
            assert kinds[-1] is read_zstd
            keys = [at for at, batch in enumerate(made) if batch.is_key]
            assert keys == ([0, kinds.index(True)] if read_zstd else [0])
            reader = TopicStreamReader()
            assert [reader.decode(batch.frames[0]) for batch in made] == LONG

    def test_it_is_shorter_then(self) -> None:
        sent = [
            sum([len(batch.frames[0]) for batch in sent_through(TopicStreams(), b"a", LONG * 3, read_zstd)])
            for read_zstd in (True, False)
        ]
        assert sent[0] < 0.8 * sent[1]

    def test_short_messages_are_not_tried(self) -> None:
        made = sent_through(TopicStreams(), b"a", [article(at)[: ZSTD_TRIED_BYTES - 1] for at in range(300)])
        assert not any([batch.of_zstd for batch in made])

    def test_it_goes_back_when_few_read_it_any_more_and_when_messages_become_short(self) -> None:
        streams = TopicStreams()
        assert sent_through(streams, b"a", LONG)[-1].of_zstd
        made = sent_through(streams, b"a", LONG[: ASKED_EVERY + 1], read_zstd=False)
        assert not made[-1].of_zstd
        streams = TopicStreams()
        assert sent_through(streams, b"a", LONG)[-1].of_zstd
        short = [b'{"n":%d,"t":%d}' % (at, at % 7) for at in range(5_000)]
        made = sent_through(streams, b"a", short)
        assert not made[-1].of_zstd

    def test_it_begins_anew_for_who_waits_and_no_oftener_than_allowed(self) -> None:
        streams = TopicStreams()
        sent_through(streams, b"a", LONG)
        keys = []
        for message in LONG * 3:
            (batch,) = sent_through(streams, b"a", [message])
            assert batch.past_bytes is None
            batch.waited = True
            keys.append(batch.is_key)
        places = [at for at, is_key in enumerate(keys) if is_key]
        assert len(places) >= 3
        assert all([b - a == KEY_INTERVAL for a, b in itertools.pairwise(places)])

    def test_who_does_not_wait_starts_no_stream_anew(self) -> None:
        streams = TopicStreams()
        sent_through(streams, b"a", LONG)
        assert not any([batch.is_key for batch in sent_through(streams, b"a", LONG * 3)])

    def test_a_new_dictionary_of_bytes_changes_nothing(self) -> None:
        streams, held = TopicStreams(), Dictionary(b"f", DEFLATE_PRESET, b"".join(LONG[:4]), created_us=1)
        sent_through(streams, b"a", LONG)
        assert streams.takes(b"a", 1, held, holds, 0, everybody)
        batch = streams.encode(b"a", [LONG[0]], ALWAYS, 0)
        assert (batch.of_zstd, batch.is_key, batch.dictionary) == (True, False, None)

    def test_what_its_frames_spare_is_not_estimated(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Nobody can earn a past that is not to be had, so nothing is deflated to know how soon."""
        streams, held = TopicStreams(), Dictionary(b"f", DEFLATE_PRESET, b"".join(LONG[:4]), created_us=1)
        sent_through(streams, b"a", LONG)
        monkeypatch.setattr(TopicStream, "plain_bytes", None)
        for message in LONG:
            assert streams.takes(b"a", 1, held, holds, 0, everybody)
            batch = streams.encode(b"a", [message], ALWAYS, 0)
            assert batch.of_zstd
            assert not batch.is_earned({batch.slot: ALWAYS}, True)


class TestBounds:
    def test_a_sender_has_so_many_and_receivers_keep_as_many_readers(self) -> None:
        streams, readers = TopicStreams(), StreamReaders(lambda _id: None)
        topics = [b"t/%d" % at for at in range(ZSTD_STREAMS_MAX + 3)]
        of_zstd = set()
        for message in LONG * 2:
            for topic in topics:
                (batch,) = sent_through(streams, topic, [message])
                assert readers.decode(topic, batch.frames[0]) == message
                if batch.of_zstd:
                    of_zstd.add(topic)
        assert len(of_zstd) == ZSTD_STREAMS_MAX
        trying = [place.stream.holds_zstd for place in streams._streams.values()]
        assert sum(trying) == ZSTD_STREAMS_MAX

    def test_a_trial_on_a_topic_that_idles_is_given_up_for_another(self) -> None:
        streams = TopicStreams()
        slow = [b"slow/%d" % at for at in range(ZSTD_STREAMS_MAX)]
        for topic in slow:
            sent_through(streams, topic, LONG[:TRIAL_FRAMES])
        for now_us, goes_over in ((1, False), (TopicStreams.IDLE_US, True)):
            made = sent_through(streams, b"fast/%d" % now_us, LONG, now_us=now_us)
            assert made[-1].of_zstd is goes_over
            assert len(streams._of_zstd) == ZSTD_STREAMS_MAX
        made = sent_through(streams, slow[0], LONG, now_us=2 * TopicStreams.IDLE_US)
        assert made[-1].of_zstd, "it is tried anew"

    def test_a_trial_that_ended_and_a_stream_that_was_forgotten_need_no_room(self) -> None:
        streams = TopicStreams()
        noise = [random.Random(at).randbytes(600) for at in range(3 * TRIAL_FRAMES)]
        sent_through(streams, b"noise", noise)
        assert not streams._of_zstd
        sent_through(streams, b"secret", LONG[:TRIAL_FRAMES])
        assert list(streams._of_zstd) == [b"secret"]
        streams.forget(b"secret")
        assert not streams._of_zstd

    def test_a_stream_that_goes_over_to_fields_needs_no_room(self) -> None:
        stream = TopicStream()
        stream.begin(None)
        stream.encode(LONG[:20], ALWAYS)
        assert stream.wants_zstd
        stream.may_try_zstd = True
        stream.encode(LONG[20:25], ALWAYS)
        assert stream.holds_zstd
        stream.begin(train([b'{"n":%d}' % at for at in range(60)], 8_192, FIELDS, family=b"f"))
        assert not stream.holds_zstd

    def test_receivers_keep_no_more_whatever_they_are_sent(self) -> None:
        readers = StreamReaders(lambda _id: None)
        stream = TopicStream()
        stream.begin(None, of_zstd=True)
        frame = stream.encode([b"abc"], ALWAYS)[0][0]
        for at in range(2 * ZSTD_STREAMS_MAX):
            assert readers.decode(b"%d" % at, frame) == b"abc"
        assert len(readers) == ZSTD_STREAMS_MAX

    def test_forgotten_streams_keep_their_places_as_receivers_keep_their_readers(self) -> None:
        """So no reader of a stream that goes on is given up for one that was forgotten."""
        streams, readers = TopicStreams(), StreamReaders(lambda _id: None)
        for at in range(STREAMS_MAX):
            (batch,) = sent_through(streams, b"%d" % at, [b"abc"])
            readers.decode(b"%d" % at, batch.frames[0])
        streams.forget(b"%d" % (STREAMS_MAX - 1))
        assert not streams.takes(b"other", 99, None, holds, 1)
        (batch,) = sent_through(streams, b"0", [b"abcd"], now_us=1)
        assert readers.decode(b"0", batch.frames[0]) == b"abcd"
        (batch,) = sent_through(streams, b"%d" % (STREAMS_MAX - 1), [b"abc"], now_us=1)
        assert batch.is_key
