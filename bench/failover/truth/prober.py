"""A node's prober: a program of its own in that machine's network, which asks what balancers and the page ask.

It is started by its path and needs nothing but Python, and it outlives its machine: it shares the network alone. Every
answer is a line of JSON: [what, asked, answered, ...], in seconds of the clock of all processes here (CLOCK_MONOTONIC):

    ["live", asked_s, answered_s, status]       /health/live: the status of HTTP, 0 where nothing answers
    ["ready", asked_s, answered_s, status]      /health/ready, likewise
    ["page", asked_s, answered_s, told]         /api/v1/status, as `page_told` has it; null where nothing answers
    ["events", asked_s, answered_s, texts]      /api/v1/events: what has been added since the last question
    ["canary", asked_s, answered_s, served]     publications with QoS 1 to this node's broker: whether all of them were
                                                acknowledged, and when; not, where the connection or the patience ended

The canary is what health is compared with: its topics are others each time, so that soon each topic group has had some.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any, Final, TextIO

HOST: Final = "127.0.0.1"
SERVES: Final = "serves"
HEALTH_EVERY_S: Final = 0.25
PAGE_EVERY_S: Final = 0.5
LIVE_EVERY_S: Final = 1.0
EVENTS_EVERY_S: Final = 2.0
CANARY_EVERY_S: Final = 0.25
# What has not come by then has not come: balancers wait less for health, and the page says then that it is old.
HEALTH_TIMEOUT_S: Final = 2.0
PAGE_TIMEOUT_S: Final = 5.0
CANARY_TIMEOUT_S: Final = 20.0
CONNECT_TIMEOUT_S: Final = 1.0
CANARY_TOPICS: Final = 4
ANSWER_BYTES_MAX: Final = 2 << 20
OK: Final = 200

_CONNACK_OK: Final = b"\x20\x02\x00\x00"
_PUBACK: Final = 0x40
_PUBACK_BYTES: Final = 4
_PACKET_IDS: Final = 60_000

Asked = Callable[[], Awaitable[list[Any]]]


def page_told(status: dict[str, Any]) -> dict[str, Any]:
    """Of what the page begins with: {"wrong": what is wrong, in its words, "off": nodes and processes, which it does
    not show as serving}."""
    off = [f"{row['name']} {row['state']}" for row in (*status["nodes"], *status["actors"]) if row["state"] != SERVES]
    if not status["cluster"]["coordination"]:
        off.append("coordination does not answer")
    return {"wrong": [*status["node"]["reasons"], *status["warnings"]], "off": off}


async def http_get(port: int, path: str, timeout_s: float) -> tuple[int, bytes]:
    """(status, body); (0, b"") where nothing answers in time."""
    with suppress(OSError, ValueError, IndexError, TimeoutError):
        async with asyncio.timeout(timeout_s):
            reader, writer = await asyncio.open_connection(HOST, port, limit=ANSWER_BYTES_MAX)
            try:
                writer.write(f"GET {path} HTTP/1.1\r\nHost: {HOST}:{port}\r\nConnection: close\r\n\r\n".encode())
                head, _, body = (await reader.read(-1)).partition(b"\r\n\r\n")
                return int(head.split(b" ", 2)[1]), body
            finally:
                writer.transport.abort()
    return 0, b""


async def json_of(port: int, path: str) -> Any:
    """What the page is answered; None: nothing, or not all of it."""
    status, body = await http_get(port, path, PAGE_TIMEOUT_S)
    with suppress(ValueError):
        return json.loads(body) if status == OK else None
    return None


class NewEvents:
    """What is added to the page's list of events; a console that starts again begins a new one."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._newest = 0

    async def ask(self) -> list[Any]:
        """[their texts]."""
        told = await json_of(self._port, f"/api/v1/events?after={self._newest}&limit=1000")
        rows = [] if told is None else told["rows"]
        self._newest = 0 if told is None else max([self._newest, *[row["number"] for row in rows]])
        return [[row["text"] for row in rows]]


