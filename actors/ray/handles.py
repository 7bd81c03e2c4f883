"""Actor handles behind one wall: every Ray call on them is here, so that servers never see Ray (STYLE.md row 2)."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from lexicast.cluster.errors import UnavailableError
from lexicast.cluster.leadership import GroupState
from lexicast.cluster.membership import ClusterInfo, CoordinatorReport, Member, Members
from lexicast.cluster.security.files import SecurityFiles

from .errors import may_pass, ray_errors, translated

NAMESPACE: Final = "lexicast"
COORDINATION: Final = "coordination"

# An actor's restart takes 1.0 to 1.5 s (FACTS.md), on a loaded machine several; a call gives up after this long.
RETRY_S = 60.0
RETRY_FIRST_S = 0.05
RETRY_MOST_S = 1.0
CALL_TIMEOUT_S = 60.0
END_TIMEOUT_S: Final = 30.0
# An async actor runs this many calls at once; long polls hold one each.
CONCURRENCY_MAX = 1_000


class ActorReference:
    """A named actor of this cluster. Calls by method name, so that callers need neither Ray nor the class."""

    def __init__(self, name: str, handle: Any) -> None:
        self.name = name
        self.handle = handle

    async def call(self, method: str, *arguments: Any, timeout_s: float = CALL_TIMEOUT_S) -> Any:
        """One call, once. Raises what the method raised on purpose, or UnavailableError: the actor is gone or silent,
        or failed inside."""
        with ray_errors(f"{self.name}.{method}"):
            return await self._call(method, arguments, timeout_s)

    async def _call(self, method: str, arguments: tuple[Any, ...], timeout_s: float) -> Any:
        """Raises whatever Ray raises, and TimeoutError."""
        async with asyncio.timeout(timeout_s):
            return await getattr(self.handle, method).remote(*arguments)

    async def call_retried(
        self, method: str, *arguments: Any, timeout_s: float = CALL_TIMEOUT_S, retry_s: float = RETRY_S
    ) -> Any:
        """`call`, again while the actor restarts, for at most `retry_s` seconds: for calls that may be repeated."""
        until, pause = time.monotonic() + retry_s, RETRY_FIRST_S
        while True:
            try:
                return await self._call(method, arguments, timeout_s)
            except Exception as error:
                if not may_pass(error):
                    raise translated(error, f"{self.name}.{method}") from None
                if time.monotonic() + pause > until:
                    raise UnavailableError(
                        f"{self.name} has not answered for {retry_s:.0f} s: {translated(error)}"
                    ) from None
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))
            pause = min(pause * 2, RETRY_MOST_S)

    def kill(self) -> None:
        """End the actor's process for good; nothing when it is gone. Raises UnavailableError."""
        with ray_errors(f"ending {self.name}"):
            ray.kill(self.handle, no_restart=True)


class ActorGoneError(UnavailableError):
    """Ray knows no actor of that name (any more): it does not start it again."""


def find_actor(name: str) -> ActorReference:
    """The actor of that name in the Ray that this process is connected to.

    Raises ActorGoneError, or UnavailableError when that Ray cannot be asked.
    """
    with ray_errors("looking for an actor"):
        try:
            return ActorReference(name, ray.get_actor(name, namespace=NAMESPACE))
        except ValueError:
            raise ActorGoneError(
                f"there is no lexicast actor {name!r} in this Ray: start the cluster with `lexicast up`"
            ) from None


def named_actors() -> list[str]:
    """The names of all lexicast actors in the Ray that this process is connected to, restarting ones included.

    Raises UnavailableError.
    """
    with ray_errors("looking for actors"):
        return [str(a["name"]) for a in ray.util.list_named_actors(all_namespaces=True) if a["namespace"] == NAMESPACE]


def end_actors(names: list[str]) -> None:
    """End these actors for good. Blocking. Raises UnavailableError when one is still there after END_TIMEOUT_S."""
    for name in names:
        with suppress(UnavailableError):
            find_actor(name).kill()
    until = time.monotonic() + END_TIMEOUT_S
    while left := sorted(set(names) & set(named_actors())):
        if time.monotonic() > until:
            raise UnavailableError(f"{', '.join(left)} cannot be ended: see `ray list actors`, or restart that Ray")
        time.sleep(RETRY_FIRST_S)


