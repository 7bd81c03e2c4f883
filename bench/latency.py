"""Latency from send to receive, QoS 0 and 1, at steady rates, up to saturation, and at full speed, beside peers.

One publisher, one subscriber, one process, one clock: a message's latency is the time from just before its bytes go
into the publisher's socket to just after the subscriber read them, so it includes the kernel both ways and the
generator's own wake-up. Three parts:

- steady: 100, 1,000 and 5,000 messages a second. Sends follow a fixed schedule and do not wait for deliveries; how late
  they were is reported (`lateness`), because a generator that falls behind its schedule measures something else.
- the curve (QoS 0): the same at rates that grow until a target delivers less than 90% of what is sent in every
  round; above 10,000 a second what is due within 0.1 ms goes out in one write.
- the window (QoS 0): as fast as the target takes them, with the window of `fanout`'s ladder that gives it the most
  messages a second. What is under way then fills the window, so this latency is about the window over the rate.

p50 and p99 are medians over the rounds of each run's percentile; p99.9 is taken over the messages of all rounds, and
is null below 1,000 of them. The figures without a target's name are lexicast's at 1,000 messages a second, QoS 0.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, cast

from lexicast.cluster.errors import PeerError

from . import report as reports
from .contest import WINDOWS
from .latency_picture import draw
from .peers.loadgen import Load, OpenLoad, best_window
from .peers.paced_load import OpenTimed, PacedRun, paced, sharpen_timers
from .peers.session_opening import raise_open_files
from .peers.targets import running
from .peers.wire import wire_of
from .report import DriverReport
from .stage.servers import Target

NAMED_RATE = 1_000
"""Messages a second of the figures that carry no target's name."""

CURVE_RATES = [100, 300, 1_000, 3_000, 10_000, 30_000, 100_000, 300_000, 1_000_000, 3_000_000]
"""Messages a second of the curve, as far as a target comes."""

SATURATED_BELOW = 0.9
"""The part of a rate that a target must deliver, else it is saturated."""


def percentile_ms(values_ns: Sequence[int], fraction: float) -> float | None:
    """The smallest value that at least `fraction` (0 to 1) of the values do not exceed, in ms; None without values."""
    if not values_ns:
        return None
    return sorted(values_ns)[max(0, math.ceil(fraction * len(values_ns)) - 1)] / 1e6


T = TypeVar("T", bound=OpenLoad)


@dataclass
class PacedContender:
    """One target at one QoS: its open load and the runs so far, by rate."""

    target: Target
    load: Load
    mqtt_version: int
    report: DriverReport
    runs: dict[int, list[PacedRun | None]] = field(default_factory=dict)
    opened: OpenLoad | None = None

    def round(self, per_s: int, seconds: float) -> None:
        """One run; a failure is reported, leaves None, and the next run opens new sessions."""
        runs = self.runs.setdefault(per_s, [])
        done = len(runs)
        self.attempt(OpenLoad, f"{per_s} msg/s", lambda load: runs.append(paced(load, per_s, seconds)))
        if len(runs) == done:
            runs.append(None)

    def attempt(self, kind: type[T], what: str, part: Callable[[T], object]) -> None:
        """Runs `part` on the open load, opened as a `kind` where there is none; a failure is told and closes it."""
        self.target.require_alive()
        try:
            if self.opened is None:
                self.opened = kind(
                    self.target.address, wire_of(self.target.address.protocol, self.mqtt_version), self.load
                )
            part(cast(T, self.opened))
        except PeerError as error:
            self.report.problem(f"{self.target.name}, QoS {self.load.qos}, {what}: {error}")
            self.close()

    def close(self) -> None:
        """Closes the sessions if they are open."""
        if self.opened is not None:
            self.opened.close()
            self.opened = None


def summary(runs: Sequence[PacedRun | None]) -> dict[str, Any]:
    """The percentiles of one target at one QoS and rate."""
    done = [run for run in runs if run is not None]
    pooled = [value for run in done for value in run.latencies_ns]
    late = [value for run in done for value in run.lateness_ns]
    p50 = [percentile_ms(run.latencies_ns, 0.5) for run in done]
    p99 = [percentile_ms(run.latencies_ns, 0.99) for run in done]
    return {
        "messages": len(pooled),
        "p50_ms": reports.median(p50),
        "p99_ms": reports.median(p99),
        "p999_ms": percentile_ms(pooled, 0.999) if len(pooled) >= 1_000 else None,
        "p50_ms_rounds": p50,
        "p99_ms_rounds": p99,
        "lateness_p99_ms": percentile_ms(late, 0.99),
        "delivered_per_s": reports.median([run.delivered_per_s for run in done]),
    }


