"""What is asked of every client, and what a client does not offer. The tests run by this, docs/clients.md tells it."""

from __future__ import annotations

from typing import Final, NamedTuple

BOTH: Final = (4, 5)
NEWER: Final = (5,)


class Feature(NamedTuple):
    """A row. `says`: as the page has it; `versions`: of MQTT, in which there is such a thing."""

    says: str
    versions: tuple[int, ...] = BOTH


FEATURES: Final = {
    "qos_0": Feature("QoS 0, both ways"),
    "qos_1": Feature("QoS 1, both ways"),
    "qos_2": Feature("QoS 2, both ways"),
    "large": Feature("a message of 300 KB, both ways"),
    "retained": Feature("retained messages, both ways"),
    "will": Feature("a will, when the link breaks"),
    "session": Feature("a session that resumes: QoS 1 and 2 published meanwhile come, no more and no less"),
    "break_sending": Feature("the link breaks while it publishes with QoS 2: all once, in order"),
    "break_receiving": Feature("the link breaks while it receives with QoS 2: all once, in order"),
    "shared": Feature("shared subscriptions: two members, each message to one"),
    "properties": Feature("user properties, response topic, correlation data, both ways", NEWER),
    "since": Feature("a subscription to the past (`since`)", NEWER),
    "aliases_in": Feature("topic aliases from the broker", NEWER),
    "aliases_out": Feature("topic aliases to the broker", NEWER),
    "user": Feature("user and password"),
    "tls": Feature("TLS"),
    "certificate": Feature("TLS, logged in by a client's certificate"),
    "websocket": Feature("WebSocket"),
    "websocket_tls": Feature("WebSocket with TLS"),
}

CLIENTS: Final = {
    "paho": "paho-mqtt (Python)",
    "ours": "`lexicast.mqtt`",
    "aiomqtt": "aiomqtt",
    "paho_c": "paho C",
    "npm": "npm `mqtt`",
    "mosquitto": "`mosquitto_sub`, `mosquitto_pub`",
}

_NO_RECONNECT: Final = "aiomqtt connects once: a program that wants to go on makes another client"
_FRAMES: Final = (
    "paho C connects, but of several packets in one frame it takes the first, and the others only when more comes "
    "[MQTT-6.0.0-2]"
)
_NO_WEBSOCKET: Final = "Mosquitto's tools know no WebSocket"

# Why a client does not do it. All others do, in all versions of the feature, and are tested.
LACKS: Final = {
    ("paho", "aliases_in"): "paho-mqtt leaves an aliased topic empty: `lexicast.mqtt` is one that shows it",
    ("aiomqtt", "aliases_in"): "as paho-mqtt, on which it is built",
    ("paho_c", "aliases_in"): "paho C leaves an aliased topic empty, and gives the program its number",
    ("paho_c", "websocket"): _FRAMES,
    ("paho_c", "websocket_tls"): _FRAMES,
    ("mosquitto", "aliases_in"): "libmosquitto 2.0 takes an aliased topic, which is empty, for a fault",
    ("aiomqtt", "break_sending"): _NO_RECONNECT,
    ("aiomqtt", "break_receiving"): _NO_RECONNECT,
    ("mosquitto", "websocket"): _NO_WEBSOCKET,
    ("mosquitto", "websocket_tls"): _NO_WEBSOCKET,
}
