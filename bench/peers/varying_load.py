"""The load whose payloads vary in length: one publisher, one topic, QoS 0.

Nothing can be counted by dividing here. Publisher and subscriber have the same block of packets, in the form in which
they are sent and delivered, with the lengths in a fixed order without a period below the block's; a read is compared
with the block byte by byte, so whatever is lost, repeated, reordered or changed is noticed where it stands.
"""

from __future__ import annotations

import random
import socket
from bisect import bisect_right
from itertools import accumulate

import numpy as np

from .loadgen import BLOCK, READ_BYTES, BlockPublisher, DeliveryError, OpenLoad, Receiver, sequence_payload
from .wire import SEQUENCE_BYTES, Wire


def varying_sizes(mean: int) -> list[int]:
    """`BLOCK` payload lengths in bytes around `mean`, from a seventh of it to 13 sevenths, the same in each run."""
    least = max(SEQUENCE_BYTES, mean // 7)
    chance = random.Random(mean)
    return [chance.randint(least, 2 * mean - least) for _ in range(BLOCK)]


class NumberedBlock:
    """The positions of the sequence numbers in a block of `packets`, which end `trailer` bytes after their payloads."""

    def __init__(self, block: bytearray, packets: list[bytes], sizes: list[int], trailer: int) -> None:
        ends = accumulate(map(len, packets))
        starts = [end - trailer - size for end, size in zip(ends, sizes, strict=True)]
        self._bytes = np.frombuffer(block, np.uint8)
        # All but the last byte of a number, which is the same in every block: BLOCK is a multiple of 256.
        self._at = np.array(starts)[:, None] + np.arange(SEQUENCE_BYTES - 1)

    def number_from(self, start: int) -> None:
        """Gives the block the numbers from `start` on."""
        numbers = np.arange(start, start + BLOCK, dtype=">u8").view(np.uint8).reshape(BLOCK, SEQUENCE_BYTES)
        self._bytes[self._at] = numbers[:, :-1]


class VaryingPublisher(BlockPublisher):
    """Sends the packets of the load."""

    def __init__(self, sock: socket.socket, wire: Wire, topic: str, sizes: list[int]) -> None:
        packets = [wire.publish(topic, sequence_payload(number, size), 0) for number, size in enumerate(sizes)]
        super().__init__(sock, packets)
        self._numbers = NumberedBlock(self._block, packets, sizes, wire.trailer_bytes)

    def _renumber(self) -> None:
        self._numbers.number_from(self._start)


class VaryingSubscriber:
    """Compares what comes with what must come, from message 1 on."""

    def __init__(self, sock: socket.socket, name: str, wire: Wire, topic: str, sizes: list[int]) -> None:
        packets = [wire.delivery(topic, sequence_payload(number, size)) for number, size in enumerate(sizes)]
        self.sock = sock
        self.received = 1
        self._name = name
        self._block = bytearray(b"".join(packets))
        self._ends = list(accumulate(map(len, packets)))
        self._numbers = NumberedBlock(self._block, packets, sizes, wire.trailer_bytes)
        self._buffer = bytearray(READ_BYTES)
        self._start = 0
        self._at = self._ends[0]

    def on_readable(self) -> None:
        """Takes one read. Raises `DeliveryError` when the bytes are not the next ones of the load."""
        taken = self.sock.recv_into(self._buffer)
        if not taken:
            raise DeliveryError(f"the broker closed {self._name} after {self.received} messages")
        done = 0
        while done < taken:
            part = min(taken - done, self._ends[-1] - self._at)
            self._compare(self._buffer[done : done + part])
            done += part
            self._at += part
            if self._at == self._ends[-1]:
                self._start += BLOCK
                self._at = 0
                self._numbers.number_from(self._start)
        self.received = self._start + bisect_right(self._ends, self._at)

    def _compare(self, found: bytearray) -> None:
        expected = self._block[self._at : self._at + len(found)]
        if found == expected:
            return
        first = next(at for at in range(len(found)) if found[at] != expected[at])
        number = self._start + bisect_right(self._ends, self._at + first)
        raise DeliveryError(f"{self._name}: something else stands in the place of message {number}")


class OpenVarying(OpenLoad):
    """A load of lengths that vary, whose sessions are open: `Load.payload_size` is the mean, one subscriber, QoS 0."""

    def _make_publisher(self, topic: str) -> BlockPublisher:
        return VaryingPublisher(self.publisher_socket, self._wire, topic, varying_sizes(self.load.payload_size))

    def _make_subscriber(self, sock: socket.socket, name: str, topic: str, first: bytes) -> Receiver:
        sizes = varying_sizes(self.load.payload_size)
        if first != self._wire.delivery(topic, sequence_payload(0, sizes[0])):
            raise DeliveryError(f"the broker adds something to what it delivers: {first[:40]!r}")
        return VaryingSubscriber(sock, name, self._wire, topic, sizes)
