"""Messages a second over a bridge, QoS 1, beside Mosquitto's own: published at one broker, counted at the other, out
of the broker that has the bridge or into it.

Both pairs run all the while and take turns. The same generator publishes here and counts there: a thousand topics in
turn, a bounded number of messages under way in all. lexicast stores every message before it acknowledges or passes it
on; Mosquitto does not store. The samples of the report have what a message costs each process, in microseconds of CPU.
"""

from __future__ import annotations

import select
import time
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np

from .. import report as reports
from ..peers.session_opening import SessionSpec, open_sessions
from ..peers.shared_load import OpenShared, SharedLoad, SharedMember, SharedPublisher
from ..peers.wire import Wire, wire_of
from ..report import DriverReport
from ..stage.clusters import cluster_status
from ..stage.servers import Address, Target
from .sites import HOST, MosquittoSite, bridge_text, start_bridged, wait_connected

FIELDS: Final = "inflight_max = 4000\nreceive_max = 4000"
WINDOW: Final = 4_000
"""Messages under way from the publisher to the reader."""


class OpenBridged(OpenShared):
    """A publisher at one broker, a reader at the other."""

    def __init__(self, here: Address, there: Address, wire: Wire, load: SharedLoad) -> None:
        self.load = load
        (reader,) = open_sessions(there, wire, [SessionSpec(f"bench-{load.name}-reader", f"bench/{load.name}/+", 1)])
        (publisher,) = open_sessions(here, wire, [SessionSpec(f"bench-{load.name}-publisher")])
        self._sockets = [reader, publisher]
        self.publisher = SharedPublisher(publisher, wire, load)
        self.members = [SharedMember(reader, wire, load)]
        self._seen = np.zeros(0, np.int32)
        self._epoll = select.epoll()
        self._by_number = {reader.fileno(): self.members[0]}
        for sock in self._sockets:
            self._epoll.register(sock, select.EPOLLIN)


def measure_speed(report: DriverReport, progress: reports.Steps, folder: Path, stack: ExitStack) -> None:
    """Out: both pairs, in turns. Raises TargetMissingError, UnavailableError."""
    _measure(report, progress, folder / "out", stack, "out")


def measure_speed_in(report: DriverReport, progress: reports.Steps, folder: Path, stack: ExitStack) -> None:
    """In. Raises as `measure_speed`."""
    _measure(report, progress, folder / "in", stack, "in")


def _measure(report: DriverReport, progress: reports.Steps, folder: Path, stack: ExitStack, direction: str) -> None:
    options = report.options
    folder.mkdir()
    folder.chmod(0o755)
    far = [MosquittoSite(folder / f"far-{name}") for name in ("lexicast", "mosquitto")]
    for each in far:
        stack.callback(each.stop)
    text = bridge_text("bench", far[0].port, f"[{{ filter = 'bench/#', direction = '{direction}' }}]", FIELDS)
    lexicast = start_bridged(folder / "near", text)
    stack.callback(lexicast.stop)
    wait_connected(partial(cluster_status, lexicast), ["bench"])
    near = MosquittoSite(folder / "near-mosquitto", bridge_to=far[1].port, direction=direction)
    stack.callback(near.stop)
    pairs: dict[str, tuple[Target, Address]] = {
        "lexicast": (lexicast, Address(HOST, far[0].port)),
        "mosquitto": (near.target, Address(HOST, far[1].port)),
    }
    load = SharedLoad("bridge", 1, payload_size=options.payload)
    opened: dict[str, OpenBridged] = {}
    for name, (here, there) in pairs.items():
        ends = (here.address, there) if direction == "out" else (there, here.address)
        opened[name] = OpenBridged(*ends, wire_of("mqtt"), load)
    for pair in opened.values():
        stack.callback(pair.close)
        pair.run(options.warm_s, WINDOW)
    others = {name: each.target for name, each in zip(pairs, far, strict=True)}
    rates: dict[str, list[float | None]] = {name: [] for name in pairs}
    cpu_s: dict[str, dict[str, float]] = {name: {} for name in pairs}
    messages = dict.fromkeys(pairs, 0)
    lost = 0
    for number in range(options.rounds):
        for name in list(pairs)[:: 1 if number % 2 else -1]:
            progress.step(f"{direction}, round {number + 1}: {name}")
            before = _cpu_by_process(pairs[name][0], others[name])
            result = opened[name].run(options.seconds, WINDOW)
            for role, until_s in _cpu_by_process(pairs[name][0], others[name]).items():
                cpu_s[name][role] = cpu_s[name].get(role, 0.0) + until_s - before[role]
            messages[name] += result.sent
            rates[name].append(result.deliveries_per_s)
            lost += result.lost if name == "lexicast" else 0
    _tell(report, direction, rates, lost)
    report.samples[f"cpu_us_a_message_{direction}"] = {
        name: {role: round(1e6 * each / max(1, messages[name]), 2) for role, each in roles.items() if each}
        for name, roles in cpu_s.items()
    }


def _cpu_by_process(here: Target, there: Target) -> dict[str, float]:
    """Seconds so far: of whoever has the bridge by role, of the other broker ("far"), of the generator."""
    return {**here.cpu_by_role(), "far": there.cpu_s(), "generator": time.process_time()}


def _tell(report: DriverReport, direction: str, rates: dict[str, list[float | None]], lost: int) -> None:
    """Of those out the figures have no direction in their names."""
    named = "bridge" if direction == "out" else "bridge_in"
    report.samples[f"speed_{direction}"] = rates
    ratio = reports.median_ratio(rates["lexicast"], rates["mosquitto"])
    for name, values in rates.items():
        report.figure(f"{named}_{name}_per_s", reports.median(values))
    report.figure(f"{named}_vs_mosquitto", ratio)
    if lost:
        report.problem(f"{lost} messages were lost or repeated over an undisturbed bridge, {direction}")
    options = report.options
    report.table(
        f"QoS 1, {options.payload} B, a thousand topics in turn, {direction}, median of {options.rounds} rounds",
        ["messages/s", *rates, "vs mosquitto"],
        [["bridge", *[reports.format_rate(reports.median(each)) for each in rates.values()], f"{ratio or 0:.2f}"]],
    )
