"""What the matrix wants of a client library: each has a module that does it by the library's own means."""

from __future__ import annotations

import queue
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

from ..support.mqtt_harness import HOST, WAIT_S

WEBSOCKET_PATH = "/mqtt"


class Asked(NamedTuple):
    """How to connect. `way`: mqtt, mqtts, ws or wss; `version`: 4 (3.1.1) or 5; `keeps`: the session stays, an hour in
    MQTT 5; `ca`: the file of the authority that is trusted; `certificate`, `key`: the client's files; `will`: its topic
    and payload; `aliases`: so many of the broker's are taken."""

    way: str
    port: int
    client_id: str
    version: int
    keeps: bool = False
    ca: str = ""
    certificate: str = ""
    key: str = ""
    user: str = ""
    password: str = ""
    will: tuple[str, str] | None = None
    aliases: int = 0

    @property
    def encrypted(self) -> bool:
        """With TLS."""
        return self.way in ("mqtts", "wss")

    @property
    def framed(self) -> bool:
        """Over WebSocket."""
        return self.way in ("ws", "wss")

    @property
    def url(self) -> str:
        """For clients that take one."""
        return f"{self.way}://{HOST}:{self.port}{WEBSOCKET_PATH if self.framed else ''}"

    @property
    def expiry_s(self) -> int:
        """The session's, in MQTT 5."""
        return 3_600 if self.keeps else 0


class Said(NamedTuple):
    """A publication, sent or received. `user`: a user property; `alias`: the number of its topic, which the broker is
    told with the first one that has it."""

    topic: str
    payload: bytes
    qos: int = 0
    retain: bool = False
    user: tuple[str, str] | None = None
    response: str = ""
    correlation: str = ""
    alias: int = 0


class Connected(ABC):
    """A client that is connected. Everything waits, for a minute at the most.

    `session_present`: whether the broker had a session for it, None: this client does not tell; `subscribes_again`:
    whether it cannot take a session up without subscribing once more; `wants_will`: whether it asks for its will as it
    says goodbye.
    """

    session_present: bool | None = None
    subscribes_again = False
    wants_will = False

    def __init__(self) -> None:
        self._arrived: queue.Queue[Said] = queue.Queue()

    @abstractmethod
    def subscribe(self, name: str, qos: int, user: tuple[str, str] | None = None) -> None:
        """Returns when the broker has acknowledged it. `user`: a user property of SUBSCRIBE."""

    @abstractmethod
    def publish(self, publications: Sequence[Said]) -> None:
        """Hands them to the client, which sends them one after the other. See `published`."""

    @abstractmethod
    def published(self) -> None:
        """Returns when all that was handed over has been acknowledged, or, of QoS 0, sent."""

    def received(self, count: int) -> list[Said]:
        """The next ones."""
        return [self._arrived.get(timeout=WAIT_S) for _ in range(count)]

    def so_far(self) -> list[Said]:
        """Those that have come and not been taken."""
        return [self._arrived.get_nowait() for _ in range(self._arrived.qsize())]

    @abstractmethod
    def close(self) -> None:
        """Says goodbye to the broker, and returns when that is done."""
