"""Opening what others have compressed: what hostile bytes reserve is counted, one frame and many together."""

from __future__ import annotations

import subprocess
import sys
import tracemalloc
import zlib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from lexicast.actors.broker.encoding import BlockView
from lexicast.actors.broker.python_clients.entry_checks import EntryChecks
from lexicast.actors.client.decoder import Decoder
from lexicast.actors.client.dictionaries import Dictionaries
from lexicast.cluster.blocks import DEFLATE, FIRST_DICTIONARY, PUBLICATIONS, U32, Block, Meta, Run, pack_meta
from lexicast.cluster.errors import DictionaryError
from lexicast.cluster.topics.names import dictionary_topic
from lexicast.compression.codecs import FULL_FRAME, PAYLOAD_BYTES_MAX, ZSTD, ZSTD_DENSE, Deflate
from lexicast.compression.dictionary import Dictionary
from lexicast.compression.link_history import RATIO_MAX, HistoryReader, HistoryWriter
from lexicast.compression.opening import AT_ONCE_BYTES_MAX, NoRoomError, Room, unpacked_frame
from lexicast.compression.session import ClientSession, Deliver
from lexicast.compression.streams.batches import pack_entry_columns
from lexicast.compression.wire import ALIAS_TOPIC, AliasTable, Recoder

HELD = Dictionary(b"devices/+", ZSTD, b'{"device": "d-17", "temperature": 21.5}' * 20)
MIB = 1 << 20
ZEROS = bytes(PAYLOAD_BYTES_MAX)
BOMB = Deflate().compress(ZEROS)


def peak_bytes(work: Callable[[], object]) -> int:
    """The most memory of Python's that was held while it ran."""
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def whole_frame(window_log: int, content: bytes) -> bytes:
    """A payload of zstd-3 as a whole frame of one raw block, whose window has 2 ** `window_log` bytes."""
    frame = bytes((0, window_log - 10 << 3)) + (len(content) << 3 | 1).to_bytes(3, "little") + content
    check = bytes((zlib.crc32(content) & 0xFF,))
    return check + FULL_FRAME + len(content).to_bytes(4, "big") + frame


def announcing_frame(length: int) -> bytes:
    """A frame of 9 bytes that announces so much content, and is its own window (RFC 8878, section 3.1.1.1.1.2)."""
    return bytes((0xA0,)) + length.to_bytes(4, "little") + (1 << 3 | 1).to_bytes(3, "little") + b"x"


