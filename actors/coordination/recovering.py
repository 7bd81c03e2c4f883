"""What the coordination server does about groups that its registry does not know: a damaged row, or all of them, where
the registry was lost. Coordinators report what their stores know (`cluster.recovery`), again and again while something
is open; nobody leads such a group before it is certain who has everything, or before the operator has decided.

A coordinator that leads a group meanwhile leads on: data flows, only nothing changes places.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from lexicast.cluster.errors import StoreFormatError
from lexicast.cluster.leadership import GroupState
from lexicast.cluster.membership import COORDINATOR, CoordinatorReport, Member
from lexicast.cluster.recovery import NOTHING, recover_group
from lexicast.storage.environment.environment import DATA_FILE

from ..client.address import KEY_FILE

log = logging.getLogger(__name__)

KEY_BYTES: Final = 32
# How long a server that has lost its registry waits for coordinators to report before it serves without the rest of
# them, and before it takes it that every message lies in `min_copies` stores. They report once a second.
ADOPT_S: Final = 3.0
PATIENCE_S: Final = 10.0
# Stands for those of whom nobody here knows, where it is not known who there is.
ELSEWHERE: Final = "a coordinator elsewhere"


def stores_here(folder: Path) -> list[str]:
    """The coordinators that have a store below a data folder."""
    return sorted([path.name for path in folder.glob(f"{COORDINATOR}-*") if (path / DATA_FILE).exists()])


def links_key(folder: Path) -> bytes:
    """The key of the links of a cluster that is up and has this data folder; b"" where there is none."""
    try:
        key = (folder / KEY_FILE).read_bytes()
    except OSError:
        return b""
    return key if len(key) == KEY_BYTES else b""


class Recovery:
    """What was reported, of which groups somebody is missing, and what follows."""

    def __init__(
        self,
        min_copies: int = 1,
        time_s: Callable[[], float] = time.monotonic,
        patience_s: float = PATIENCE_S,
        roster_known: bool = False,
    ) -> None:
        """`min_copies`: in how many stores every acknowledged message lies at least; `roster_known`: who adopts a
        cluster knows by name which coordinators it has."""
        # Groups that nobody is known to lead, and who has to be asked first.
        self.unknown: dict[int, tuple[str, ...]] = {}
        self.opened = asyncio.Event()
        # Who came without a store while something was open: of these groups it has nothing to say, since it may have
        # had something once.
        self.empty: set[str] = set()
        self._patience_s = patience_s
        self._roster_known = roster_known
        self._min_copies = max(1, min_copies)
        self._time_s = time_s
        self._reports: dict[str, CoordinatorReport] = {}
        self._since_s: float | None = None

    @property
    def reporters(self) -> Collection[str]:
        """Who has reported."""
        return self._reports.keys()

    def serving(self) -> list[Member]:
        """Those who serve, and how they are reached."""
        return [report.member for report in self._reports.values() if report.member is not None]

    def begin(self, groups: Iterable[int]) -> None:
        """Of these groups nothing is known."""
        self.unknown.update(dict.fromkeys(groups, ()))
        if self.unknown:
            self.opened.set()

    def take(self, member: str, report: CoordinatorReport) -> None:
        """What a coordinator knows now. Raises StoreFormatError: it is of another cluster than others that report."""
        for name, other in self._reports.items():
            if other.cluster_id != report.cluster_id:
                raise StoreFormatError(
                    f"the stores of {member} and {name} belong to different clusters ({report.cluster_id}, "
                    f"{other.cluster_id})"
                )
        self._reports[member] = report
        if self._since_s is None:
            self._since_s = self._time_s()

    def adopted(self, cluster: dict[str, Any], empty: Collection[str], at_once: bool) -> dict[str, Any] | None:
        """The registry's rows of a cluster that is known from reports; None while others are waited for. `empty`: who
        has said that it has no store.

        The key of the links is asked for: who serves knows it, and could not be reached with another one.
        """
        if not self._reports:
            return None
        all_here = {*cluster["coordinators"]} <= {*self._reports, *empty}
        key = next((report.key for report in self._reports.values() if report.key), b"")
        if not (at_once or all_here or (key and self._waited_s() >= ADOPT_S)):
            return None
        first = next(iter(self._reports.values()))
        names = sorted({*cluster["coordinators"], *self._reports})
        now_us = time.time_ns() // 1_000
        known = {"id": first.cluster_id, "key": key or cluster["key"], "groups": first.groups, "coordinators": names}
        log.warning("the registry is new, the cluster is not: %s is taken from what its stores know", first.cluster_id)
        # Beyond whatever was counted up to: incarnations, and the version of the membership.
        served = {f"incarnation/{COORDINATOR}/{name}": now_us for name in self._reports}
        told = {"recovered_us": now_us, "roster_known": self._roster_known}
        return {"cluster": {**cluster, **known, **told}, "version": now_us, **served}

    def _waited_s(self) -> float:
        return 0.0 if self._since_s is None else self._time_s() - self._since_s

    def decided(self, cluster: Mapping[str, Any], give_up: bool = False) -> dict[int, GroupState]:
        """The states of groups of which it is certain by now, or of which what is missing is given up. `cluster`: the
        registry's row."""
        known = cluster.get("roster_known", True)
        everybody = {*cluster["coordinators"], *self._reports, *(() if known else (ELSEWHERE,))}
        least = self._min_copies if known and self._waited_s() >= self._patience_s else 1
        found: dict[int, GroupState] = {}
        for group in self.unknown:
            reports = {
                name: report.reports.get(group, NOTHING)
                for name, report in self._reports.items()
                if name not in self.empty or group in report.reports
            }
            state, self.unknown[group] = recover_group(group, reports, everybody, least, give_up)
            if state is not None:
                found[group] = state
                if self.unknown[group]:
                    log.warning("group %d: what %s alone may have is given up", group, ", ".join(self.unknown[group]))
        return found

    def known(self, groups: Iterable[int]) -> None:
        """These have a state again, durably."""
        for group in groups:
            self.unknown.pop(group, None)
        if not self.unknown:
            self.opened.clear()
            self._reports.clear()  # what was true once
            self.empty.clear()
            self._since_s = None

    def missing(self) -> list[str]:
        """All who have to be asked before every group has a leader."""
        return sorted({name for names in self.unknown.values() for name in names})
