"""What a coordinator tells a coordination server that has lost its registry, or rows of it; and its place among the
members, which may be lost with it.

Before it serves it reports once, or until nothing is open any more; while it serves, whenever that is wanted.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, Protocol

from lexicast.cluster.errors import LexicastError
from lexicast.cluster.leadership import GroupState
from lexicast.cluster.membership import COORDINATOR, ClusterInfo, Coordination, CoordinatorReport, Member
from lexicast.cluster.recovery import NOTHING
from lexicast.storage.store import Store

from ...loop.background import keep_going, stop_loops
from ..led_groups import LedGroups
from .leadership import GroupLeadership

log = logging.getLogger(__name__)

MEMBERS_WAIT_S: Final = 30.0
RETRY_S: Final = 0.5
AGAIN_S: Final = 1.0
# How long a coordinator that starts waits for the others to report too; its groups may be led by somebody else then.
SETTLED_S: Final = 20.0
SETTLED_AGAIN_S: Final = 0.2


async def report_before_serving(
    coordination: Coordination, name: str, cluster_id: str, store: Store, settled_s: float = SETTLED_S
) -> None:
    """Report what the store knows. Returns when nothing is open, or after `settled_s`: what is open then is led by
    nobody yet, everything else can be. Raises LexicastError."""
    loop = asyncio.get_running_loop()
    until_s = loop.time() + settled_s
    while await coordination.report(name, CoordinatorReport(cluster_id, store.groups, store.reports())):
        if loop.time() > until_s:
            return
        await asyncio.sleep(SETTLED_AGAIN_S)


class Leading(Protocol):
    """The groups that are led here, or about to be."""

    @property
    def states(self) -> Callable[[], dict[int, GroupState]]:
        """Says under which state each."""
        ...

    async def lead(self, states: Mapping[int, GroupState]) -> None:
        """Lead these too. Raises LexicastError."""


class LeadingAlone:
    """`Leading` of a coordinator whose groups have no copies: nobody else gives it any."""

    def __init__(self, led: LedGroups) -> None:
        self._led = led
        self.states = self._states

    def _states(self) -> dict[int, GroupState]:
        groups = self._led.sequencer.groups
        return {number: GroupState(group.epoch, self._led.name, group.in_sync) for number, group in groups.items()}

    async def lead(self, states: Mapping[int, GroupState]) -> None:
        """See `Leading`."""
        self._led.close_groups(states)
        await self._led.open(states)


class LeadingWithOthers:
    """`Leading` of a coordinator that takes part in copies, which opens by itself what it is given."""

    def __init__(self, leadership: GroupLeadership) -> None:
        self.states = leadership.states

    async def lead(self, states: Mapping[int, GroupState]) -> None:
        """See `Leading`."""


class Reporting:
    """Reports for a coordinator that serves. `leading` opens what is given to it meanwhile."""

    def __init__(
        self, coordination: Coordination, info: ClusterInfo, member: Member, store: Store, leading: Leading
    ) -> None:
        self._coordination = coordination
        self._info = info
        self._member = member
        self._store = store
        self._leading = leading
        self._version = -1
        self._tasks = [
            keep_going(self._forever(self._report), "reporting to the coordination server"),
            keep_going(self._forever(self._look), "looking whether the coordination server knows this coordinator"),
        ]

    async def stop(self) -> None:
        """Report no more."""
        await stop_loops(*self._tasks)

    async def _forever(self, step: Callable[[], Awaitable[None]]) -> None:
        while True:
            try:
                await step()
            except LexicastError as error:
                log.debug("the coordination server: %s", error)
                await asyncio.sleep(RETRY_S)

    async def _report(self) -> None:
        if await self._coordination.report_wanted(MEMBERS_WAIT_S):
            await self._coordination.report(self._member.name, self._made())
            await asyncio.sleep(AGAIN_S)

    def _made(self) -> CoordinatorReport:
        reports = self._store.reports()
        for group, state in self._leading.states().items():
            reports[group] = reports.get(group, NOTHING)._replace(leads=state)
        info = self._info
        return CoordinatorReport(info.cluster_id, info.groups, reports, info.key, self._member)

    async def _look(self) -> None:
        members = await self._coordination.members(self._version, MEMBERS_WAIT_S)
        own = members.coordinators.get(self._member.name)
        if own is None:
            await self._coordination.register(COORDINATOR, self._member)
        states = self._leading.states()
        given = {
            group: state
            for group, state in members.groups.items()
            if state.leader == self._member.name and (group not in states or states[group].epoch < state.epoch)
        }
        if given:
            await self._leading.lead(given)
        self._version = members.version
