"""The cluster's status as one broker can tell it: over its own links to the coordinators, over Ray to the others.

`lexicast status` and Python clients ask a broker, which asks all actors at once, none for longer than ASK_TIMEOUT_S.
What it has waited for the coordination server comes off that: whoever asks has an answer within SNAPSHOT_S.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, Protocol

from lexicast.cluster.errors import LexicastError
from lexicast.cluster.membership import BROKER, COORDINATOR, ClusterInfo, Coordination

from ..link.link import Link
from .report import ROLES, UNKNOWN, MissingError, answer_of, gather

ASK_TIMEOUT_S: Final = 2.0
SNAPSHOT_S: Final = 2.5

AskActor = Callable[[str, float], Awaitable[dict[str, Any]]]


class CoordinatorLine(Protocol):
    """A broker's line to one coordinator."""

    @property
    def link(self) -> Link | None:
        """The link; None while there is none."""

    @property
    def lost_us(self) -> int:
        """Since when there is none, if so."""


async def cannot_ask(name: str, timeout_s: float) -> dict[str, Any]:
    """`ask_actor` of brokers that run without Ray. Raises MissingError."""
    raise MissingError("it cannot be asked from here", UNKNOWN)


class ClusterStatus:
    """See the module's docstring."""

    def __init__(
        self,
        broker: str,
        own_status: Callable[[], dict[str, Any]],
        info: ClusterInfo,
        coordination: Coordination,
        coordinators: Mapping[str, CoordinatorLine],
        ask_actor: AskActor = cannot_ask,
    ) -> None:
        """`coordinators`: the lines of this broker, by name, as they are when somebody asks. `ask_actor(name,
        timeout_s)` asks an actor that this broker has no line to."""
        self._broker = broker
        self._own_status = own_status
        self._info = info
        self._coordination = coordination
        self._coordinators = coordinators
        self._ask_actor = ask_actor

    async def snapshot(self) -> dict[str, Any]:
        """See `report.gather`."""
        loop = asyncio.get_running_loop()
        until_s = loop.time() + SNAPSHOT_S
        said = await self._said()
        return await gather(said, partial(self._ask, timeout_s=min(ASK_TIMEOUT_S, until_s - loop.time())))

    async def some(self, names: Sequence[str]) -> dict[str, Any]:
        """What these actors say about themselves, by name, as in `snapshot`."""
        ask = partial(self._ask, timeout_s=ASK_TIMEOUT_S)
        answers = [answer_of(ask, self._kind_of(name), name) for name in names]
        return dict(zip(names, await asyncio.gather(*answers), strict=True))

    def _kind_of(self, name: str) -> str:
        return BROKER if name == self._broker else COORDINATOR if name in self._coordinators else ""

    async def _said(self) -> dict[str, Any]:
        """What the coordination server says; while it is away, what this broker knows."""
        try:
            async with asyncio.timeout(ASK_TIMEOUT_S):
                return await self._coordination.overview()
        except (LexicastError, TimeoutError) as error:
            members: dict[str, dict[str, Any]] = {kind: {} for kind in ROLES.values()}
            members[BROKER][self._broker] = {}
            members[COORDINATOR] = {name: {} for name in self._coordinators}
            return {
                "error": str(error) or f"no answer for {ASK_TIMEOUT_S:.0f} s",
                "cluster_id": self._info.cluster_id,
                "coordinators": sorted(self._coordinators),
                "groups": self._info.groups,
                "group_states": {},
                "members": members,
            }

    async def _ask(self, kind: str, name: str, timeout_s: float) -> dict[str, Any]:
        if kind == BROKER and name == self._broker:
            return self._own_status()
        line = self._coordinators.get(name) if kind == COORDINATOR else None
        if line is None:
            return await self._ask_actor(name, timeout_s)
        if line.link is not None:
            answer: dict[str, Any] = await line.link.request("status", timeout_s=timeout_s)
            return answer
        since_us = line.lost_us
        try:
            answer = await self._ask_actor(name, timeout_s)
        except MissingError as error:
            raise MissingError(str(error), error.fate, since_us) from None
        except LexicastError as error:
            raise MissingError(str(error), UNKNOWN, since_us) from None
        return answer | {"unlinked_since_us": since_us}