def spawn(
    cls: type,
    name: str,
    *arguments: Any,
    node_id: str | None = None,
    num_cpus: float = 0.0,
    runtime_env: dict[str, Any] | None = None,
) -> ActorReference:
    """Start a named, detached, ever-restarting async actor; with `node_id` on that node and no other."""
    options: dict[str, Any] = {
        "name": name,
        "namespace": NAMESPACE,
        "lifetime": "detached",
        "max_restarts": -1,
        "max_task_retries": 0,
        "max_concurrency": CONCURRENCY_MAX,
        "num_cpus": num_cpus,
    }
    if node_id is not None:
        options["scheduling_strategy"] = NodeAffinitySchedulingStrategy(node_id, soft=False)
    if runtime_env:
        options["runtime_env"] = runtime_env
    remote: Any = cls if hasattr(cls, "remote") else ray.remote(cls)
    return ActorReference(name, remote.options(**options).remote(name, *arguments))


class RayCoordination:
    """`Coordination` over the named actor; rides out its restarts."""

    def __init__(self, actor: ActorReference | None = None) -> None:
        self._actor = actor

    def _reference(self) -> ActorReference:
        if self._actor is None:
            self._actor = find_actor(COORDINATION)
        return self._actor

    async def cluster(self, wait: bool = True) -> ClusterInfo:
        info: ClusterInfo = await self._reference().call_retried("cluster", wait)
        return info

    async def open_groups(self, member: str, known: dict[int, int], cluster_id: str | None) -> dict[int, GroupState]:
        states: dict[int, GroupState] = await self._reference().call_retried("open_groups", member, known, cluster_id)
        return states

    async def report_wanted(self, wait_s: float) -> bool:
        wanted: bool = await self._reference().call_retried("report_wanted", wait_s, timeout_s=wait_s + CALL_TIMEOUT_S)
        return wanted

    async def report(self, member: str, report: CoordinatorReport) -> bool:
        still_open: bool = await self._reference().call_retried("report", member, report)
        return still_open

    async def give_up_missing(self) -> dict[str, Any]:
        told: dict[str, Any] = await self._reference().call_retried("give_up_missing")
        return told

    async def register(self, kind: str, member: Member) -> int:
        incarnation: int = await self._reference().call_retried("register", kind, member)
        return incarnation

    async def leave(self, kind: str, name: str) -> None:
        await self._reference().call_retried("leave", kind, name)

    async def members(self, known_version: int, wait_s: float) -> Members:
        members: Members = await self._reference().call_retried(
            "members", known_version, wait_s, timeout_s=wait_s + CALL_TIMEOUT_S
        )
        return members

    async def overview(self) -> dict[str, Any]:
        told: dict[str, Any] = await self._reference().call("status")
        return told

    async def change_groups(self, changes: dict[int, tuple[GroupState, GroupState]]) -> dict[int, GroupState]:
        held: dict[int, GroupState] = await self._reference().call_retried("change_groups", changes)
        return held

    async def cells_report(self, broker: str, report: tuple[Any, ...]) -> None:
        await self._reference().call("cells_report", broker, report)

    async def broker_lives(self, broker: str, sample: tuple[Any, ...] | None) -> bool:
        known: bool = await self._reference().call("broker_lives", broker, sample)
        return known

    async def drain_node(self, node: str, leaving: bool) -> None:
        await self._reference().call_retried("drain_node", node, leaving)

    async def remove_node(self, node: str) -> None:
        await self._reference().call_retried("remove_node", node)

    async def security(self) -> SecurityFiles:
        files: SecurityFiles = await self._reference().call_retried("security")
        return files

    async def give_security(self, files: Mapping[str, bytes], starting: bool = False) -> tuple[int, list[str]]:
        told: tuple[int, list[str]] = await self._reference().call_retried("give_security", dict(files), starting)
        return told

    async def restore_security(self, files: SecurityFiles) -> bool:
        taken: bool = await self._reference().call_retried("restore_security", files)
        return taken

    async def refuse_security(self, why: str) -> None:
        await self._reference().call_retried("refuse_security", why)

    async def change_group(self, group: int, expected: GroupState, new: GroupState) -> bool:
        changed: bool = await self._reference().call_retried("change_group", group, expected, new)
        return changed
