"""What goes wrong in a story."""

from __future__ import annotations

from lexicast.cluster.membership import COORDINATOR

from .broker_processes import BrokerProcesses
from .coordinator_processes import CoordinatorProcesses
from .scene import Scene


class Mishaps:
    """See the module's docstring."""

    def __init__(self, scene: Scene, coordinators: CoordinatorProcesses, brokers: BrokerProcesses) -> None:
        self.scene = scene
        self.coordinators = coordinators
        self.brokers = brokers
        self._kinds = [self.coordinator, self.broker, self.cut, self.cut, self.full]
        if scene.copies > 1:
            self._kinds += [self.coordinator, self.suspected]

    def happen(self) -> None:
        """One of them."""
        self.scene.choose.choice(self._kinds)()

    def _soon(self, most_s: float) -> float:
        return self.scene.loop.time() + self.scene.choose.random() * most_s

    def coordinator(self) -> None:
        """A coordinator is killed, and started again."""
        running = sorted(self.coordinators.servers)
        if running:
            name = self.scene.choose.choice(running)
            self.coordinators.kill(name)
            self.scene.at(self._soon(0.6), self.coordinators.open, name)

    def suspected(self) -> None:
        """A coordinator serves, but the coordination server takes it for lost, and finds it again."""
        running = sorted(self.coordinators.servers)
        if running:
            name = self.scene.choose.choice(running)
            known = self.coordinators.coordination.incarnation(name)
            self.scene.transcript.say("mishap", f"{name} is suspected")
            self.coordinators.coordination.lost(COORDINATOR, name, known)
            self.scene.at(self._soon(0.3), self._found, name, known)

    def _found(self, name: str, incarnation: int) -> None:
        self.coordinators.coordination.found(COORDINATOR, name, incarnation)

    def broker(self) -> None:
        """A broker is killed, and started again."""
        running = sorted(self.brokers.engines)
        if running:
            name = self.scene.choose.choice(running)
            self.brokers.kill(name)
            self.scene.at(self._soon(0.3), self._open_broker, name)

    def _open_broker(self, name: str) -> None:
        self.brokers.open(name, self.coordinators.coordination.states())

    def cut(self) -> None:
        """A link ends."""
        standing = self.scene.network.standing()
        if standing:
            wire = self.scene.choose.choice(standing)
            self.scene.transcript.say("mishap", f"the link of {wire.process.name} and {wire.peer.process.name} ends")
            wire.abort()

    def full(self) -> None:
        """A disk is full for a while."""
        name = self.scene.choose.choice(self.scene.coordinators)
        self.scene.transcript.say("mishap", f"the disk of {name} is full")
        self._set_full(name, True)
        self.scene.at(self._soon(0.2), self._set_full, name, False)

    def _set_full(self, name: str, full: bool) -> None:
        self.coordinators.stores[name].full = full
