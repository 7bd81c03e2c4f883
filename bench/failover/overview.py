"""One look at the cluster that is drilled: its status, and where each of its actors is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from lexicast.actors.ray.handles import COORDINATION
from lexicast.cluster.errors import UnavailableError

from .machines import Machine

ROLES: Final = ("coordinators", "brokers", "sampling", "matchers", "consoles")
KIND_OF: Final = {"broker": "broker", "coordinator": "coordinator", "sampling": "sampler", "matcher": "matcher"}
"""The kind of member by how its name begins."""


@dataclass(frozen=True, slots=True)
class ActorPlace:
    """Where a process of the cluster is: its machine, and its number as the driver sees it."""

    machine: Machine
    pid: int


class Overview:
    """One look at the cluster."""

    def __init__(self, status: dict[str, Any], machines: Sequence[Machine]) -> None:
        self._status = status
        self._machines = {machine.host: machine for machine in machines}
        self._coordination = status.get("coordination", {})

    def lacks(self, nodes: int, matchers: int = 0, consoles: int = 0) -> str:
        """What is missing, in words; "" when it is whole. `matchers`, `consoles`: how many there are to be."""
        if "error" in self._coordination or not self._status:
            return "the coordination server"
        counts = {"coordinators": nodes, "brokers": nodes, "sampling": 1, "matchers": matchers, "consoles": consoles}
        for role, count in counts.items():
            told = self.said(role)
            away = [name for name, said in told.items() if "error" in said]
            if away or len(told) < count:
                return ", ".join(away) or role
        return self._lacks_links(nodes, matchers) or self._lacks_copies()

    def _lacks_links(self, nodes: int, matchers: int) -> str:
        """Matchers dial: whether all are linked to all, by the overlay where they form one."""
        if not matchers:
            return ""
        alone = [name for name, said in self.said("matchers").items() if said["brokers"] < nodes]
        for name, said in self.said("coordinators").items():
            overlay = said["matching"].get("overlay") or {}
            if said["matching"]["matchers"] < matchers and not overlay.get("entries"):
                alone.append(name)
        return f"matchers' links to or from {', '.join(alone)}" if alone else ""

    def _lacks_copies(self) -> str:
        copies = [len(members) for _, _, members in self._coordination["group_states"].values()]
        single = sum([count < 2 for count in copies])
        return f"{single} groups' second copy" if single or not copies else ""

    def needs_operator(self) -> bool:
        """Whether the status says that something will not come back by itself."""
        fates = [said.get("fate", "") for role in ROLES for said in self._status.get(role, {}).values()]
        return any("lexicast down" in fate for fate in fates)

    def said(self, role: str) -> dict[str, Any]:
        """What the actors of one of ROLES say of themselves, by name."""
        return dict(self._status.get(role, {}))

    def cells(self) -> dict[str, Any]:
        """What the coordination server says of the cells of matchers' conditions."""
        return dict(self._coordination.get("cells", {}))

    def warned(self) -> list[str]:
        """What the status warns of."""
        return list(map(str, self._status.get("warnings", ())))

    def warnings(self) -> str:
        """The same on one line."""
        return "; ".join(self.warned()) or "its status warns of nothing"

    def leading(self) -> Counter[str]:
        """How many groups each coordinator leads."""
        return Counter(leader for _, leader, _ in self._coordination.get("group_states", {}).values())

    def place(self, name: str) -> ActorPlace:
        """Where an actor is. Raises UnavailableError."""
        if name == COORDINATION:
            return self._place(next(iter(self._machines.values())), self._coordination.get("pid", 0), name)
        member = self._members(KIND_OF[name.partition("-")[0]]).get(name, {})
        return self._place(self._machine(member), member.get("pid", 0), name)

    def on(self, kind: str, machine: Machine) -> list[str]:
        """The members of a kind ("broker", "coordinator", "matcher") on a machine."""
        return [name for name, member in self._members(kind).items() if self._machine(member) is machine]

    def _members(self, kind: str) -> dict[str, Any]:
        return dict(self._coordination.get("members", {}).get(kind, {}))

    def _machine(self, member: dict[str, Any]) -> Machine:
        """By its addresses; who only dials has none, and is where its node is: nodes are called as machines are."""
        at, node = member.get("addresses", ()), member.get("node", "")
        found = [m for host, m in self._machines.items() if any(f"tcp:{host}:" in address for address in at)]
        found += [machine for machine in self._machines.values() if machine.name == node]
        return found[0] if found else next(iter(self._machines.values()))

    @staticmethod
    def _place(machine: Machine, inner: int, name: str) -> ActorPlace:
        pid = machine.processes().get(inner)
        if pid is None:
            raise UnavailableError(f"{name} is not on {machine.name}")
        return ActorPlace(machine, pid)
