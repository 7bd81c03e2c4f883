"""What goes wrong in a story: processes die, stop or are slow, nodes are lost, links and ways end, disks are full
or slow, clocks jump."""

from __future__ import annotations

from lexicast.cluster.membership import COORDINATOR

from .broker_processes import BrokerProcesses
from .coordinator_processes import COORDINATION, CoordinatorProcesses
from .matcher_processes import MatcherProcesses
from .scene import NODES, Scene
from .virtual import SimProcess

JUMPS_S = (-86_400.0, -60.0, -0.5, 0.5, 60.0, 3_000.0)
# A slow process does something for so long, and then nothing for a while.
SLOW_WORKS_S, SLOW_RESTS_S = 0.01, 0.15


# More than 25 methods: one for each mishap, and for how it ends.
class Mishaps:
    """See the module's docstring."""

    def __init__(
        self,
        scene: Scene,
        coordinators: CoordinatorProcesses,
        brokers: BrokerProcesses,
        matchers: MatcherProcesses | None,
    ) -> None:
        """`matchers`: None where there are none."""
        self.scene = scene
        self.matchers = matchers
        self.coordinators = coordinators
        self.brokers = brokers
        kinds = [self.coordinator, self.broker, self.cut, self.full]
        others = [self.one_way, self.away, self.stopped, self.slow, self.node, self.clock, self.coordination]
        if scene.copies > 1:
            kinds += [self.coordinator, self.suspected]
            others += [self.unheard, self.deposed]
        if scene.copies > 2:
            kinds += [self.deposed, self.deposed]
        # Each story has its own mixture: with all of them in each, the rare ones would hide each other.
        self._kinds = [*kinds, *scene.choose.sample(others, scene.choose.randint(0, 4))]
        if scene.slow_disks:
            self._kinds += [self.slow_disk, self.slow_disk]
        if matchers is not None:
            self._kinds += [self.matcher, self.matcher, self.matcher]

    def happen(self) -> None:
        """One of them."""
        self.scene.mishaps += 1
        self.scene.choose.choice(self._kinds)()

    def _soon(self, most_s: float) -> float:
        return self.scene.loop.time() + self.scene.choose.random() * most_s

    def _say(self, what: str) -> None:
        self.scene.transcript.say("mishap", what)

    # -- processes

    def coordinator(self) -> None:
        """A coordinator is killed, and started again."""
        running = sorted(self.coordinators.servers)
        if running:
            name = self.scene.choose.choice(running)
            self.coordinators.kill(name)
            self.scene.at(self._soon(0.6), self.coordinators.open, name)

    def broker(self) -> None:
        """A broker is killed, and started again."""
        running = sorted(self.brokers.engines)
        if running:
            name = self.scene.choose.choice(running)
            self.brokers.kill(name)
            self.scene.at(self._soon(0.3), self._open_broker, name)

    def _open_broker(self, name: str) -> None:
        self.brokers.open(name, self.coordinators.coordination.states())

    def matcher(self) -> None:
        """A matcher is killed, and started again."""
        assert self.matchers is not None
        running = sorted(self.matchers.servers)
        if running:
            name = self.scene.choose.choice(running)
            self.matchers.kill(name)
            self.scene.at(self._soon(0.6), self.matchers.open, name)

    def coordination(self) -> None:
        """The coordination server is killed, and started again."""
        self.coordinators.kill_coordination()
        self.scene.at(self._soon(1.0), self.coordinators.start_coordination)

    def node(self) -> None:
        """Everything on a node is killed, and started again."""
        node = self.scene.choose.choice(NODES)
        self._say(f"{node} is lost")
        back_s = self._soon(1.5)
        for process in self._running():
            if process.node != node:
                continue
            if process.name == COORDINATION:
                self.coordinators.kill_coordination()
                self.scene.at(back_s, self.coordinators.start_coordination)
            elif process.name in self.brokers.processes:
                self.brokers.kill(process.name)
                self.scene.at(back_s, self._open_broker, process.name)
            elif self.matchers is not None and process.name in self.matchers.processes:
                self.matchers.kill(process.name)
                self.scene.at(back_s, self.matchers.open, process.name)
            else:
                self.coordinators.kill(process.name)
                self.scene.at(back_s, self.coordinators.open, process.name)

    def _running(self) -> list[SimProcess]:
        every = [*self.coordinators.processes.values(), *self.brokers.processes.values()]
        if self.matchers is not None:
            every += self.matchers.processes.values()
        return [process for process in every if process.alive]

    def stopped(self) -> None:
        """A process does nothing for a while, and goes on then."""
        running = self._running()
        if not running:
            return
        process = self.scene.choose.choice(running)
        self._say(f"{process.name} is stopped")
        process.stop()
        self.scene.at(self._soon(1.5), self._go_on, process)

    def _go_on(self, process: SimProcess) -> None:
        if process.alive:
            self._say(f"{process.name} goes on")
        process.go_on()

    def slow(self) -> None:
        """A process does little for a while."""
        running = self._running()
        if not running:
            return
        process = self.scene.choose.choice(running)
        self._say(f"{process.name} is slow")
        self._rest(process, self._soon(1.5))

    def _rest(self, process: SimProcess, until_s: float) -> None:
        process.stop()
        rests_s = self.scene.choose.random() * SLOW_RESTS_S
        self.scene.at(self.scene.loop.time() + rests_s, self._work, process, until_s)

    def _work(self, process: SimProcess, until_s: float) -> None:
        process.go_on()
        if self.scene.loop.time() < until_s:
            self.scene.at(self.scene.loop.time() + SLOW_WORKS_S, self._rest, process, until_s)

    # -- who is reached

    def suspected(self) -> None:
        """A coordinator serves, but the coordination server takes it for lost, and finds it again."""
        running = sorted(self.coordinators.servers)
        if running:
            name = self.scene.choose.choice(running)
            known = self.coordinators.coordination.incarnation(name)
            self._say(f"{name} is suspected")
            self.coordinators.coordination.lost(COORDINATOR, name, known)
            self.scene.at(self._soon(0.3), self._found, name, known)

    def _found(self, name: str, incarnation: int) -> None:
        self.coordinators.coordination.found(COORDINATOR, name, incarnation)

    def cut(self) -> None:
        """A link ends."""
        standing = self.scene.network.standing()
        if standing:
            wire = self.scene.choose.choice(standing)
            self._say(f"the link of {wire.process.name} and {wire.peer.process.name} ends")
            wire.abort()

    def one_way(self) -> None:
        """Nothing comes from one node to another for a while, but back."""
        source, target = self.scene.choose.sample(NODES, 2)
        self._break_ways([(source, target)], f"nothing comes from {source} to {target}")

    def away(self) -> None:
        """A node is cut off from the others for a while."""
        node = self.scene.choose.choice(NODES)
        others = [other for other in NODES if other != node]
        ways = [way for other in others for way in ((node, other), (other, node))]
        self._break_ways(ways, f"{node} is cut off")

    def unheard(self) -> None:
        """A node and that of the coordination server are cut off from each other for a while, and from nobody else."""
        node = self.scene.choose.choice([node for node in NODES if node != self.scene.head])
        self._unheard(node)

    def _unheard(self, node: str) -> None:
        head = self.scene.head
        self._break_ways([(node, head), (head, node)], f"{node} and the coordination server's {head} are cut off")

    def deposed(self) -> None:
        """A leader does not hear that another one leads its groups; who follows them is killed as it promises so."""
        leaders = sorted({state.leader for state in self.coordinators.coordination.states().values()})
        able = [name for name in leaders if not self._at_head(name)]
        if not able:
            return
        name = self.scene.choose.choice(able)
        self._unheard(self.scene.node_of(name))
        others = [
            n for n in sorted(self.coordinators.servers) if self.scene.node_of(n) != self.scene.head and n != name
        ]
        if others:
            victim = self.scene.choose.choice(others)

            def promised(who: str, group: int) -> None:
                if who == victim:
                    self.coordinators.auditor.when_promised.remove(promised)
                    self.scene.at(self._soon(0.01), self._restart, victim)

            self.coordinators.auditor.when_promised.append(promised)

    def _at_head(self, name: str) -> bool:
        return self.scene.node_of(name) == self.scene.head

    def _restart(self, name: str) -> None:
        if name in self.coordinators.servers:
            self.coordinators.kill(name)
            self.scene.at(self._soon(0.1), self.coordinators.open, name)

    def _break_ways(self, ways: list[tuple[str, str]], what: str) -> None:
        self._say(what)
        for source, target in ways:
            self.scene.network.cut_way(source, target)
        self.scene.at(self._soon(2.5), self._mend, ways, what)

    def _mend(self, ways: list[tuple[str, str]], what: str) -> None:
        self._say(f"no more: {what}")
        for source, target in ways:
            self.scene.network.mend_way(source, target)

    # -- what is had

    def full(self) -> None:
        """A disk is full for a while."""
        name = self.scene.choose.choice(self.scene.coordinators)
        self._say(f"the disk of {name} is full")
        self.scene.was_full = True
        self._set_full(name, True)
        self.scene.at(self._soon(0.2), self._set_full, name, False)

    def _set_full(self, name: str, full: bool) -> None:
        self.coordinators.stores[name].full = full

    def slow_disk(self) -> None:
        """A coordinator's disk takes its time for a while."""
        running = sorted(self.coordinators.servers)
        if not running:
            return
        process = self.coordinators.processes[self.scene.choose.choice(running)]
        self._say(f"the disk of {process.name} is slow")
        process.disk_s = 0.1 + 0.9 * self.scene.choose.random()
        self.scene.at(self._soon(2.5), self._set_fast, process)

    def _set_fast(self, process: SimProcess) -> None:
        self._say(f"the disk of {process.name} is as quick as before")
        process.disk_s = 0.0

    def clock(self) -> None:
        """The clock of a node jumps."""
        node, jump_s = self.scene.choose.choice(NODES), self.scene.choose.choice(JUMPS_S)
        self._say(f"the clock of {node} jumps by {jump_s:.1f} s")
        self.scene.clocks[node].ahead_s += jump_s
