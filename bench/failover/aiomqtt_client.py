"""The drills' clients: aiomqtt."""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import suppress
from typing import Final

import aiomqtt

from .brokers import AGAIN_S, FILTER, KEEP_ALIVE_S, TURN_S, DrillPace, TaskClient
from .mqtt5_properties import session_stays, with_condition

# Connections are lost on purpose here.
QUIET: Final = logging.getLogger(f"{__name__}.aiomqtt")
QUIET.addHandler(logging.NullHandler())
QUIET.propagate = False


class AiomqttClient(TaskClient):
    """aiomqtt: a client a connection. A publisher waits for each acknowledgement, and publishes again what has none."""

    def _client(self) -> aiomqtt.Client:
        audit, name = self._audit, self.party.name

        class Heard(asyncio.Queue[aiomqtt.Message]):
            """Told of when it is acknowledged: what still lies in the queue at a connection's end is not read."""

            def put_nowait(self, item: aiomqtt.Message) -> None:
                assert isinstance(item.payload, bytes)
                audit.arrived(name, item.payload, time.monotonic())

        if self._pace is not None:
            # MQTT 5 tells a publisher why it was refused, and aiomqtt does not pass that on: 3.1.1 ends the connection.
            return aiomqtt.Client(
                self._brokers.host,
                self._brokers.port,
                identifier=name,
                protocol=aiomqtt.ProtocolVersion.V311,
                clean_session=False,
                keepalive=KEEP_ALIVE_S,
                timeout=2 * KEEP_ALIVE_S,
                logger=QUIET,
            )
        return aiomqtt.Client(
            self._brokers.host,
            self._brokers.port,
            identifier=name,
            protocol=aiomqtt.ProtocolVersion.V5,
            clean_start=False,
            properties=session_stays(),
            keepalive=KEEP_ALIVE_S,
            timeout=2 * KEEP_ALIVE_S,
            queue_type=Heard,
            logger=QUIET,
        )

    async def _run(self) -> None:
        unanswered: list[tuple[int, str, bytes]] = []
        while True:
            with suppress(aiomqtt.MqttError, OSError, TimeoutError):
                if self._pace is None:  # before the first message of a session that goes on
                    self._audit.connected(self.party.name)
                async with self._client() as client:
                    self._brokers.at = self._brokers.host
                    await self._serve(client, unanswered)
            self._next_broker()
            await asyncio.sleep(AGAIN_S)

    async def _serve(self, client: aiomqtt.Client, unanswered: list[tuple[int, str, bytes]]) -> None:
        """One connection. Raises MqttError at its end; returns when it is to go home."""
        # What is said is taken by the queue: this only raises when the connection has ended.
        ended = asyncio.ensure_future(anext(aiter(client.messages)))
        try:
            if self._pace is None:
                await client.subscribe(FILTER, self.party.qos, properties=with_condition(self.party.where))
            else:
                self._audit.resent(self.party.name, [number for number, *_ in unanswered])
            self._ready.set()
            while not self._going_home:
                if self._pace is not None:
                    await self._publish(client, self._pace, unanswered)
                if ended.done():
                    ended.result()
                await asyncio.sleep(TURN_S)
        finally:
            ended.cancel()
            await asyncio.gather(ended, return_exceptions=True)

    async def _publish(self, client: aiomqtt.Client, pace: DrillPace, unanswered: list[tuple[int, str, bytes]]) -> None:
        if not unanswered and pace.due(self.party.name, time.monotonic()):
            unanswered.append(self._audit.publish(self.party.name, time.monotonic()))
        for number, topic, payload in unanswered:
            await client.publish(topic, payload, self.party.qos)
            self._audit.acknowledged(self.party.name, number)
        unanswered.clear()
