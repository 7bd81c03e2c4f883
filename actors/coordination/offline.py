"""A new registry from the stores of a cluster that is stopped: `lexicast recover` on the machine of the coordination
server. What the stores below the data folder do not tell, coordinators elsewhere tell when they start.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from lexicast.cluster.clock import SystemClock
from lexicast.cluster.config.tables import Config
from lexicast.cluster.errors import StoreFormatError, UnavailableError
from lexicast.cluster.membership import CoordinatorReport
from lexicast.storage.environment.identity import peek_identity
from lexicast.storage.environment.options import StoreOptions
from lexicast.storage.registry import Registry
from lexicast.storage.store import Store

from .recovering import Recovery, links_key, stores_here
from .server import REGISTRY_FOLDER, CoordinationServer

BEFORE_RECOVERY: Final = "before-recovery"


async def recover_registry(config: Config, coordinators: int | None, give_up: bool) -> dict[str, Any]:
    """What the coordination server says afterwards (`CoordinationServer.status`), and under "moved" where the folder of
    a registry that cannot be read lies now ("": it could).

    `coordinators`: how many the cluster has, on all nodes; None: that is not known. Raises StoreError, UnavailableError
    (there is nothing to recover from). The caller holds the data folder.
    """
    folder = config.node.data_path()
    reports = {name: report for name in stores_here(folder) if (report := report_of_store(config, name)) is not None}
    if not reports:
        raise UnavailableError(
            f"there is no store below {folder}: start the cluster (`lexicast up`), whose coordinators tell what they "
            "know, then ask `lexicast recover` what is missing"
        )
    names = {*reports, *[f"coordinator-{number}" for number in range(coordinators or 0)]}
    registry, moved = _opened(folder / REGISTRY_FOLDER)
    server = CoordinationServer(
        registry,
        next(iter(reports.values())).groups,
        sorted(names),
        config.cluster.min_copies,
        key=links_key(folder),
        recovery=Recovery(config.cluster.min_copies, patience_s=0.0, roster_known=coordinators is not None),
    )
    try:
        for name, report in reports.items():
            await server.report(name, report)
        server.adopt(at_once=True)
        for name, report in reports.items():
            await server.report(name, report)
        told = await server.give_up_missing() if give_up else server.status()
        return {**told, "moved": moved}
    finally:
        server.close()


def report_of_store(config: Config, name: str) -> CoordinatorReport | None:
    """What the store of a coordinator knows that does not run; None when it is empty. Raises StoreError."""
    directory, options = config.node.data_path() / name, StoreOptions(**config.storage.options())
    identity = peek_identity(directory, options)
    if identity is None:
        return None
    store = Store.open(
        directory,
        cluster_id=identity.cluster_id,
        member=identity.member,
        groups=identity.groups,
        options=options,
        clock=SystemClock(),
    )
    try:
        return CoordinatorReport(identity.cluster_id, identity.groups, store.reports())
    finally:
        store.close()


def _opened(folder: Path) -> tuple[Registry, str]:
    """The registry; one that cannot be read is moved aside first, and where to. Raises StoreError."""
    try:
        return Registry(folder), ""
    except StoreFormatError:
        taken = (folder.with_name(f"{folder.name}.{BEFORE_RECOVERY}-{number}") for number in itertools.count(1))
        aside = next(path for path in taken if not path.exists())
        folder.rename(aside)
        return Registry(folder), str(aside)


def told_groups(status: dict[str, Any]) -> Sequence[tuple[str, int, int]]:
    """(coordinator, groups that it leads, groups that it holds a copy of) of each, by name."""
    states = [state for state in status["group_states"].values() if state[1]]
    names = sorted({*status["coordinators"], *[leader for _, leader, _ in states]})
    return [
        (name, sum(leader == name for _, leader, _ in states), sum(name in members for _, _, members in states))
        for name in names
    ]
