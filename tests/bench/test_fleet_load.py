"""The fleet's load counts exactly; loss, repeats, disorder within a topic and changed bytes cannot pass it."""

from __future__ import annotations

import socket

import pytest

from lexicast.bench.peers import fleet_load
from lexicast.bench.peers.fleet_load import FleetLoad, FleetPublishers, WildcardSubscriber
from lexicast.bench.peers.loadgen import DeliveryError, sequence_payload
from lexicast.bench.peers.wire import MqttWire, NatsWire, Wire
from lexicast.cluster.errors import UsageError

from ..support.wires import WIRES

SIZE = 40
LOAD = FleetLoad("t", 3, SIZE)


def delivery(wire: Wire, topic: int, number: int, qos: int = 0, packet_id: int = 0) -> bytes:
    payload = sequence_payload(number, SIZE)
    if isinstance(wire, NatsWire):
        return b"MSG %b 1 %d\r\n%b\r\n" % (wire.subject(LOAD.topic(topic)), SIZE, payload)
    return wire.publish(LOAD.topic(topic), payload, qos, packet_id)


def subscriber_of(sock: socket.socket, wire: Wire, load: FleetLoad = LOAD) -> WildcardSubscriber:
    """It has message 0 of topic 0."""
    first = delivery(wire, 0, 0, load.qos, 1)
    return WildcardSubscriber(sock, load, wire.delivery_layout(first, SIZE), first)


GOOD = [(2, 0), (1, 0), (0, 1), (0, 2), (1, 1), (2, 1), (2, 2)]


@pytest.mark.parametrize("wire", WIRES)
def test_topics_may_interleave_in_pieces_of_any_length(wire: Wire, pair: tuple[socket.socket, socket.socket]) -> None:
    subscriber = subscriber_of(pair[0], wire)
    stream = b"".join(delivery(wire, topic, number) for topic, number in GOOD)
    for at in range(0, len(stream), 61):
        pair[1].sendall(stream[at : at + 61])
        assert subscriber.on_readable()
        if at % 3 == 0:
            subscriber.check()
    subscriber.check()
    assert subscriber.received == 1 + len(GOOD)
    assert not subscriber.on_readable()


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize(
    ("told", "what"),
    [
        ([*GOOD[:2], (0, 2)], "topic 0: message 2 stands where 1 should be: 1 lost"),
        ([*GOOD[:3], (0, 1)], "topic 0: message 1 stands where 2 should be: 1 repeated or out of order"),
        ([*GOOD[:2], (1, 2), (1, 1)], "topic 1: message 2 stands where 1 should be: 1 lost"),
        ([(3, 0)], "no delivery of this load"),
    ],
)
def test_faults_are_noticed(
    wire: Wire, told: list[tuple[int, int]], what: str, pair: tuple[socket.socket, socket.socket]
) -> None:
    subscriber = subscriber_of(pair[0], wire)
    pair[1].sendall(b"".join(delivery(wire, topic, number) for topic, number in told))
    subscriber.on_readable()
    with pytest.raises(DeliveryError, match=what):
        subscriber.check()


@pytest.mark.parametrize("at", [0, 4, -1])
def test_a_changed_byte_is_noticed(at: int, pair: tuple[socket.socket, socket.socket]) -> None:
    subscriber = subscriber_of(pair[0], MqttWire())
    changed = bytearray(delivery(MqttWire(), 0, 1))
    changed[at] ^= 1
    pair[1].sendall(changed)
    subscriber.on_readable()
    with pytest.raises(DeliveryError, match="no delivery of this load where number 1 is"):
        subscriber.check()


def test_each_qos_1_delivery_is_acknowledged_by_its_id(pair: tuple[socket.socket, socket.socket]) -> None:
    wire = MqttWire()
    subscriber = subscriber_of(pair[0], wire, FleetLoad("t", 3, SIZE, 1))
    stream = b"".join(delivery(wire, *which, 1, 700 + at) for at, which in enumerate(GOOD))
    for at in range(0, len(stream), 100):
        pair[1].sendall(stream[at : at + 100])
        subscriber.on_readable()
        if at == 300:
            subscriber.check()
    ids = [1, *range(700, 700 + len(GOOD))]
    assert pair[1].recv(1 << 16) == b"".join(b"\x40\x02" + number.to_bytes(2, "big") for number in ids)


@pytest.mark.parametrize("wire", WIRES)
def test_each_connection_sends_its_topic_in_turn(wire: Wire) -> None:
    pairs = [socket.socketpair() for _ in range(3)]
    try:
        publishers = FleetPublishers([ours for ours, _ in pairs], wire, LOAD)
        for limit in (1, 5, 9, 800):
            publishers.send_up_to(limit)
        for at, (_, theirs) in enumerate(pairs):
            numbers = range(-(-(800 - at) // 3))
            assert theirs.recv(1 << 20) == b"".join(
                wire.publish(LOAD.topic(at), sequence_payload(number, SIZE), 0) for number in numbers
            )
    finally:
        for ours, theirs in pairs:
            ours.close()
            theirs.close()


def test_acknowledgements_are_compared_with_what_was_sent(
    pair: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fleet_load, "_PACKET_IDS", 5)
    publishers = FleetPublishers([pair[0]], MqttWire(), FleetLoad("t", 1, SIZE, 1))
    publishers.send_up_to(12)
    assert [packet[-SIZE - 2 : -SIZE] for packet in _split(pair[1].recv(1 << 16), 12)] == [
        bytes([0, number % 5 + 1]) for number in range(12)
    ]
    stream = b"".join(bytes([0x40, 2, 0, number % 5 + 1]) for number in range(12))
    pair[1].sendall(stream[:37])
    assert not publishers.all_acknowledged()
    assert publishers.acknowledged == 9
    pair[1].sendall(stream[37:])
    assert publishers.all_acknowledged()
    pair[1].sendall(stream[:4])
    with pytest.raises(DeliveryError, match="expected its PUBACKs and got 40020001"):
        publishers.send_up_to(13)


def _split(data: bytes, count: int) -> list[bytes]:
    length = len(data) // count
    return [data[at : at + length] for at in range(0, len(data), length)]


def test_impossible_fleets_are_refused() -> None:
    with pytest.raises(UsageError, match="1 to 99999 connections"):
        FleetLoad("t", 100_000)
    with pytest.raises(UsageError, match="8 or more"):
        FleetLoad("t", 1, 7)
