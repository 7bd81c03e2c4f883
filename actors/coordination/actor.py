"""The Ray actor around `CoordinationServer`: named `coordination`, detached, pinned to the node of its registry."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from lexicast.cluster.config.tables import SecurityConfig
from lexicast.cluster.errors import LexicastError, StoreError, StoreFormatError, UnavailableError, UsageError
from lexicast.cluster.leadership import GroupState
from lexicast.cluster.membership import ClusterInfo, CoordinatorReport, Member, Members
from lexicast.cluster.protocol.heartbeat import detecting_beats
from lexicast.cluster.security.files import SecurityFiles, wanted
from lexicast.storage.registry import Registry

from ..ray.serving import LASTING
from .recovering import links_key, stores_here
from .server import REGISTRY_FOLDER, CoordinationServer
from .watching import CoordinatorWatch

# After a crash the old process may hold the registry's lock for a moment.
OPEN_TRIES: Final = 20
OPEN_PAUSE_S: Final = 0.25


class CoordinationActor:
    """Constructing never fails (Ray would restart it for ever): `ready` raises the reason instead.

    What may pass (a registry that is in use, a disk that is full) is tried again by the next call.
    """

    def __init__(self, name: str, config: dict[str, Any], coordinators: list[str], run: str) -> None:
        """`config`: a whole Config as plain values; `node.data_dir` must be set. `run` names this `up`."""
        self._name = name
        self._config = config
        self._coordinators = coordinators
        self._run = run
        self._opening = asyncio.Lock()
        self._server: CoordinationServer | None = None
        self._watch: CoordinatorWatch | None = None
        self._error: LexicastError | None = None

    async def _serving(self) -> CoordinationServer:
        """The server, opened by the first call. Raises why there is none."""
        async with self._opening:
            if self._server is None and self._error is None:
                try:
                    self._server = await self._open()
                    self._watch = CoordinatorWatch(self._server, detecting_beats(self._config["cluster"]["detect_s"]))
                except LASTING as error:
                    self._error = error
                except OSError as error:
                    raise StoreError(f"{self._name}: {error}") from None
        if self._server is None:
            raise self._error or UnavailableError(f"{self._name} has stopped")
        return self._server

    async def _open(self) -> CoordinationServer:
        cluster, folder = self._config["cluster"], Path(self._config["node"]["data_dir"])
        registry = await _open_registry(folder / REGISTRY_FOLDER)
        names, key = {*self._coordinators, *stores_here(folder)}, links_key(folder)
        try:
            least, copies = max(1, cluster["min_copies"]), cluster["copies"]
            server = CoordinationServer(registry, cluster["groups"], sorted(names), least, self._run, copies, key=key)
            security = SecurityConfig(**self._config["security"])
            server.security_paths, server.token_algorithms = wanted(security), security.jwt_algorithms
            return server
        except BaseException:
            registry.close()
            raise

    async def ready(self) -> dict[str, Any]:
        """{"pid", "addresses", "mqtt_port", "coordinators", "groups"}. Raises why it does not serve."""
        status = (await self._serving()).status()
        return {
            "pid": os.getpid(),
            "addresses": [],
            "mqtt_port": 0,
            "coordinators": status["coordinators"],
            "groups": status["groups"],
        }

    async def status(self) -> dict[str, Any]:
        """See `CoordinationServer.status`."""
        return (await self._serving()).status()

    async def stop(self) -> None:
        """Close the registry; every later call raises UnavailableError."""
        async with self._opening:
            self._error = UnavailableError(f"{self._name} has stopped")
            if self._watch is not None:
                await self._watch.stop()
            if self._server is not None:
                self._server.close()
                self._server = None

    async def cluster(self, wait: bool = True) -> ClusterInfo:
        return await (await self._serving()).cluster(wait)

    async def open_groups(self, member: str, known: dict[int, int], cluster_id: str | None) -> dict[int, GroupState]:
        return await (await self._serving()).open_groups(member, known, cluster_id)

    async def report_wanted(self, wait_s: float) -> bool:
        return await (await self._serving()).report_wanted(wait_s)

    async def report(self, member: str, report: CoordinatorReport) -> bool:
        return await (await self._serving()).report(member, report)

    async def give_up_missing(self) -> dict[str, Any]:
        return await (await self._serving()).give_up_missing()

    async def register(self, kind: str, member: Member) -> int:
        return await (await self._serving()).register(kind, member)

    async def leave(self, kind: str, name: str) -> None:
        await (await self._serving()).leave(kind, name)

    async def members(self, known_version: int, wait_s: float) -> Members:
        server = await self._serving()
        await server.cluster()  # one that has lost its registry knows nobody yet: that is no news
        return await server.members(known_version, wait_s)

    async def change_groups(self, changes: dict[int, tuple[GroupState, GroupState]]) -> dict[int, GroupState]:
        return await (await self._serving()).change_groups(changes)

    async def add_coordinators(self, nodes: dict[str, str]) -> None:
        """See `CoordinationServer`; so are the next two."""
        await (await self._serving()).add_coordinators(nodes)

    async def cells_report(self, broker: str, report: tuple[Any, ...]) -> None:
        await (await self._serving()).cells_report(broker, report)

    async def broker_lives(self, broker: str, sample: tuple[Any, ...] | None) -> bool:
        return await (await self._serving()).broker_lives(broker, sample)

    async def drain_node(self, node: str, leaving: bool) -> None:
        await (await self._serving()).drain_node(node, leaving)

    async def remove_node(self, node: str) -> None:
        server = await self._serving()
        if node == self._config["node"]["name"]:
            raise UsageError(f"{node} has the coordination server: start the cluster on another head first")
        await server.remove_node(node)

    async def security(self) -> SecurityFiles:
        return await (await self._serving()).security()

    async def give_security(self, files: Mapping[str, bytes], starting: bool = False) -> tuple[int, list[str]]:
        return await (await self._serving()).give_security(files, starting)

    async def restore_security(self, files: SecurityFiles) -> bool:
        return await (await self._serving()).restore_security(files)

    async def refuse_security(self, why: str) -> None:
        await (await self._serving()).refuse_security(why)

    async def change_group(self, group: int, expected: GroupState, new: GroupState) -> bool:
        return await (await self._serving()).change_group(group, expected, new)


async def _open_registry(folder: Path) -> Registry:
    """The registry, tried again while its lock is held. Raises StoreError."""
    for _ in range(OPEN_TRIES):
        try:
            return Registry(folder)
        except StoreFormatError:
            raise
        except StoreError as error:
            held = error
            await asyncio.sleep(OPEN_PAUSE_S)
    raise held
