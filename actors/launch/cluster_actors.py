"""The actors of a cluster under `lexicast up`: spawned on their nodes, awaited, stopped in order.

Order of a start: the coordination server, which knows how many coordinators this cluster has; coordinators and brokers
at once, since brokers wait for the cluster's id by themselves; the sampling broker and bridges, their clients,
matchers, and consoles. Order of a stop: consoles, bridges, brokers (no publication comes in any more), sampling,
matchers, coordinators (flush, close their stores), the coordination server.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Final

from lexicast.cluster.errors import LexicastError, UnavailableError
from lexicast.cluster.membership import BRIDGE, BROKER, CONSOLE, COORDINATOR, MATCHER, SAMPLER

from ..coordination.actor import CoordinationActor
from ..coordination.server import REGISTRY_FOLDER
from ..ray.handles import COORDINATION, ActorReference, end_actors, named_actors, spawn
from .node_addresses import NodeAddresses
from .node_plan import first, founding, more, settled
from .node_stores import homes_of, stores_on_nodes
from .ray_connection import ConnectedRay
from .ray_nodes import ACTOR_CPUS, RayNodes, worker_environment

START_TIMEOUT_S: Final = 120.0
STOP_TIMEOUT_S: Final = 10.0
# In the order of a stop.
_ROLES: Final = {
    "consoles": CONSOLE,
    "bridges": BRIDGE,
    "brokers": BROKER,
    "sampling": SAMPLER,
    "matchers": MATCHER,
    "coordinators": COORDINATOR,
}


@dataclass(frozen=True, slots=True)
class ActorClasses:
    """What to start; tests put simple ones here."""

    coordinator: type
    broker: type
    sampling: type
    matcher: type
    bridge: type
    console: type


def actor_classes() -> ActorClasses:
    """lexicast's own actors."""
    return ActorClasses(
        import_module("lexicast.actors.coordinator.actor").CoordinatorActor,
        import_module("lexicast.actors.broker.actor").BrokerActor,
        import_module("lexicast.actors.sampling.actor").SamplingActor,
        import_module("lexicast.actors.matcher.actor").MatcherActor,
        import_module("lexicast.actors.bridge.actor").BridgeActor,
        import_module("lexicast.actors.console.actor").ConsoleActor,
    )


@dataclass(frozen=True, slots=True)
class StartedActors:
    """What the actors of a cluster said when they began to serve."""

    coordination: ActorReference
    coordination_pid: int
    brokers: dict[str, list[str]]  # name -> link addresses
    pids: dict[str, list[int]]  # of brokers, coordinators, sampling, matchers, consoles


