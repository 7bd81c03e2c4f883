"""Decoding of every control packet but PUBLISH and plain acknowledgements, which `reader` does in runs.

Strict: whatever the standard calls malformed or a protocol error raises MqttProtocolError, at the line that names the
statement. Written by hand for both versions rather than with PyPI `mqtt5` (Rust) for version 5: that package has no
3.1.1, takes 0.20 us for every PUBLISH where the reader here takes 0.07 us in a run (`reader`), lets a payload
format indicator of 2 pass, and panics (a BaseException) on ill-formed UTF-8 in a topic. Its part is the tests,
as a second opinion.
"""

from __future__ import annotations

from collections.abc import Callable

from lexicast.cluster.errors import TopicError
from lexicast.cluster.topics.names import SHARE_PREFIX, all_filters, check_filter_form, check_topic, shared

from .packets import (
    AUTH,
    CLIENT_ID_NOT_VALID,
    CONNACK,
    CONNACK_REASONS,
    CONNECT,
    DISCONNECT,
    PINGREQ,
    PINGRESP,
    PROTOCOL_ERROR,
    PUBACK,
    PUBCOMP,
    PUBREC,
    PUBREL,
    SUBACK,
    SUBSCRIBE,
    SUCCESS,
    UNSUBACK,
    UNSUBSCRIBE,
    V5,
    V311,
    Ack,
    Auth,
    ConnAck,
    Connect,
    Disconnect,
    MqttProtocolError,
    PingReq,
    PingResp,
    Properties,
    PubAck,
    PubComp,
    PubRec,
    PubRel,
    Received,
    SubAck,
    Subscribe,
    SubscriptionOptions,
    UnsubAck,
    Unsubscribe,
    UnsupportedVersionError,
    Will,
)
from .properties import SUBSCRIPTION_ID, WILL, check_response_topic, read_properties
from .wire import Body, decode_text, malformed

# Filters in one SUBSCRIBE or UNSUBSCRIBE: each costs a cut in its groups; brokers elsewhere stop at far fewer.
FILTERS_MAX = 10_000

# 3.1.1 CONNACK return codes (3.1.1 table 3.1) as MQTT 5 reason codes.
RETURN_CODES = {0: 0x00, 1: 0x84, 2: 0x85, 3: 0x88, 4: 0x86, 5: 0x87}

# Reason codes that each packet may carry (5.0, 3.x.2.1 of each packet).
_ACK_REASONS = frozenset((0x00, 0x10, 0x80, 0x83, 0x87, 0x90, 0x91, 0x97, 0x99))
_RELEASE_REASONS = frozenset((0x00, 0x92))
_SUBACK_REASONS = frozenset((0x00, 0x01, 0x02, 0x80, 0x83, 0x87, 0x8F, 0x91, 0x97, 0x9E, 0xA1, 0xA2))
_SUBACK_CODES = frozenset((0x00, 0x01, 0x02, 0x80))  # 3.1.1 [MQTT-3.9.3-2]
_UNSUBACK_REASONS = frozenset((0x00, 0x11, 0x80, 0x83, 0x87, 0x8F, 0x91))
_AUTH_REASONS = frozenset((0x00, 0x18, 0x19))
_DISCONNECT_FROM_CLIENT = frozenset(
    (0x00, 0x04, 0x80, 0x81, 0x82, 0x83, 0x90, 0x93, 0x94, 0x95, 0x96, 0x97, 0x98, 0x99)
)
_DISCONNECT_FROM_SERVER = frozenset(
    (0x00, *range(0x80, 0x84), 0x87, 0x89, 0x8B, *range(0x8D, 0x91), *range(0x93, 0xA3))
)


def protocol_error(statement: str, problem: str) -> MqttProtocolError:
    """The error for a packet that may not come, or not so."""
    return MqttProtocolError(PROTOCOL_ERROR, statement, problem)


# Protocol name and level -> the version spoken. 3.1 is taken for 3.1.1, which is what became of it: a Mosquitto bridge
# may still speak it.
_VERSIONS = {(b"MQTT", V311): V311, (b"MQTT", V5): V5, (b"MQIsdp", 3): V311}
# Set in the level by Mosquitto's bridges ("try_private").
BRIDGE_BIT = 0x80


def protocol_level(body: Body) -> tuple[int, bool]:
    """With what a CONNECT begins: the version, V311 or V5, and whether the client is another broker's bridge.

    Raises UnsupportedVersionError.
    """
    name = body.binary()
    if name not in (b"MQTT", b"MQIsdp"):
        raise UnsupportedVersionError(-1, f"the protocol is {name[:20]!r}, not MQTT")
    level = body.u8()
    version = _VERSIONS.get((name, level & ~BRIDGE_BIT))
    if version is None:
        raise UnsupportedVersionError(level, f"{name.decode()} level {level}: MQTT 3.1.1 (4) and 5 are spoken here")
    return version, level >= BRIDGE_BIT


