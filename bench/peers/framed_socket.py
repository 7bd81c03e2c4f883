"""A WebSocket for the load generator: what it does for a socket, at a cost that does not hide the broker's.

Equal messages make equal frames where a broker frames each message (libwebsockets does), and few frames where it frames
a write: runs of frames with the same header lose it in one step, so neither costs a step a message.
"""

from __future__ import annotations

import os
import socket
from typing import Final

import numpy as np
from websockets.speedups import apply_mask

from .wire import HandshakeStep, RefusedError
from .wrapped_socket import READ_BYTES, WrappedSocket

WRITE_TIMEOUT_S: Final = 10.0
FRAME_BYTES: Final = 16 * 1024
_CLOSE, _BINARY_FRAME = 0x88, 0x82
_REQUEST: Final = (
    b"GET /mqtt HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Protocol: mqtt\r\n\r\n"
)


class FramedSocket(WrappedSocket):
    """The side of the client; `socket.socket` as far as the load generator knows it. Before its `upgrade` it is one:
    Mosquitto takes up to 100 ms for that, so many are under way at a time."""

    _buffer = bytearray(READ_BYTES)
    """Shared by all, and another one than `TlsSocket`'s, which may be below: what was read is taken out of its frames
    before the next one reads."""

    def __init__(self, sock: socket.socket) -> None:
        super().__init__(sock)
        self._framed = False
        self._head = b""
        self._left = 0

    def upgrade(self) -> HandshakeStep:
        """The first step of a session. Its answer raises RefusedError where there is no WebSocket."""
        return HandshakeStep(_REQUEST, self._upgraded)

    def _upgraded(self, data: bytes) -> int:
        ends = data.find(b"\r\n\r\n") + 4
        if ends < 4:
            return 0
        if b" 101 " not in data.split(b"\r\n", 1)[0]:
            raise RefusedError(f"no WebSocket: {data[:60]!r}")
        self._framed = True
        return ends

    def recv_into(self, buffer: bytearray | memoryview) -> int:
        """The data of one read of the kernel, 0 at the end. Raises BlockingIOError: nothing but a part of a header."""
        if not self._framed:
            return self._sock.recv_into(buffer)
        kept, out = len(self._head), memoryview(buffer)
        raw = memoryview(self._buffer)
        raw[:kept] = self._head
        taken = self._sock.recv_into(raw[kept : len(out)])
        if not taken:
            return 0
        self._head = b""
        total = self._unframed(raw[: kept + taken], out)
        if not total:
            raise BlockingIOError
        return total

    def _unframed(self, raw: memoryview, out: memoryview) -> int:
        at, total, end = 0, 0, len(raw)
        while at < end:
            if not self._left:
                begins = self._begin(raw, at)
                if not begins:
                    self._head = bytes(raw[at:])
                    break
                same = _same_frames(raw, at, begins - at, self._left, out[total:])
                if same:
                    at, total = at + same * (begins - at + self._left), total + same * self._left
                    self._left = 0
                    continue
                at = begins
            count = min(self._left, end - at)
            out[total : total + count] = raw[at : at + count]
            at, total, self._left = at + count, total + count, self._left - count
        return total

    def _begin(self, raw: memoryview, at: int) -> int:
        """Where the payload of the frame at `at` begins, 0: its header is not complete. Raises ConnectionError."""
        if len(raw) < at + 2:
            return 0
        if raw[at] != _BINARY_FRAME:
            what = "a CLOSE" if raw[at] == _CLOSE else f"a frame that begins with {raw[at]:#x}"
            raise ConnectionAbortedError(f"the broker sent {what}")
        size, begins = raw[at + 1], at + 2
        if size >= 126:
            begins += 2 if size == 126 else 8
            if len(raw) < begins:
                return 0
            size = int.from_bytes(raw[at + 2 : begins], "big")
        self._left = size
        return begins

    def send(self, data: bytes | memoryview) -> int:
        """One frame of `data` at the most. Raises BlockingIOError where the kernel has no room; what begins to go is
        waited for."""
        if not self._framed:
            return self._sock.send(data)
        if not self._writable.poll(0):
            raise BlockingIOError
        part, key = bytes(data[:FRAME_BYTES]), os.urandom(4)
        size = len(part)
        head = bytes((_BINARY_FRAME, 0x80 | size)) if size < 126 else b"\x82\xfe" + size.to_bytes(2, "big")
        framed = memoryview(head + key + apply_mask(part, key))
        while framed:
            try:
                framed = framed[self._sock.send(framed) :]
            except BlockingIOError:
                self._writable.poll(WRITE_TIMEOUT_S * 1_000)
        return size


SAME_LEAST: Final = 8


def _same_frames(raw: memoryview, at: int, header: int, size: int, out: memoryview) -> int:
    """How many whole frames with the header at `at` follow each other there, their payloads put into `out`; 0: fewer
    than are worth it."""
    stride = header + size
    count = (len(raw) - at) // stride
    if count < SAME_LEAST or not size:
        return 0
    rows = np.frombuffer(raw, np.uint8, count * stride, at).reshape(count, stride)
    same = (rows[:, :header] == rows[0, :header]).all(axis=1)
    run = count if same.all() else int(same.argmin())
    if run < SAME_LEAST:
        return 0
    np.frombuffer(out, np.uint8, run * size).reshape(run, size)[:] = rows[:run, header:]
    return run
