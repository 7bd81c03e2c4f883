"""Messages per second of 1,000 and 5,000 publishers to one wildcard subscriber, QoS 0 and 1, beside peers.

A fleet: each connection has a topic of its own and sends one message of 140 B a write.

All targets run at the same time and take turns; the same generator loads each of them, with the window of a ladder
(messages under way, of all connections together) that suits it best. The least is one message a connection: then a
broker reads one message at a time, and nothing can be taken in runs. With more, a broker that falls behind finds
several in one read; what each window gave is told. That everything arrives, unchanged and in order within each topic,
is checked: what is not makes the exit code 1. CPU is that of the target's processes, from /proc, in microseconds a
message; the generator runs on the same cores, so its share is told: near 1 it is the generator that was measured.

lexicast sequences and stores every message (QoS 1: durable before each acknowledgement); the peers do not store.
NATS has no acknowledged delivery in its core, so QoS 1 is compared with Mosquitto alone.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from lexicast.cluster.errors import PeerError, UsageError

from . import report as reports
from .peers.fleet_load import FleetLoad, OpenFleet
from .peers.loadgen import RunResult
from .peers.session_opening import raise_open_files
from .peers.targets import running
from .peers.wire import wire_of
from .report import DriverReport
from .stage.servers import Target, cpu_s

PEERS = ("mosquitto", "nats")
WINDOWS = (1_000, 4_000, 16_000)
"""The ladder of windows, of which those count that are at least a message a connection."""

DATA_PATH = ("brokers", "coordinators")
"""The roles whose CPU a message `fanin_cpu_us` adds up."""


@dataclass
class FaninSamples:
    """What one target gave in one scenario; lists have one entry a round, None where the run failed."""

    window: int = 0
    window_rates: dict[int, float] = field(default_factory=dict)
    messages_per_s: list[float | None] = field(default_factory=list)
    lost: list[int | None] = field(default_factory=list)
    generator_cpu: list[float | None] = field(default_factory=list)
    cpu_us: dict[str, list[float | None]] = field(default_factory=dict)
    """CPU a message in us, by the role of the process."""


class FaninContender:
    """One target in one scenario: its open fleet, reopened after a failure, and its samples."""

    def __init__(self, target: Target, load: FleetLoad, options: argparse.Namespace, report: DriverReport) -> None:
        self.target, self.load, self.samples = target, load, FaninSamples()
        self._options, self._report = options, report
        self._open: OpenFleet | None = None

    def calibrate(self) -> None:
        """Chooses the window."""
        connections = self.load.connections
        ladder = self._options.windows or sorted({max(connections, window) for window in WINDOWS})
        self.samples.window = ladder[0]
        try:
            for window in ladder:
                result = self._session().run(self._options.calibrate_seconds, window)
                self.samples.window_rates[window] = result.deliveries_per_s
        except PeerError as error:
            self._failed(error)
            return
        rates = self.samples.window_rates
        self.samples.window = max(rates, key=lambda window: rates[window])

    def round(self) -> None:
        """One measured run."""
        before = self._cpu_by_role()
        try:
            options = self._options
            result = self._session().run(options.seconds, self.samples.window, messages_max=options.messages)
        except PeerError as error:
            self._failed(error)
            self._record(None, {})
            return
        after = self._cpu_by_role()
        self._record(result, {role: (after[role] - before[role]) / result.sent * 1e6 for role in after})
        if result.lost:
            self._failed(PeerError(f"{result.lost} of {result.sent} messages were lost"))

    def _cpu_by_role(self) -> dict[str, float]:
        return {role: sum(cpu_s(pid) for pid in pids) for role, pids in self.target.pids.items()}

    def _record(self, result: RunResult | None, cpu_us: dict[str, float]) -> None:
        self.samples.messages_per_s.append(None if result is None else result.deliveries_per_s)
        self.samples.lost.append(None if result is None else result.lost)
        self.samples.generator_cpu.append(None if result is None else round(result.generator_cpu, 3))
        for role in self.target.pids:
            value = cpu_us.get(role)
            self.samples.cpu_us.setdefault(role, []).append(None if value is None else round(value, 3))

    def _session(self) -> OpenFleet:
        self.target.require_alive()
        if self._open is None:
            wire = wire_of(self.target.address.protocol, self._options.mqtt_version)
            self._open = OpenFleet(self.target.address, wire, self.load)
        return self._open

    def _failed(self, error: PeerError) -> None:
        self._report.problem(f"{self.target.name}, {self.load.name}: {error}")
        self.close()

    def close(self) -> None:
        if self._open is not None:
            self._open.close()
            self._open = None


def scenarios(options: argparse.Namespace) -> list[FleetLoad]:
    """The loads to run, named by what their figures are called."""
    return [
        FleetLoad(f"fanin_{count}_qos1" if qos else f"fanin_{count}", count, options.payload, qos)
        for count in options.publishers
        for qos in options.qos
    ]


def measure(report: DriverReport) -> None:
    """Runs all scenarios against all targets."""
    options = report.options
    names = options.targets.split(",")
    if options.messages is not None and options.messages < 1:
        raise UsageError("--messages must be at least 1")
    raise_open_files(len(names) * max(options.publishers) + 200)
    loads = scenarios(options)
    steps = len(loads) * (1 + options.rounds)
    with running(names, report.missing) as targets, reports.Steps(report.console, steps) as progress:
        for load in loads:
            _scenario(report, progress, list(targets.values()), load)
    _figures(report, loads)


def _scenario(report: DriverReport, progress: reports.Steps, targets: Sequence[Target], load: FleetLoad) -> None:
    chosen = [target for target in targets if not (load.qos and target.address.protocol == "nats")]
    contenders = [FaninContender(target, load, report.options, report) for target in chosen]
    try:
        progress.step(f"{load.name}: opening {load.connections} publishers each, choosing windows")
        for contender in contenders:
            contender.calibrate()
        for number in range(report.options.rounds):
            progress.step(f"{load.name}: round {number + 1} of {report.options.rounds}")
            # Rotated, so that no target always follows the same one.
            first = number % max(1, len(contenders))
            for contender in contenders[first:] + contenders[:first]:
                contender.round()
    finally:
        for contender in contenders:
            contender.close()
    report.samples[load.name] = {contender.target.name: asdict(contender.samples) for contender in contenders}


def data_path_cpu_us(samples: dict[str, list[float | None]]) -> float | None:
    """Broker and coordinator together, in us a message: the median of the rounds' sums."""
    rounds = zip(*(values for role, values in samples.items() if role in DATA_PATH), strict=True)
    return reports.median([None if None in one else sum(value or 0.0 for value in one) for one in rounds])