def decode_connect(body: Body, version: int, bridge: bool = False) -> Connect:
    """The rest of a CONNECT (3.1), after `protocol_level`."""
    flags = body.u8()
    if flags & 1:
        raise malformed("MQTT-3.1.2-3", "CONNECT's reserved flag is set")
    _check_connect_flags(flags, version)
    keep_alive_s = body.u16()
    properties = read_properties(body, CONNECT) if version == V5 else None
    client_id = body.utf8()  # [MQTT-3.1.3-3], [MQTT-3.1.3-4]
    if version == V311 and not client_id and not flags & 2:  # 3.1.1 [MQTT-3.1.3-8]
        raise MqttProtocolError(
            CLIENT_ID_NOT_VALID, "MQTT-3.1.3-8", "an empty client id needs clean session 1 in MQTT 3.1.1"
        )
    will = _read_will(body, flags, version) if flags & 4 else None
    user_name = body.utf8() if flags & 0x80 else None  # [MQTT-3.1.2-16], [MQTT-3.1.2-17]
    password = body.binary() if flags & 0x40 else None  # [MQTT-3.1.2-18], [MQTT-3.1.2-19]
    body.finish("CONNECT")
    return Connect(version, client_id, bool(flags & 2), keep_alive_s, will, user_name, password, properties, bridge)


def _check_connect_flags(flags: int, version: int) -> None:
    """What CONNECT's flags say of the will, user name and password must agree."""
    if flags & 0x18 == 0x18:
        raise malformed("MQTT-3.1.2-12", "the will's QoS is 3")
    if not flags & 4 and flags & 0x18:
        raise malformed("MQTT-3.1.2-11", "a will QoS without a will")
    if not flags & 4 and flags & 0x20:
        raise malformed("MQTT-3.1.2-13", "will retain without a will")
    if version == V311 and flags & 0x40 and not flags & 0x80:
        raise malformed("MQTT-3.1.2-22", "a password without a user name in MQTT 3.1.1")


def _read_will(body: Body, flags: int, version: int) -> Will:
    properties = read_properties(body, WILL) if version == V5 else None
    if properties:
        check_response_topic(properties)
    topic = body.binary()
    decode_text(topic)  # [MQTT-3.1.3-11]
    try:
        check_topic(topic)
    except TopicError as error:
        raise malformed("MQTT-3.3.2-2", f"the will's {error}") from None
    return Will(topic, body.binary(), flags >> 3 & 3, bool(flags & 0x20), properties)


def _packet_id(body: Body, packet: str) -> int:
    packet_id = body.u16()
    if not packet_id:
        raise protocol_error("MQTT-2.2.1-3", f"{packet} has packet id 0")
    return packet_id


def _reason(body: Body, allowed: frozenset[int], packet: str) -> int:
    reason = body.u8()
    if reason not in allowed:
        raise malformed("MQTT 5.0 2.4", f"{packet} may not carry reason code 0x{reason:02x}")
    return reason


def _reason_and_properties(
    body: Body, packet: int, name: str, allowed: frozenset[int]
) -> tuple[int, Properties | None]:
    """The optional tail that MQTT 5's acknowledgements, DISCONNECT and AUTH share: both may be left out at the end."""
    reason = _reason(body, allowed, name) if body.left() else SUCCESS
    properties = read_properties(body, packet) if body.left() else None
    body.finish(name)
    return reason, properties


def _decode_connack(body: Body, version: int) -> ConnAck:
    flags = body.u8()
    if flags > 1:
        raise malformed("MQTT-3.2.2-1", "CONNACK's reserved flags are set")
    if version == V5:
        reason = _reason(body, CONNACK_REASONS, "CONNACK")
        properties = read_properties(body, CONNACK)
    else:
        code, properties = body.u8(), None
        if code not in RETURN_CODES:
            raise malformed("MQTT 3.1.1 3.2.2.3", f"CONNACK return code {code} is not known")
        reason = RETURN_CODES[code]
    if flags and reason:
        raise protocol_error("MQTT-3.2.2-6", "a refused connection has no session")
    body.finish("CONNACK")
    return ConnAck(bool(flags), reason, properties)


