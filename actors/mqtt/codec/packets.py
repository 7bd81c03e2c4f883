"""MQTT control packets as plain values, for protocol levels 4 (3.1.1) and 5, and what can be wrong with them.

Topics and filters are bytes (as on the wire, already checked); every other text is str. Properties are a dict by
MQTT 5 identifier (`properties`), None when there are none; 3.1.1 packets never have any. Reason codes are MQTT
5's for both versions: the codec translates to and from 3.1.1's CONNACK and SUBACK return codes.

Sources: MQTT 3.1.1 and MQTT 5.0, OASIS Standards; statement ids ([MQTT-x.x.x-y]) are 5.0's unless "3.1.1" is said.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, TypeAlias

from lexicast.cluster.errors import PeerError

V311: Final = 4
V5: Final = 5

# First byte of each control packet: type in the high four bits, the only allowed flags in the low four (2.1.2, 2.1.3).
CONNECT: Final = 0x10
CONNACK: Final = 0x20
PUBLISH: Final = 0x30
PUBACK: Final = 0x40
PUBREC: Final = 0x50
PUBREL: Final = 0x62
PUBCOMP: Final = 0x70
SUBSCRIBE: Final = 0x82
SUBACK: Final = 0x90
UNSUBSCRIBE: Final = 0xA2
UNSUBACK: Final = 0xB0
PINGREQ: Final = 0xC0
PINGRESP: Final = 0xD0
DISCONNECT: Final = 0xE0
AUTH: Final = 0xF0

# Reason codes (2.4).
SUCCESS: Final = 0x00
DISCONNECT_WITH_WILL: Final = 0x04
NO_MATCHING_SUBSCRIBERS: Final = 0x10
NO_SUBSCRIPTION_EXISTED: Final = 0x11
CONTINUE_AUTHENTICATION: Final = 0x18
UNSPECIFIED_ERROR: Final = 0x80
MALFORMED_PACKET: Final = 0x81
PROTOCOL_ERROR: Final = 0x82
IMPLEMENTATION_SPECIFIC_ERROR: Final = 0x83
UNSUPPORTED_VERSION: Final = 0x84
CLIENT_ID_NOT_VALID: Final = 0x85
BAD_USER_NAME_OR_PASSWORD: Final = 0x86
NOT_AUTHORIZED: Final = 0x87
SERVER_UNAVAILABLE: Final = 0x88
SERVER_BUSY: Final = 0x89
USE_ANOTHER_SERVER: Final = 0x9C
SERVER_SHUTTING_DOWN: Final = 0x8B
BAD_AUTHENTICATION_METHOD: Final = 0x8C
KEEP_ALIVE_TIMEOUT: Final = 0x8D
SESSION_TAKEN_OVER: Final = 0x8E
TOPIC_FILTER_INVALID: Final = 0x8F
TOPIC_NAME_INVALID: Final = 0x90
PACKET_ID_IN_USE: Final = 0x91
PACKET_ID_NOT_FOUND: Final = 0x92
RECEIVE_MAXIMUM_EXCEEDED: Final = 0x93
TOPIC_ALIAS_INVALID: Final = 0x94
PACKET_TOO_LARGE: Final = 0x95
MESSAGE_RATE_TOO_HIGH: Final = 0x96
QUOTA_EXCEEDED: Final = 0x97
ADMINISTRATIVE_ACTION: Final = 0x98
PAYLOAD_FORMAT_INVALID: Final = 0x99
RETAIN_NOT_SUPPORTED: Final = 0x9A
QOS_NOT_SUPPORTED: Final = 0x9B
SHARED_SUBSCRIPTIONS_NOT_SUPPORTED: Final = 0x9E
CONNECTION_RATE_EXCEEDED: Final = 0x9F
SUBSCRIPTION_IDS_NOT_SUPPORTED: Final = 0xA1
WILDCARD_SUBSCRIPTIONS_NOT_SUPPORTED: Final = 0xA2

# What CONNACK may say (MQTT 5 table 3-1).
CONNACK_REASONS: Final = frozenset((0, *range(0x80, 0x8B), 0x8C, 0x90, 0x95, 0x97, 0x99, 0x9A, 0x9B, 0x9C, 0x9D, 0x9F))

Properties: TypeAlias = dict[int, Any]


class Terms(NamedTuple):
    """What a CONNECT asks of all that the server sends.

    `packet_bytes_max`: Maximum Packet Size (0: any); `terse`: Request Problem Information is 0; `bridge`: the client is
    another broker's bridge (bit 7 of the protocol level, Mosquitto's extension).
    """

    packet_bytes_max: int = 0
    terse: bool = False
    bridge: bool = False


NO_TERMS: Final = Terms()


class MqttProtocolError(PeerError):
    """The peer broke MQTT's rules: send `farewell(...)` and close the connection [MQTT-4.13.1-1].

    `reason_code` is MQTT 5's; `statement` is the id of the rule, or the section where the standard numbers none.
    """

    def __init__(self, reason_code: int, statement: str, problem: str) -> None:
        super().__init__(f"{problem} [{statement}]")
        self.reason_code = reason_code
        self.statement = statement


class UnsupportedVersionError(MqttProtocolError):
    """A CONNECT of a protocol that is neither MQTT 3.1.1 nor 5 (`level` -1: not MQTT at all)."""

    def __init__(self, level: int, problem: str) -> None:
        super().__init__(UNSUPPORTED_VERSION, "MQTT-3.1.2-2" if level >= 0 else "MQTT-3.1.2-1", problem)
        self.level = level


@dataclass(slots=True)
class Will:
    """What the server publishes when the connection ends badly (3.1.2.5). Delay and expiry are in `properties`."""

    topic: bytes
    payload: bytes
    qos: int = 0
    retain: bool = False
    properties: Properties | None = None


@dataclass(slots=True)
class Connect:
    """CONNECT; `version` is the protocol level without its bridge bit, `clean_start` is 3.1.1's Clean Session too."""

    version: int
    client_id: str
    clean_start: bool = True
    keep_alive_s: int = 0
    will: Will | None = None
    user_name: str | None = None
    password: bytes | None = None
    properties: Properties | None = None
    bridge: bool = False


