"""MQTT's packets, both versions, a client's and a server's: the reader, and the encoder of what it has read.

An input's first byte says whose packets follow: bit 0: MQTT 5; bit 1: a server's; bit 2: CONNECT was before. The second
byte says where they are cut in two.
"""

from __future__ import annotations

from typing import Any, Final

from ...mqtt.codec import PacketReader, encode_packet, encode_publish, farewell
from ...mqtt.codec.packets import (
    PUBACK,
    PUBCOMP,
    PUBREC,
    PUBREL,
    V5,
    V311,
    AckRun,
    Auth,
    ConnAck,
    Connect,
    Disconnect,
    Packet,
    PingReq,
    PingResp,
    PubAck,
    PubComp,
    Publish,
    PublishRun,
    PubRec,
    PubRel,
    Received,
    SubAck,
    Subscribe,
    SubscriptionOptions,
    UnsubAck,
    Unsubscribe,
    Will,
)
from .target import FuzzTarget, must

PACKET_BYTES_MAX: Final = 2_000
ALIASES_MAX: Final = 2
V5_BIT, SERVER_BIT, OPEN_BIT = 1, 2, 4
_ACKS: Final = {PUBACK: PubAck, PUBREC: PubRec, PUBREL: PubRel, PUBCOMP: PubComp}


def _attempt(data: bytes) -> None:
    if len(data) < 2:
        return
    first, cut, rest = data[0], data[1], data[2:]
    from_client = not first & SERVER_BIT
    version = V5 if first & V5_BIT else V311
    known = version if not from_client or first & OPEN_BIT else 0
    whole = _read([rest], known, from_client)
    cut = cut % (len(rest) + 1)
    must(_read([rest[:cut], rest[cut:]], known, from_client) == whole, "cut in two, it is something else")
    for item in whole[0]:
        _once_more(item, whole[2], from_client)


def _read(parts: list[bytes], version: int, from_client: bool) -> tuple[list[Any], str, int]:
    """The packets, the error and the version that came of it."""
    reader = PacketReader(PACKET_BYTES_MAX, topic_alias_max=ALIASES_MAX, from_client=from_client, version=version)
    items: list[Any] = []
    for part in parts:
        items += _flat(reader.feed(part))
        must(reader.buffered_bytes <= PACKET_BYTES_MAX, "more is kept than a packet may have")
    if reader.error is not None:
        must(0x80 <= reader.error.reason_code <= 0xA2, "an error without a reason code")
        farewell(reader.error, reader.version, connected=True)
        farewell(reader.error, reader.version, connected=False)
    return items, str(reader.error), reader.version


def _flat(items: list[Received]) -> list[Any]:
    """Single packets: where runs end depends on how they come."""
    out: list[Any] = []
    for item in items:
        if isinstance(item, PublishRun):
            ids = item.packet_ids or [0] * len(item.payloads)
            out += [
                Publish(item.topic, payload, item.qos, item.retain, item.dup, packet_id, item.properties)
                for payload, packet_id in zip(item.payloads, ids, strict=True)
            ]
        elif isinstance(item, AckRun):
            out += [_ACKS[item.kind](packet_id) for packet_id in item.packet_ids]
        else:
            out.append(item)
    return out


def _once_more(item: Any, version: int, from_client: bool) -> None:
    """What was read is written and read again."""
    if isinstance(item, Connect):
        if item.bridge:
            return
        found = _read([encode_packet(item, version)], 0, True)
    elif isinstance(item, Publish):
        again = encode_publish(
            version,
            item.topic,
            item.payload,
            item.qos,
            item.retain,
            dup=item.dup,
            packet_id=item.packet_id,
            properties=item.properties,
        )
        if len(again) > PACKET_BYTES_MAX:
            return  # an alias stood for its topic
        found = _read([again], version, from_client)
    else:
        found = _read([encode_packet(item, version)], version, from_client)
    must(found[0] == [item], f"{item} became {found}")


def _seeds(version: int) -> list[bytes]:
    """One of each packet, a client's and a server's, with all that can be in it."""
    v5 = version == V5
    more: dict[int, Any] | None = {1: 1, 2: 7, 3: "text", 8: "reply", 9: b"\1\2", 38: [("a", "b")]} if v5 else None
    user: dict[int, Any] | None = {31: "why", 38: [("a", "b")]} if v5 else None
    will = Will(b"w/t", b"bye", 1, True, {24: 5, **(more or {})} if v5 else None)
    options = SubscriptionOptions(1, v5, v5, 2 * v5)
    login = {17: 9, 21: "m", 22: b"d", 33: 5, 34: 9, 39: 500} if v5 else None
    client: list[Packet] = [
        Publish(b"a/b", b"payload", 0, True, properties=more),
        Publish(b"a/b", b"payload", 1, packet_id=1, properties={**(more or {}), 35: 1} if v5 else None),
        Publish(b"a/b", b"payload", 2, packet_id=2, dup=True),
        PubAck(3, 0x80 if v5 else 0, user),
        PubRec(3),
        PubRel(3),
        Subscribe(4, [(b"a/+", options), (b"#", options), (b"$share/g/b", SubscriptionOptions(1))], 7 if v5 else None),
        Unsubscribe(5, [b"a/+", b"#"]),
        PingReq(),
        Disconnect(4 if v5 else 0, user),
        *([Auth(0x18, {21: "m", 22: b"d"})] if v5 else []),
    ]
    server: list[Packet] = [
        ConnAck(True, 0, {18: "id", 33: 20, 39: 100} if v5 else None),
        SubAck(4, [0, 0x80], user),
        UnsubAck(5, [0, 0x11] if v5 else []),
        PingResp(),
    ]
    connect = encode_packet(Connect(version, "client", True, 60, will, "user", b"pass", login), version)
    bit = V5_BIT if v5 else 0
    found = [bytes((bit, 9)) + connect]
    found += [bytes((bit | OPEN_BIT, 7)) + encode_packet(packet, version) for packet in client]
    found += [bytes((bit | SERVER_BIT, 3)) + encode_packet(packet, version) for packet in server]
    found.append(bytes((bit | OPEN_BIT, 60)) + encode_packet(client[0], version) * 20)
    found.append(bytes((bit, 60)) + connect + b"".join([encode_packet(packet, version) for packet in client]))
    return found


TARGET: Final = FuzzTarget(_attempt, tuple(_seeds(V311) + _seeds(V5)))