class TestZstdFrames:
    def test_a_window_is_looked_at_before_it_is_reserved(self) -> None:
        codec = HELD.build()
        assert codec.decompress(whole_frame(19, b"hello")) == b"hello"
        for window_log in (20, 24, 27, 30):
            with pytest.raises(DictionaryError, match="a window of"):
                codec.decompress(whole_frame(window_log, b"hello"))

    def test_a_content_is_looked_at_before_it_is_reserved(self) -> None:
        decompressor = zstandard.ZstdDecompressor(format=zstandard.FORMAT_ZSTD1_MAGICLESS)
        assert unpacked_frame(decompressor, announcing_frame(1), 10) == b"x"
        for length in (11, 128 * MIB, 0xFFFF_FFFF):
            with pytest.raises(DictionaryError):
                unpacked_frame(decompressor, announcing_frame(length), 10)

    def test_what_is_refused_reserves_nothing(self) -> None:
        program = f"""
import zstandard
from lexicast.cluster.errors import DictionaryError
from lexicast.cluster.topics.names import dictionary_topic
from lexicast.compression.opening import unpacked_frame

def address_space_kib():
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmPeak"))

decompressor = zstandard.ZstdDecompressor(format=zstandard.FORMAT_ZSTD1_MAGICLESS)
unpacked_frame(decompressor, {announcing_frame(1)!r}, 10)
before = address_space_kib()
for frame in {[whole_frame(27, b"hello")[8:], announcing_frame(128 * MIB)]!r}:
    try:
        unpacked_frame(decompressor, frame, 1024)
    except DictionaryError:
        continue
    raise SystemExit("it was taken")
print(address_space_kib() - before)
"""
        ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
        assert int(ran.stdout) < 4 * 1024

    @given(st.binary(max_size=60), st.integers(0, 5_000))
    def test_garbage_is_refused_or_bounded(self, frame: bytes, room: int) -> None:
        decompressor = zstandard.ZstdDecompressor(format=zstandard.FORMAT_ZSTD1_MAGICLESS)
        with suppress(DictionaryError):
            assert len(unpacked_frame(decompressor, frame, room)) <= max(room, 1)

    @pytest.mark.parametrize("codec", [ZSTD, ZSTD_DENSE])
    @pytest.mark.parametrize("content_bytes", [30, 2_000, 250_000])
    @pytest.mark.parametrize("length", [1, 1_000, 128 * 1024 + 1, 700_000, PAYLOAD_BYTES_MAX])
    def test_what_was_made_here_always_fits(self, codec: str, content_bytes: int, length: int) -> None:
        content = b"".join([b"reading %d " % number for number in range(content_bytes // 10 + 1)])[:content_bytes]
        made = Dictionary(b"f", codec, content).build()
        for payload in (bytes(length), (content[::-1] * (length // content_bytes + 1))[:length]):
            assert made.decompress(made.compress(payload)) == payload


class TestRoom:
    def test_many_small_frames_stop_together(self) -> None:
        recoder = Recoder()
        found = list(recoder.each_to_raw(DEFLATE, None, [BOMB] * 250))
        opened = [payload for payload in found if isinstance(payload, bytes)]
        assert sum(map(len, opened)) == AT_ONCE_BYTES_MAX
        assert all(isinstance(error, NoRoomError) for error in found[len(opened) :])
        with pytest.raises(NoRoomError):
            recoder.all_to_raw(DEFLATE, None, [BOMB] * 250)

    def test_they_reserve_no_more_than_that(self) -> None:
        recoder = Recoder()
        assert len(BOMB) * 250 < 1.1 * MIB
        peak = peak_bytes(lambda: list(recoder.each_to_raw(DEFLATE, None, [BOMB] * 250)))
        assert peak < AT_ONCE_BYTES_MAX + 3 * PAYLOAD_BYTES_MAX

    def test_what_comes_to_nothing_counts_too(self) -> None:
        recoder, room = Recoder(), Room()
        too_long = Deflate().compress(bytes(PAYLOAD_BYTES_MAX + 1))
        list(recoder.each_to_raw(DEFLATE, None, [too_long] * 250, room))
        assert room.left_bytes <= 0

    def test_one_payload_always_fits(self) -> None:
        assert Recoder(payload_bytes_max=1 << 30).room().left_bytes == 1 << 30

    @given(st.lists(st.integers(0, 3_000), max_size=40), st.integers(0, 20_000))
    def test_what_comes_out_is_right_and_never_more(self, lengths: list[int], bytes_max: int) -> None:
        recoder = Recoder(payload_bytes_max=3_000)
        payloads = [bytes((65 + at % 26,)) * length for at, length in enumerate(lengths)]
        stored = [Deflate().compress(payload) for payload in payloads]
        room = Room(bytes_max)
        found = list(recoder.each_to_raw(DEFLATE, None, stored, room))
        opened = [each for each in found if isinstance(each, bytes)]
        assert opened == payloads[: len(opened)]
        assert sum(map(len, opened)) <= bytes_max
        if sum(lengths) <= bytes_max - 3_000:
            assert len(opened) == len(payloads)
            assert recoder.all_to_raw(DEFLATE, None, stored, Room(bytes_max)) == payloads


def block_of(stored: list[bytes], encoding: int = DEFLATE, dictionaries: tuple[int, ...] = (), runs: int = 1) -> Block:
    """Of one topic, in so many runs."""
    count = len(stored) // runs
    meta = Meta((b"t",), (Run(0, 0, 1, encoding, 0, None, -1, count),) * runs, (), (), (), dictionaries)
    lengths = b"".join([len(payload).to_bytes(U32, "little") for payload in stored])
    return Block(0, 1, 0, len(stored) - 1, 0, PUBLICATIONS, pack_meta(meta), lengths, b"".join(stored), meta)


class TestBlocks:
    @pytest.mark.parametrize("runs", [1, 250])
    def test_a_block_is_opened_up_to_its_room(self, runs: int) -> None:
        view = BlockView(block_of([BOMB] * 250, runs=runs), 0)
        peak = peak_bytes(lambda: view.raw(Recoder()))
        assert peak < AT_ONCE_BYTES_MAX + 4 * PAYLOAD_BYTES_MAX
        raw = view.raw(Recoder())
        assert len(raw) == 250
        assert sum(len(payload or b"") for payload in raw) == AT_ONCE_BYTES_MAX

    def test_each_in_a_dictionary_of_its_own(self) -> None:
        recoder, stored, ids = Recoder(), [], []
        for number in range(100):
            one = Dictionary(b"f", ZSTD, b"dictionary %d" % number * 5)
            recoder.add(one)
            ids.append(one.id)
            stored.append(one.build().compress(ZEROS))
        block, runs = block_of(stored), list[Run]()
        for number in range(100):
            runs.append(Run(0, 0, 1, FIRST_DICTIONARY + number, 0, None, -1, 1))
        meta = Meta((b"t",), tuple(runs), (), (), (), tuple(ids))
        block = replace(block, meta_bytes=pack_meta(meta), _meta=meta)
        raw = BlockView(block, 0).raw(recoder)
        assert sum(len(payload or b"") for payload in raw) == AT_ONCE_BYTES_MAX


class TestPackedEntries:
    def test_those_of_one_message_share_their_room(self) -> None:
        checks = EntryChecks(8, PAYLOAD_BYTES_MAX)
        room, wire, opened, refused = checks.room(), (0, b"", *pack_entry_columns(bytes(4), ZEROS)), 0, 0
        for _ in range(40):
            try:
                _, _, lengths, body = checks.unpacked(wire, room)
            except NoRoomError:
                refused += 1
                continue
            assert not refused
            opened += len(lengths) + len(body)
        assert AT_ONCE_BYTES_MAX - len(ZEROS) - 4 <= opened <= AT_ONCE_BYTES_MAX
        assert refused


class TestPythonClient:
    """A Python client takes what is much in parts, and loses nothing."""

    async def test_what_is_subscribed_to(self) -> None:
        decoder, block = Decoder(Dictionaries(), nothing), block_of([BOMB] * 40)
        start, got = 0, 0
        while start <= block.last:
            messages, error, start = await decoder.decode(block, start)
            assert error is None
            assert messages
            assert sum(len(message.payload) for message in messages) <= AT_ONCE_BYTES_MAX
            got += sum(message.payload == ZEROS for message in messages)
        assert got == 40

    async def test_the_past_with_what_is_damaged(self) -> None:
        stored = [BOMB] * 40
        stored[0] = stored[1] = stored[20] = b"\xff"
        decoder, block = Decoder(Dictionaries(), nothing), block_of(stored)
        start, damaged, offsets = 0, 0, list[int]()
        while start <= block.last:
            messages, error, start = await decoder.decode_all(block, start)
            assert error is None
            damaged += sum(bool(message.damaged) for message in messages)
            offsets += [message.position.offset for message in messages]
        assert offsets == list(range(40))
        assert damaged == 3


async def nothing(id: int) -> bytes | None:
    """Fetches no dictionary."""
    return None


class TestLexicastMqtt:
    def test_what_has_waited_for_a_dictionary_is_delivered_in_parts(self) -> None:
        session: ClientSession[int] = ClientSession()
        session.connected(True)
        aliases = AliasTable()
        alias = aliases.alias_for(HELD.id)
        session.incoming(-1, ALIAS_TOPIC, aliases.binding(alias).pack(), 0.0)
        data = bytes((alias,)) + HELD.build().compress(ZEROS)
        for number in range(40):
            assert not any(isinstance(step, Deliver) for step in session.incoming(number, b"devices/1", data, 0.0))
        got = list[int]()
        steps = session.incoming(-1, dictionary_topic(HELD.family), HELD.pack(), 0.0)
        while delivered := [step for step in steps if isinstance(step, Deliver)]:
            assert sum(len(step.payload) for step in delivered) <= AT_ONCE_BYTES_MAX
            got += [step.item for step in delivered]
            steps = session.tick(0.0)
        assert got == list(range(40))
        assert session.waiting == 0

    def test_it_stays_behind_what_waits(self) -> None:
        session: ClientSession[int] = ClientSession()
        session.connected(True)
        aliases = AliasTable()
        alias = aliases.alias_for(HELD.id)
        session.incoming(-1, ALIAS_TOPIC, aliases.binding(alias).pack(), 0.0)
        data = bytes((alias,)) + HELD.build().compress(ZEROS)
        for number in range(20):
            session.incoming(number, b"devices/1", data, 0.0)
        steps = session.incoming(-1, dictionary_topic(HELD.family), HELD.pack(), 0.0)
        steps += session.incoming(20, b"devices/1", b"\0late", 0.0)
        assert [step.item for step in steps if isinstance(step, Deliver)] == list(range(21))

    def test_a_frame_of_its_past_is_never_taken_for_an_attack(self) -> None:
        writer, reader = HistoryWriter(), HistoryReader()
        for length in (10, 1_000, 30_000, 100_000, 1_000_000):
            frame = writer.frame(bytes(length))
            if frame is not None:
                assert reader.payload(frame) == bytes(length)
                assert length < RATIO_MAX * len(frame)