def measure(report: DriverReport) -> None:
    """Runs the three parts against all targets, in turns."""
    options = report.options
    names = options.targets.split(",")
    raise_open_files(100)
    sharpen_timers()
    with_curve = 0 in options.qos and not options.no_curve
    steps = len(options.qos) * len(options.rates) * options.rounds
    steps += (len(options.curve_rates) * options.curve_rounds + 1 + options.rounds) if with_curve else 0
    curve: dict[str, dict[int, dict[str, Any]]] = {}
    window: dict[str, dict[str, Any]] = {}
    with running(names, report.missing, latency=True) as targets, reports.Steps(report.console, steps) as progress:
        for qos in options.qos:
            _quality(report, progress, list(targets.values()), qos)
        if with_curve:
            curve = _curve(report, progress, list(targets.values()))
            window = _at_full_speed(report, progress, list(targets.values()))
    _figures(report)
    if with_curve:
        _curve_figures(report, curve)
        _window_figures(report, window)
        report.samples |= {"curve": curve, "window": window}
        if options.picture is not None:
            draw(curve, options.picture)
            report.console.print(f"picture: {options.picture}", highlight=False)


def _in_turns(
    progress: reports.Steps,
    contenders: list[PacedContender],
    rounds: int,
    what: str,
    run: Callable[[PacedContender], None],
) -> None:
    for number in range(rounds):
        progress.step(f"{what}, round {number + 1} of {rounds}")
        # Rotated, so that no target always follows the same one.
        first = number % max(1, len(contenders))
        for contender in contenders[first:] + contenders[:first]:
            run(contender)


def _contenders(report: DriverReport, targets: Sequence[Target], load: Load) -> list[PacedContender]:
    chosen = [target for target in targets if not (load.qos and target.address.protocol == "nats")]
    return [PacedContender(target, load, report.options.mqtt_version, report) for target in chosen]


def _quality(report: DriverReport, progress: reports.Steps, targets: Sequence[Target], qos: int) -> None:
    options = report.options
    contenders = _contenders(report, targets, Load(f"latency_qos{qos}", 1, options.payload, qos))
    try:
        for per_s in options.rates:
            run = partial(PacedContender.round, per_s=per_s, seconds=options.seconds)
            _in_turns(progress, contenders, options.rounds, f"QoS {qos}, {per_s} msg/s", run)
    finally:
        for contender in contenders:
            contender.close()
    for contender in contenders:
        for per_s, runs in contender.runs.items():
            report.samples[f"{contender.target.name}_qos{qos}_{per_s}"] = summary(runs)


def _curve(
    report: DriverReport, progress: reports.Steps, targets: Sequence[Target]
) -> dict[str, dict[int, dict[str, Any]]]:
    """Summaries by target and rate; the last one of a target has `saturated`, unless it took all rates."""
    options = report.options
    contenders = _contenders(report, targets, Load("latency_curve", 1, options.payload))
    told: dict[str, dict[int, dict[str, Any]]] = {one.target.name: {} for one in contenders}
    rising = contenders
    try:
        for per_s in options.curve_rates:
            run = partial(PacedContender.round, per_s=per_s, seconds=options.curve_seconds)
            _in_turns(progress, rising, options.curve_rounds, f"curve, {per_s} msg/s", run)
            for one in rising:
                point = summary(one.runs[per_s])
                # The best of the rounds: one slow spell of the machine does not end the curve.
                best = max((run.delivered_per_s for run in one.runs[per_s] if run is not None), default=0.0)
                point["saturated"] = best < SATURATED_BELOW * per_s
                told[one.target.name][per_s] = point
            rising = [one for one in rising if not told[one.target.name][per_s]["saturated"]]
    finally:
        for contender in contenders:
            contender.close()
    return told


def _at_full_speed(
    report: DriverReport, progress: reports.Steps, targets: Sequence[Target]
) -> dict[str, dict[str, Any]]:
    """By target: the window chosen, messages/s and percentiles with it, a value a round."""
    options = report.options
    contenders = _contenders(report, targets, Load("latency_window", 1, options.payload))
    told: dict[str, dict[str, Any]] = {}

    def timed(one: PacedContender, part: Callable[[OpenTimed, dict[str, Any]], None]) -> None:
        found = told.setdefault(one.target.name, {"window": WINDOWS[0], "per_s": [], "p50_ms": [], "p99_ms": []})
        one.attempt(OpenTimed, "full speed", lambda load: part(load, found))

    def choose(load: OpenTimed, found: dict[str, Any]) -> None:
        found["window"] = best_window(load, 1, WINDOWS, options.curve_seconds / 2, options.curve_seconds)[0]

    def measured(load: OpenTimed, found: dict[str, Any]) -> None:
        result = load.run(options.curve_seconds, found["window"])
        if result.lost:
            raise PeerError(f"{result.lost} of {result.sent} messages were lost")
        latencies = load.latencies_ns()
        found["per_s"].append(result.deliveries_per_s)
        found["p50_ms"].append(percentile_ms(latencies, 0.5))
        found["p99_ms"].append(percentile_ms(latencies, 0.99))

    try:
        _in_turns(progress, contenders, 1, "full speed, choosing windows", lambda one: timed(one, choose))
        _in_turns(progress, contenders, options.rounds, "full speed", lambda one: timed(one, measured))
    finally:
        for contender in contenders:
            contender.close()
    return told


