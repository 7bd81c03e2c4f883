"""MQTT 5 properties (2.2.2): a strict table of what each is, where it may stand and which values it may have.

A packet's properties are a dict by identifier. User properties (38) are a list of (name, value) in order; a PUBLISH to
a client holds a list of subscription identifiers (11), a SUBSCRIBE one integer. Every other property may stand once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from .packets import (
    AUTH,
    CONNACK,
    CONNECT,
    DISCONNECT,
    PROTOCOL_ERROR,
    PUBACK,
    PUBCOMP,
    PUBLISH,
    PUBREC,
    PUBREL,
    SUBACK,
    SUBSCRIBE,
    TOPIC_ALIAS_INVALID,
    UNSUBACK,
    UNSUBSCRIBE,
    MqttProtocolError,
    Properties,
)
from .wire import Body, encode_binary, encode_utf8, encode_varint, malformed, pack_u16, pack_u32

PAYLOAD_FORMAT: Final = 1
MESSAGE_EXPIRY_S: Final = 2
CONTENT_TYPE: Final = 3
RESPONSE_TOPIC: Final = 8
CORRELATION_DATA: Final = 9
SUBSCRIPTION_ID: Final = 11
SESSION_EXPIRY_S: Final = 17
ASSIGNED_CLIENT_ID: Final = 18
SERVER_KEEP_ALIVE_S: Final = 19
AUTHENTICATION_METHOD: Final = 21
AUTHENTICATION_DATA: Final = 22
REQUEST_PROBLEM: Final = 23
WILL_DELAY_S: Final = 24
REQUEST_RESPONSE: Final = 25
RESPONSE_INFORMATION: Final = 26
SERVER_REFERENCE: Final = 28
REASON_STRING: Final = 31
RECEIVE_MAXIMUM: Final = 33
TOPIC_ALIAS_MAXIMUM: Final = 34
TOPIC_ALIAS: Final = 35
MAXIMUM_QOS: Final = 36
RETAIN_AVAILABLE: Final = 37
USER_PROPERTY: Final = 38
MAXIMUM_PACKET_BYTES: Final = 39
WILDCARDS_AVAILABLE: Final = 40
SUBSCRIPTION_IDS_AVAILABLE: Final = 41
SHARED_AVAILABLE: Final = 42

# "Will Properties" have a set of allowed properties of their own; no control packet has this first byte.
WILL: Final = 0x00

# A packet of packet_bytes_max holds a user property every five bytes, each costing about 200 bytes as Python objects;
# no honest client sends so many.
USER_PROPERTIES_MAX: Final = 1000

# A Message Expiry Interval of 0 is over at once, but an interval counts whole seconds: who can be reached within the
# first one gets the publication, nobody later does.
EXPIRY_0_MS: Final = 999

_ACKS: Final = (PUBACK, PUBREC, PUBREL, PUBCOMP, SUBACK, UNSUBACK)
_ANYWHERE: Final = (CONNECT, CONNACK, PUBLISH, WILL, *_ACKS, SUBSCRIBE, UNSUBSCRIBE, DISCONNECT, AUTH)


class Property(NamedTuple):
    """One row of the table: how it is read and written, which packets may hold it, the values allowed."""

    name: str
    read: Callable[[Body], Any]
    write: Callable[[Any], bytes]
    packets: frozenset[int]
    minimum: int = 0
    maximum: int | None = None


def _read_pair(body: Body) -> tuple[str, str]:
    return body.utf8(), body.utf8()  # [MQTT-1.5.7-1]


def _write_pair(pair: tuple[str, str]) -> bytes:
    return encode_utf8(pair[0]) + encode_utf8(pair[1])


def _write_u8(value: int) -> bytes:
    return bytes((value,))


def _u8(name: str, *packets: int, maximum: int = 1) -> Property:
    return Property(name, Body.u8, _write_u8, frozenset(packets), 0, maximum)


def _u16(name: str, *packets: int, minimum: int = 0) -> Property:
    return Property(name, Body.u16, pack_u16, frozenset(packets), minimum)


def _u32(name: str, *packets: int, minimum: int = 0) -> Property:
    return Property(name, Body.u32, pack_u32, frozenset(packets), minimum)


def _text(name: str, *packets: int) -> Property:
    return Property(name, Body.utf8, encode_utf8, frozenset(packets))


def _data(name: str, *packets: int) -> Property:
    return Property(name, Body.binary, encode_binary, frozenset(packets))


# Table 2-4 of the standard; limits from each property's own section.
PROPERTIES: Final[dict[int, Property]] = {
    PAYLOAD_FORMAT: _u8("payload format indicator", PUBLISH, WILL),
    MESSAGE_EXPIRY_S: _u32("message expiry interval", PUBLISH, WILL),
    CONTENT_TYPE: _text("content type", PUBLISH, WILL),
    RESPONSE_TOPIC: _text("response topic", PUBLISH, WILL),
    CORRELATION_DATA: _data("correlation data", PUBLISH, WILL),
    SUBSCRIPTION_ID: Property(
        "subscription identifier", Body.varint, encode_varint, frozenset((PUBLISH, SUBSCRIBE)), minimum=1
    ),
    SESSION_EXPIRY_S: _u32("session expiry interval", CONNECT, CONNACK, DISCONNECT),
    ASSIGNED_CLIENT_ID: _text("assigned client identifier", CONNACK),
    SERVER_KEEP_ALIVE_S: _u16("server keep alive", CONNACK),
    AUTHENTICATION_METHOD: _text("authentication method", CONNECT, CONNACK, AUTH),
    AUTHENTICATION_DATA: _data("authentication data", CONNECT, CONNACK, AUTH),
    REQUEST_PROBLEM: _u8("request problem information", CONNECT),
    WILL_DELAY_S: _u32("will delay interval", WILL),
    REQUEST_RESPONSE: _u8("request response information", CONNECT),
    RESPONSE_INFORMATION: _text("response information", CONNACK),
    SERVER_REFERENCE: _text("server reference", CONNACK, DISCONNECT),
    REASON_STRING: _text("reason string", CONNACK, *_ACKS, DISCONNECT, AUTH),
    RECEIVE_MAXIMUM: _u16("receive maximum", CONNECT, CONNACK, minimum=1),
    TOPIC_ALIAS_MAXIMUM: _u16("topic alias maximum", CONNECT, CONNACK),
    TOPIC_ALIAS: _u16("topic alias", PUBLISH),
    MAXIMUM_QOS: _u8("maximum QoS", CONNACK),
    RETAIN_AVAILABLE: _u8("retain available", CONNACK),
    USER_PROPERTY: Property("user property", _read_pair, _write_pair, frozenset(_ANYWHERE)),
    MAXIMUM_PACKET_BYTES: _u32("maximum packet size", CONNECT, CONNACK, minimum=1),
    WILDCARDS_AVAILABLE: _u8("wildcard subscription available", CONNACK),
    SUBSCRIPTION_IDS_AVAILABLE: _u8("subscription identifiers available", CONNACK),
    SHARED_AVAILABLE: _u8("shared subscription available", CONNACK),
}


def read_properties(body: Body, packet: int) -> Properties | None:
    """The properties at `body`, their length first; None when there are none. `packet`: first byte, or WILL.

    Raises MqttProtocolError: malformed (0x81), protocol error (0x82) or topic alias invalid (0x94).
    """
    length = body.varint()
    if length == 0:
        return None
    if length > body.left():
        raise malformed("MQTT-2.2.2-1", f"properties of {length} bytes in a packet with {body.left()} left")
    inner = Body(body.data, body.pos, body.pos + length)
    body.pos += length
    found: Properties = {}
    while inner.left():
        _read_one(inner, packet, found)
    if AUTHENTICATION_DATA in found and AUTHENTICATION_METHOD not in found:
        raise MqttProtocolError(PROTOCOL_ERROR, "MQTT 5.0 3.1.2.11.10", "authentication data without a method")
    return found


def _read_one(body: Body, packet: int, found: Properties) -> None:
    identifier = body.varint()
    known = PROPERTIES.get(identifier)
    if known is None or packet not in known.packets:
        name = known.name if known else "unknown"
        raise malformed("MQTT 5.0 2.2.2.2", f"property {identifier} ({name}) may not stand in packet 0x{packet:02x}")
    value = known.read(body)
    if known.minimum or known.maximum is not None:
        _check_range(identifier, known, value)
    if identifier == USER_PROPERTY or (identifier == SUBSCRIPTION_ID and packet == PUBLISH):
        values = found.setdefault(identifier, [])
        values.append(value)
        if len(values) > USER_PROPERTIES_MAX:
            raise MqttProtocolError(
                PROTOCOL_ERROR, "MQTT-4.13.1-1", f"more than {USER_PROPERTIES_MAX} times the {known.name}"
            )
    elif identifier in found:
        raise MqttProtocolError(PROTOCOL_ERROR, "MQTT 5.0 2.2.2.2", f"the {known.name} stands twice")
    else:
        found[identifier] = value


def _check_range(identifier: int, known: Property, value: int) -> None:
    if value < known.minimum or (known.maximum is not None and value > known.maximum):
        raise MqttProtocolError(PROTOCOL_ERROR, "MQTT 5.0 2.2.2.2", f"the {known.name} may not be {value}")


def check_publish_properties(properties: Properties, from_client: bool, topic_alias_max: int) -> None:
    """Rules of a PUBLISH's properties beyond the table (3.3.2.3). Raises MqttProtocolError."""
    if from_client and SUBSCRIPTION_ID in properties:
        raise MqttProtocolError(
            PROTOCOL_ERROR, "MQTT-3.3.4-6", "a client's PUBLISH may not hold a subscription identifier"
        )
    check_response_topic(properties)
    alias = properties.get(TOPIC_ALIAS)
    if alias is None:
        return
    if alias == 0:
        raise MqttProtocolError(TOPIC_ALIAS_INVALID, "MQTT-3.3.2-8", "topic alias 0")
    if alias > topic_alias_max:
        raise MqttProtocolError(
            TOPIC_ALIAS_INVALID, "MQTT-3.3.2-9", f"topic alias {alias} is over the announced maximum {topic_alias_max}"
        )