_ACKS: dict[int, tuple[type[Ack], str, frozenset[int]]] = {
    PUBACK: (PubAck, "PUBACK", _ACK_REASONS),
    PUBREC: (PubRec, "PUBREC", _ACK_REASONS),
    PUBREL: (PubRel, "PUBREL", _RELEASE_REASONS),
    PUBCOMP: (PubComp, "PUBCOMP", _RELEASE_REASONS),
}


def _decode_ack(kind: int, body: Body, version: int) -> Ack:
    make, name, allowed = _ACKS[kind]
    packet_id = _packet_id(body, name)
    if version != V5:
        body.finish(name)
        return make(packet_id)
    reason, properties = _reason_and_properties(body, kind, name, allowed)
    return make(packet_id, reason, properties)


def _decode_subscribe(body: Body, version: int) -> Subscribe:
    packet_id = _packet_id(body, "SUBSCRIBE")
    properties = read_properties(body, SUBSCRIBE) if version == V5 else None
    subscription_id = properties.pop(SUBSCRIPTION_ID, None) if properties else None
    filters = _subscriptions_at_once(body, version)
    while body.left():
        name = _filter(body, version)
        filters.append((name, _subscription_options(body.u8(), version, name)))
        _check_filter_count(filters)
    if not filters:
        raise protocol_error("MQTT-3.8.3-2", "SUBSCRIBE holds no filter")
    return Subscribe(packet_id, filters, subscription_id, properties or None)


def _subscriptions_at_once(body: Body, version: int) -> list[tuple[bytes, SubscriptionOptions]]:
    """All that follows, if it is plain and nothing is wrong with it: a client may have thousands, in one read. Else
    nothing is taken."""
    data, at, end = body.data, body.pos, body.end
    names: list[bytes] = []
    options = bytearray()
    try:
        while at < end:
            start = at + 2
            at = start + (data[at] << 8 | data[at + 1])
            names.append(data[start:at])
            options.append(data[at])
            at += 1
    except IndexError:
        return []
    known = _OPTIONS[version]
    if at != end or len(names) > FILTERS_MAX or not known.keys() >= set(options) or not _all_plain(names):
        return []
    body.pos = end
    return list(zip(names, map(known.__getitem__, options), strict=True))


def _names_at_once(body: Body) -> list[bytes]:
    """The same without options."""
    data, at, end = body.data, body.pos, body.end
    names: list[bytes] = []
    try:
        while at < end:
            start = at + 2
            at = start + (data[at] << 8 | data[at + 1])
            names.append(data[start:at])
    except IndexError:
        return []
    if at != end or len(names) > FILTERS_MAX or not _all_plain(names):
        return []
    body.pos = end
    return names


def _all_plain(names: list[bytes]) -> bool:
    return all_filters(names) and not any([name.startswith(_SHARE) for name in names])


def _filter(body: Body, version: int) -> bytes:
    """A topic filter, well-formed [MQTT-3.8.3-1], [MQTT-3.10.3-1]. Whether it is served here is another question: only
    what no server could take ends the connection."""
    name = body.binary()
    decode_text(name)
    try:
        if version != V5 or shared(name) is None:  # [MQTT-4.8.2-1], [MQTT-4.8.2-2]; 3.1.1 has no shared subscriptions
            check_filter_form(name)  # [MQTT-4.7.1-1], [MQTT-4.7.1-2], [MQTT-4.7.3-1]
    except TopicError as error:
        raise malformed("MQTT-4.13.1-1", str(error)) from None
    return name


def _subscription_options(byte: int, version: int, name: bytes) -> SubscriptionOptions:
    if byte & (0xC0 if version == V5 else 0xFC):
        raise malformed("MQTT-3.8.3-5", "reserved bits of the subscription options are set")
    if byte & 3 == 3:
        raise protocol_error("MQTT 5.0 3.8.3.1", "a subscription with QoS 3")
    if byte & 0x30 == 0x30:
        raise protocol_error("MQTT 5.0 3.8.3.1", "a subscription with retain handling 3")
    if byte & 4 and name.startswith(b"$share/"):
        raise protocol_error("MQTT-3.8.3-4", "no local on a shared subscription")
    return SubscriptionOptions(byte & 3, bool(byte & 4), bool(byte & 8), byte >> 4 & 3)


_SHARE = SHARE_PREFIX[:-1]
# Options that may stand beside any filter but a shared subscription's, by version.
_OPTIONS = {
    version: {
        byte: _subscription_options(byte, version, b"") for byte in bytes_of if byte & 3 < 3 and byte & 0x30 < 0x30
    }
    for version, bytes_of in ((V5, range(0x40)), (V311, range(4)))
}


