"""The load of lengths that vary: what is sent, and that a subscriber takes nothing else."""

from __future__ import annotations

import socket
from itertools import pairwise

import pytest

from lexicast.bench.peers.loadgen import BLOCK, DeliveryError, sequence_payload
from lexicast.bench.peers.varying_load import VaryingPublisher, VaryingSubscriber, varying_sizes
from lexicast.bench.peers.wire import MqttWire, Wire

from ..support.wires import WIRES

MEAN = 30
SIZES = varying_sizes(MEAN)
TOPIC = "bench/v"


def payload(number: int) -> bytes:
    return sequence_payload(number, SIZES[number % BLOCK])


def test_lengths_vary_around_the_mean() -> None:
    sizes = varying_sizes(140)
    assert abs(sum(sizes) / len(sizes) - 140) < 5
    assert min(sizes) >= 20
    assert max(sizes) <= 260
    runs = sum(one == other for one, other in pairwise(sizes))
    assert runs < len(sizes) / 50


@pytest.mark.parametrize("wire", WIRES)
def test_what_is_sent_is_numbered_across_blocks(wire: Wire, pair: tuple[socket.socket, socket.socket]) -> None:
    publisher = VaryingPublisher(pair[0], wire, TOPIC, SIZES)
    count = 2 * BLOCK + 300
    wanted = b"".join(wire.publish(TOPIC, payload(number), 0) for number in range(count))
    received = b""
    while len(received) < len(wanted):
        publisher.send_up_to(count)
        received += pair[1].recv(1 << 20)
    assert received == wanted
    assert publisher.sent == count


@pytest.mark.parametrize("wire", WIRES)
def test_reads_of_any_length_are_counted_across_blocks(wire: Wire, pair: tuple[socket.socket, socket.socket]) -> None:
    subscriber = VaryingSubscriber(pair[0], "s", wire, TOPIC, SIZES)
    count = BLOCK + 500
    stream = b"".join(wire.delivery(TOPIC, payload(number)) for number in range(1, count))
    for at in range(0, len(stream), 7_919):
        pair[1].sendall(stream[at : at + 7_919])
        subscriber.on_readable()
    assert subscriber.received == count


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("numbers", [[1, 2, 4], [1, 2, 2], [2, 1], [1, 3, 2]])
def test_faults_are_noticed(wire: Wire, numbers: list[int], pair: tuple[socket.socket, socket.socket]) -> None:
    pair[1].sendall(b"".join(wire.delivery(TOPIC, payload(number)) for number in numbers))
    good = next(at for at, number in enumerate(numbers) if number != at + 1)
    with pytest.raises(DeliveryError, match=rf"in the place of message {good + 1}$"):
        VaryingSubscriber(pair[0], "s", wire, TOPIC, SIZES).on_readable()


def test_changed_byte_is_noticed(pair: tuple[socket.socket, socket.socket]) -> None:
    changed = bytearray(MqttWire().delivery(TOPIC, payload(1)))
    changed[-1] ^= 1
    pair[1].sendall(changed)
    with pytest.raises(DeliveryError, match=r"in the place of message 1$"):
        VaryingSubscriber(pair[0], "s", MqttWire(), TOPIC, SIZES).on_readable()


def test_closed_connection_is_said(pair: tuple[socket.socket, socket.socket]) -> None:
    pair[1].shutdown(socket.SHUT_WR)
    with pytest.raises(DeliveryError, match="closed s after 1 messages"):
        VaryingSubscriber(pair[0], "s", MqttWire(), TOPIC, SIZES).on_readable()
