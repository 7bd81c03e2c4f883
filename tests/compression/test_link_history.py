"""A link's own past: what goes in comes out, and sides that disagree get errors, never other bytes for long."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lexicast.cluster.errors import DictionaryError
from lexicast.compression.link_history import HISTORY_BYTES, HistoryReader, HistoryWriter

payloads = st.lists(
    st.one_of(st.binary(max_size=300), st.text("ab{}:,", max_size=2_000).map(str.encode), st.just(b"x" * 20_000))
)


def reading(number: int) -> bytes:
    return b'{"device": "d-%d", "temperature": %d.5, "unit": "celsius"}' % (number % 7, number % 30)


class TestBothSides:
    @given(payloads)
    def test_every_frame_gives_its_payload(self, messages: list[bytes]) -> None:
        writer, reader = HistoryWriter(), HistoryReader()
        for message in messages:
            frame = writer.frame(message)
            if frame is not None:
                assert len(frame) < len(message)
                assert reader.payload(frame) == message

    def test_the_second_message_costs_a_fraction_of_the_first(self) -> None:
        writer = HistoryWriter()
        first, second = writer.frame(reading(1)), writer.frame(reading(2))
        assert first is not None
        assert second is not None
        assert len(second) < len(first) / 3

    def test_what_is_not_shorter_is_no_frame_and_changes_nothing(self) -> None:
        writer, reader = HistoryWriter(), HistoryReader()
        assert writer.frame(b"") is None
        assert writer.frame(bytes(range(256))) is None
        frame = writer.frame(reading(1))
        assert frame is not None
        assert reader.payload(frame) == reading(1)


class TestMistakes:
    def test_a_frame_that_is_missing_is_noticed(self) -> None:
        writer, reader = HistoryWriter(), HistoryReader()
        frames = [writer.frame(reading(number)) for number in range(3)]
        assert None not in frames
        reader.payload(frames[0] or b"")
        with pytest.raises(DictionaryError, match="cannot be decompressed"):
            reader.payload(frames[2] or b"")

    @given(st.binary(max_size=200))
    def test_garbage_is_an_error_or_bounded(self, data: bytes) -> None:
        with suppress(DictionaryError):
            assert len(HistoryReader().payload(data, bytes_max=1_000)) <= 1_000

    def test_a_bomb_is_refused(self) -> None:
        frame = HistoryWriter().frame(b"0123456789abcdef!" * 300)
        assert frame is not None
        with pytest.raises(DictionaryError, match="more than 4000 bytes"):
            HistoryReader().payload(frame, bytes_max=4_000)

    def test_cut_and_appended_frames_are_refused(self) -> None:
        frame = HistoryWriter().frame(reading(1))
        assert frame is not None
        for wrong in (frame[:-1], frame + b"x", b""):
            with pytest.raises(DictionaryError):
                HistoryReader().payload(wrong)

    def test_memory_is_bounded(self) -> None:
        writer = HistoryWriter()
        for number in range(1_000):
            writer.frame(reading(number))
        assert len(writer._past.content) == HISTORY_BYTES
