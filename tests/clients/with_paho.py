"""paho for Python, and lexicast.mqtt, which is one with dictionaries."""

from __future__ import annotations

import queue
from collections.abc import Sequence
from typing import Any

import aiomqtt
import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from ..support.mqtt_harness import HOST, WAIT_S
from .connected import WEBSOCKET_PATH, Asked, Connected, Said


def properties(packet: int, **values: Any) -> Any:
    """paho's Properties, which has no types; None where none of the values is any."""
    make: Any = Properties
    made, given = make(packet), {name: value for name, value in values.items() if value}
    for name, value in given.items():
        setattr(made, name, value)
    return made if given else None


def publish_properties(said: Said) -> Any:
    """What a publication says beside topic and payload."""
    return properties(
        PacketTypes.PUBLISH,
        UserProperty=said.user,
        ResponseTopic=said.response,
        CorrelationData=said.correlation.encode(),
        TopicAlias=said.alias,
    )


def as_said(message: paho.MQTTMessage | aiomqtt.Message) -> Said:
    """A message that has come."""
    found: Any = message.properties
    pairs = getattr(found, "UserProperty", [])
    response, correlation = getattr(found, "ResponseTopic", ""), getattr(found, "CorrelationData", b"").decode()
    assert isinstance(message.payload, bytes)
    of = (message.qos, message.retain, pairs[0] if pairs else None, response, correlation)
    return Said(str(message.topic), message.payload, *of)


class PahoConnected(Connected):
    """A client in its own thread; it connects again by itself."""

    def __init__(self, asked: Asked, kind: type[paho.Client] = paho.Client) -> None:
        super().__init__()
        self._version = asked.version
        self._events: queue.Queue[Any] = queue.Queue()
        self._infos: list[paho.MQTTMessageInfo] = []
        self._aliases: set[int] = set()
        options: dict[str, Any] = {} if asked.version == 5 else {"clean_session": not asked.keeps}
        self._client = kind(
            CallbackAPIVersion.VERSION2,
            asked.client_id,
            protocol=MQTTProtocolVersion(asked.version),
            transport="websockets" if asked.framed else "tcp",
            **options,
        )
        self._prepare(asked)
        self._client.on_connect = lambda c, u, flags, reason, p: self._events.put((flags.session_present, reason))
        self._client.on_subscribe = lambda c, u, mid, reasons, p: self._events.put(reasons[0].value)
        self._client.on_message = lambda c, u, message: self._arrived.put(as_said(message))
        if asked.version == 5:
            given = {"SessionExpiryInterval": asked.expiry_s, "TopicAliasMaximum": asked.aliases}
            options = {"clean_start": not asked.keeps, "properties": properties(PacketTypes.CONNECT, **given)}
        else:
            options = {}
        self._client.reconnect_delay_set(0, 1)
        self._client.connect(HOST, asked.port, **options)
        self._client.loop_start()
        self.session_present, reason = self._events.get(timeout=WAIT_S)
        assert not reason.is_failure, reason

    def _prepare(self, asked: Asked) -> None:
        if asked.framed:
            self._client.ws_set_options(WEBSOCKET_PATH)
        if asked.encrypted:
            self._client.tls_set(asked.ca, asked.certificate or None, asked.key or None)
        if asked.user:
            self._client.username_pw_set(asked.user, asked.password)
        if asked.will:
            self._client.will_set(*asked.will, qos=1)

    def subscribe(self, name: str, qos: int, user: tuple[str, str] | None = None) -> None:
        found = properties(PacketTypes.SUBSCRIBE, UserProperty=user)
        self._client.subscribe(name, qos=qos, properties=found)
        while isinstance(granted := self._events.get(timeout=WAIT_S), tuple):  # it has connected again
            pass
        assert granted == qos

    def publish(self, publications: Sequence[Said]) -> None:
        for each in publications:
            topic = "" if each.alias in self._aliases else each.topic
            if each.alias:
                self._aliases.add(each.alias)
            found = publish_properties(each) if self._version == 5 else None
            self._infos.append(self._client.publish(topic, each.payload, each.qos, each.retain, found))

    def published(self) -> None:
        for info in self._infos:
            info.wait_for_publish(WAIT_S)
            assert info.is_published()
        self._infos.clear()

    def close(self) -> None:
        self._client.disconnect()
        self._client.loop_stop()