def _figures(report: DriverReport) -> None:
    named = report.samples.get(f"lexicast_qos0_{NAMED_RATE}", {})
    rows = []
    for part in ("p50", "p99", "p999"):
        report.figure(f"latency_{part}_ms", named.get(f"{part}_ms"))
    for key, values in report.samples.items():
        for part in ("p50", "p99", "p999"):
            report.figure(f"latency_{part}_ms_{key}", values[f"{part}_ms"])
        cells = [values["p50_ms"], values["p99_ms"], values["p999_ms"], values["lateness_p99_ms"]]
        rows.append(
            [key.replace("_", " "), *(reports.format_number(cell, 3) for cell in cells), str(values["messages"])]
        )
    columns = ["target, QoS, msg/s", "p50 ms", "p99 ms", "p99.9 ms", "lateness p99 ms", "messages"]
    report.table(f"Send to receive, {report.options.payload} B, {report.options.rounds} rounds", columns, rows)


def _curve_figures(report: DriverReport, curve: dict[str, dict[int, dict[str, Any]]]) -> None:
    for name, points in curve.items():
        for per_s, point in points.items():
            if not point["saturated"]:
                report.figure(f"latency_curve_p50_ms_{name}_{per_s}", point["p50_ms"])
                report.figure(f"latency_curve_p99_ms_{name}_{per_s}", point["p99_ms"])
        delivered = [point["delivered_per_s"] for point in points.values() if point["delivered_per_s"]]
        report.figure(f"latency_curve_delivered_per_s_{name}", max(delivered, default=None))
    rates = [per_s for per_s in report.options.curve_rates if any(per_s in points for points in curve.values())]
    rows = [[f"{per_s:,}", *(_curve_cell(points.get(per_s)) for points in curve.values())] for per_s in rates]
    report.table("Latency against rate, QoS 0: p50 / p99 ms", ["msg/s", *curve], rows)


def _curve_cell(point: dict[str, Any] | None) -> str:
    if point is None:
        return ""
    if point["saturated"]:
        return f"saturated: {reports.format_rate(point['delivered_per_s'])}"
    return f"{reports.format_number(point['p50_ms'], 3)} / {reports.format_number(point['p99_ms'], 3)}"


def _window_figures(report: DriverReport, window: dict[str, dict[str, Any]]) -> None:
    rows = []
    for name, found in window.items():
        middle = {part: reports.median(found[part]) for part in ("per_s", "p50_ms", "p99_ms")}
        report.figure(f"latency_window_p50_ms_{name}", middle["p50_ms"])
        report.figure(f"latency_window_p99_ms_{name}", middle["p99_ms"])
        cells = [reports.format_number(middle["p50_ms"], 3), reports.format_number(middle["p99_ms"], 3)]
        rows.append([name, f"{found['window']:,}", reports.format_rate(middle["per_s"]), *cells])
    report.table("At full speed, QoS 0", ["target", "window", "msg/s", "p50 ms", "p99 ms"], rows)


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The driver's options."""
    parser = reports.parser("latency", __doc__, default_targets="lexicast,mosquitto,nats")
    parser.add_argument("--rates", type=reports.integers, default=[100, 1_000, 5_000], help="default 100,1000,5000")
    parser.add_argument("--qos", type=reports.qualities, default=[0, 1], help="default 0,1 (NATS: 0 alone)")
    parser.add_argument("--payload", type=reports.positive, default=140, help="bytes a message (default 140)")
    parser.add_argument("--seconds", type=float, help="length of one run (default 3; quick 0.5)")
    parser.add_argument("--curve-rates", type=reports.integers, default=CURVE_RATES, help="ascending (100 to 3000000)")
    parser.add_argument("--curve-seconds", type=float, help="of a run of curve and window (default 1; quick 0.3)")
    parser.add_argument("--no-curve", action="store_true", help="leave curve and window out")
    parser.add_argument("--picture", type=Path, metavar="FILE", help="draw the curve here (PNG)")
    parser.add_argument("--mqtt-version", type=int, choices=(4, 5), default=4, help="4 is MQTT 3.1.1 (default)")
    options = parser.parse_args(argv)
    options.seconds = options.seconds or (0.5 if options.quick else 3.0)
    options.curve_seconds = options.curve_seconds or (0.3 if options.quick else 1.0)
    options.curve_rounds = min(2, options.rounds) if options.quick else options.rounds
    return options


def main(argv: Sequence[str] | None = None) -> int:
    """`python -m lexicast.bench.latency`; returns the exit code."""
    return reports.drive("latency", parse(argv), measure)


if __name__ == "__main__":
    sys.exit(main())
