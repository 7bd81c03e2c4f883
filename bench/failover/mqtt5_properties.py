"""MQTT 5 properties of the drills' subscribers, as paho has them: a session that stays, and a condition."""

from __future__ import annotations

from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from .brokers import SESSION_S, WHERE


def session_stays() -> Properties:
    """CONNECT's."""
    made = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]  # paho leaves it out
    made.SessionExpiryInterval = SESSION_S
    return made


def with_condition(where: str) -> Properties | None:
    """SUBSCRIBE's; None without a condition."""
    if not where:
        return None
    made = Properties(PacketTypes.SUBSCRIBE)  # type: ignore[no-untyped-call]  # paho leaves it out
    made.UserProperty = (WHERE, where)
    return made
