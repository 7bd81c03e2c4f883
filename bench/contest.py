"""Targets that take turns under one load: windows chosen, rounds interleaved, samples kept.

Each target first runs once with every window of the same ladder and keeps its best, so each is measured at its best.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from lexicast.cluster.errors import PeerError

from . import report as reports
from .peers.loadgen import Runnable, RunResult, best_window
from .peers.wire import Wire, wire_of
from .report import DriverReport
from .stage.servers import Address, Target, cpu_s

WINDOWS = (1_000, 4_000, 16_000)
"""The ladder where a message has one subscriber. Chosen so that on every target measured the best lies inside or the
last step gains under 5%."""


@dataclass(frozen=True)
class Scenario:
    """One load: how it is opened, how often each message is delivered, the windows to try (ascending, messages)."""

    name: str
    open: Callable[[Address, Wire], Runnable]
    qos: int = 0
    copies: int = 1
    windows: Sequence[int] = WINDOWS


@dataclass
class ContenderSamples:
    """What one target gave in one scenario; lists have one entry a round, None where the run failed."""

    window: int = 0
    window_rates: dict[int, float] = field(default_factory=dict)
    deliveries_per_s: list[float | None] = field(default_factory=list)
    lost: list[int | None] = field(default_factory=list)
    generator_cpu: list[float | None] = field(default_factory=list)
    target_cpu: list[float | None] = field(default_factory=list)
    cpu_us: dict[str, list[float | None]] = field(default_factory=dict)
    """CPU a publication in us, by the role of the process."""


class Contender:
    """One target in one scenario: its open load, reopened after a failure, and its samples.

    Of `options` it takes seconds, calibrate_seconds, messages and mqtt_version.
    """

    def __init__(self, target: Target, scenario: Scenario, options: argparse.Namespace, report: DriverReport) -> None:
        self.target, self.scenario, self.samples = target, scenario, ContenderSamples()
        self._options, self._report = options, report
        self._open: Runnable | None = None

    def calibrate(self) -> None:
        """Chooses the window."""
        scenario, options = self.scenario, self._options
        try:
            session = self._session()
            best = best_window(session, scenario.copies, scenario.windows, options.calibrate_seconds, options.seconds)
            self.samples.window, self.samples.window_rates = best
        except PeerError as error:
            self._failed(error)
            self.samples.window = scenario.windows[0]

    def round(self) -> None:
        """One measured run."""
        try:
            session = self._session()
            before = self._cpu_by_role()
            result = session.run(self._options.seconds, self.samples.window, messages_max=self._options.messages)
        except PeerError as error:
            self._failed(error)
            self._record(None, {})
            return
        self._record(result, {role: cpu - before[role] for role, cpu in self._cpu_by_role().items()})
        if result.lost:
            self._failed(PeerError(f"{result.lost} of {result.sent * self.scenario.copies} deliveries were lost"))

    def _cpu_by_role(self) -> dict[str, float]:
        return {role: sum(cpu_s(pid) for pid in pids) for role, pids in self.target.pids.items()}

    def _record(self, result: RunResult | None, cpu: dict[str, float]) -> None:
        samples = self.samples
        samples.deliveries_per_s.append(None if result is None else result.deliveries_per_s)
        samples.lost.append(None if result is None else result.lost)
        samples.generator_cpu.append(None if result is None else round(result.generator_cpu, 3))
        samples.target_cpu.append(None if result is None else round(sum(cpu.values()) / result.elapsed_s, 3))
        for role in self.target.pids:
            us = None if result is None or not result.sent else round(cpu[role] / result.sent * 1e6, 3)
            samples.cpu_us.setdefault(role, []).append(us)

    def _session(self) -> Runnable:
        self.target.require_alive()
        if self._open is None:
            address = self.target.address
            self._open = self.scenario.open(address, wire_of(address.protocol, self._options.mqtt_version))
        return self._open

    def _failed(self, error: PeerError) -> None:
        self._report.problem(f"{self.target.name}, {self.scenario.name}: {error}")
        self.close()

    def close(self) -> None:
        if self._open is not None:
            self._open.close()
            self._open = None


def contest(
    report: DriverReport, progress: reports.Steps, targets: Sequence[Target], scenario: Scenario
) -> dict[str, dict[str, Any]]:
    """Runs one scenario against all targets that have it (NATS: QoS 0); samples by target, kept in the report too."""
    chosen = [target for target in targets if not (scenario.qos and target.address.protocol == "nats")]
    contenders = [Contender(target, scenario, report.options, report) for target in chosen]
    rounds = report.options.rounds
    try:
        progress.step(f"{scenario.name}: opening the sessions, choosing windows")
        for contender in contenders:
            contender.calibrate()
        for number in range(rounds):
            progress.step(f"{scenario.name}: round {number + 1} of {rounds}")
            # Rotated, so that no target always follows the same one.
            first = number % max(1, len(contenders))
            for contender in contenders[first:] + contenders[:first]:
                contender.round()
    finally:
        for contender in contenders:
            contender.close()
    told = {contender.target.name: asdict(contender.samples) for contender in contenders}
    report.samples[scenario.name] = told
    return told


def add_run_options(parser: argparse.ArgumentParser, quick_s: float, quick_calibrate_s: float) -> None:
    """The options that every contest has; `quick_...`: what `set_lengths` takes in quick mode."""
    parser.add_argument("--payload", type=reports.positive, default=140, help="bytes a message (default 140)")
    parser.add_argument("--seconds", type=float, help=f"length of one run (default 3; quick {quick_s})")
    parser.add_argument(
        "--calibrate-seconds", type=float, help=f"of one run of the ladder (default 1; quick {quick_calibrate_s})"
    )
    parser.add_argument("--messages", type=int, help="end a run after so many publications")
    parser.add_argument("--mqtt-version", type=int, choices=(4, 5), default=4, help="4 is MQTT 3.1.1 (default)")


def set_lengths(options: argparse.Namespace, quick_s: float, quick_calibrate_s: float) -> argparse.Namespace:
    """Seconds that were left out follow from the mode."""
    options.seconds = options.seconds or (quick_s if options.quick else 3.0)
    options.calibrate_seconds = options.calibrate_seconds or (quick_calibrate_s if options.quick else 1.0)
    return options
