"""WebSocket frames (RFC 6455, section 5) of the MQTT port: clients' taken apart as they come, headers for ours. Pure.

A client's data is one stream: packets lie across frames, and several in one [MQTT-6.0.0-2], so what has come of a frame
goes on at once, unmasked, and nothing of a frame is kept but a header that is cut in two and a control frame (125 bytes
at most). Data is in binary frames, anything else ends the connection [MQTT-6.0.0-1].

A server's frames are not masked: a header says nothing but the length, so frame and packets can be the same bytes for
all who get them.
"""

from __future__ import annotations

from typing import Final

try:
    from websockets.speedups import apply_mask
except ImportError:  # a wheel without its C part
    from websockets.utils import apply_mask

CONTINUATION: Final = 0x0
TEXT: Final = 0x1
BINARY: Final = 0x2
CLOSE: Final = 0x8
PING: Final = 0x9
PONG: Final = 0xA

# Why a connection is closed (RFC 6455, section 7.4.1).
NORMAL_CLOSURE: Final = 1000
PROTOCOL_ERROR: Final = 1002
UNSUPPORTED_DATA: Final = 1003
INVALID_TEXT: Final = 1007
MESSAGE_TOO_BIG: Final = 1009

CONTROL_BYTES_MAX: Final = 125
# MQTT's largest packet, its header too. A frame is not kept, so this only has to be beyond what anybody means.
FRAME_BYTES_MAX: Final = 268_435_460
# Frames taken at once: a read of many tiny ones would hold up the event loop.
FRAMES_AT_ONCE: Final = 2_048

_NO_FRAME: Final = -1
_FINAL, _RESERVED, _OPCODE, _MASKED, _LENGTH = 0x80, 0x70, 0x0F, 0x80, 0x7F


class FrameError(Exception):
    """A peer broke the rules; `code` is what it is closed with."""

    def __init__(self, code: int, why: str) -> None:
        super().__init__(why)
        self.code = code


