"""Whatever arrives, and in whatever pieces: packets or an MqttProtocolError, and never anything else."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lexicast.actors.mqtt.codec import (
    PacketReader,
    encode_acks,
    encode_packet,
    encode_publish,
    encode_qos0_run,
    farewell,
)
from lexicast.actors.mqtt.codec.packets import (
    PUBACK,
    V5,
    V311,
    AckRun,
    Auth,
    ConnAck,
    Connect,
    Disconnect,
    PingReq,
    PubAck,
    PublishRun,
    Received,
    SubAck,
    Subscribe,
    SubscriptionOptions,
    UnsubAck,
    Unsubscribe,
    Will,
)

LIMIT = 2000


def _stream(version: int) -> list[bytes]:
    """One of every packet, valid, a client's and a server's."""
    v5 = version == V5
    will = Will(b"w/t", b"bye", 1, True, {24: 5, 38: [("a", "b")]} if v5 else None)
    options = SubscriptionOptions(1, v5, v5, 2 * v5)
    return [
        encode_packet(
            Connect(version, "client", True, 60, will, "user", b"pass", {17: 9, 33: 5} if v5 else None), version
        ),
        encode_packet(ConnAck(True, 0, {18: "id", 33: 20, 39: 100} if v5 else None), version),
        encode_publish(version, b"a/b", b"payload", 0, True),
        encode_publish(
            version, b"a/b", b"payload", 1, packet_id=1, properties={1: 1, 2: 9, 3: "t", 8: "r", 9: b"c", 35: 1}
        ),
        encode_publish(version, b"a/b", b"payload", 2, packet_id=2, dup=True),
        encode_qos0_run(version, b"a/b", [b"x" * 20] * 40),
        encode_acks(PUBACK, range(1, 40)),
        encode_packet(PubAck(3, 0x80, {31: "why"}), version),
        encode_packet(Subscribe(4, [(b"a/+", options), (b"#", options)], 7 if v5 else None), version),
        encode_packet(SubAck(4, [0, 0x80], {31: "why"} if v5 else None), version),
        encode_packet(Unsubscribe(5, [b"a/+", b"#"]), version),
        encode_packet(UnsubAck(5, [0, 0x11]), version),
        encode_packet(PingReq(), version),
        encode_packet(Disconnect(4, {31: "why"} if v5 else None), version),
        encode_packet(Auth(0x18, {21: "m", 22: b"d"}), V5),
    ]


def _flatten(items: list[Received]) -> list[object]:
    """Runs as single packets, because chunks decide where runs end."""
    out: list[object] = []
    for item in items:
        if isinstance(item, PublishRun):
            ids = item.packet_ids if item.packet_ids is not None else [0] * len(item.payloads)
            out += [
                (item.topic, item.qos, item.retain, item.dup, item.properties, payload, packet_id)
                for payload, packet_id in zip(item.payloads, ids, strict=True)
            ]
        elif isinstance(item, AckRun):
            out += [(item.kind, packet_id) for packet_id in item.packet_ids]
        else:
            out.append(item)
    return out


def _outcome(data: bytes, chunks: list[int], version: int, from_client: bool) -> tuple[list[object], str, int]:
    """What a reader makes of `data` cut at `chunks`. Its memory stays bounded meanwhile."""
    reader = PacketReader(LIMIT, topic_alias_max=2, from_client=from_client, version=version)
    items: list[object] = []
    for start, end in zip([0, *chunks], [*chunks, len(data)], strict=True):
        items += _flatten(reader.feed(data[start:end]))
        assert reader.buffered_bytes <= LIMIT
    if reader.error is not None:
        assert 0x80 <= reader.error.reason_code <= 0xA2
        farewell(reader.error, reader.version, connected=False)
        farewell(reader.error, reader.version, connected=True)
    return items, str(reader.error), reader.version


def _mutate(data: bytes, rng: random.Random) -> bytes:
    """A few bytes changed, dropped, inserted or repeated."""
    out = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(out))
        match rng.randrange(5):
            case 0:
                out[at] = rng.randrange(256)
            case 1:
                out[at] ^= 1 << rng.randrange(8)
            case 2:
                del out[at : at + rng.randint(1, 3)]
            case 3:
                out[at:at] = rng.randbytes(rng.randint(1, 3))
            case _:
                out[at:at] = out[at : at + rng.randint(1, 40)]
        if not out:
            out.append(0)
    return bytes(out)


@pytest.mark.parametrize("version", [V311, V5])
@pytest.mark.parametrize("from_client", [True, False])
def test_mutated_packets_give_packets_or_protocol_errors(version: int, from_client: bool) -> None:
    """3,000 a case: 12,000 in all, each read whole and in pieces."""
    rng = random.Random(f"{version} {from_client}")
    packets = _stream(version)
    for round_number in range(3000):
        chosen = [rng.choice(packets) for _ in range(rng.randint(1, 3))]
        if from_client and rng.random() < 0.3:
            chosen.insert(0, packets[0])
        known = version if not from_client or chosen[0] is not packets[0] else 0
        data = _mutate(b"".join(chosen), rng)
        whole = _outcome(data, [], known, from_client)
        cuts = sorted(rng.sample(range(len(data) + 1), min(len(data), rng.randint(1, 5))))
        assert _outcome(data, cuts, known, from_client) == whole, f"round {round_number}: {data.hex()} cut at {cuts}"


@settings(max_examples=2000)
@given(st.binary(max_size=300), st.sampled_from([0, V311, V5]), st.booleans())
def test_random_bytes_give_packets_or_protocol_errors(data: bytes, version: int, from_client: bool) -> None:
    version = version or (0 if from_client else V5)
    assert _outcome(data, list(range(1, len(data))), version, from_client) == _outcome(data, [], version, from_client)


@pytest.mark.parametrize("version", [V311, V5])
@pytest.mark.parametrize("from_client", [True, False])
def test_byte_by_byte_equals_whole(version: int, from_client: bool) -> None:
    packets = _stream(version)
    from_server = {1, 9, 11}
    ours = [p for i, p in enumerate(packets) if (i not in from_server) == from_client or 2 <= i <= 7]
    if version == V311:
        ours = [p for p in ours if p is not packets[-1] and (from_client or p is not packets[-2])]
    data = b"".join(p for p in ours if from_client or p is not packets[-2])
    known = 0 if from_client else version
    whole = _outcome(data, [], known, from_client)
    assert whole[1] == "None"
    assert _outcome(data, list(range(1, len(data))), known, from_client) == whole
    for size in (2, 3, 7, 16, 61):
        assert _outcome(data, list(range(size, len(data), size)), known, from_client) == whole
