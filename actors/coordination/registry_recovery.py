"""The part of the coordination server that gets back what its registry has lost: it decides what to write and when;
what follows from reports is in `recovering`.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from contextlib import suppress
from typing import Any, Final

from lexicast.cluster.leadership import GroupState, Leadership
from lexicast.cluster.membership import COORDINATOR, CoordinatorReport, Member
from lexicast.cluster.recovery import UNKNOWN
from lexicast.storage.registry import Registry

from .recovering import Recovery

log = logging.getLogger(__name__)

WANTED_S_MAX: Final = 60.0
# How long everybody has to report when what is lost is given up.
REPORTS_S: Final = 10.0
REPORTS_LOOK_S: Final = 0.05


class RegistryRecovery(ABC):
    """See the module's docstring."""

    recovery: Recovery
    _claims: set[str]
    _cluster: dict[str, Any]
    _durable: dict[int, GroupState]
    _founded: asyncio.Event
    _leadership: Leadership
    _lost: set[str]
    _members: dict[str, dict[str, Member]]
    _registry: Registry
    _version: int

    @abstractmethod
    def _load_groups(self, cluster: Mapping[str, Any]) -> dict[int, GroupState]:
        """The stored states."""

    @abstractmethod
    def _commit_groups(self, states: Mapping[int, GroupState]) -> None:
        """Make states durable that hold already."""

    @abstractmethod
    def _check_store(self, member: str, known: dict[int, int], cluster_id: str | None) -> None:
        """Raises StoreFormatError: a store cannot be of this cluster."""

    @abstractmethod
    async def register(self, kind: str, member: Member) -> int:
        """See `Coordination`."""

    @abstractmethod
    def status(self) -> dict[str, Any]:
        """What the server says."""

    async def report_wanted(self, wait_s: float) -> bool:
        """See `Coordination`, as the next one; what operators ask for, see `OperatedCoordination`."""
        if self._founded.is_set() and not self.recovery.unknown:
            with suppress(TimeoutError):
                async with asyncio.timeout(min(wait_s, WANTED_S_MAX)):
                    await self.recovery.opened.wait()
        return not self._founded.is_set() or bool(self.recovery.unknown)

    async def report(self, member: str, report: CoordinatorReport) -> bool:
        if self._founded.is_set():
            self._check_store(member, dict.fromkeys(report.reports, 0), report.cluster_id)
            self._forget_outdated(report)
        if not self._founded.is_set() or self.recovery.unknown:
            self.recovery.take(member, report)
            self.adopt()
            serving = self.recovery.serving() if self._founded.is_set() else ()
            self._recover()
            for each in serving:
                if not self._is_registered(each):
                    await self.register(COORDINATOR, each)
        return not self._founded.is_set() or bool(self.recovery.unknown)

    async def give_up_missing(self) -> dict[str, Any]:
        self.adopt(at_once=True)
        await self._open_stranded()
        self._recover(give_up=True)
        return self.status()

    async def _open_stranded(self) -> None:
        """Groups of which nobody is left who counts, as the registry knows: who is there reports what it has."""
        states = self._leadership.states()
        stranded = [group for group, state in states.items() if state.leader and {*state.in_sync} <= self._lost]
        if not stranded:
            return
        self.recovery.begin(stranded)
        self._leadership = Leadership({**states, **dict.fromkeys(stranded, UNKNOWN)})
        with suppress(TimeoutError):
            async with asyncio.timeout(REPORTS_S):
                alive = self._members[COORDINATOR].keys() - self._lost
                while not alive <= {*self.recovery.reporters}:  # noqa: ASYNC110  # they report in their time
                    await asyncio.sleep(REPORTS_LOOK_S)

    def _note_empty(self, members: Collection[str]) -> None:
        """Who has no store may have had one: nobody takes it for one that knows nothing."""
        self.recovery.empty.update(members)
        self._registry.commit({"empty": sorted(self.recovery.empty)})

    def _forget_outdated(self, report: CoordinatorReport) -> None:
        """A registry that does not know an epoch which a store knows is an older one that was put back: what it says of
        that group is not true any more."""
        states = self._leadership.states()
        outdated = [group for group, told in report.reports.items() if told.newest > states[group].epoch]
        if outdated and not self.recovery.unknown.keys() >= {*outdated}:
            log.warning("the registry is older than what the stores know of %d groups", len(outdated))
            self.recovery.begin(outdated)
            self._leadership = Leadership({**states, **dict.fromkeys(outdated, UNKNOWN)})

    def adopt(self, at_once: bool = False) -> None:
        """Take the cluster from what its stores know, where the registry was lost. `at_once`: wait for nobody else."""
        rows = None if self._founded.is_set() else self.recovery.adopted(self._cluster, self._claims, at_once)
        if rows is not None:
            self._registry.commit(rows)
            self._cluster, self._version = rows["cluster"], rows["version"]
            self._durable = self._load_groups(self._cluster)
            self._leadership = Leadership(self._durable)
            self._note_empty(self._claims)
            self._founded.set()

    def _recover(self, give_up: bool = False) -> None:
        """Groups of which it is certain by now who has everything are led again."""
        if not self._founded.is_set():
            return
        roster = self._cluster["coordinators"]
        if strangers := {*self.recovery.reporters}.difference(roster):
            cluster = {**self._cluster, "coordinators": sorted({*roster, *strangers})}
            self._registry.commit({"cluster": cluster})
            self._cluster = cluster
        if found := self.recovery.decided(self._cluster, give_up):
            self._leadership = Leadership({**self._leadership.states(), **found})
            self._commit_groups(found)
            self.recovery.known(found)

    def _is_registered(self, member: Member) -> bool:
        known = self._members[COORDINATOR].get(member.name)
        return known is not None and (known.pid, known.addresses) == (member.pid, member.addresses)
