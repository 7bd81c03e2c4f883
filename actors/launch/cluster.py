"""`lexicast up`: start the actors of a cluster, wait till they serve, keep `run.json` true, stop them in order.

Order of a start: data folder locked; its stores looked at; MQTT port looked at (so that a busy one is told at once);
Ray; the coordination server, which knows how many coordinators this cluster has; coordinators and brokers at once,
since brokers wait for the cluster's id by themselves; the sampling broker, their client. Order of a stop: brokers (no
publication comes in any more), sampling, coordinators (flush, close their stores), coordination server, Ray.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
import uuid
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, closing, suppress
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from lexicast.cluster.config.tables import Config
from lexicast.cluster.errors import ConfigError, LexicastError, UnavailableError
from lexicast.cluster.membership import ClusterInfo, Members

from ..broker.port_claim import PortClaim, claim_port
from ..coordination.actor import CoordinationActor
from ..ray.handles import COORDINATION, NAMESPACE, ActorReference, RayCoordination, end_actors, named_actors, spawn
from ..status.over_ray import snapshot
from .files import Run, left_run, lock_data_dir, remove_run, write_run
from .gcs_watch import GcsWatch
from .health import Health, keep_watching
from .node_addresses import NodeAddresses
from .processes import children, end_leftovers, end_processes, forget_processes, note_processes
from .ray_nodes import (
    ACTOR_CPUS,
    RayNodes,
    check_closed,
    connect_ray,
    disconnect_ray,
    ray_address,
    start_embedded,
    worker_environment,
)
from .store_check import check_stores

START_TIMEOUT_S: Final = 120.0
STOP_TIMEOUT_S: Final = 10.0
GONE_TIMEOUT_S: Final = 5.0
WATCH_WAIT_S: Final = 30.0
INTERRUPTED: Final = 130


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


class ClusterLauncher:
    """One `up`. Used by `up` below; the steps are apart so that a failed start stops what it had started."""

    def __init__(
        self,
        config: Config,
        classes: ActorClasses,
        progress: Callable[[str], None],
        ready_file: Path | None = None,
        warn: Callable[[str], None] | None = None,
    ) -> None:
        """`progress` gets one short line a step, `warn` what is dangerous, once. `config.node.data_dir` may be empty:
        the user's folder."""
        self._folder = config.node.data_path()
        self._config = config.replaced(node__data_dir=str(self._folder))
        self._classes = classes
        self._progress = progress
        self._ready_file = ready_file
        self._warn = warn or progress
        self._lock = -1
        self._files_are_ours = False
        self._claim: PortClaim | None = None
        self._nodes: RayNodes | None = None
        self._ray: GcsWatch | None = None
        self._coordination: ActorReference | None = None
        self._actors: dict[str, list[ActorReference]] = {"coordinators": [], "brokers": [], "sampling": []}
        self._run: Run | None = None
        self._info: ClusterInfo | None = None

    # -- start

    def connect(self, address: str | None, nodes: int) -> None:
        """Take the data folder and connect to Ray (None: an own one) of so many nodes. Main thread.

        Raises LexicastError.
        """
        self._lock = lock_data_dir(self._folder)
        end_leftovers(self._folder)
        if address is None:
            self._start_ray()
        else:
            self._join_ray(address, nodes)

    def _start_ray(self) -> None:
        self._take_files()
        check_stores(self._config, all_here=True)
        self._look_at_port()
        self._progress("starting Ray")
        node = self._config.node
        self._nodes = start_embedded(self._folder, node.brokers + node.coordinators + node.sampling + 1)
        self._look_at_ray(self._nodes.address)
        self._look_at_places()
        self._note()
        self._ray = GcsWatch(self._nodes.address, self._progress, self._note)

    def _join_ray(self, address: str, nodes: int) -> None:
        self._progress(f"joining Ray at {address}")
        address = ray_address(address)
        self._look_at_ray(address)
        self._nodes = connect_ray(address, nodes)
        self._look_at_places()
        self._check_alone(left_run(self._folder))
        self._take_files()
        # Not before: what a killed `up` left in that Ray had the stores and the port.
        check_stores(self._config, all_here=False, wait_s=STOP_TIMEOUT_S)
        self._look_at_port()

    def _look_at_ray(self, address: str) -> None:
        if warning := check_closed(address):
            self._warn(warning)

    def _look_at_places(self) -> None:
        """Raises ConfigError where an address that is configured cannot be every node's."""
        places = self._places()
        places.check()
        if notice := places.notice():
            self._warn(notice)

    def _take_files(self) -> None:
        """From here on what tells of a running cluster is ours; before, it may tell what a killed `up` left."""
        remove_run(self._folder)
        self._files_are_ours = True

    def _look_at_port(self) -> None:
        """Nobody of this cluster runs now, so whoever holds the port is a stranger; a free one for 0 is fixed here."""
        with closing(claim_port(self._places().mqtt_host(), self._config.mqtt.port, uuid.uuid4().hex)) as claim:
            self._config = self._config.replaced(mqtt__port=claim.port)

    def _check_alone(self, killed: str) -> None:
        """Nobody else's actors are in this Ray; ours may be, where an `up` of this folder was killed.

        `killed`: the Ray of such an `up`, whose actors are ended; "" when it stopped cleanly.
        """
        assert self._nodes is not None
        names = named_actors()
        if names and self._nodes.address != killed:
            raise UnavailableError(
                "a lexicast cluster runs in this Ray already: stop that one first (`lexicast down` with its --data-dir)"
            )
        if names:
            self._progress("ending what a killed `lexicast up` left")
            end_actors(names)

    async def start(self) -> Run:
        """Start the actors; returns when all serve. Raises the reason why one does not."""
        assert self._nodes is not None
        nodes = self._nodes.nodes
        self._progress("starting the coordination server")
        wanted = self._config.node.coordinators * len(nodes)
        names = [f"coordinator-{i}" for i in range(wanted)]
        self._coordination = self._spawn(CoordinationActor, COORDINATION, nodes[0], names, uuid.uuid4().hex)
        async with _within(START_TIMEOUT_S, "the coordination server does not start"):
            status = await self._coordination.call("ready", timeout_s=START_TIMEOUT_S)
        names = self._check_coordinators(status["coordinators"], wanted)
        ready = await self._start_rest(names)
        coordination = RayCoordination(self._coordination)
        self._info = await coordination.cluster()
        self._claim = claim_port(self._places().mqtt_host(), self._config.mqtt.port, self._info.cluster_id)
        self._run = self._make_run(ready, status["pid"])
        self._note()
        write_run(self._run, self._info.key, self._ready_file)
        return self._run

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
        assert self._nodes is not None
        nodes, node = self._nodes.nodes, self._config.node
        self._progress("starting coordinators and brokers")
        for i, name in enumerate(coordinators):
            home = nodes[min(i // node.coordinators, len(nodes) - 1)]
            self._actors["coordinators"].append(self._spawn(self._classes.coordinator, name, home))
        for i in range(node.brokers * len(nodes)):
            self._actors["brokers"].append(self._spawn(self._classes.broker, f"broker-{i}", nodes[i // node.brokers]))
        ready = await self._all_ready("coordinators", "brokers")
        self._progress("starting the sampling broker")  # after the brokers: it is a client of theirs
        for i in range(node.sampling):
            home = nodes[i % len(nodes)]
            self._actors["sampling"].append(self._spawn(self._classes.sampling, f"sampling-{i}", home))
        return {**ready, **await self._all_ready("sampling")}

    async def _all_ready(self, *roles: str) -> dict[str, list[dict[str, Any]]]:
        """What `ready` of each actor gave. Raises the first error, or UnavailableError after START_TIMEOUT_S."""
        calls = [(role, actor) for role in roles for actor in self._actors[role]]
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

    def _spawn(self, cls: type, name: str, node_id: str, *more: Any) -> ActorReference:
        assert self._nodes is not None
        environment = worker_environment(self._nodes)
        places = self._places()
        hosts = {"node__host": places.link_host(node_id), "mqtt__host": places.mqtt_host(node_id)}
        plain = self._config.replaced(**hosts).as_dict()
        return spawn(cls, name, plain, *more, node_id=node_id, num_cpus=ACTOR_CPUS, runtime_env=environment)

    def _places(self) -> NodeAddresses:
        return NodeAddresses(self._config, {} if self._nodes is None else self._nodes.hosts_in_order())

    def _make_run(self, ready: dict[str, list[dict[str, Any]]], coordination_pid: int) -> Run:
        assert self._nodes is not None
        assert self._info is not None
        names = [actor.name for actor in self._actors["brokers"]]
        pids = {role: [answer["pid"] for answer in answers] for role, answers in ready.items()}
        mqtt = self._places().reached_at()
        return Run(
            data_dir=str(self._folder),
            cluster_id=self._info.cluster_id,
            ray_address=self._nodes.address,
            namespace=NAMESPACE,
            mqtt_host=mqtt[0],
            mqtt_port=self._config.mqtt.port,
            mqtt_hosts=mqtt,
            started_us=time.time_ns() // 1_000,
            up_pid=os.getpid(),
            brokers={n: list(a["addresses"]) for n, a in zip(names, ready["brokers"], strict=True)},
            pids={**pids, "coordination": coordination_pid},
        )

    def _note(self) -> None:
        """Remember the processes of an embedded Ray; one that was joined is not ours to end."""
        if self._nodes is not None and self._nodes.embedded:
            note_processes(self._folder)

    # -- run

    async def watch_ray(self) -> None:
        """Keep an embedded Ray going. Runs until cancelled. Raises UnavailableError when it cannot go on."""
        if self._ray is None:
            await asyncio.Event().wait()  # one that was joined has its own keepers
        else:
            await self._ray.watch()

    async def watch_health(self) -> None:
        """Say what goes wrong, when it begins and when it is over. Runs until cancelled."""
        await keep_watching(Health(snapshot, self._progress).look, self._progress)

    async def watch(self) -> None:
        """Follow the membership, so that run.json names the actors that serve now. Runs until cancelled."""
        assert self._coordination is not None
        coordination = RayCoordination(self._coordination)
        version = -1

        async def look() -> None:
            nonlocal version
            members = await coordination.members(version, WATCH_WAIT_S)
            if members.version != version:
                await self._update(members)
                version = members.version

        await keep_watching(look, self._progress)

    async def _update(self, members: Members) -> None:
        assert self._run is not None
        assert self._info is not None
        assert self._coordination is not None
        status = await self._coordination.call_retried("status")
        found = {"brokers": members.brokers, "coordinators": members.coordinators, "sampling": members.samplers}
        pids: dict[str, Any] = {
            role: [m.pid for _, m in sorted(named.items())] or self._run.pids[role] for role, named in found.items()
        }
        pids["coordination"] = status["pid"]
        brokers = {name: list(m.addresses) for name, m in sorted(members.brokers.items())}
        run = replace(self._run, pids=pids, brokers=brokers or self._run.brokers)
        if run != self._run:
            self._run = run
            self._note()
            write_run(run, self._info.key, self._ready_file)

    # -- stop

    async def stop(self) -> None:
        """Stop every actor, in order; what does not answer in STOP_TIMEOUT_S is killed. Never raises."""
        remove_run(self._folder)
        for role in ("brokers", "sampling", "coordinators"):
            await self._stop(self._actors[role])
        if self._coordination is not None:
            await self._stop([self._coordination])

    async def _stop(self, actors: Sequence[ActorReference]) -> None:
        await asyncio.gather(
            *[actor.call("stop", timeout_s=STOP_TIMEOUT_S) for actor in actors], return_exceptions=True
        )
        for actor in actors:
            with suppress(Exception):  # it is gone already, or Ray is
                actor.kill()

    def disconnect(self) -> None:
        """Leave Ray, see its processes gone, give port and folder back. Main thread; never raises."""
        if self._nodes is not None:
            started = children() if self._nodes.embedded else []
            with suppress(Exception):  # Ray may have gone before us: then there is nothing to leave
                disconnect_ray()
            if self._ray is not None:
                self._ray.end()
            end_processes(started, GONE_TIMEOUT_S)
            forget_processes(self._folder)
        if self._claim is not None:
            self._claim.close()
        if self._files_are_ours:
            remove_run(self._folder)
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def kill(self) -> None:
        """The second Ctrl-C: end the processes that this `up` started, now."""
        if self._files_are_ours:
            remove_run(self._folder)
        if self._ray is not None:
            end_processes(children(), 0.0)
        os._exit(INTERRUPTED)


def up(
    config: Config,
    address: str | None,
    progress: Callable[[str], None],
    serving: Callable[[Run], None],
    ready_file: Path | None = None,
    classes: ActorClasses | None = None,
    nodes: int = 1,
    warn: Callable[[str], None] | None = None,
) -> None:
    """Run a cluster until SIGINT or SIGTERM; returns after a clean stop. Main thread.

    `nodes`: how many the Ray at `address` must have first; those that join later get no brokers and coordinators before
    the next `up`. `serving` is called once, when everything serves, `warn` for what is dangerous. Raises LexicastError
    with the one reason why it did not start; by then everything that had started is stopped.
    """
    launcher = ClusterLauncher(config, classes or actor_classes(), progress, ready_file, warn)
    previous = signal.getsignal(signal.SIGTERM)
    signal.signal(signal.SIGTERM, _as_interrupt)
    try:
        launcher.connect(address, nodes)
        asyncio.run(_serve(launcher, progress, serving))
    except KeyboardInterrupt:
        pass  # it came while Ray started: nothing serves yet
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):  # whoever asks once more does not want to wait
            signal.signal(number, lambda *_: launcher.kill())
        launcher.disconnect()
        signal.signal(signal.SIGTERM, previous)
        signal.signal(signal.SIGINT, signal.default_int_handler)


async def _serve(launcher: ClusterLauncher, progress: Callable[[str], None], serving: Callable[[Run], None]) -> None:
    asked = asyncio.Event()
    loop = asyncio.get_running_loop()

    def ask() -> None:
        if asked.is_set():
            launcher.kill()
        asked.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, ask)
    stopping = asyncio.create_task(asked.wait())
    try:
        starting = asyncio.create_task(launcher.start())
        await asyncio.wait([starting, stopping], return_when=asyncio.FIRST_COMPLETED)
        if not starting.done():
            await _cancel(starting)
            return
        serving(starting.result())
        watching = [
            asyncio.create_task(work) for work in (launcher.watch(), launcher.watch_ray(), launcher.watch_health())
        ]
        await asyncio.wait([*watching, stopping], return_when=asyncio.FIRST_COMPLETED)
        for task in watching:
            if task.done():
                task.result()
            await _cancel(task)
    finally:
        stopping.cancel()
        try:
            progress("stopping")
        finally:  # also when nobody reads our output any more
            await launcher.stop()


async def _cancel(task: asyncio.Task[Any]) -> None:
    task.cancel()
    with suppress(asyncio.CancelledError, LexicastError):
        await task


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


def _as_interrupt(_number: int, _frame: object) -> None:
    raise KeyboardInterrupt