class FrameReader:
    """Takes a client's frames apart; see the module's docstring.

    `ping`: what the last PING said that `take_ping` has not taken. `closing`: with which code the client closes; None
    while it does not. `error`: what it did wrong. Nothing is read after the last two.
    """

    __slots__ = (
        "_control",
        "_final",
        "_fragmented",
        "_left",
        "_mask",
        "_opcode",
        "_ping",
        "_rest",
        "closing",
        "error",
        "has_more",
    )

    def __init__(self) -> None:
        self.closing: int | None = None
        self.error: FrameError | None = None
        # FRAMES_AT_ONCE were taken and there is more: call `feed` again, with b"".
        self.has_more = False
        self._rest = b""
        self._opcode = _NO_FRAME
        self._final = True
        self._left = 0
        self._mask = b""
        self._control = b""
        self._ping: bytes | None = None
        # A message of several frames is under way.
        self._fragmented = False

    def feed(self, data: bytes) -> bytes:
        """What the client sent next; returns the data in it, in the order of the wire."""
        if self._rest:
            data, self._rest = self._rest + data, b""
        self.has_more = False
        parts: list[bytes] = []
        try:
            self._take(data, parts)
        except FrameError as error:
            self.error = error
        return parts[0] if len(parts) == 1 else b"".join(parts)

    @property
    def is_over(self) -> bool:
        """Whether nothing more is read."""
        return self.error is not None or self.closing is not None

    @property
    def kept_bytes(self) -> int:
        """What is kept of a frame, or waits for the next `feed`."""
        return len(self._rest) + len(self._control)

    def take_ping(self) -> bytes | None:
        """The payload of the last PING, once: of several only the last one has to be answered (section 5.5.3)."""
        ping, self._ping = self._ping, None
        return ping

    def _take(self, data: bytes, parts: list[bytes]) -> None:
        at, end, frames = 0, len(data), 0
        while at < end and not self.is_over:
            if self._opcode == _NO_FRAME:
                if frames == FRAMES_AT_ONCE:
                    self._rest, self.has_more = data[at:], True
                    return
                begins = self._begin(data, at)
                if not begins:
                    self._rest = data[at:]
                    return
                at, frames = begins, frames + 1
            count = min(self._left, end - at)
            if count:
                part = apply_mask(data[at : at + count], self._mask)
                at += count
                self._left -= count
                if self._opcode & CLOSE:
                    self._control += part
                else:
                    parts.append(part)
            if not self._left:
                self._end()
            elif turned := count % 4:
                self._mask = self._mask[turned:] + self._mask[:turned]

    def _begin(self, data: bytes, at: int) -> int:
        """A frame begins; where its payload does, or 0: its header is not complete. Raises FrameError."""
        if len(data) < at + 2:
            return 0
        first, second = data[at], data[at + 1]
        opcode, length, begins = first & _OPCODE, second & _LENGTH, at + 6
        self._check_kind(first, opcode, length)
        if not second & _MASKED:
            raise FrameError(PROTOCOL_ERROR, "a client's frame is not masked")  # section 5.1
        if length == 126:
            begins = at + 8
            length = int.from_bytes(data[at + 2 : at + 4], "big")
        elif length == 127:
            begins = at + 14
            length = int.from_bytes(data[at + 2 : at + 10], "big")
        if len(data) < begins:
            return 0
        if length < (126 if begins == at + 8 else 1 << 16 if begins == at + 14 else 0):
            raise FrameError(PROTOCOL_ERROR, "a length takes more bytes than it needs")  # section 5.2
        if length > FRAME_BYTES_MAX:
            raise FrameError(MESSAGE_TOO_BIG, f"a frame of {length} bytes: at most {FRAME_BYTES_MAX} are taken")
        self._opcode, self._final, self._left = opcode, bool(first & _FINAL), length
        self._mask = data[begins - 4 : begins]
        return begins

    def _check_kind(self, first: int, opcode: int, length: int) -> None:
        """Raises FrameError."""
        if first & _RESERVED:
            raise FrameError(PROTOCOL_ERROR, "a reserved bit is set: no extension was agreed on")
        if opcode == TEXT:
            raise FrameError(UNSUPPORTED_DATA, "a text frame: MQTT is in binary frames")  # [MQTT-6.0.0-1]
        if opcode in (CLOSE, PING, PONG):
            if not first & _FINAL:
                raise FrameError(PROTOCOL_ERROR, "a control frame is fragmented")  # section 5.5
            if length > CONTROL_BYTES_MAX:
                raise FrameError(PROTOCOL_ERROR, f"a control frame has more than {CONTROL_BYTES_MAX} bytes")
        elif opcode not in (CONTINUATION, BINARY):
            raise FrameError(PROTOCOL_ERROR, f"opcode {opcode:#x} is reserved")
        elif self._fragmented != (opcode == CONTINUATION):
            why = "a message begins within another one" if self._fragmented else "a message goes on that has not begun"
            raise FrameError(PROTOCOL_ERROR, why)  # section 5.4

    def _end(self) -> None:
        """A frame is complete. Raises FrameError."""
        opcode, control = self._opcode, self._control
        self._opcode, self._control = _NO_FRAME, b""
        if opcode == PING:
            self._ping = control
        elif opcode == CLOSE:
            self.closing = _close_code(control)
        elif opcode != PONG:
            self._fragmented = not self._final


def _close_code(payload: bytes) -> int:
    """What a peer's CLOSE is answered with. Raises FrameError."""
    if not payload:
        return NORMAL_CLOSURE
    code = int.from_bytes(payload[:2], "big")
    if len(payload) < 2 or not (1000 <= code <= 1003 or 1007 <= code <= 1014 or 3000 <= code <= 4999):
        raise FrameError(PROTOCOL_ERROR, "a CLOSE with a code that nobody may send")  # section 7.4
    try:
        payload[2:].decode()
    except UnicodeDecodeError:
        raise FrameError(INVALID_TEXT, "a CLOSE whose reason is no UTF-8") from None
    return code


def frame_header(size: int, opcode: int = BINARY) -> bytes:
    """What stands before `size` bytes in a server's frame."""
    if size < 126:
        return bytes((_FINAL | opcode, size))
    if size < 1 << 16:
        return bytes((_FINAL | opcode, 126)) + size.to_bytes(2, "big")
    return bytes((_FINAL | opcode, 127)) + size.to_bytes(8, "big")


def close_frame(code: int) -> bytes:
    """A server's CLOSE."""
    return frame_header(2, CLOSE) + code.to_bytes(2, "big")
