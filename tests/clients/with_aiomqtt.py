"""aiomqtt: an event loop in a thread of its own has all connections."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from typing import Any, TypeVar

import aiomqtt
from paho.mqtt.packettypes import PacketTypes

from ..support.mqtt_harness import HOST, WAIT_S
from .connected import WEBSOCKET_PATH, Asked, Connected, Said
from .with_paho import as_said, properties, publish_properties

T = TypeVar("T")


class Loop:
    """An event loop in a thread of its own."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run something there, and wait for it."""
        return asyncio.run_coroutine_threadsafe(_within(work), self._loop).result()

    def connect(self, asked: Asked) -> AiomqttConnected:
        """A client that is connected."""
        return AiomqttConnected(self, asked)

    def end(self) -> None:
        """Stop it."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(WAIT_S)
        self._loop.close()


async def _within(work: Coroutine[Any, Any, T]) -> T:
    async with asyncio.timeout(WAIT_S):
        return await work


class AiomqttConnected(Connected):
    """It does not tell whether there was a session."""

    def __init__(self, loop: Loop, asked: Asked) -> None:
        super().__init__()
        self._loop, self._version = loop, asked.version
        self._aliases: set[int] = set()
        self._open: list[Said] = []
        self._client = loop.run(self._connect(asked))

    async def _connect(self, asked: Asked) -> aiomqtt.Client:
        options: dict[str, Any] = {}
        if asked.version == 5:
            given = {"SessionExpiryInterval": asked.expiry_s, "TopicAliasMaximum": asked.aliases}
            options = {"clean_start": not asked.keeps, "properties": properties(PacketTypes.CONNECT, **given)}
        else:
            options = {"clean_session": not asked.keeps}
        if asked.encrypted:
            files = (asked.ca, asked.certificate or None, asked.key or None)
            options["tls_params"] = aiomqtt.TLSParameters(*files)
        if asked.framed:
            options |= {"transport": "websockets", "websocket_path": WEBSOCKET_PATH}
        if asked.user:
            options |= {"username": asked.user, "password": asked.password}
        if asked.will:
            topic, words = asked.will
            options["will"] = aiomqtt.Will(topic, words.encode(), 1)
        protocol, name = aiomqtt.ProtocolVersion(asked.version), asked.client_id
        client = aiomqtt.Client(HOST, asked.port, identifier=name, protocol=protocol, timeout=WAIT_S, **options)
        await client.__aenter__()
        self._taking = asyncio.create_task(self._take(client))
        return client

    async def _take(self, client: aiomqtt.Client) -> None:
        with suppress(aiomqtt.MqttError):  # the connection has ended
            async for message in client.messages:
                self._arrived.put(as_said(message))

    def subscribe(self, name: str, qos: int, user: tuple[str, str] | None = None) -> None:
        found = properties(PacketTypes.SUBSCRIBE, UserProperty=user)
        (granted,) = self._loop.run(self._client.subscribe(name, qos=qos, properties=found))
        assert (granted if isinstance(granted, int) else granted.value) == qos

    def publish(self, publications: Sequence[Said]) -> None:
        self._open += publications

    def published(self) -> None:
        publications, self._open = self._open, []
        self._loop.run(self._publish(publications))

    async def _publish(self, publications: Sequence[Said]) -> None:
        for each in publications:
            topic = "" if each.alias in self._aliases else each.topic
            if each.alias:
                self._aliases.add(each.alias)
            found = publish_properties(each) if self._version == 5 else None
            await self._client.publish(topic, each.payload, each.qos, each.retain, found)

    def close(self) -> None:
        self._loop.run(self._close())

    async def _close(self) -> None:
        with suppress(aiomqtt.MqttError):
            await self._client.__aexit__(None, None, None)
        await self._taking
