"""WebSocket frames: however they are cut and fragmented the data is the same; what breaks the rules ends it."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lexicast.actors.mqtt.websocket.frames import (
    BINARY,
    CLOSE,
    CONTINUATION,
    FRAME_BYTES_MAX,
    FRAMES_AT_ONCE,
    INVALID_TEXT,
    MESSAGE_TOO_BIG,
    NORMAL_CLOSURE,
    PING,
    PONG,
    PROTOCOL_ERROR,
    TEXT,
    UNSUPPORTED_DATA,
    FrameReader,
    close_frame,
    frame_header,
)

from ....support.websockets import client_frame, server_frames

keys = st.binary(min_size=4, max_size=4)
payloads = st.one_of(st.binary(max_size=300), st.integers(60_000, 70_000).map(lambda size: b"\x5a" * size))


@st.composite
def conversations(draw: st.DrawFn) -> tuple[bytes, bytes, list[bytes]]:
    """(what a client sends, the data in it, what its PINGs say): messages in fragments, control frames between."""
    sent, data, pings = b"", b"", []
    for parts in draw(st.lists(st.lists(payloads, min_size=1, max_size=4), max_size=4)):
        for number, part in enumerate(parts):
            if draw(st.booleans()):
                said = draw(st.binary(max_size=125))
                opcode = draw(st.sampled_from((PING, PONG)))
                sent += client_frame(said, opcode, key=draw(keys))
                pings += [said] if opcode == PING else []
            opcode = BINARY if number == 0 else CONTINUATION
            sent += client_frame(part, opcode, number == len(parts) - 1, draw(keys))
            data += part
    return sent, data, pings


@given(conversations(), st.lists(st.integers(0, 1 << 18), max_size=12))
def test_however_it_is_cut_the_data_is_the_same(
    conversation: tuple[bytes, bytes, list[bytes]], cuts: list[int]
) -> None:
    """[MQTT-6.0.0-2]; and nothing is kept but a piece of a header or of a control frame."""
    sent, data, pings = conversation
    reader, got, ping = FrameReader(), b"", None
    edges = [0, *sorted(min(cut, len(sent)) for cut in cuts), len(sent)]
    for begin, end in pairwise(edges):
        got += reader.feed(sent[begin:end])
        ping = said if (said := reader.take_ping()) is not None else ping
        assert reader.kept_bytes <= 125
    assert (got, reader.error, reader.closing) == (data, None, None)
    assert ping == (pings[-1] if pings else None)


@given(st.lists(st.binary(max_size=80_000), max_size=5))
def test_what_we_send_is_frames(payloads: list[bytes]) -> None:
    sent = b"".join([frame_header(len(each)) + each for each in payloads])
    assert server_frames(sent) == ([(BINARY, each) for each in payloads], len(sent))


def header(first: int, second: int, more: bytes = b"") -> bytes:
    return bytes((first, second)) + more + b"abcd"


HOSTILE = {
    "unmasked": (b"\x82\x02hi", PROTOCOL_ERROR),
    "reserved bit 1": (header(0xC2, 0x80), PROTOCOL_ERROR),
    "reserved bit 2": (header(0xA2, 0x80), PROTOCOL_ERROR),
    "reserved bit 3": (header(0x92, 0x80), PROTOCOL_ERROR),
    "text": (client_frame(b"hi", TEXT), UNSUPPORTED_DATA),
    "empty text": (client_frame(b"", TEXT), UNSUPPORTED_DATA),
    "reserved opcode": (client_frame(b"", 3), PROTOCOL_ERROR),
    "reserved control opcode": (client_frame(b"", 0xB), PROTOCOL_ERROR),
    "a fragmented ping": (client_frame(b"", PING, final=False), PROTOCOL_ERROR),
    "a fragmented close": (client_frame(b"", CLOSE, final=False), PROTOCOL_ERROR),
    "a long ping": (client_frame(bytes(126), PING), PROTOCOL_ERROR),
    "a continuation of nothing": (client_frame(b"x", CONTINUATION), PROTOCOL_ERROR),
    "a message in a message": (client_frame(b"x", final=False) + client_frame(b"x"), PROTOCOL_ERROR),
    "2 bytes for a short length": (header(0x82, 0xFE, b"\0\x7d"), PROTOCOL_ERROR),
    "8 bytes for a short length": (header(0x82, 0xFF, bytes(6) + b"\xff\xff"), PROTOCOL_ERROR),
    "a huge frame": (header(0x82, 0xFF, (FRAME_BYTES_MAX + 1).to_bytes(8, "big")), MESSAGE_TOO_BIG),
    "a negative length": (header(0x82, 0xFF, b"\x80" + bytes(7)), MESSAGE_TOO_BIG),
    "half a code": (client_frame(b"\x03", CLOSE), PROTOCOL_ERROR),
    "a code that nobody sends": (client_frame((1005).to_bytes(2, "big"), CLOSE), PROTOCOL_ERROR),
    "a code below all": (client_frame((999).to_bytes(2, "big"), CLOSE), PROTOCOL_ERROR),
    "a reason that is no text": (client_frame(b"\x03\xe8\xff", CLOSE), INVALID_TEXT),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_what_breaks_the_rules_ends_it(name: str) -> None:
    """What came before counts, what comes behind does not; cut anywhere it is the same error."""
    data, code = HOSTILE[name]
    before, behind = client_frame(b"before"), client_frame(b"behind")
    whole = before + data + behind
    for cut in range(len(before), len(before) + len(data) + 1):
        reader = FrameReader()
        got = reader.feed(whole[:cut]) + reader.feed(whole[cut:])
        assert reader.error is not None
        assert reader.error.code == code
        assert reader.is_over
        assert got.startswith(b"before")
        assert b"behind" not in got
        assert reader.feed(behind) == b""


@pytest.mark.parametrize(
    ("said", "answered"),
    [(b"", NORMAL_CLOSURE), (b"\x03\xe9going", 1001), (b"\x0f\xa0", 4000), (b"\x13\x87" + "é".encode(), 4999)],
)
def test_close_is_answered_with_its_code(said: bytes, answered: int) -> None:
    reader = FrameReader()
    assert reader.feed(client_frame(b"last") + client_frame(said, CLOSE) + client_frame(b"behind")) == b"last"
    assert (reader.closing, reader.error) == (answered, None)
    assert server_frames(close_frame(answered)) == ([(CLOSE, answered.to_bytes(2, "big"))], 4)


def test_the_largest_frame_is_taken_as_it_comes() -> None:
    reader = FrameReader()
    head = header(0x82, 0xFF, FRAME_BYTES_MAX.to_bytes(8, "big"))
    assert reader.feed(head) == b""
    assert len(reader.feed(bytes(1_000))) == 1_000
    assert (reader.kept_bytes, reader.error) == (0, None)


def test_many_tiny_frames_are_taken_in_steps() -> None:
    count = 2 * FRAMES_AT_ONCE + 10
    reader = FrameReader()
    got, steps = reader.feed(client_frame(b"x", key=b"1234") * count), 1
    while reader.has_more:
        assert len(got) == steps * FRAMES_AT_ONCE
        got, steps = got + reader.feed(b""), steps + 1
    assert (got, steps) == (b"x" * count, 3)


@given(st.binary(max_size=400), st.integers(0, 400))
def test_any_bytes_end_in_data_or_an_error(data: bytes, cut: int) -> None:
    whole, halves = FrameReader(), FrameReader()
    expected = whole.feed(data)
    assert halves.feed(data[:cut]) + halves.feed(data[cut:]) == expected
    assert (str(halves.error), halves.closing) == (str(whole.error), whole.closing)