def publish_packet(topic: str, packet_id: int, payload: bytes) -> bytes:
    """PUBLISH with QoS 1; short enough that its length is one byte."""
    name = topic.encode()
    rest = len(name).to_bytes(2, "big") + name + packet_id.to_bytes(2, "big") + payload
    return bytes([0x32, len(rest)]) + rest


def connect_packet(client: str) -> bytes:
    """CONNECT of MQTT 3.1.1, a clean session, no keep-alive."""
    rest = b"\x00\x04MQTT\x04\x02\x00\x00" + len(client).to_bytes(2, "big") + client.encode()
    return bytes([0x10, len(rest)]) + rest


class Canary:
    """Publishes to the broker of its node, over and over; connects again where that has ended."""

    def __init__(self, name: str, host: str, port: int) -> None:
        self._name = name
        self._host = host
        self._port = port
        self._numbers = count()
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self) -> list[Any]:
        """One round: [whether all of it was acknowledged]."""
        try:
            async with asyncio.timeout(CANARY_TIMEOUT_S):
                if self._streams is None:
                    async with asyncio.timeout(CONNECT_TIMEOUT_S):
                        self._streams = await self._connected()
                await self._publish(*self._streams)
        except (OSError, EOFError, TimeoutError):
            self.close()
            return [False]
        return [True]

    async def _connected(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection(self._host, self._port)
        self._streams = reader, writer
        writer.write(connect_packet(f"canary-{self._name}"))
        if await reader.readexactly(len(_CONNACK_OK)) != _CONNACK_OK:
            raise OSError("it is not let in")
        return reader, writer

    async def _publish(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        waiting = set()
        for _ in range(CANARY_TOPICS):
            number = next(self._numbers)
            waiting.add(number % _PACKET_IDS + 1)
            writer.write(publish_packet(f"canary/{self._name}/{number % 997}", number % _PACKET_IDS + 1, b"sings"))
        while waiting:
            packet = await reader.readexactly(_PUBACK_BYTES)
            if packet[0] != _PUBACK:
                raise OSError("that is no PUBACK")
            waiting.discard(int.from_bytes(packet[2:], "big"))

    def close(self) -> None:
        """End the connection."""
        if self._streams is not None:
            self._streams[1].transport.abort()
        self._streams = None


async def keep_asking(what: str, ask: Asked, every_s: float, out: TextIO) -> None:
    """Ask, note the answer, and again: a new question `every_s`, or when the last one is answered."""
    while True:
        asked_s = time.monotonic()
        told = await ask()
        answered_s = time.monotonic()
        out.write(json.dumps([what, round(asked_s, 4), round(answered_s, 4), *told]) + "\n")
        out.flush()
        await asyncio.sleep(max(0.0, asked_s + every_s - answered_s))


async def probe(name: str, host: str, http_port: int, mqtt_port: int, out: TextIO) -> None:
    """Until it is ended. The console answers on loopback, the broker at `host`."""

    async def health(which: str) -> list[Any]:
        return [(await http_get(http_port, f"/health/{which}", HEALTH_TIMEOUT_S))[0]]

    async def page() -> list[Any]:
        told = await json_of(http_port, "/api/v1/status")
        return [None if told is None else page_told(told)]

    await asyncio.gather(
        keep_asking("live", lambda: health("live"), LIVE_EVERY_S, out),
        keep_asking("ready", lambda: health("ready"), HEALTH_EVERY_S, out),
        keep_asking("page", page, PAGE_EVERY_S, out),
        keep_asking("events", NewEvents(http_port).ask, EVENTS_EVERY_S, out),
        keep_asking("canary", Canary(name, host, mqtt_port).ask, CANARY_EVERY_S, out),
    )


if __name__ == "__main__":
    with Path(sys.argv[5]).open("a", encoding="utf-8") as file:
        asyncio.run(probe(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), file))