@dataclass(slots=True)
class ConnAck:
    """CONNACK."""

    session_present: bool = False
    reason_code: int = SUCCESS
    properties: Properties | None = None


@dataclass(slots=True)
class Publish:
    """One PUBLISH, for encoding; what is received comes as `PublishRun`s."""

    topic: bytes
    payload: bytes
    qos: int = 0
    retain: bool = False
    dup: bool = False
    packet_id: int = 0
    properties: Properties | None = None


# It and AckRun are made at nearly every read; what `dataclass` makes to initialize an object is interpreted, also in
# compiled code.
@dataclass(slots=True, init=False)
class PublishRun:
    """Consecutive PUBLISH packets that agree in everything but payload and packet id; the reader's unit of work.

    `properties` is shared by the whole run and holds no topic alias (35): the reader resolves it into `topic`.
    `packet_ids` has one id a payload for QoS 1 and 2, and is None for QoS 0.
    """

    topic: bytes
    qos: int
    retain: bool
    dup: bool
    properties: Properties | None
    payloads: list[bytes]
    packet_ids: list[int] | None

    def __init__(
        self,
        topic: bytes,
        qos: int,
        retain: bool,
        dup: bool,
        properties: Properties | None,
        payloads: list[bytes],
        packet_ids: list[int] | None,
    ) -> None:
        self.topic = topic
        self.qos = qos
        self.retain = retain
        self.dup = dup
        self.properties = properties
        self.payloads = payloads
        self.packet_ids = packet_ids


@dataclass(slots=True, init=False)
class AckRun:
    """Consecutive PUBACK, PUBREC, PUBREL or PUBCOMP (`kind`: their first byte) of success without properties."""

    kind: int
    packet_ids: list[int]

    def __init__(self, kind: int, packet_ids: list[int]) -> None:
        self.kind = kind
        self.packet_ids = packet_ids


@dataclass(slots=True)
class PubAck:
    """PUBACK with a reason or properties of its own (received plain ones come in an `AckRun`)."""

    packet_id: int
    reason_code: int = SUCCESS
    properties: Properties | None = None


@dataclass(slots=True)
class PubRec:
    """PUBREC; see PubAck."""

    packet_id: int
    reason_code: int = SUCCESS
    properties: Properties | None = None


@dataclass(slots=True)
class PubRel:
    """PUBREL; see PubAck."""

    packet_id: int
    reason_code: int = SUCCESS
    properties: Properties | None = None


@dataclass(slots=True)
class PubComp:
    """PUBCOMP; see PubAck."""

    packet_id: int
    reason_code: int = SUCCESS
    properties: Properties | None = None


@dataclass(slots=True, frozen=True)
class SubscriptionOptions:
    """Options of one filter (3.8.3.1); 3.1.1 knows `qos` alone."""

    qos: int = 0
    no_local: bool = False
    retain_as_published: bool = False
    retain_handling: int = 0


@dataclass(slots=True)
class Subscribe:
    """SUBSCRIBE. Filters are well-formed; whether they are served decides their own SUBACK code."""

    packet_id: int
    filters: list[tuple[bytes, SubscriptionOptions]]
    subscription_id: int | None = None
    properties: Properties | None = None


@dataclass(slots=True)
class SubAck:
    """SUBACK: one reason code (granted QoS or an error) a filter."""

    packet_id: int
    reason_codes: list[int]
    properties: Properties | None = None


@dataclass(slots=True)
class Unsubscribe:
    """UNSUBSCRIBE."""

    packet_id: int
    filters: list[bytes]
    properties: Properties | None = None


@dataclass(slots=True)
class UnsubAck:
    """UNSUBACK; 3.1.1 sends no reason codes."""

    packet_id: int
    reason_codes: list[int] = field(default_factory=list)
    properties: Properties | None = None


@dataclass(slots=True)
class PingReq:
    """PINGREQ."""


@dataclass(slots=True)
class PingResp:
    """PINGRESP."""


@dataclass(slots=True)
class Disconnect:
    """DISCONNECT. In 3.1.1 only a client sends it, and it carries nothing."""

    reason_code: int = SUCCESS
    properties: Properties | None = None


@dataclass(slots=True)
class Auth:
    """AUTH (MQTT 5)."""

    reason_code: int = SUCCESS
    properties: Properties | None = None


Ack: TypeAlias = PubAck | PubRec | PubRel | PubComp
Answer: TypeAlias = ConnAck | Ack | SubAck | UnsubAck | Disconnect
Packet: TypeAlias = (
    Connect
    | ConnAck
    | Publish
    | Ack
    | Subscribe
    | SubAck
    | Unsubscribe
    | UnsubAck
    | PingReq
    | PingResp
    | Disconnect
    | Auth
)
Received: TypeAlias = (
    PublishRun
    | AckRun
    | Connect
    | ConnAck
    | Ack
    | Subscribe
    | SubAck
    | Unsubscribe
    | UnsubAck
    | PingReq
    | PingResp
    | Disconnect
    | Auth
)
