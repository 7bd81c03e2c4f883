"""What a WebSocket's client sends: the request for it, and frames.

An input's first byte says which of both follows (even: frames), the second where it is cut in two.
"""

from __future__ import annotations

from typing import Final

from ...mqtt.websocket.frames import FrameReader
from ...mqtt.websocket.upgrade import HEAD_END, upgrade_answer
from .target import FuzzTarget, must

KEPT_BYTES_MAX: Final = 125


def _attempt(data: bytes) -> None:
    if len(data) < 2:
        return
    cut, rest = data[1] % (len(data) - 1), data[2:]
    if data[0] & 1:
        _ask(rest)
    else:
        must(_read([rest[:cut], rest[cut:]]) == _read([rest]), "cut in two, it is something else")


def _ask(asked: bytes) -> None:
    answer = upgrade_answer(asked.replace(HEAD_END, b"") + HEAD_END, ("https://a",), bool(len(asked) & 1))
    status, _, body = answer.response.partition(HEAD_END)
    must(answer.response.startswith(b"HTTP/1.1 "), "an answer that is no HTTP")
    must((b" 101 " in status.split(b"\r\n")[0]) == (not answer.refusal), "refused, and let in")
    must(not answer.refusal or b"\r\nContent-Length: %d" % len(body) in status, "an answer without its length")
    must(answer.refusal != "" or b"\r\nSec-WebSocket-Protocol: mqtt" in status, "another subprotocol")


def _read(parts: list[bytes]) -> tuple[bytes, bytes | None, int | None, str]:
    """The data, the last PING, with which code it is closed, the error."""
    reader = FrameReader()
    data = b""
    for part in parts:
        data += reader.feed(part)
        while reader.has_more:
            data += reader.feed(b"")
        must(reader.is_over or reader.kept_bytes <= KEPT_BYTES_MAX, "more is kept than a control frame has")
    must(reader.error is None or reader.error.code in (1002, 1003, 1007, 1009), "closed with another code")
    return data, reader.take_ping(), reader.closing, str(reader.error)


def _frame(first: int, payload: bytes) -> bytes:
    return bytes((first, 0x80 | len(payload))) + bytes(4) + payload


_REQUEST: Final = (
    b"\1\0GET /mqtt?x=y HTTP/1.1\r\nHost: localhost:8083\r\nUpgrade: websocket\r\nConnection: keep-alive, Upgrade\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\nOrigin: https://a\r\n"
    b"Sec-WebSocket-Protocol: mqtt, mqttv3.1\r\nSec-WebSocket-Extensions: permessage-deflate"
)
TARGET: Final = FuzzTarget(
    _attempt,
    (
        _REQUEST,
        _REQUEST.replace(b"https://a", b"http://localhost"),
        _REQUEST.replace(b"/mqtt", b"/"),
        b"\0\3" + _frame(0x82, b"one") + _frame(0x89, b"ping") + _frame(0x82, b"two"),
        b"\0\11" + _frame(0x02, b"one") + _frame(0x8A, b"") + _frame(0x00, b"two") + _frame(0x80, b""),
        b"\0\5" + b"\x82\xfe\0\xc8abcd" + bytes(200) + _frame(0x88, b"\x03\xe8bye") + _frame(0x82, b"late"),
        b"\0\7" + b"\x82\xff" + (70_000).to_bytes(8, "big") + b"abcd" + bytes(300),
    ),
)
