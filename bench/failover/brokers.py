"""What all of the drills' clients share: a list of brokers, and a pace. Four makes know nothing but to connect again.

    python      lexicast's own client, which publishes and subscribes; it reads the list where `lexicast up` writes it
    paho        a client that lives on over its connections; MQTT 3.1.1, a session that stays
    aiomqtt     a new client a connection, as its documentation says; the subscriber speaks MQTT 5
    mosquitto   `mosquitto_pub` and `mosquitto_sub`: a process a broker that was found; MQTT 3.1.1, a session that stays

All keep what is not acknowledged and send it again after they have connected again. Subscribers with a condition speak
MQTT 5, whatever their make.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from .audit import ROOT, Audit, Party

KEEP_ALIVE_S: Final = 2
DIAL_S: Final = 1.0
AGAIN_S: Final = 0.1
TURN_S: Final = 0.02
END_S: Final = 20.0
HOME_S: Final = 60.0
FILTER: Final = f"{ROOT}/#"
WHERE: Final = "where"
"""The user property of SUBSCRIBE that is a condition."""
SESSION_S: Final = 3_600
"""How long MQTT 5 sessions stay without a connection."""


@dataclass(slots=True)
class DrillPace:
    """When publishers publish: `rate` a second each, while it is `on`."""

    rate: float
    on: bool = False
    _due_s: dict[str, float] = field(default_factory=dict)

    def due(self, name: str, now_s: float) -> bool:
        """Whether it is this publisher's turn; counted as taken. What was missed is not made up for."""
        due_s, pause_s = self._due_s.get(name, 0.0), 1 / self.rate
        if not self.on or now_s < due_s:
            return False
        self._due_s[name] = pause_s + (due_s if now_s < due_s + pause_s else now_s)
        return True


class Brokers:
    """A client's list: where it is to go next. `at`: the one that it is connected to, "" while it is to none."""

    def __init__(self, hosts: Sequence[str], home: int, port: int) -> None:
        self.hosts = [*hosts[home % len(hosts) :], *hosts[: home % len(hosts)]]
        self.port = port
        self.at = ""
        self._next = 0

    @property
    def host(self) -> str:
        """Where to connect now."""
        return self.hosts[self._next % len(self.hosts)]

    def failed(self) -> None:
        """That one is gone, or not there: the next one."""
        self.at = ""
        self._next += 1

    @property
    def at_home(self) -> bool:
        """Whether it is connected to the first one."""
        return self.at == self.hosts[0]

    def go_home(self) -> None:
        """The first one again."""
        self._next = 0


class DrillClient(Protocol):
    """One client. It publishes as `party`, or subscribes as it."""

    party: Party

    @property
    def at(self) -> str:
        """The host that it is connected to; "" while it is to none."""

    @property
    def at_home(self) -> bool:
        """Whether it is connected where it belongs."""

    async def start(self) -> None:
        """Connect."""

    async def go_home(self) -> None:
        """Connect to the first of its list, where it is not connected to that one."""

    async def stop(self) -> None:
        """End."""


class ListedClient:
    """A client that goes through a list of brokers, and home when it is told to."""

    def __init__(self, party: Party, audit: Audit, pace: DrillPace | None, brokers: Brokers) -> None:
        """`pace` None: a subscriber."""
        self.party = party
        self._audit = audit
        self._pace = pace
        self._brokers = brokers
        self._going_home = False

    @property
    def at(self) -> str:
        return self._brokers.at

    @property
    def at_home(self) -> bool:
        return self._brokers.at_home

    async def go_home(self) -> None:
        self._going_home = not self._brokers.at_home

    def _next_broker(self) -> None:
        """That connection is at its end: the next of the list, or the first one when it is to go home."""
        self._brokers.failed()
        if self._going_home:
            self._going_home = False
            self._brokers.go_home()


class TaskClient(ListedClient):
    """One that a task drives: `_run`, which sets `_ready` when it is connected and, a subscriber, subscribed."""

    def __init__(self, party: Party, audit: Audit, pace: DrillPace | None, brokers: Brokers) -> None:
        super().__init__(party, audit, pace, brokers)
        self._task: asyncio.Task[None] | None = None
        self._ready = asyncio.Event()

    async def _run(self) -> None:
        raise NotImplementedError

    async def start(self) -> None:
        self._task = asyncio.create_task(self._run())
        async with asyncio.timeout(END_S):
            await self._ready.wait()

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