class ClusterActors:
    """The actors of one cluster. `stop` stops what has been started, also where `start` has failed."""

    def __init__(self, ray: ConnectedRay, classes: ActorClasses, progress: Callable[[str], None]) -> None:
        self._ray = ray
        self._config = ray.config
        self._classes = classes
        self._progress = progress
        self._nodes = ray.nodes
        # By role and name, in the order in which they are stopped.
        self._started: dict[str, dict[str, ActorReference]] = {role: {} for role in (*_ROLES, COORDINATION)}
        # The node of each that was started, by name.
        self._places: dict[str, str] = {}
        # What an actor is told beside its name and configuration: what a bridge is to do.
        self._told: dict[str, tuple[Any, ...]] = {}

    # -- the start

    async def start(self) -> StartedActors:
        """Start them; returns when all serve. Raises the reason why one does not."""
        names, node = self._names(), self._config.node
        self._progress("starting the coordination server")
        new = await self._founding(names)
        run = uuid.uuid4().hex
        coordination = self._spawn(COORDINATION, CoordinationActor, COORDINATION, names[0], list(new), run)
        async with _within(START_TIMEOUT_S, "the coordination server does not start"):
            status = await coordination.call("ready", timeout_s=START_TIMEOUT_S)
        # Before anybody is there who could be asked to let somebody in.
        await coordination.call_retried("give_security", self._ray.security.given(), True)
        said = await coordination.call("status")
        known = {**new, **said["homes"][COORDINATOR]}
        if not set(known.values()).issubset(names):  # a node is away, or has another name
            known |= homes_of(await stores_on_nodes(self._nodes, self._config.node.data_path()))
        homes = settled(said["coordinators"], known, names, node.coordinators)
        ready = await self._start_members(names, homes, said["homes"][BROKER])
        # The cluster is founded by now: by the coordinators that it had, or was to have.
        lacking = more(homes, names, node.coordinators, COORDINATOR)
        ready["coordinators"] |= await self._start_more_coordinators(lacking)
        self._progress("starting the sampling broker")  # after the brokers: it is a client of theirs
        for i in range(node.sampling):
            self._spawn("sampling", self._classes.sampling, f"sampling-{i}", names[i % len(names)])
        self._start_matchers(names, said["homes"].get(MATCHER, {}))
        self._start_consoles(names, said["homes"].get(CONSOLE, {}))
        for i, (definition, secrets) in enumerate(self._ray.bridges):
            name = f"bridge-{definition.name}"
            self._told[name] = (definition, secrets)
            self._spawn("bridges", self._classes.bridge, name, names[i % len(names)])
        ready |= await self._all_ready("sampling", "matchers", "bridges", "consoles")
        return StartedActors(
            coordination=coordination,
            coordination_pid=status["pid"],
            brokers={name: list(answer["addresses"]) for name, answer in ready["brokers"].items()},
            pids={role: [answer["pid"] for answer in answers.values()] for role, answers in ready.items()},
        )

    async def _founding(self, nodes: Sequence[str]) -> dict[str, str]:
        """The coordinators of a cluster of which no registry is here, and their nodes: those that have stores, where it
        was lost, and so many more as each node is to have."""
        each, folder = self._config.node.coordinators, self._config.node.data_path()
        if (folder / REGISTRY_FOLDER).exists():
            return founding(nodes, each)
        stores = await stores_on_nodes(self._nodes, folder)
        left = sorted({name for names in stores.values() for name in names})
        if not left:
            return founding(nodes, each)
        homes = settled(left, homes_of(stores), nodes, each)
        return {**homes, **more(homes, nodes, each, COORDINATOR)}

    def _names(self) -> list[str]:
        """The nodes, this process's own first."""
        if len(self._nodes.nodes) == 1 and self._config.node.name:
            return [self._config.node.name]
        return [self._nodes.names[node_id] for node_id in self._nodes.nodes]

    async def _start_members(
        self, nodes: Sequence[str], coordinators: Mapping[str, str], brokers: Mapping[str, str]
    ) -> dict[str, dict[str, Any]]:
        """The coordinators of these nodes, and the brokers that are to be there: those that were, and so many more.
        What `ready` of each gave, by role and name."""
        self._progress("starting coordinators and brokers")
        for name, node in coordinators.items():
            if node in nodes:
                self._spawn("coordinators", self._classes.coordinator, name, node)
        away = sorted(set(coordinators.values()).difference(self._names()))
        if away:
            self._progress(f"{', '.join(away)}: not there, so its coordinators are not started")
        each = self._config.node.brokers
        kept = first(settled(brokers, brokers, nodes, each) if brokers else {}, nodes, each)
        for name, node in {**kept, **more(kept, nodes, each, BROKER, taken=brokers)}.items():
            self._spawn("brokers", self._classes.broker, name, node)
        return await self._all_ready("coordinators", "brokers", nodes=nodes)

    def _start_matchers(self, nodes: Sequence[str], matchers: Mapping[str, str]) -> None:
        """The matchers that these nodes are to have; `matchers`: those that there were, and their nodes."""
        for name, node in _placed(nodes, self._config.node.matchers, matchers, MATCHER).items():
            self._spawn("matchers", self._classes.matcher, name, node)

    def _start_consoles(self, nodes: Sequence[str], consoles: Mapping[str, str]) -> None:
        """The consoles that these nodes are to have; `consoles`: those that there were, and their nodes."""
        for name, node in _placed(nodes, int(self._config.http.port != 0), consoles, CONSOLE).items():
            self._spawn("consoles", self._classes.console, name, node)

    async def _start_more_coordinators(self, names: Mapping[str, str]) -> dict[str, Any]:
        """Coordinators that the cluster did not have before, on their nodes; what `ready` of each gave."""
        if not names:
            return {}
        await self._started[COORDINATION][COORDINATION].call_retried("add_coordinators", dict(names))
        for name, node in names.items():
            self._spawn("coordinators", self._classes.coordinator, name, node)
        return (await self._all_ready("coordinators", only=names))["coordinators"]

    async def _all_ready(
        self, *roles: str, nodes: Collection[str] | None = None, only: Collection[str] | None = None
    ) -> dict[str, dict[str, Any]]:
        """What `ready` of each actor gave, by role and name; those on `nodes`, or `only` these.

        Raises the first error, or UnavailableError after START_TIMEOUT_S.
        """
        asked = [
            (role, actor)
            for role in roles
            for name, actor in self._started[role].items()
            if (nodes is None or self._places[name] in nodes) and (only is None or name in only)
        ]
        if not asked:
            return {role: {} for role in roles}
        async with _within(START_TIMEOUT_S, f"not all {' and '.join(roles)} serve"):
            answers = await _all_or_first_error([self._ready(actor) for _, actor in asked])
        ready: dict[str, dict[str, Any]] = {role: {} for role in roles}
        for (role, actor), answer in zip(asked, answers, strict=True):
            ready[role][actor.name] = answer
        return ready

    async def _ready(self, actor: ActorReference) -> dict[str, Any]:
        answer: dict[str, Any] = await actor.call("ready", timeout_s=START_TIMEOUT_S)
        self._progress(f"{actor.name} serves")
        return answer

    def _spawn(self, role: str, cls: type, name: str, node: str, *more: Any) -> ActorReference:
        ids = self._nodes.ids()
        node_id = ids.get(node, self._nodes.nodes[0])
        environment = worker_environment(self._nodes)
        addresses = NodeAddresses(self._config, self._nodes.hosts_in_order())
        ports = self._config.mqtt.more_ports()
        own = {
            "node__host": addresses.link_host(node_id),
            "mqtt__host": addresses.mqtt_host(node_id),
            **{each.host_knob.replace(".", "__"): addresses.host_of(each, node_id) for each in ports},
            "node__name": node,
            "node__location": self._nodes.locations[node_id] or self._config.node.location,
        }
        plain = self._config.replaced(**own).as_dict()
        more = more or self._told.get(name, ())
        actor = spawn(cls, name, plain, *more, node_id=node_id, num_cpus=ACTOR_CPUS, runtime_env=environment)
        self._started[role][name] = actor
        self._places[name] = node
        return actor

    # -- nodes that come and go

    async def node_came(self, nodes: RayNodes, name: str) -> None:
        """The Ray is `nodes` by now, with one called `name`, new or come back: start what belongs there, and its share
        of everything. Raises LexicastError."""
        self._nodes = nodes
        coordination = self._started[COORDINATION][COORDINATION]
        said = await coordination.call_retried("status")
        if said["nodes"].get(name, {}).get("leaving"):
            await coordination.call_retried("drain_node", name, False)
        homes = {role: {n: at for n, at in said["homes"][kind].items() if at == name} for role, kind in _ROLES.items()}
        await asyncio.to_thread(_end, [n for of_role in homes.values() for n in of_role])
        self._start_matchers([name], homes["matchers"])  # they wait for the others by themselves
        await self._start_members([name], homes["coordinators"], {**said["homes"][BROKER]})
        self._start_consoles([name], homes["consoles"])
        await self._all_ready("matchers", "consoles", nodes=[name])
        each = self._config.node.coordinators
        await self._start_more_coordinators(
            more(homes["coordinators"], [name], each, COORDINATOR, taken=said["coordinators"])
        )

    async def node_went(self, nodes: RayNodes, name: str) -> None:
        """The node called `name` is away, or is being drained: what may run anywhere runs elsewhere."""
        self._nodes = nodes
        for role, cls in (("sampling", self._classes.sampling), ("bridges", self._classes.bridge)):
            for actor in [each for each in self._started[role].values() if self._places[each.name] == name]:
                with suppress(LexicastError):  # it is gone with its node
                    await actor.call("stop", timeout_s=STOP_TIMEOUT_S)
                await asyncio.to_thread(_end, [actor.name])
                others = [other for other in self._names() if other != name]
                self._spawn(role, cls, actor.name, (others or [name])[0])

    async def node_removed(self, name: str) -> None:
        """The node called `name` is none of the cluster's any more: what still runs there is stopped."""
        for role in _ROLES:
            actors = self._started[role]
            gone = [actor for actor in actors.values() if self._places[actor.name] == name]
            await _stop(gone)
            for actor in gone:
                del actors[actor.name]

    # -- the end

    async def stop(self) -> None:
        """Stop every actor, in order; what does not answer in STOP_TIMEOUT_S is killed. Never raises."""
        for actors in self._started.values():
            await _stop(list(actors.values()))


def _placed(nodes: Sequence[str], each: int, known: Mapping[str, str], kind: str) -> dict[str, str]:
    """The members of a kind that keep nothing, `each` on every one of `nodes`, by name; `known`: those there were."""
    kept = first(settled(known, known, nodes, each) if known and each else {}, nodes, each)
    return {**kept, **more(kept, nodes, each, kind, taken=known)}


def _end(names: Sequence[str]) -> None:
    """End these actors where Ray still has them. Blocking. Raises UnavailableError."""
    end_actors(sorted(set(names) & set(named_actors())))


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
