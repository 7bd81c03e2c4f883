"""`import lexicast.mqtt as mqtt`: paho-mqtt's module with a Client that speaks dictionaries.

Every other name of `paho.mqtt.client` is found here too, so a program changes one import and no more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from paho.mqtt import client as _paho
from paho.mqtt.client import (
    MQTT_ERR_NO_CONN,
    MQTT_ERR_QUEUE_SIZE,
    MQTT_ERR_SUCCESS,
    ConnectFlags,
    DisconnectFlags,
    MQTTMessage,
    MQTTMessageInfo,
    MQTTv5,
    MQTTv31,
    MQTTv311,
    topic_matches_sub,
)
from paho.mqtt.enums import CallbackAPIVersion, MQTTErrorCode

from lexicast.actors.client.paho import OnSdcError, SdcStats
from lexicast.actors.client.paho import PahoClient as Client
from lexicast.cluster.errors import DictionaryError

if TYPE_CHECKING:
    from paho.mqtt.client import *  # type: ignore[assignment]  # noqa: F403  # all of paho's, but for its Client

__all__ = [
    "MQTT_ERR_NO_CONN",
    "MQTT_ERR_QUEUE_SIZE",
    "MQTT_ERR_SUCCESS",
    "CallbackAPIVersion",
    "Client",
    "ConnectFlags",
    "DictionaryError",
    "DisconnectFlags",
    "MQTTErrorCode",
    "MQTTMessage",
    "MQTTMessageInfo",
    "MQTTv5",
    "MQTTv31",
    "MQTTv311",
    "OnSdcError",
    "SdcStats",
    "topic_matches_sub",
]


if not TYPE_CHECKING:  # a checker that saw it would take any name for one of paho's

    def __getattr__(name: str) -> object:
        """The rest of paho's names, so that a program changes one import and no more."""
        return getattr(_paho, name)

    def __dir__() -> list[str]:
        return sorted({*globals(), *dir(_paho)})
