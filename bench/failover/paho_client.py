"""The drills' clients: paho-mqtt."""

from __future__ import annotations

import asyncio
import re
import socket
import threading
import time
from collections.abc import Sequence
from typing import Any, Final

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion, MQTTErrorCode, MQTTProtocolVersion
from paho.mqtt.subscribeoptions import SubscribeOptions

from .audit import Audit, Party
from .brokers import AGAIN_S, DIAL_S, END_S, FILTER, KEEP_ALIVE_S, TURN_S, Brokers, DrillPace, ListedClient
from .mqtt5_properties import session_stays, with_condition

_RELEASED: Final = re.compile(r"Sending PUBREL \(Mid: (\d+)\)")
_PUBLISHED: Final = re.compile(r"Sending PUBLISH \(d\d, q2, r\d, m(\d+)\)")


class PahoDrillClient(ListedClient):
    """paho-mqtt in a thread of its own, which drives it: `loop` is all that it needs."""

    def __init__(self, party: Party, audit: Audit, pace: DrillPace | None, brokers: Brokers) -> None:
        super().__init__(party, audit, pace, brokers)
        self._numbers: dict[int, int] = {}  # packet id -> number
        self._released: set[int] = set()  # packet ids whose PUBREL was sent
        self._ending = False
        self._subscribed = threading.Event()
        self._thread = threading.Thread(target=self._run, name=party.name, daemon=True)
        version = MQTTProtocolVersion.MQTTv5 if party.where else MQTTProtocolVersion.MQTTv311
        # MQTT 5 says so when it connects.
        client = paho.Client(
            CallbackAPIVersion.VERSION2,
            client_id=party.name,
            clean_session=None if party.where else False,
            protocol=version,
        )
        self._connecting: dict[str, Any] = {}
        if party.where:
            self._connecting = {"clean_start": False, "properties": session_stays()}
        client.connect_timeout = DIAL_S
        client.on_connect = self._on_connect
        client.on_message = self._on_message
        client.on_publish = self._on_publish
        client.on_log = lambda _client, _userdata, _level, text: self.logged(text)
        client.on_subscribe = lambda _client, _userdata, _packet_id, reasons, _properties: self.subscribed(reasons)
        self._client = client

    async def start(self) -> None:
        self._thread.start()
        if self._pace is None and not await asyncio.to_thread(self._subscribed.wait, END_S):
            raise TimeoutError

    def _on_connect(self, client: Any, userdata: Any, flags: Any, reason: Any, properties: Any) -> None:
        if reason.is_failure:
            return
        self._brokers.at = self._brokers.host
        if self._pace is None:
            if self.party.where:
                options = SubscribeOptions(qos=self.party.qos)
                client.subscribe(FILTER, options=options, properties=with_condition(self.party.where))
            else:
                client.subscribe(FILTER, self.party.qos)

    @property
    def ready(self) -> bool:
        """Whether it has subscribed."""
        return self._subscribed.is_set()

    def subscribed(self, reasons: Sequence[Any]) -> None:
        """SUBACK has come."""
        if any([reason.is_failure for reason in reasons]):
            self._audit.notes.append(f"{self.party.name} may not subscribe: {reasons[0]}")
        else:
            self._subscribed.set()

    def _on_message(self, client: Any, userdata: Any, message: Any) -> None:
        self._audit.arrived(self.party.name, message.payload, time.monotonic(), dup=message.dup)

    def sent(self, packet_id: int, number: int) -> None:
        """A publication with QoS 1 or 2 was given to paho."""
        self._numbers[packet_id] = number

    def logged(self, text: str) -> None:
        """One line of paho's log."""
        if (found := _RELEASED.match(text)) is not None:
            self._released.add(int(found[1]))
        elif (found := _PUBLISHED.match(text)) is not None and int(found[1]) in self._released:
            self._released.discard(int(found[1]))
            self._audit.anew(self.party.name, self._numbers[int(found[1])])

    def _on_publish(self, client: Any, userdata: Any, packet_id: int, reason: Any, properties: Any) -> None:
        self._released.discard(packet_id)
        number = self._numbers.pop(packet_id, None)
        if number is not None:
            self._audit.acknowledged(self.party.name, number)

    def _run(self) -> None:
        while not self._ending:
            try:
                # Who does not answer is passed over: of every try paho's state of QoS 2 remembers less.
                socket.create_connection((self._brokers.host, self._brokers.port), DIAL_S).close()
                if self._pace is None:
                    self._audit.connected(self.party.name)
                where = self._brokers.host, self._brokers.port
                self._client.connect(*where, keepalive=KEEP_ALIVE_S, **self._connecting)
            except OSError:
                self._brokers.failed()
                time.sleep(AGAIN_S)
                continue
            self._serve()

    def _serve(self) -> None:
        """One connection, to its end."""
        while self._client.loop(TURN_S) == MQTTErrorCode.MQTT_ERR_SUCCESS:
            if self._ending or self._going_home:
                self._client.disconnect()
            elif self._pace is not None and self._client.is_connected():
                self._publish_due(self._pace)
        self._audit_resent()
        self._next_broker()
        time.sleep(AGAIN_S)

    def _publish_due(self, pace: DrillPace) -> None:
        if not pace.due(self.party.name, time.monotonic()):
            return
        number, topic, payload = self._audit.publish(self.party.name, time.monotonic())
        told = self._client.publish(topic, payload, self.party.qos)
        if self.party.qos:
            self.sent(told.mid, number)

    def _audit_resent(self) -> None:
        if self._pace is not None:
            self._audit.resent(self.party.name, self._numbers.values())

    async def stop(self) -> None:
        self._ending = True
        await asyncio.to_thread(self._thread.join, END_S)
