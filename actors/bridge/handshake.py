"""The first packets of a bridge's connection: what it asks of the other broker, and what that grants. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from lexicast.cluster.bridges.definitions import V5, BridgeDefinition, BridgeSecrets
from lexicast.cluster.bridges.hops import CLUSTER_PROPERTY
from lexicast.compression.opted_out_topics import OPTOUT_PROPERTY
from lexicast.compression.wire import (
    BATCHES_PROPERTY,
    FIELDS_PROPERTY,
    HISTORY_PROPERTY,
    STREAMS_PROPERTY,
)
from lexicast.compression.wire import USER_PROPERTY as SDC

from ..mqtt.codec.packets import SUCCESS, UNSUPPORTED_VERSION, ConnAck, Connect, SubscriptionOptions
from ..mqtt.codec.packets import V5 as LEVEL_5
from ..mqtt.codec.packets import V311 as LEVEL_4
from ..mqtt.codec.properties import (
    MAXIMUM_PACKET_BYTES,
    MAXIMUM_QOS,
    REASON_STRING,
    RECEIVE_MAXIMUM,
    RETAIN_AVAILABLE,
    SERVER_KEEP_ALIVE_S,
    SESSION_EXPIRY_S,
    USER_PROPERTY,
)

PACKET_IDS: Final = 65_535
CLIENT_ID_PREFIX: Final = "lexicast-bridge"

_REASONS: Final = {
    0x80: "no reason is given",
    0x84: "it does not speak this version of MQTT: set protocol",
    0x85: "it does not take this client id: set client_id",
    0x86: "user or password are wrong",
    0x87: "this user may not connect",
    0x88: "it is not available",
    0x89: "it is busy",
    0x8A: "it has banned this client",
    0x9F: "it is connected to too often",
}


class RemoteTerms(NamedTuple):
    """What the other broker has granted. `cluster`: the id of a lexicast, else ""."""

    session_present: bool
    receive_max: int
    packet_bytes_max: int
    qos_max: int
    keeps_retained: bool
    keep_alive_s: int
    cluster: str
    aware: bool
    streams: bool
    history: bool
    batches: bool
    opted_out: tuple[bytes, ...]


def level_of(definition: BridgeDefinition) -> int:
    """MQTT's protocol level."""
    return LEVEL_5 if definition.protocol == V5 else LEVEL_4


def client_id_of(definition: BridgeDefinition, own_id: str) -> str:
    """Of a bridge; always the same, since the other broker keeps what is published meanwhile for that."""
    return definition.client_id or f"{CLIENT_ID_PREFIX}-{own_id}-{definition.name}"


def connect_of(
    definition: BridgeDefinition, secrets: BridgeSecrets, own_id: str, clean_start: bool, tells_bridge: bool
) -> Connect:
    """CONNECT. `tells_bridge`: with the bridge bit, which 3.1.1 needs in place of No Local."""
    level = level_of(definition)
    properties = None
    if level == LEVEL_5:
        asked = [(CLUSTER_PROPERTY, own_id)]
        if definition.compress:
            asked += [SDC, HISTORY_PROPERTY, FIELDS_PROPERTY, STREAMS_PROPERTY, BATCHES_PROPERTY]
        properties = {
            SESSION_EXPIRY_S: definition.session_expiry_s,
            RECEIVE_MAXIMUM: definition.receive_max,
            USER_PROPERTY: asked,
        }
    return Connect(
        level,
        client_id_of(definition, own_id),
        clean_start,
        definition.keep_alive_s,
        None,
        definition.user or None,
        secrets.password or None,
        properties,
        level == LEVEL_4 and tells_bridge,
    )


def granted_terms(definition: BridgeDefinition, connack: ConnAck) -> RemoteTerms:
    """What an accepting CONNACK grants; what it does not tell is as the standard has it (3.2.2.3)."""
    properties = connack.properties or {}
    told = [tuple(pair) for pair in properties.get(USER_PROPERTY, ())]
    return RemoteTerms(
        connack.session_present,
        properties.get(RECEIVE_MAXIMUM, PACKET_IDS),
        properties.get(MAXIMUM_PACKET_BYTES, 0),
        properties.get(MAXIMUM_QOS, 2),
        properties.get(RETAIN_AVAILABLE, 1) == 1,
        properties.get(SERVER_KEEP_ALIVE_S, definition.keep_alive_s),
        next((value for name, value in told if name == CLUSTER_PROPERTY), ""),
        SDC in told,
        STREAMS_PROPERTY in told,
        HISTORY_PROPERTY in told,
        BATCHES_PROPERTY in told,
        tuple([value.encode() for name, value in told if name == OPTOUT_PROPERTY]),
    )


def refusal(connack: ConnAck) -> str:
    """Why a CONNACK refuses, in words; empty where it does not."""
    if connack.reason_code == SUCCESS:
        return ""
    told = (connack.properties or {}).get(REASON_STRING, "")
    why = _REASONS.get(connack.reason_code, "")
    return f"it refuses the connection, 0x{connack.reason_code:02x}: {told or why or 'see the standard'}"


def refuses_version(connack: ConnAck) -> bool:
    """Whether another protocol level may be taken."""
    return connack.reason_code == UNSUPPORTED_VERSION


def subscriptions_of(definition: BridgeDefinition) -> list[tuple[bytes, SubscriptionOptions]]:
    """What is subscribed to there. Retained messages come when a subscription is new, not with each connection."""
    return [
        (
            topic.remote_side().filter.encode(),
            SubscriptionOptions(topic.qos, no_local=True, retain_as_published=True, retain_handling=1),
        )
        for topic in definition.topic
        if topic.comes_in
    ]


def failed(reason_codes: Iterable[int]) -> list[int]:
    """The numbers of the filters that a SUBACK refuses."""
    return [number for number, code in enumerate(reason_codes) if code >= 0x80]
