"""What is done to the cluster in a drill, kind by kind."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Final

from lexicast.actors.ray.handles import COORDINATION
from lexicast.cluster.errors import UnavailableError

from .clusters import DrilledCluster
from .machines import Machine
from .overview import Overview

# As long as a cut: the page has to have told of it by then.
PAUSE_S: Final = 5.0
CUT_S: Final = 5.0
DRAIN: Final = "node_drain"
SLOW_WRITES_PER_S: Final = 20


@dataclass(slots=True)
class Struck:
    """A fault that has begun: where, and how it ends (None: by itself, or by the operator)."""

    machine: Machine
    end: Callable[[], None] | None = None
    everywhere: bool = True
    """Whether all clients are measured; else those that are connected to other machines."""
    names: tuple[str, ...] = ()
    """What operators are to be told of: one of these names."""
    stays: bool = False
    """Whether what was struck stays away until it is restored."""
    killed: bool = False
    """Whether a process was killed, which is started again by itself."""
    whole_node: bool = False
    """Whether all of the machine is struck, or its network."""


Strike = Callable[[DrilledCluster, Overview, int], Struck]


@dataclass(frozen=True, slots=True)
class Fault:
    """One kind. `lasts_s`: how long it lasts, or what follows is watched."""

    name: str
    strike: Strike
    lasts_s: float


def _actor(role: str, seen: Overview, turn: int) -> str:
    if role == "coordinator":
        return max(sorted(leading), key=leading.__getitem__) if (leading := seen.leading()) else "coordinator-0"
    return {"broker": f"broker-{turn % 3}", "sampling": "sampling-0"}.get(role, role)


def _signal(pid: int, number: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def _process(role: str, number: signal.Signals) -> Strike:
    """A process of a role is killed or stopped."""

    def strike(cluster: DrilledCluster, seen: Overview, turn: int) -> Struck:
        name = _actor(role, seen, turn)
        place = seen.place(name)
        _signal(place.pid, number)
        end = (lambda: _signal(place.pid, signal.SIGCONT)) if number == signal.SIGSTOP else None
        named = (name,) if end is not None or role != COORDINATION else ()
        return Struck(place.machine, end, everywhere=role != "broker", names=named, killed=end is None)

    return strike


def _worker(cluster: DrilledCluster, seen: Overview) -> Machine:
    """The machine that is not the head and leads most groups."""
    leading = seen.leading()
    return max(cluster.machines[1:], key=lambda m: sum([leading[name] for name in seen.on("coordinator", m)]))


def _raylet(cluster: DrilledCluster, seen: Overview, turn: int) -> Struck:
    machine = _worker(cluster, seen)
    for pid in machine.named("raylet"):
        _signal(pid, signal.SIGKILL)
    return Struck(machine, None, everywhere=False, names=_all_of(machine, seen), stays=True, whole_node=True)


def _all_of(machine: Machine, seen: Overview) -> tuple[str, ...]:
    """What may be named of a machine that is struck: its node, or what is on it."""
    return machine.name, *seen.on("coordinator", machine), *seen.on("broker", machine)


def _node(how: str) -> Strike:
    def strike(cluster: DrilledCluster, seen: Overview, turn: int) -> Struck:
        machine = _worker(cluster, seen)
        end: Callable[[], None] | None = None
        if how == "off":  # nobody hears of it
            machine.cut(incoming=True, outgoing=True)
        if how == "pause":
            machine.signal_all(signal.SIGSTOP)
            end = partial(machine.signal_all, signal.SIGCONT)
        else:
            machine.kill()
        names = _all_of(machine, seen)
        return Struck(machine, end, everywhere=False, names=names, stays=end is None, whole_node=True)

    return strike


def _drain(cluster: DrilledCluster, seen: Overview, turn: int) -> Struck:
    """A node is drained as before maintenance; at the end it serves again."""
    machine = _worker(cluster, seen)
    cluster.node("drain", machine.name)
    end = partial(cluster.node, "drain", machine.name, "--undo")
    return Struck(machine, end, everywhere=False, names=(machine.name,))


def _cut(*, incoming: bool, outgoing: bool) -> Strike:
    def strike(cluster: DrilledCluster, seen: Overview, turn: int) -> Struck:
        machine = _worker(cluster, seen)
        machine.cut(incoming=incoming, outgoing=outgoing)
        return Struck(machine, machine.mend, everywhere=False, names=_all_of(machine, seen), whole_node=True)

    return strike


def _disk(how: str) -> Strike:
    def strike(cluster: DrilledCluster, seen: Overview, turn: int) -> Struck:
        disk = cluster.own_disk
        if disk is None:
            raise UnavailableError("no machine has a disk of its own here")
        machine = cluster.machines[-1]
        names = tuple(seen.on("coordinator", machine))
        if how == "full":
            disk.fill()
            return Struck(machine, disk.empty, names=names)
        disk.slow(SLOW_WRITES_PER_S)
        return Struck(machine, disk.fast, names=names)

    return strike


_ROLES: Final = ("broker", "coordinator", "sampling", "coordination")
KINDS: Final = {
    kind.name: kind
    for kind in (
        *(Fault(f"{role}_kill", _process(role, signal.SIGKILL), PAUSE_S) for role in _ROLES),
        *(Fault(f"{role}_pause", _process(role, signal.SIGSTOP), PAUSE_S) for role in _ROLES),
        Fault("raylet_kill", _raylet, PAUSE_S),
        Fault("node_kill", _node("kill"), PAUSE_S),
        Fault("node_off", _node("off"), PAUSE_S),
        Fault("node_pause", _node("pause"), PAUSE_S),
        Fault(DRAIN, _drain, PAUSE_S),
        Fault("cut_both", _cut(incoming=True, outgoing=True), CUT_S),
        Fault("cut_in", _cut(incoming=True, outgoing=False), CUT_S),
        Fault("cut_out", _cut(incoming=False, outgoing=True), CUT_S),
        Fault("disk_full", _disk("full"), PAUSE_S),
        Fault("disk_slow", _disk("slow"), PAUSE_S),
    )
}