def check_response_topic(properties: Properties) -> None:
    """The rule for a PUBLISH's or will's response topic. Raises MqttProtocolError."""
    response: str | None = properties.get(RESPONSE_TOPIC)
    if response is not None and ("+" in response or "#" in response or not response):
        raise MqttProtocolError(PROTOCOL_ERROR, "MQTT-3.3.2-14", "a response topic may hold no wildcard, nor be empty")


def expiry_ms(properties: Properties) -> int:
    """The lifetime of a publication or will with these properties, in milliseconds; 0: for ever [MQTT-3.3.2-5]."""
    interval_s: int | None = properties.get(MESSAGE_EXPIRY_S)
    return 0 if interval_s is None else interval_s * 1000 or EXPIRY_0_MS


def write_properties(properties: Properties | None) -> bytes:
    """Properties with their length; a zero byte when there are none [MQTT-2.2.2-1].

    Raises ValueError or struct.error for values that do not fit: those are the caller's mistake.
    """
    if not properties:
        return b"\0"
    parts: list[bytes] = []
    for identifier, value in properties.items():
        write = PROPERTIES[identifier].write
        prefix = bytes((identifier,))
        for one in value if isinstance(value, list) else (value,):
            parts += (prefix, write(one))
    body = b"".join(parts)
    return encode_varint(len(body)) + body
