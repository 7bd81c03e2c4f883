"""The actors of a cluster under `lexicast up`: spawned on their nodes, awaited, stopped in order.

Order of a start: the coordination server, which knows how many coordinators this cluster has; coordinators and brokers
at once, since brokers wait for the cluster's id by themselves; the sampling broker, their client. Order of a stop:
brokers (no publication comes in any more), sampling, coordinators (flush, close their stores), coordination server.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Final

from lexicast.cluster.config.tables import Config
from lexicast.cluster.errors import ConfigError, UnavailableError

from ..coordination.actor import CoordinationActor
from ..ray.handles import COORDINATION, ActorReference, spawn
from .ray_connection import ConnectedRay
from .ray_nodes import ACTOR_CPUS, worker_environment

START_TIMEOUT_S: Final = 120.0
STOP_TIMEOUT_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class ActorClasses:
    """What to start; tests put simple ones here."""

    coordinator: type
    broker: type
    sampling: type


def actor_classes() -> ActorClasses:
    """lexicast's own actors."""
    return ActorClasses(
        import_module("lexicast.actors.coordinator.actor").CoordinatorActor,
        import_module("lexicast.actors.broker.actor").BrokerActor,
        import_module("lexicast.actors.sampling.actor").SamplingActor,
    )


@dataclass(frozen=True, slots=True)
class StartedActors:
    """What the actors of a cluster said when they began to serve."""

    coordination: ActorReference
    coordination_pid: int
    brokers: dict[str, list[str]]  # name -> link addresses
    pids: dict[str, list[int]]  # of brokers, coordinators, sampling


class ClusterActors:
    """The actors of one cluster. `stop` stops what has been started, also where `start` has failed."""

    def __init__(self, ray: ConnectedRay, classes: ActorClasses, progress: Callable[[str], None]) -> None:
        self._ray = ray
        self._config = ray.config
        self._classes = classes
        self._progress = progress
        # By role, in the order in which they are stopped.
        self._started: dict[str, list[ActorReference]] = {
            "brokers": [],
            "sampling": [],
            "coordinators": [],
            COORDINATION: [],
        }

    async def start(self) -> StartedActors:
        """Start them; returns when all serve. Raises the reason why one does not."""
        nodes = self._ray.nodes.nodes
        self._progress("starting the coordination server")
        wanted = self._config.node.coordinators * len(nodes)
        names = [f"coordinator-{i}" for i in range(wanted)]
        coordination = self._spawn(COORDINATION, CoordinationActor, COORDINATION, nodes[0], names, uuid.uuid4().hex)
        async with _within(START_TIMEOUT_S, "the coordination server does not start"):
            status = await coordination.call("ready", timeout_s=START_TIMEOUT_S)
        ready = await self._start_rest(self._check_coordinators(status["coordinators"], wanted))
        brokers = [actor.name for actor in self._started["brokers"]]
        return StartedActors(
            coordination=coordination,
            coordination_pid=status["pid"],
            brokers={n: list(a["addresses"]) for n, a in zip(brokers, ready["brokers"], strict=True)},
            pids={role: [answer["pid"] for answer in answers] for role, answers in ready.items()},
        )

    def _check_coordinators(self, stored: list[str], wanted: int) -> list[str]:
        """The coordinators that this cluster was created with. Raises ConfigError when others were asked for."""
        if len(stored) != wanted and self._config.node.coordinators != Config().node.coordinators:
            raise ConfigError(
                f"this cluster was created with {len(stored)} coordinators, not {wanted}: start it with as many "
                "(--coordinators), or create a new one with another --data-dir"
            )
        return stored

    async def _start_rest(self, coordinators: list[str]) -> dict[str, list[dict[str, Any]]]:
        """All actors but the coordination server; what their `ready` gave, by role."""
        nodes, node, classes = self._ray.nodes.nodes, self._config.node, self._classes
        self._progress("starting coordinators and brokers")
        for i, name in enumerate(coordinators):
            home = nodes[min(i // node.coordinators, len(nodes) - 1)]
            self._spawn("coordinators", classes.coordinator, name, home)
        for i in range(node.brokers * len(nodes)):
            self._spawn("brokers", classes.broker, f"broker-{i}", nodes[i // node.brokers])
        ready = await self._all_ready("coordinators", "brokers")
        self._progress("starting the sampling broker")  # after the brokers: it is a client of theirs
        for i in range(node.sampling):
            self._spawn("sampling", classes.sampling, f"sampling-{i}", nodes[i % len(nodes)])
        return {**ready, **await self._all_ready("sampling")}

    async def _all_ready(self, *roles: str) -> dict[str, list[dict[str, Any]]]:
        """What `ready` of each actor gave. Raises the first error, or UnavailableError after START_TIMEOUT_S."""
        calls = [(role, actor) for role in roles for actor in self._started[role]]
        async with _within(START_TIMEOUT_S, f"not all {' and '.join(roles)} serve"):
            answers = await _all_or_first_error([self._ready(actor) for _, actor in calls])
        ready: dict[str, list[dict[str, Any]]] = {role: [] for role in roles}
        for (role, _), answer in zip(calls, answers, strict=True):
            ready[role].append(answer)
        return ready

    async def _ready(self, actor: ActorReference) -> dict[str, Any]:
        answer: dict[str, Any] = await actor.call("ready", timeout_s=START_TIMEOUT_S)
        self._progress(f"{actor.name} serves")
        return answer

    def _spawn(self, role: str, cls: type, name: str, node_id: str, *more: Any) -> ActorReference:
        environment = worker_environment(self._ray.nodes)
        addresses = self._ray.addresses()
        hosts = {"node__host": addresses.link_host(node_id), "mqtt__host": addresses.mqtt_host(node_id)}
        plain = self._config.replaced(**hosts).as_dict()
        actor = spawn(cls, name, plain, *more, node_id=node_id, num_cpus=ACTOR_CPUS, runtime_env=environment)
        self._started[role].append(actor)
        return actor

    async def stop(self) -> None:
        """Stop every actor, in order; what does not answer in STOP_TIMEOUT_S is killed. Never raises."""
        for actors in self._started.values():
            await _stop(actors)


async def _stop(actors: Sequence[ActorReference]) -> None:
    await asyncio.gather(*[actor.call("stop", timeout_s=STOP_TIMEOUT_S) for actor in actors], return_exceptions=True)
    for actor in actors:
        with suppress(Exception):  # it is gone already, or Ray is
            actor.kill()


async def _all_or_first_error(calls: list[Any]) -> list[Any]:
    """All results; the first error as soon as it is there, since the others may wait for what has failed."""
    tasks = [asyncio.ensure_future(call) for call in calls]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        for task in tasks:
            if task.done():
                task.result()
        return [task.result() for task in tasks]
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@asynccontextmanager
async def _within(seconds: float, what: str) -> AsyncIterator[None]:
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError:
        raise UnavailableError(f"{what} within {seconds:.0f} s: the machine may be overloaded") from None
