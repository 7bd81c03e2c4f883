"""The drills' clients: paho-mqtt."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion, MQTTErrorCode, MQTTProtocolVersion

from .audit import Audit, Party
from .brokers import AGAIN_S, DIAL_S, END_S, FILTER, KEEP_ALIVE_S, TURN_S, Brokers, DrillPace


class PahoDrillClient:
    """paho-mqtt in a thread of its own, which drives it: `loop` is all that it needs."""

    def __init__(self, party: Party, audit: Audit, pace: DrillPace | None, brokers: Brokers) -> None:
        """`pace` None: a subscriber."""
        self.party = party
        self._audit = audit
        self._pace = pace
        self._brokers = brokers
        self._numbers: dict[int, int] = {}  # packet id -> number
        self._ending = False
        self._going_home = False
        self._subscribed = threading.Event()
        self._thread = threading.Thread(target=self._run, name=party.name, daemon=True)
        client = paho.Client(
            CallbackAPIVersion.VERSION2,
            client_id=party.name,
            clean_session=False,
            protocol=MQTTProtocolVersion.MQTTv311,
        )
        client.connect_timeout = DIAL_S
        client.on_connect = self._on_connect
        client.on_message = self._on_message
        client.on_publish = self._on_publish
        client.on_subscribe = lambda *_: self._subscribed.set()
        self._client = client

    @property
    def at(self) -> str:
        return self._brokers.at

    @property
    def at_home(self) -> bool:
        return self._brokers.at_home

    async def start(self) -> None:
        self._thread.start()
        if self._pace is None:
            await asyncio.to_thread(self._subscribed.wait, END_S)

    def _on_connect(self, client: Any, userdata: Any, flags: Any, reason: Any, properties: Any) -> None:
        if reason.is_failure:
            return
        self._brokers.at = self._brokers.host
        if self._pace is None:
            client.subscribe(FILTER, self.party.qos)

    def _on_message(self, client: Any, userdata: Any, message: Any) -> None:
        self._audit.arrived(self.party.name, message.payload, time.monotonic(), dup=message.dup)

    def _on_publish(self, client: Any, userdata: Any, packet_id: int, reason: Any, properties: Any) -> None:
        number = self._numbers.pop(packet_id, None)
        if number is not None:
            self._audit.acknowledged(self.party.name, number)

    def _run(self) -> None:
        while not self._ending:
            try:
                if self._pace is None:
                    self._audit.connected(self.party.name)
                self._client.connect(self._brokers.host, self._brokers.port, keepalive=KEEP_ALIVE_S)
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
        self._brokers.failed()
        if self._going_home:
            self._going_home = False
            self._brokers.go_home()
        time.sleep(AGAIN_S)

    def _publish_due(self, pace: DrillPace) -> None:
        if not pace.due(self.party.name, time.monotonic()):
            return
        number, topic, payload = self._audit.publish(self.party.name, time.monotonic())
        told = self._client.publish(topic, payload, self.party.qos)
        if self.party.qos:
            self._numbers[told.mid] = number

    def _audit_resent(self) -> None:
        if self._pace is not None:
            self._audit.resent(self.party.name, self._numbers.values())

    async def go_home(self) -> None:
        self._going_home = not self._brokers.at_home

    async def stop(self) -> None:
        self._ending = True
        await asyncio.to_thread(self._thread.join, END_S)
