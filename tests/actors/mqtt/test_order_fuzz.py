"""Any packets in any segments: each is answered once and in its turn, and what was subscribed before is delivered."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lexicast.actors.mqtt.codec import encode_packet
from lexicast.actors.mqtt.codec.packets import (
    V5,
    V311,
    ConnAck,
    Connect,
    Disconnect,
    Packet,
    PingReq,
    PingResp,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    SubAck,
    Subscribe,
    SubscriptionOptions,
    UnsubAck,
    Unsubscribe,
)

from ...support.mqtt_harness import Closed, Message, Raw, Served, close_clients, served, unique

TOPICS = 3
# (what, topic, QoS)
step = st.tuples(st.sampled_from("ssuppppping"), st.integers(0, TOPICS - 1), st.integers(0, 2))
plan = st.tuples(
    st.sampled_from([V311, V5]),
    st.lists(step, min_size=1, max_size=40),
    st.lists(st.integers(0, 10_000), max_size=6),
    st.booleans(),
)
ANSWERS = {Subscribe: SubAck, Unsubscribe: UnsubAck, PingReq: PingResp}
PUBLISH_ANSWERS = (None, PubAck, PubRec)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Served]:
    with served() as running:
        yield running


def packets_of(steps: list[tuple[str, int, int]], root: str) -> tuple[list[Packet], list[bytes]]:
    """The packets, and the payloads that must be delivered: published while subscribed, and that stayed so."""
    packets: list[Packet] = []
    subscribed: set[int] = set()
    owed: list[tuple[int, bytes]] = []
    for number, (what, topic, qos) in enumerate(steps, 1):
        name = f"{root}/{topic}".encode()
        if what == "s":
            packets.append(Subscribe(number, [(name, SubscriptionOptions(qos))]))
            subscribed.add(topic)
        elif what == "u":
            packets.append(Unsubscribe(number, [name]))
            subscribed.discard(topic)
            owed = [(of, payload) for of, payload in owed if of != topic]  # it may have been too late for these
        elif what == "p":
            payload = b"%d" % number
            packets.append(Publish(name, payload, qos, packet_id=number if qos else 0))
            if topic in subscribed:
                owed.append((topic, payload))
        else:
            packets.append(PingReq())
    return packets, [payload for _, payload in owed]


def pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    at = sorted({cut % len(data) for cut in cuts})
    return [data[start:end] for start, end in zip([0, *at], [*at, len(data)], strict=True)]


async def play(port: int, version: int, steps: list[Any], cuts: list[int], connects: bool) -> None:
    root = unique("fuzz")
    packets, owed = packets_of(steps, root)
    client = await Raw.open(port, version) if connects else await Raw.connect(port, version=version)
    if connects:
        packets.insert(0, Connect(version, unique()))
    for piece in pieces(b"".join([encode_packet(packet, version) for packet in packets]), cuts):
        client.send(piece)
        await asyncio.sleep(0)
    got: list[Any] = []
    answers = sum(1 for p in packets if isinstance(p, PingReq | Subscribe | Unsubscribe))
    answers += sum(1 + (p.qos == 2) for p in packets if isinstance(p, Publish) and p.qos)

    def seen(*kinds: type) -> list[Any]:
        return [packet for packet in got if isinstance(packet, kinds)]

    while len(seen(SubAck, UnsubAck, PingResp, PubAck, PubRec, PubComp)) < answers or not {
        m.payload for m in seen(Message)
    } >= set(owed):
        got.append(await client.packet())
    # SUBACK and UNSUBACK in one order, the publications' acknowledgements in theirs [MQTT-4.6.0-2], [MQTT-4.6.0-3].
    asked = [(ANSWERS[type(p)], p.packet_id) for p in packets if isinstance(p, Subscribe | Unsubscribe)]
    assert [(type(p), p.packet_id) for p in seen(SubAck, UnsubAck)] == asked
    published = [(PUBLISH_ANSWERS[p.qos], p.packet_id) for p in packets if isinstance(p, Publish) and p.qos]
    assert [(type(p), p.packet_id) for p in seen(PubAck, PubRec)] == published
    for topic in {m.topic for m in seen(Message)}:
        numbers = [int(m.payload) for m in seen(Message) if m.topic == topic and m.qos == 0]
        assert numbers == sorted(set(numbers))
    client.send(Disconnect())
    for packet in await client.closed():
        assert isinstance(packet, Message | ConnAck), "answered twice"


def test_packets_in_any_segments(cluster: Served) -> None:
    with asyncio.Runner() as runner:

        @settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
        @given(plan)
        def play_all(chosen: Any) -> None:
            try:
                runner.run(play(cluster.port, *chosen))
            except Closed:
                pytest.fail("the broker closed the connection")
            finally:
                runner.run(close_clients())

        play_all()
