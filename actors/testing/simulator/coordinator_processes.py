"""The coordinators of a story, the coordination server, and the watch that it keeps over them: started, killed, started
again."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import Any

from lexicast.cluster.errors import LexicastError
from lexicast.cluster.membership import COORDINATOR, Member
from lexicast.cluster.protocol.heartbeat import detecting_beats

from ...coordination.watching import CoordinatorWatch
from ...coordinator.server import CoordinatorServer
from ...link.link import Link, LinkUser
from .auditor import Auditor
from .coordination import CoordinationCalls, SimulatedCoordination
from .disks import Gate, MemoryRegistry
from .memory_store import MemoryStore
from .network import CLUSTER_ID, KEY, Listener
from .scene import GROUPS, Scene
from .virtual import SimProcess

COORDINATION = "coordination"
# How soon Ray starts an actor again whose start has failed.
AGAIN_S = 0.3
# What the watch over coordinators does after 10 s in a cluster is done after less in a story of 3 s.
ABSENT_S = 2.0
BALANCE_AFTER_S, BALANCE_PERIOD_S = 0.8, 0.3


class CoordinatorProcesses:
    """See the module's docstring. `stores` outlive their processes, the registry too."""

    def __init__(self, scene: Scene, gate: type[Gate] = Gate) -> None:
        """`gate`: what processes reach their stores by."""
        self.scene = scene
        self.stores = {name: MemoryStore(GROUPS) for name in scene.coordinators}
        self._registry = MemoryRegistry()
        self.coordination = SimulatedCoordination(scene, self._registry, scene.coordinators)
        self.auditor = Auditor(self.stores, lambda group: self.coordination.state(group), scene.transcript)
        self.processes: dict[str, SimProcess] = {}
        # Those that serve.
        self.servers: dict[str, CoordinatorServer] = {}
        self._gates: dict[str, Gate] = {}
        self._gate = gate

    # -- the coordination server

    def start_coordination(self) -> None:
        """Start it, or start it again over what its registry holds."""
        scene = self.scene
        scene.transcript.say(COORDINATION, "starts")
        if COORDINATION in self.processes:
            self.coordination = SimulatedCoordination(scene, self._registry, scene.coordinators)
        process = self.processes[COORDINATION] = scene.new_process(COORDINATION, scene.head)
        beats = detecting_beats(scene.detect_s)
        process.do(CoordinatorWatch, self.coordination, beats, ABSENT_S, BALANCE_AFTER_S, BALANCE_PERIOD_S)

    def kill_coordination(self) -> None:
        """Kill it: what is in its registry stays."""
        process = self.processes[COORDINATION]
        if process.alive:
            self.scene.transcript.say(COORDINATION, "is killed")
            process.kill()
            self.scene.network.ends_of(process)
            self.coordination.end()

    def serving(self) -> SimulatedCoordination | None:
        """The coordination server, where it runs."""
        return self.coordination if self.processes[COORDINATION].alive else None

    # -- coordinators

    def open(self, name: str) -> None:
        """Start a coordinator over its store, if none runs there."""
        before = self.processes.get(name)
        if before is not None and before.alive:
            return
        process = self.processes[name] = self.scene.new_process(name, self.scene.node_of(name))
        self.scene.transcript.say(name, f"starts on {process.node}")
        self.scene.loop.create_task(self._open(process), context=process.context.copy())

    async def _open(self, process: SimProcess) -> None:
        try:
            await self._serve(process)
        except LexicastError as error:
            self.scene.transcript.say(process.name, f"cannot start: {error}")
            self.scene.at(self.scene.loop.time() + AGAIN_S, self.open, process.name)
            self.kill(process.name)

    async def _serve(self, process: SimProcess) -> None:
        name, scene, store = process.name, self.scene, self.stores[process.name]
        clock = scene.clocks[process.node]
        told = (self.auditor.promised, self.auditor.taken)
        gate = self._gates[name] = self._gate(name, store, scene.transcript, *told, clock)
        taken: Any = gate
        beats = detecting_beats(scene.detect_s)
        calls = CoordinationCalls(scene, self.serving, process, scene.head)
        states = await calls.open_groups(name, store.known_epochs(), CLUSTER_ID)
        server = CoordinatorServer(name, taken, clock, beats=beats)
        server.led.when_opened.append(partial(self._told, name, "serves groups"))
        server.led.when_closed.append(partial(self._told, name, "leads no more: groups"))

        async def dial(member: Member, user: LinkUser) -> Link:
            hello = ("coordinator", name, 1)
            return await scene.network.dial(
                member.addresses, KEY, CLUSTER_ID, hello, lambda link: user, beats, scene.detect_s
            )

        if scene.copies > 1:
            server.share(calls, scene.copies, dial, scene.slow_s)
        await server.start(states)
        scene.network.listeners[name] = Listener(process, server.opened, scene.broker_beats)
        self.servers[name] = server
        await calls.register(COORDINATOR, Member(name, 0, (name,), process.node, 0))

    def _told(self, name: str, what: str, groups: Any) -> None:
        if groups:
            self.scene.transcript.say(name, f"{what} {sorted(groups)}")

    def kill(self, name: str) -> None:
        """Kill a coordinator; the transaction under way may just have made it."""
        process = self.processes[name]
        if not process.alive:
            return
        self.scene.transcript.say(name, "is killed")
        for work in self.scene.loop.abandoned(process):
            if self.scene.choose.random() < 0.5:
                with suppress(LexicastError):
                    work()
        process.kill()
        self._gates[name].alive = False
        self.servers.pop(name, None)
        self.scene.network.ends_of(process)
