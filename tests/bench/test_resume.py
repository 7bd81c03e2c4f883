"""The resume driver's clients: what they take for a message, a repeat, a loss; and what they wait for."""

from __future__ import annotations

import socket

import pytest

from lexicast.bench.peers.loadgen import DeliveryError
from lexicast.bench.peers.wire import MqttWire
from lexicast.bench.resume.clients import Progress, ResumingClient, numbered_payload

WIRE = MqttWire(4)
Got = list[tuple[bytes, list[int], bool]]


class Served:
    """A client at one end, a broker's socket at the other."""

    def __init__(self) -> None:
        ours, self.theirs = socket.socketpair()
        self.got: Got = []
        self.client = ResumingClient(ours, lambda topic, numbers, retained: self.got.append((topic, numbers, retained)))

    def __enter__(self) -> Served:
        return self

    def __exit__(self, *unused: object) -> None:
        self.client.sock.close()
        self.theirs.close()

    def take(self, data: bytes) -> None:
        """The client reads these bytes."""
        self.theirs.sendall(data)
        self.client.readable()

    def numbers(self) -> dict[bytes, list[int]]:
        """All that came, by topic."""
        found: dict[bytes, list[int]] = {}
        for topic, numbers, _ in self.got:
            found.setdefault(topic, []).extend(numbers)
        return found


def published(topic: str, number: int, packet_id: int, qos: int = 1) -> bytes:
    return WIRE.publish(topic, numbered_payload(number), qos, packet_id)


def test_messages_of_one_topic_are_taken_together_and_each_is_acknowledged() -> None:
    with Served() as served:
        served.take(b"".join([published("a/b", 7 * n, 300 + n) for n in range(200)]))
        assert served.got == [(b"a/b", [7 * n for n in range(200)], False)]
        assert served.theirs.recv(4096) == b"".join([b"\x40\x02" + (300 + n).to_bytes(2, "big") for n in range(200)])


@pytest.mark.parametrize("step", [1, 5, 64, 121, 1_000])
def test_whatever_pieces_a_stream_comes_in_every_message_is_seen_once(step: int) -> None:
    stream = b"\x20\x02\0\0" + b"".join(
        [
            *(published("a/b", n, n + 1) for n in range(3)),
            *(published("a/c", n, n + 4) for n in range(3)),
            b"\x40\x02\0\x09\x40\x02\0\x0a",
            *(published("a/c", n + 3, 0, qos=0) for n in range(3)),
            published("a/c/longer", 0, 8),
            published("a/c", 6, 9),
        ]
    )
    with Served() as served:
        for at in range(0, len(stream), step):
            served.take(stream[at : at + step])
        assert served.numbers() == {b"a/b": [0, 1, 2], b"a/c": list(range(7)), b"a/c/longer": [0]}
        assert (served.client.answered, served.client.acked, served.client.buffer) == (1, 2, b"")
        acks = [1, 2, 3, 4, 5, 6, 8, 9]
        assert served.theirs.recv(4096) == b"".join([b"\x40\x02" + n.to_bytes(2, "big") for n in acks])


def test_a_repeat_and_a_gap_are_seen_in_the_midst_of_many() -> None:
    numbers = [0, 1, 2, 2, 4, 3]
    with Served() as served:
        served.take(b"".join([published("a/b", n, at + 1) for at, n in enumerate(numbers)]))
        assert served.numbers() == {b"a/b": numbers}


def test_what_takes_too_long_ends_and_says_how_far_it_came() -> None:
    with pytest.raises(DeliveryError, match=r"given: 1,000 of 2,000"):
        Progress("given", 2_000, lambda text: None, limit_s=0.0).at(1_000)