def _check_filter_count(filters: list[tuple[bytes, SubscriptionOptions]] | list[bytes]) -> None:
    if len(filters) > FILTERS_MAX:
        raise protocol_error("MQTT-4.13.1-1", f"more than {FILTERS_MAX} filters in one packet: send several")


def _decode_unsubscribe(body: Body, version: int) -> Unsubscribe:
    packet_id = _packet_id(body, "UNSUBSCRIBE")
    properties = read_properties(body, UNSUBSCRIBE) if version == V5 else None
    filters = _names_at_once(body)
    while body.left():
        filters.append(_filter(body, version))
        _check_filter_count(filters)
    if not filters:
        raise protocol_error("MQTT-3.10.3-2", "UNSUBSCRIBE holds no filter")
    return Unsubscribe(packet_id, filters, properties)


def _reason_list(body: Body, allowed: frozenset[int], packet: str) -> list[int]:
    reasons = [_reason(body, allowed, packet) for _ in range(body.left())]
    if not reasons:
        raise protocol_error("MQTT-3.8.4-6", f"{packet} holds no reason code")
    return reasons


def _decode_suback(body: Body, version: int) -> SubAck:
    packet_id = _packet_id(body, "SUBACK")
    properties = read_properties(body, SUBACK) if version == V5 else None
    allowed = _SUBACK_REASONS if version == V5 else _SUBACK_CODES
    return SubAck(packet_id, _reason_list(body, allowed, "SUBACK"), properties)


def _decode_unsuback(body: Body, version: int) -> UnsubAck:
    packet_id = _packet_id(body, "UNSUBACK")
    if version != V5:
        body.finish("UNSUBACK")
        return UnsubAck(packet_id)
    properties = read_properties(body, UNSUBACK)
    return UnsubAck(packet_id, _reason_list(body, _UNSUBACK_REASONS, "UNSUBACK"), properties)


def _decode_disconnect(body: Body, version: int, from_client: bool) -> Disconnect:
    if version != V5:
        if not from_client:
            raise protocol_error("MQTT-3.14.1-1", "an MQTT 3.1.1 server sends no DISCONNECT")
        body.finish("DISCONNECT")
        return Disconnect()
    allowed = _DISCONNECT_FROM_CLIENT if from_client else _DISCONNECT_FROM_SERVER
    return Disconnect(*_reason_and_properties(body, DISCONNECT, "DISCONNECT", allowed))


def _decode_auth(body: Body, version: int) -> Auth:
    if version != V5:
        raise protocol_error("MQTT 3.1.1 2.2.1", "MQTT 3.1.1 has no packet type 15")
    return Auth(*_reason_and_properties(body, AUTH, "AUTH", _AUTH_REASONS))


def _decode_pingreq(body: Body, version: int) -> PingReq:
    body.finish("PINGREQ")
    return PingReq()


def _decode_pingresp(body: Body, version: int) -> PingResp:
    body.finish("PINGRESP")
    return PingResp()


_FROM_CLIENT: dict[int, Callable[[Body, int], Received]] = {
    SUBSCRIBE: _decode_subscribe,
    UNSUBSCRIBE: _decode_unsubscribe,
    PINGREQ: _decode_pingreq,
    AUTH: _decode_auth,
}
_FROM_SERVER: dict[int, Callable[[Body, int], Received]] = {
    CONNACK: _decode_connack,
    SUBACK: _decode_suback,
    UNSUBACK: _decode_unsuback,
    PINGRESP: _decode_pingresp,
    AUTH: _decode_auth,
}
_FIRST_BYTES = {first >> 4: first for first in (*_ACKS, *_FROM_CLIENT, *_FROM_SERVER, CONNECT, DISCONNECT)}


def decode_packet(first: int, body: Body, version: int, from_client: bool) -> Received:
    """Any packet but CONNECT and PUBLISH, from its first byte and its body. Raises MqttProtocolError."""
    allowed = _FIRST_BYTES.get(first >> 4)
    if allowed is None:
        raise malformed("MQTT 5.0 2.1.2", f"packet type {first >> 4} is reserved")
    if first != allowed:
        raise malformed("MQTT-2.1.3-1", f"packet type {first >> 4} with reserved flags 0x{first & 15:x}")
    if first in _ACKS:
        return _decode_ack(first, body, version)
    if first == DISCONNECT:
        return _decode_disconnect(body, version, from_client)
    decode = (_FROM_CLIENT if from_client else _FROM_SERVER).get(first)
    if decode is None:
        sender = "client" if from_client else "server"
        raise protocol_error("MQTT-4.13.1-1", f"a {sender} may not send packet type {first >> 4} here")
    return decode(body, version)
