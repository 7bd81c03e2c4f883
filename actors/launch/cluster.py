"""`lexicast up`: a cluster from its start to its end. It is connected to a Ray (`ray_connection`), its actors are
started (`cluster_actors`), watched while they serve, and stopped; `run.json` tells where they are meanwhile.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from lexicast.cluster.config.tables import Config
from lexicast.cluster.errors import LexicastError
from lexicast.cluster.membership import ClusterInfo, Members

from ..broker.port_claim import claim_port
from ..ray.handles import NAMESPACE, RayCoordination
from ..status.over_ray import snapshot
from .cluster_actors import ActorClasses, ClusterActors, StartedActors, actor_classes
from .files import ClusterRun, write_run
from .health import Health, keep_watching
from .node_watch import NodeWatch
from .processes import note_processes
from .ray_connection import ConnectedRay, RayConnection

WATCH_WAIT_S: Final = 30.0


class ServingCluster:
    """A cluster that serves: what `run.json` tells of it, kept true."""

    def __init__(
        self,
        ray: ConnectedRay,
        actors: StartedActors,
        info: ClusterInfo,
        progress: Callable[[str], None],
        ready_file: Path | None,
        nodes: NodeWatch,
    ) -> None:
        """Writes the files. Raises StoreError."""
        self._ray = ray
        self._nodes = nodes
        self._actor = actors.coordination
        self._coordination = RayCoordination(actors.coordination)
        self._key = info.key
        self._progress = progress
        self._ready_file = ready_file
        self.run = self._made(actors, info)
        self._write()

    def _made(self, actors: StartedActors, info: ClusterInfo) -> ClusterRun:
        addresses = self._ray.addresses()
        mqtt = addresses.reached_at()
        reached = {each.scheme: addresses.reached_by(each) for each in self._ray.config.mqtt.more_ports()}
        return ClusterRun(
            data_dir=str(self._ray.config.node.data_path()),
            cluster_id=info.cluster_id,
            ray_address=self._ray.nodes.address,
            namespace=NAMESPACE,
            mqtt_host=mqtt[0],
            mqtt_port=self._ray.config.mqtt.port,
            mqtt_hosts=mqtt,
            mqtt_tls_port=self._ray.config.mqtt.tls_port,
            mqtt_tls_hosts=reached.get("mqtts", []),
            mqtt_ws_port=self._ray.config.mqtt.ws_port,
            mqtt_ws_hosts=reached.get("ws", []),
            mqtt_wss_port=self._ray.config.mqtt.wss_port,
            mqtt_wss_hosts=reached.get("wss", []),
            pages=self._ray.addresses().pages(),
            started_us=time.time_ns() // 1_000,
            up_pid=os.getpid(),
            brokers=actors.brokers,
            pids={**actors.pids, "coordination": actors.coordination_pid},
        )

    def _write(self) -> None:
        if self._ray.nodes.embedded:  # the processes of one that was joined are not ours to end
            note_processes(Path(self.run.data_dir))
        write_run(self.run, self._key, self._ready_file)

    async def watch_ray(self) -> None:
        """Keep an embedded Ray going, follow the nodes of one that was joined. Runs until cancelled.

        Raises UnavailableError when it cannot go on.
        """
        if self._ray.gcs is None:
            await keep_watching(self._nodes.watch, self._progress)  # one that was joined has its own keepers
        else:
            await self._ray.gcs.watch()

    async def watch_health(self) -> None:
        """Say what goes wrong, when it begins and when it is over. Runs until cancelled."""
        await keep_watching(Health(snapshot, self._progress).look, self._progress)

    async def watch_members(self) -> None:
        """Follow the membership, so that run.json names the actors that serve now. Runs until cancelled."""
        version = -1

        async def look() -> None:
            nonlocal version
            members = await self._coordination.members(version, WATCH_WAIT_S)
            if members.version != version:
                await self._update(members)
                version = members.version

        await keep_watching(look, self._progress)

    async def _update(self, members: Members) -> None:
        status = await self._actor.call_retried("status")
        await self._nodes.follow(status)
        found = {"brokers": members.brokers, "coordinators": members.coordinators, "sampling": members.samplers}
        found |= {"matchers": members.matchers} if members.matchers else {}
        found |= {"bridges": members.bridges} if members.bridges else {}
        found |= {"consoles": members.consoles} if members.consoles else {}
        pids: dict[str, Any] = {
            role: [m.pid for _, m in sorted(named.items())] or self.run.pids.get(role, [])
            for role, named in found.items()
        }
        pids["coordination"] = status["pid"]
        # Whoever looks for a broker had better not find one that sends it elsewhere.
        stay = {name: m for name, m in members.brokers.items() if m.node not in members.leaving} or members.brokers
        brokers = {name: list(m.addresses) for name, m in sorted(stay.items())}
        run = replace(self.run, pids=pids, brokers=brokers or self.run.brokers)
        if run != self.run:
            self.run = run
            self._write()


async def start_cluster(
    connection: RayConnection,
    ray: ConnectedRay,
    actors: ClusterActors,
    progress: Callable[[str], None],
    ready_file: Path | None,
) -> ServingCluster:
    """Start the actors; returns when all serve. Raises the reason why one does not."""
    started = await actors.start()
    info = await RayCoordination(started.coordination).cluster()
    addresses, mqtt = ray.addresses(), ray.config.mqtt
    connection.hold_port(claim_port(addresses.mqtt_host(), mqtt.port, info.cluster_id))
    for each in mqtt.more_ports():
        connection.hold_port(claim_port(addresses.host_of(each), each.port, info.cluster_id, each.port_knob))
    return ServingCluster(ray, started, info, progress, ready_file, NodeWatch(ray, actors, progress))


def run_cluster(
    config: Config,
    address: str | None,
    progress: Callable[[str], None],
    serving: Callable[[ClusterRun], None],
    ready_file: Path | None = None,
    classes: ActorClasses | None = None,
    nodes: int = 1,
    warn: Callable[[str], None] | None = None,
) -> None:
    """Run a cluster until SIGINT or SIGTERM; returns after a clean stop. Main thread.

    `nodes`: how many the Ray at `address` must have first; those that join later get their share then. `serving` is
    called once, when everything serves, `warn` for what is dangerous. Raises LexicastError with the one reason why it
    did not start; by then everything that had started is stopped.
    """
    classes = classes or actor_classes()
    connection = RayConnection(config, progress, warn or progress)
    previous = signal.getsignal(signal.SIGTERM)
    signal.signal(signal.SIGTERM, _as_interrupt)
    try:
        ray = connection.connect(address, nodes)
        actors = ClusterActors(ray, classes, progress)
        start = partial(start_cluster, connection, ray, actors, progress, ready_file)
        asyncio.run(_serve(connection, actors, start, progress, serving))
    except KeyboardInterrupt:
        pass  # it came while Ray started: nothing serves yet
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):  # whoever asks once more does not want to wait
            signal.signal(number, lambda *_: connection.kill())
        connection.close()
        signal.signal(signal.SIGTERM, previous)
        signal.signal(signal.SIGINT, signal.default_int_handler)


async def _serve(
    connection: RayConnection,
    actors: ClusterActors,
    start: Callable[[], Coroutine[Any, Any, ServingCluster]],
    progress: Callable[[str], None],
    serving: Callable[[ClusterRun], None],
) -> None:
    asked = asyncio.Event()
    loop = asyncio.get_running_loop()

    def ask() -> None:
        if asked.is_set():
            connection.kill()
        asked.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, ask)
    stopping = asyncio.create_task(asked.wait())
    try:
        starting = asyncio.create_task(start())
        await asyncio.wait([starting, stopping], return_when=asyncio.FIRST_COMPLETED)
        if not starting.done():
            await _cancel(starting)
            return
        cluster = starting.result()
        serving(cluster.run)
        watches = (cluster.watch_members(), cluster.watch_ray(), cluster.watch_health())
        watching = [asyncio.create_task(work) for work in watches]
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
            connection.remove_files()
            await actors.stop()


async def _cancel(task: asyncio.Task[Any]) -> None:
    task.cancel()
    with suppress(asyncio.CancelledError, LexicastError):
        await task


def _as_interrupt(_number: int, _frame: object) -> None:
    raise KeyboardInterrupt
