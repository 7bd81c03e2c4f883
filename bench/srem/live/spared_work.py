"""What matchers spare brokers, on running clusters: CPU of each kind of process for a publication, with and without.

Two clusters of three brokers, one with two matchers, take turns under the same steady load. `live_broker_cpu` is what
the brokers take with matchers by what they take without; `live_cpu` the same of all the cluster's processes, matchers
and coordinator included: what is spared has to be found by somebody. Each of a share of publications that a broker's
subscribers can want at all.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from ... import report as reports
from ...report import DriverReport, Steps
from ...stage.clusters import READY_FILE, cluster_status, data_dir, start_lexicast
from ...stage.servers import Target
from .watched_region import CLIENTS_A_BROKER, Watchers, clients_of, publish

ALONE, MATCHED = "alone", "matched"
CONFIGS: Final = {ALONE: "[node]\nbrokers = 3\n", MATCHED: "[node]\nbrokers = 3\nmatchers = 2\n"}
SHARES: Final = (0.02, 0.1, 0.3, 1.0)
QUICK_SHARES: Final = (0.02,)
ROUNDS: Final = 3
RATE: Final = 2_000.0
SECONDS: Final = 4.0
QUICK_SECONDS: Final = 2.0
# Matchers have been told, and cells are there.
SETTLES_S: Final = 3.0
BROKERS, COORDINATORS, MATCHERS = "brokers", "coordinators", "matchers"


def shares(quick: bool) -> tuple[float, ...]:
    """The sweep."""
    return QUICK_SHARES if quick else SHARES


def steps(quick: bool) -> int:
    """See `driver.SremPart`."""
    return len(shares(quick)) * (1 if quick else ROUNDS)


@contextlib.contextmanager
def clusters() -> Iterator[dict[str, Target]]:
    """Both. Raises UnavailableError."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="lexicast-bench-")))
        found = {}
        for name, config in CONFIGS.items():
            (folder / name).mkdir()
            found[name] = start_lexicast(folder / name, config, name)
            stack.callback(found[name].stop)
        yield found


async def run(target: Target, share: float, seconds: float, seed: int) -> dict[str, float]:
    """CPU us a publication of each role, deliveries a publication, and what brokers were spared of records."""
    dice = random.Random(seed)
    said = json.loads((target.log.parent / READY_FILE).read_text())
    async with clients_of(data_dir(target), said["brokers"], CLIENTS_A_BROKER) as clients:
        watchers = Watchers(clients, dice, share)
        await watchers.begin()
        await asyncio.sleep(SETTLES_S)
        await publish(clients[0], dice, RATE, 1.0)
        await watchers.settled()
        before, spared, received = target.cpu_by_role(), _spared(target), watchers.received
        sent = await publish(clients[0], dice, RATE, seconds)
        await watchers.settled()
        after = target.cpu_by_role()
        found = {role: 1e6 * (after[role] - before[role]) / sent for role in after}
        found["delivered"] = (watchers.received - received) / sent
        found["spared"] = (_spared(target) - spared) / sent
        await watchers.end()
    return found


def _spared(target: Target) -> float:
    """Records that brokers were spared so far."""
    said = cluster_status(target)["coordinators"].values()
    return float(sum([each["matching"]["withheld_records"] for each in said]))


def measure(report: DriverReport, progress: Steps) -> None:
    """See the module's docstring."""
    quick = report.options.quick
    seconds = QUICK_SECONDS if quick else SECONDS
    samples: dict[float, dict[str, list[dict[str, float]]]] = {}
    with clusters() as targets:
        for number in range(1 if quick else ROUNDS):
            for share in shares(quick):
                progress.step(f"live: {share:.0%} wanted at a broker, round {number + 1}")
                for name in list(targets) if number % 2 == 0 else list(targets)[::-1]:
                    found = asyncio.run(run(targets[name], share, seconds, report.options.seed + number))
                    samples.setdefault(share, {}).setdefault(name, []).append(found)
    report.samples["live"] = {str(share): by_name for share, by_name in samples.items()}
    tell(report, samples)


def tell(report: DriverReport, samples: dict[float, dict[str, list[dict[str, float]]]]) -> None:
    """Figures and a table."""
    rows = []
    for share, by_name in samples.items():
        middle = {name: _medians(found) for name, found in by_name.items()}
        alone, matched = middle[ALONE], middle[MATCHED]
        brokers = matched[BROKERS] / alone[BROKERS]
        every = _sum(matched) / _sum(alone)
        report.figure(f"live_broker_cpu_{share:g}", brokers)
        report.figure(f"live_cpu_{share:g}", every)
        if abs(matched["delivered"] - alone["delivered"]) > 0.05 * max(alone["delivered"], 0.1):
            report.problem(
                f"{share:g}: {matched['delivered']:.3f} deliveries a publication, {alone['delivered']:.3f} alone"
            )
        us = [f"{alone.get(role, 0):.0f}, {matched.get(role, 0):.0f}" for role in (BROKERS, COORDINATORS, MATCHERS)]
        rows.append([f"{share:.0%}", *us, f"{brokers:.2f}", f"{every:.2f}", f"{matched['spared']:.2f}"])
    columns = ["wanted", "brokers", "coordinator", "matchers", "brokers, ratio", "all, ratio", "spared of 3"]
    report.table("CPU us a publication: without matchers, with them", columns, rows)


def _medians(found: list[dict[str, float]]) -> dict[str, float]:
    return {key: reports.median([each[key] for each in found]) or 0.0 for key in found[0]}


def _sum(found: dict[str, float]) -> float:
    return float(sum([found.get(role, 0.0) for role in (BROKERS, COORDINATORS, MATCHERS)]))
