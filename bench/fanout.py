"""Deliveries per second of one publisher to 1, 100 and 1,000 subscribers, and of QoS 1 with a window, beside peers.

All targets run at the same time and take turns; the same generator loads each of them. In each scenario a target
first runs once with every window of the same ladder (messages ahead of the slowest subscriber) and keeps its best, so
each is measured at its best. Deliveries are counted and their sequence numbers checked: a lost, repeated or reordered
message is reported and makes the exit code 1.

One topic and one packet length are lexicast's best case: its reader takes such packets in runs. `latency` measures the
time that a message takes at rates that fill no window.

lexicast sequences and stores every message (QoS 1: durable before each acknowledgement); the peers do not store.
NATS has no acknowledged delivery in its core, so QoS 1 is compared with Mosquitto alone.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field

from lexicast.cluster.errors import PeerError, UsageError

from . import report as reports
from .peers.loadgen import Load, OpenLoad, RunResult, best_window
from .peers.session_opening import raise_open_files
from .peers.targets import running
from .peers.wire import wire_of
from .report import DriverReport
from .stage.servers import Target

PEERS = ("mosquitto", "nats")
ACK_WINDOW = 1_000
"""Unacknowledged QoS 1 messages of the publisher."""

WINDOW_LADDER = {1: (1_000, 4_000, 16_000), 100: (250, 1_000, 4_000), 1_000: (100, 500, 2_000)}
"""Windows tried, by the least number of subscribers they are for. Chosen so that on every target measured the best
lies inside or the last step gains under 5%."""


@dataclass
class FanoutSamples:
    """What one target gave in one scenario; lists have one entry a round, None where the run failed."""

    window: int = 0
    window_rates: dict[int, float] = field(default_factory=dict)
    deliveries_per_s: list[float | None] = field(default_factory=list)
    lost: list[int | None] = field(default_factory=list)
    generator_cpu: list[float | None] = field(default_factory=list)
    target_cpu: list[float | None] = field(default_factory=list)


class FanoutContender:
    """One target in one scenario: its open load, reopened after a failure, and its samples."""

    def __init__(self, target: Target, load: Load, options: argparse.Namespace, report: DriverReport) -> None:
        self.target, self.load, self.samples = target, load, FanoutSamples()
        self._options, self._report = options, report
        self._open: OpenLoad | None = None

    def calibrate(self) -> None:
        """Chooses the window."""
        ladder = WINDOW_LADDER[max(size for size in WINDOW_LADDER if size <= self.load.subscribers)]
        try:
            options = self._options
            best = best_window(self._session(), ladder, options.calibrate_seconds, options.seconds)
            self.samples.window, self.samples.window_rates = best
        except PeerError as error:
            self._failed(error)
            self.samples.window = ladder[0]

    def round(self) -> None:
        """One measured run."""
        cpu = self.target.cpu_s()
        try:
            result = self._session().run(
                self._options.seconds,
                self.samples.window,
                ack_window=ACK_WINDOW,
                messages_max=self._options.messages,
            )
        except PeerError as error:
            self._failed(error)
            self._record(None, None)
            return
        self._record(result, (self.target.cpu_s() - cpu) / result.elapsed_s)
        if result.lost:
            self._failed(PeerError(f"{result.lost} of {result.sent * self.load.subscribers} deliveries were lost"))

    def _record(self, result: RunResult | None, target_cpu: float | None) -> None:
        self.samples.deliveries_per_s.append(None if result is None else result.deliveries_per_s)
        self.samples.lost.append(None if result is None else result.lost)
        self.samples.generator_cpu.append(None if result is None else round(result.generator_cpu, 3))
        self.samples.target_cpu.append(None if target_cpu is None else round(target_cpu, 3))

    def _session(self) -> OpenLoad:
        self.target.require_alive()
        if self._open is None:
            self._open = OpenLoad(
                self.target.address, wire_of(self.target.address.protocol, self._options.mqtt_version), self.load
            )
        return self._open

    def _failed(self, error: PeerError) -> None:
        self._report.problem(f"{self.target.name}, {self.load.name}: {error}")
        self.close()

    def close(self) -> None:
        if self._open is not None:
            self._open.close()
            self._open = None


def scenarios(options: argparse.Namespace) -> list[Load]:
    """The loads to run, named by what their figures are called."""
    made = [Load(f"fanout_{count}", count, options.payload, verify=options.verify) for count in options.subscribers]
    if not options.no_qos1:
        made.append(Load("qos1", 1, options.payload, qos=1, verify=options.verify))
    return made


def measure(report: DriverReport) -> None:
    """Runs all scenarios against all targets."""
    options = report.options
    names = options.targets.split(",")
    if options.messages is not None and options.messages < 1:
        raise UsageError("--messages must be at least 1")
    raise_open_files(len(names) * max(options.subscribers) + 200)
    loads = scenarios(options)
    steps = len(loads) * (1 + options.rounds)
    with running(names, report.missing) as targets, reports.Steps(report.console, steps) as progress:
        for load in loads:
            _scenario(report, progress, list(targets.values()), load)
    _figures(report, loads)
    _table(report, loads, names)


def _scenario(report: DriverReport, progress: reports.Steps, targets: Sequence[Target], load: Load) -> None:
    chosen = [target for target in targets if not (load.qos and target.address.protocol == "nats")]
    contenders = [FanoutContender(target, load, report.options, report) for target in chosen]
    try:
        progress.step(f"{load.name}: opening {load.subscribers} subscriber(s) each, choosing windows")
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


def _figures(report: DriverReport, loads: Sequence[Load]) -> None:
    for load in loads:
        rates = {name: samples["deliveries_per_s"] for name, samples in report.samples[load.name].items()}
        for peer in PEERS if not load.qos else PEERS[:1]:
            report.figure(f"{load.name}_vs_{peer}", reports.median_ratio(rates.get("lexicast"), rates.get(peer)))
        for name, values in rates.items():
            report.figure(f"{load.name}_{name}_per_s", reports.median(values))


def _table(report: DriverReport, loads: Sequence[Load], names: Sequence[str]) -> None:
    rows = []
    for load in loads:
        samples = report.samples[load.name]
        cells = [reports.format_rate(report.figures.get(f"{load.name}_{name}_per_s")) for name in names]
        ratios = [reports.format_number(report.figures.get(f"{load.name}_vs_{peer}"), 1) for peer in PEERS]
        lost = sum(value or 0 for one in samples.values() for value in one["lost"])
        rows.append([load.name, *cells, *ratios, str(lost)])
    columns = ["deliveries/s", *names, *(f"vs {peer}" for peer in PEERS), "lost"]
    report.table(f"One publisher, {report.options.payload} B, median of {report.options.rounds} rounds", columns, rows)


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The driver's options; seconds left out follow from the mode."""
    parser = reports.parser("fanout", __doc__, default_targets="lexicast,mosquitto,nats")
    parser.add_argument("--subscribers", type=reports.integers, default=[1, 100, 1_000], help="default 1,100,1000")
    parser.add_argument("--payload", type=reports.positive, default=140, help="bytes a message (default 140)")
    parser.add_argument("--seconds", type=float, help="length of one run (default 3; quick 0.4)")
    parser.add_argument("--calibrate-seconds", type=float, help="of one run of the ladder (default 1; quick 0.25)")
    parser.add_argument("--messages", type=int, help="end a run after so many publications")
    parser.add_argument("--no-qos1", action="store_true", help="leave the QoS 1 scenario out")
    parser.add_argument("--verify", action="store_true", help="check every sequence number (slower generator)")
    parser.add_argument("--mqtt-version", type=int, choices=(4, 5), default=4, help="4 is MQTT 3.1.1 (default)")
    options = parser.parse_args(argv)
    options.seconds = options.seconds or (0.4 if options.quick else 3.0)
    options.calibrate_seconds = options.calibrate_seconds or (0.25 if options.quick else 1.0)
    return options


def main(argv: Sequence[str] | None = None) -> int:
    """`python -m lexicast.bench.fanout`; returns the exit code."""
    return reports.drive("fanout", parse(argv), measure)


if __name__ == "__main__":
    sys.exit(main())