def _figures(report: DriverReport, loads: Sequence[FleetLoad]) -> None:
    rows = []
    report.figure("fanin_cpu_us", None)
    for load in loads:
        samples = report.samples[load.name]
        rates = {name: one["messages_per_s"] for name, one in samples.items()}
        for peer in PEERS if not load.qos else PEERS[:1]:
            report.figure(f"{load.name}_vs_{peer}", reports.median_ratio(rates.get("lexicast"), rates.get(peer)))
        for name, one in samples.items():
            report.figure(f"{load.name}_{name}_per_s", reports.median(one["messages_per_s"]))
            for role, values in one["cpu_us"].items():
                report.figure(f"{load.name}_{name}_{role}_cpu_us", reports.median(values))
            report.figure(f"{load.name}_{name}_generator_cpu", reports.median(one["generator_cpu"]))
            rows.append(_row(report, load, name, one))
    if "lexicast" in report.samples.get("fanin_1000", {}):
        report.figure("fanin_cpu_us", data_path_cpu_us(report.samples["fanin_1000"]["lexicast"]["cpu_us"]))
    columns = [
        "publishers to one subscriber",
        "msg/s",
        "vs mosquitto",
        "CPU us a message",
        "generator",
        "by window",
        "lost",
    ]
    title = f"One message of {report.options.payload} B a write, median of {report.options.rounds} rounds"
    report.table(title, columns, rows)


def _row(report: DriverReport, load: FleetLoad, name: str, samples: dict[str, Any]) -> list[str]:
    cpu = {role: reports.median(values) for role, values in samples["cpu_us"].items()}
    told = ", ".join(f"{role} {value:.1f}" for role, value in cpu.items() if value is not None and value >= 0.05)
    share = report.figures[f"{load.name}_{name}_generator_cpu"]
    return [
        f"{load.connections:,} to 1, QoS {load.qos}: {name}",
        reports.format_rate(report.figures[f"{load.name}_{name}_per_s"]),
        reports.format_number(report.figures.get(f"{load.name}_vs_mosquitto")) if name == "lexicast" else "",
        told,
        "-" if share is None else f"{share:.0%}",
        ", ".join(f"{window:,}: {reports.format_rate(rate)}" for window, rate in samples["window_rates"].items()),
        str(sum(value or 0 for value in samples["lost"])),
    ]


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The driver's options; what is left out follows from the mode."""
    parser = reports.parser("fanin", __doc__, default_targets="lexicast,mosquitto,nats")
    parser.add_argument("--publishers", type=reports.integers, default=[1_000, 5_000], help="default 1000,5000")
    parser.add_argument("--qos", type=reports.qualities, default=[0, 1], help="default 0,1 (NATS: 0 alone)")
    parser.add_argument("--payload", type=reports.positive, default=140, help="bytes a message (default 140)")
    parser.add_argument("--seconds", type=float, help="length of one run (default 3; quick 0.5)")
    parser.add_argument("--calibrate-seconds", type=float, help="of one run of the ladder (default 1; quick 0.2)")
    parser.add_argument(
        "--windows", type=reports.integers, help="messages under way, to choose from (default: see above)"
    )
    parser.add_argument("--messages", type=int, help="end a run after so many publications")
    parser.add_argument("--mqtt-version", type=int, choices=(4, 5), default=4, help="4 is MQTT 3.1.1 (default)")
    options = parser.parse_args(argv)
    options.seconds = options.seconds or (0.5 if options.quick else 3.0)
    options.calibrate_seconds = options.calibrate_seconds or (0.2 if options.quick else 1.0)
    return options


def main(argv: Sequence[str] | None = None) -> int:
    """`python -m lexicast.bench.fanin`; returns the exit code."""
    return reports.drive("fanin", parse(argv), measure)


if __name__ == "__main__":
    sys.exit(main())
