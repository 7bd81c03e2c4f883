"""Latency from send to receive at a steady 100, 1,000 and 5,000 messages a second, QoS 0 and 1, beside peers.

One publisher, one subscriber, one process, one clock: a message's latency is the time from just before its bytes go
into the publisher's socket to just after the subscriber read them, so it includes the kernel both ways and the
generator's own wake-up. Sends follow a fixed schedule and do not wait for deliveries; how late they were is reported
(`lateness`), because a generator that falls behind its schedule measures something else.

p50 and p99 are medians over the rounds of each run's percentile; p99.9 is taken over the messages of all rounds, and
is null below 1,000 of them. The figures without a target's name are lexicast's at 1,000 messages a second, QoS 0.
"""

from __future__ import annotations

import argparse
import ctypes
import math
import select
import sys
import time
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from lexicast.cluster.errors import PeerError

from . import report as reports
from .peers.loadgen import LOST_AFTER_S, DeliveryError, Load, OpenLoad
from .peers.session_opening import raise_open_files
from .peers.targets import running
from .peers.wire import wire_of
from .report import DriverReport
from .stage.servers import Target

NAMED_RATE = 1_000
"""Messages a second of the figures that carry no target's name."""

_PR_SET_TIMERSLACK = 29


def sharpen_timers() -> None:
    """Lets this process wake 1 ns instead of 50 us after a timer: the pacing sleeps, it does not spin."""
    ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, 1)


@dataclass
class PacedRun:
    """One run: latency and lateness of each message in nanoseconds, in order of sequence."""

    latencies_ns: array[int] = field(default_factory=lambda: array("q"))
    lateness_ns: array[int] = field(default_factory=lambda: array("q"))


def paced(load: OpenLoad, per_s: int, seconds: float) -> PacedRun:
    """Publishes `per_s` messages a second for `seconds` and times each one at the one subscriber.

    Raises `DeliveryError` when messages are lost, repeated or reordered, or still missing after `LOST_AFTER_S`.
    """
    run, clock = PacedRun(), time.perf_counter_ns
    subscriber, publisher = load.subscribers[0], load.publisher
    first, count, interval = publisher.sent, max(1, int(per_s * seconds)), 1_000_000_000 // per_s
    sent_at: list[int] = []
    start = clock() + interval
    silent_until = start + int((seconds + LOST_AFTER_S) * 1e9)
    while len(run.latencies_ns) < count:
        due = start + len(sent_at) * interval if len(sent_at) < count else silent_until
        wait = (due - clock()) / 1e9
        # select() takes microseconds where epoll takes milliseconds.
        readable, _, _ = select.select([subscriber.sock, load.publisher_socket], (), (), max(0.0, wait))
        if load.publisher_socket in readable:
            load.on_publisher()
        if subscriber.sock in readable:
            subscriber.on_readable()
            now = clock()
            for number in range(len(run.latencies_ns), subscriber.received - first):
                run.latencies_ns.append(now - sent_at[number])
        now = clock()
        if now < due:
            continue
        if len(sent_at) == count:
            raise DeliveryError(f"{count - len(run.latencies_ns)} of {count} messages did not arrive")
        sent_at.append(now)
        run.lateness_ns.append(now - due)
        publisher.send_up_to(first + len(sent_at))
    return run


def percentile_ms(values_ns: Sequence[int], fraction: float) -> float | None:
    """The smallest value that at least `fraction` (0 to 1) of the values do not exceed, in ms; None without values."""
    if not values_ns:
        return None
    return sorted(values_ns)[max(0, math.ceil(fraction * len(values_ns)) - 1)] / 1e6


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
        self.target.require_alive()
        try:
            if self.opened is None:
                self.opened = OpenLoad(
                    self.target.address, wire_of(self.target.address.protocol, self.mqtt_version), self.load
                )
            result: PacedRun | None = paced(self.opened, per_s, seconds)
        except PeerError as error:
            self.report.problem(f"{self.target.name}, QoS {self.load.qos}, {per_s} msg/s: {error}")
            self.close()
            result = None
        self.runs.setdefault(per_s, []).append(result)

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
    }


def measure(report: DriverReport) -> None:
    """Runs all rates and QoS against all targets, in turns."""
    options = report.options
    names = options.targets.split(",")
    raise_open_files(100)
    sharpen_timers()
    steps = len(options.qos) * len(options.rates)
    with (
        running(names, report.missing, latency=True) as targets,
        reports.Steps(report.console, steps * options.rounds) as progress,
    ):
        for qos in options.qos:
            _quality(report, progress, list(targets.values()), qos)
    _figures(report)


def _quality(report: DriverReport, progress: reports.Steps, targets: Sequence[Target], qos: int) -> None:
    options = report.options
    load = Load(f"latency_qos{qos}", 1, options.payload, qos)
    chosen = [target for target in targets if not (qos and target.address.protocol == "nats")]
    contenders = [PacedContender(target, load, options.mqtt_version, report) for target in chosen]
    try:
        for per_s in options.rates:
            for number in range(options.rounds):
                progress.step(f"QoS {qos}, {per_s} msg/s, round {number + 1} of {options.rounds}")
                first = number % max(1, len(contenders))
                for contender in contenders[first:] + contenders[:first]:
                    contender.round(per_s, options.seconds)
    finally:
        for contender in contenders:
            contender.close()
    for contender in contenders:
        for per_s, runs in contender.runs.items():
            report.samples[f"{contender.target.name}_qos{qos}_{per_s}"] = summary(runs)


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


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The driver's options."""
    parser = reports.parser("latency", __doc__, default_targets="lexicast,mosquitto,nats")
    parser.add_argument("--rates", type=reports.integers, default=[100, 1_000, 5_000], help="default 100,1000,5000")
    parser.add_argument("--qos", type=reports.qualities, default=[0, 1], help="default 0,1 (NATS: 0 alone)")
    parser.add_argument("--payload", type=reports.positive, default=140, help="bytes a message (default 140)")
    parser.add_argument("--seconds", type=float, help="length of one run (default 3; quick 0.5)")
    parser.add_argument("--mqtt-version", type=int, choices=(4, 5), default=4, help="4 is MQTT 3.1.1 (default)")
    options = parser.parse_args(argv)
    options.seconds = options.seconds or (0.5 if options.quick else 3.0)
    return options


def main(argv: Sequence[str] | None = None) -> int:
    """`python -m lexicast.bench.latency`; returns the exit code."""
    return reports.drive("latency", parse(argv), measure)


if __name__ == "__main__":
    sys.exit(main())
