"""Batching on publishers (thesis section 5.5.1): several messages as one payload, compressed together.

    batch = for each message: its length as a varint (7 bits a byte, low first), its bytes

Redundancy between the messages of a batch is what DEFLATE alone can use too; the price is that a message waits for
those after it. No client has it as an option yet.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from lexicast.cluster.errors import DictionaryError
from lexicast.compression.codecs import PAYLOAD_BYTES_MAX

MESSAGES_MAX: Final = 65_536


def join_batch(messages: Sequence[bytes]) -> bytes:
    """One payload of all messages. Raises ValueError when there is none or are too many."""
    if not 1 <= len(messages) <= MESSAGES_MAX:
        raise ValueError(f"a batch has 1 to {MESSAGES_MAX} messages, not {len(messages)}")
    out = bytearray()
    for message in messages:
        length = len(message)
        while length > 0x7F:
            out.append(length & 0x7F | 0x80)
            length >>= 7
        out.append(length)
        out += message
    return bytes(out)


def split_batch(batch: bytes) -> list[bytes]:
    """The inverse of `join_batch`. Raises DictionaryError when `batch` is not one."""
    messages: list[bytes] = []
    at = 0
    while at < len(batch):
        length, at = _length(batch, at)
        if len(batch) - at < length or len(messages) == MESSAGES_MAX:
            raise DictionaryError(f"not a batch: message {len(messages)} is cut short, or there are too many")
        messages.append(batch[at : at + length])
        at += length
    if not messages:
        raise DictionaryError("not a batch: it is empty")
    return messages


def _length(batch: bytes, at: int) -> tuple[int, int]:
    length = shift = 0
    while at < len(batch) and shift <= 28:
        length |= (batch[at] & 0x7F) << shift
        shift += 7
        at += 1
        if not batch[at - 1] & 0x80:
            return length, at
    raise DictionaryError("not a batch: a length is not one")


class Batcher:
    """Collects messages until there are `messages_max`, `bytes_max` bytes, or the first has waited `delay_us`."""

    def __init__(self, messages_max: int, *, bytes_max: int = 1 << 20, delay_us: int = 5_000) -> None:
        if not (1 <= messages_max <= MESSAGES_MAX and 1 <= bytes_max <= PAYLOAD_BYTES_MAX and delay_us >= 0):
            raise ValueError(f"1 to {MESSAGES_MAX} messages, 1 to {PAYLOAD_BYTES_MAX} bytes, a delay of at least 0 us")
        self._messages_max = messages_max
        self._bytes_max = bytes_max
        self._delay_us = delay_us
        self._messages: list[bytes] = []
        self._bytes = 0
        self._due_us: int | None = None

    @property
    def due_us(self) -> int | None:
        """When `flush` has to be called at the latest; None: nothing waits."""
        return self._due_us

    def add(self, message: bytes, now_us: int) -> bytes | None:
        """The batch that this message completes, if it does."""
        self._messages.append(message)
        self._bytes += len(message)
        if self._due_us is None:
            self._due_us = now_us + self._delay_us
        full = len(self._messages) >= self._messages_max or self._bytes >= self._bytes_max
        return self.flush() if full or now_us >= self._due_us else None

    def flush(self) -> bytes | None:
        """The batch of what waits; None when nothing does."""
        if not self._messages:
            return None
        batch = join_batch(self._messages)
        self._messages, self._bytes, self._due_us = [], 0, None
        return batch
