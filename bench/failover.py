"""Coordinators that are killed and stopped under load, again and again: what is lost, and how long it takes.

An embedded cluster with several coordinators that copy each other's groups (`cluster.copies` = 2) takes QoS 1
publications from a Python client at a steady rate, and gives them to a subscriber; both are connected to a broker that
lives on. In each drill one coordinator is killed (SIGKILL) or stopped (SIGSTOP), in turns; when every group has two
copies again the next one follows. A publication's delay is the time from its `publish` to its arrival at the
subscriber; the drill's is the longest of those that were under way or sent after the fault. All processes are on one
machine, so this measures detection and succession, not a network.

lost, doubled, disorder: acknowledged publications that never arrived, arrivals beyond the first, and arrivals of a
topic before an earlier one of it. A drill of a stopped coordinator takes `cluster.detect_s` (1 s) at least: silence is
all that tells of it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import lexicast
from lexicast.cluster.errors import UnavailableError

from . import report as reports
from .report import DriverReport

START_S = 120.0
HEAL_S = 120.0
TOPICS = 200
BEFORE_S = 0.5
FAULTS = {"crash": signal.SIGKILL, "pause": signal.SIGSTOP}
CONFIG = "[cluster]\ncopies = 2\n[node]\ncoordinators = {coordinators}\n"


@contextmanager
def running(coordinators: int) -> Iterator[dict[str, Any]]:
    """A cluster of its own; what its ready file says. Raises UnavailableError."""
    with tempfile.TemporaryDirectory(prefix="lexicast-bench-") as name:
        folder = Path(name)
        (folder / "lexicast.toml").write_text(CONFIG.format(coordinators=coordinators))
        ready, log = folder / "ready.json", folder / "up.log"
        options = ["--config", str(folder / "lexicast.toml"), "--data-dir", str(folder / "data"), "--mqtt-port", "0"]
        with log.open("w") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "lexicast.actors.cli", "up", *options, "--ready-file", str(ready)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )
            try:
                until = time.monotonic() + START_S
                while not ready.exists():
                    if process.poll() is not None or time.monotonic() > until:
                        raise UnavailableError(f"the cluster did not start: {log.read_text()[-2_000:]}")
                    time.sleep(0.05)
                yield json.loads(ready.read_text())
            finally:
                process.send_signal(signal.SIGINT)
                try:
                    process.wait(START_S)
                except subprocess.TimeoutExpired:
                    process.kill()


class Audit:
    """What was published, acknowledged and received."""

    def __init__(self) -> None:
        self.sent_s: list[float] = []
        self.acknowledged: set[int] = set()
        self.received: Counter[int] = Counter()
        self.delay_s: dict[int, float] = {}
        self.disorder = 0
        self._last: dict[int, int] = {}

    def arrived(self, payload: bytes) -> None:
        """One delivery."""
        number = int(payload)
        self.received[number] += 1
        self.delay_s.setdefault(number, time.monotonic() - self.sent_s[number])
        topic = number % TOPICS
        self.disorder += number < self._last.get(topic, -1)
        self._last[topic] = max(number, self._last.get(topic, -1))

    @property
    def lost(self) -> int:
        """Acknowledged, and never delivered."""
        return len(self.acknowledged - self.received.keys())

    @property
    def doubled(self) -> int:
        """Deliveries beyond the first."""
        return sum([count - 1 for count in self.received.values()])


async def overview(run: dict[str, Any]) -> dict[str, Any]:
    """`lexicast status --json`."""
    command = [sys.executable, "-m", "lexicast.actors.cli", "status", "--json", "--data-dir", run["data_dir"]]
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    told, _ = await process.communicate()
    return dict(json.loads(told)) if told else {}


async def healed(run: dict[str, Any]) -> dict[str, int]:
    """The coordinators' processes, when all serve and every group has two copies. Raises UnavailableError."""
    until = time.monotonic() + HEAL_S
    while time.monotonic() < until:
        status = await overview(run)
        coordination = status.get("coordination", {})
        copies = {len(members) for _, _, members in coordination.get("group_states", {}).values()}
        pids = {name: member["pid"] for name, member in coordination.get("members", {}).get("coordinator", {}).items()}
        if copies == {2} and len(pids) == len(run["pids"]["coordinators"]):
            return pids
    raise UnavailableError(f"not every group has two copies again after {HEAL_S:.0f} s")


async def drill(
    run: dict[str, Any], bus: lexicast.Client, audit: Audit, fault: str, turn: int, options: argparse.Namespace
) -> float:
    """One fault; the longest delay of what was under way or came after it, in seconds."""
    pids = await healed(run)
    victim = pids[sorted(pids)[turn % len(pids)]]
    tasks: list[asyncio.Task[None]] = []

    async def publish(number: int) -> None:
        await bus.publish(f"d/{number % TOPICS}", b"%d" % number, qos=1)
        audit.acknowledged.add(number)

    first, began_s, hit_s = len(audit.sent_s), time.monotonic(), 0.0
    try:
        while (now_s := time.monotonic()) < began_s + BEFORE_S + options.seconds:
            if not hit_s and now_s >= began_s + BEFORE_S:
                os.kill(victim, FAULTS[fault])
                hit_s = now_s
            number = len(audit.sent_s)
            audit.sent_s.append(now_s)
            tasks.append(asyncio.create_task(publish(number)))
            await asyncio.sleep(max(0.0, began_s + (number - first + 1) / options.rate - time.monotonic()))
        async with asyncio.timeout(HEAL_S):
            await asyncio.gather(*tasks)
            while len(audit.received) < len(audit.sent_s):  # noqa: ASYNC110  # what was acknowledged is on its way
                await asyncio.sleep(0.01)
    finally:
        if fault == "pause":
            os.kill(victim, signal.SIGCONT)
    delays = {number: audit.delay_s[number] for number in range(first, len(audit.sent_s))}
    return max(delay for number, delay in delays.items() if audit.sent_s[number] + delay > hit_s)


async def drills(report: DriverReport, progress: reports.Steps) -> None:
    """All of them over one cluster."""
    options, audit = report.options, Audit()
    found: dict[str, list[float]] = {fault: [] for fault in FAULTS}
    with running(options.coordinators) as run:
        (address,) = [a for a in run["brokers"]["broker-0"] if a.startswith("unix:")]
        key = (Path(run["data_dir"]) / "cluster.key").read_bytes()
        async with lexicast.connect(f"link:{address}", key=key) as bus:
            subscribed = asyncio.Event()

            async def read() -> None:
                async with bus.subscribe("d/#") as stream:
                    subscribed.set()
                    async for message in stream:
                        audit.arrived(message.payload)

            reader = asyncio.create_task(read())
            await subscribed.wait()
            for turn in range(options.drills):
                fault = list(FAULTS)[turn % len(FAULTS)]
                progress.step(f"drill {turn + 1}: {fault}")
                try:
                    found[fault].append(await drill(run, bus, audit, fault, turn // len(FAULTS), options))
                except TimeoutError:
                    report.problem(f"drill {turn + 1} ({fault}): not everything arrived within {HEAL_S:.0f} s")
                    break
            reader.cancel()
    tell(report, audit, found)


def tell(report: DriverReport, audit: Audit, found: dict[str, list[float]]) -> None:
    """Figures and table."""
    for name, value in (("lost", audit.lost), ("doubled", audit.doubled), ("disorder", audit.disorder)):
        if value:
            report.problem(f"{value} publications {name}")
    report.figure("drills", sum(map(len, found.values())))
    report.figure("published", len(audit.sent_s))
    report.figure("lost", audit.lost)
    report.figure("doubled", audit.doubled)
    report.figure("disorder", audit.disorder)
    rows = []
    for fault, values in found.items():
        report.samples[fault] = values
        ordered = sorted(values)
        places = {"p50": len(values) // 2, "p95": -(-95 * len(values) // 100) - 1, "max": len(values) - 1}
        delays_ms = {key: ordered[at] * 1e3 for key, at in places.items()} if ordered else {}
        for key, delay_ms in delays_ms.items():
            report.figure(f"recover_{fault}_{key}_ms", delay_ms)
        rows.append([fault, str(len(values)), *(reports.format_number(each, 0) for each in delays_ms.values())])
    report.table("a drill's longest delay, ms", ["fault", "drills", "p50", "p95", "max"], rows)


def measure(report: DriverReport) -> None:
    """See the module's docstring."""
    with reports.Steps(report.console, report.options.drills) as progress:
        asyncio.run(drills(report, progress))


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The driver's options."""
    parser = reports.parser("failover", __doc__, default_targets="lexicast")
    parser.add_argument("--drills", type=reports.positive, help="default 50; quick 6")
    parser.add_argument("--coordinators", type=reports.positive, default=3, help="default 3")
    parser.add_argument("--rate", type=float, default=200.0, help="publications a second (default 200)")
    parser.add_argument("--seconds", type=float, default=2.5, help="of publishing after each fault (default 2.5)")
    options = parser.parse_args(argv)
    options.drills = options.drills or (6 if options.quick else 50)
    return options


def main(argv: Sequence[str] | None = None) -> int:
    """`python -m lexicast.bench.failover`; returns the exit code."""
    return reports.drive("failover", parse(argv), measure)


if __name__ == "__main__":
    sys.exit(main())
