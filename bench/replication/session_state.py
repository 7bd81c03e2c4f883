"""What it costs a broker that its sessions' homes know how far they have got (`quasi_active_cpu`).

Two clusters of one broker run at the same time with as many persistent sessions each and take turns under the same
steady load: one tells and saves as it does by default, the other one never (`broker.session_save_s`). CPU is that of
the broker's process, in microseconds a message; the cost is the one's by the other's of the same round, less 1. Each
round has clusters of its own, since two processes of the same program differ too, by what lies where in their memory.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from lexicast.cluster.errors import PeerError

from .. import report as reports
from ..report import DriverReport
from ..stage.clusters import start_lexicast
from ..stage.servers import Target
from .session_crowd import SHAPES, SteadyCrowd

TOLD, UNTOLD = "told", "untold"
CONFIGS: Final = {TOLD: "", UNTOLD: "[broker]\nsession_save_s = 3600\n"}
ROLES: Final = ("brokers", "coordinators")
TURNS: Final = 2
"""Runs of each cluster in a round, in turns."""
LEAST_OF_RATE: Final = 0.9


class LoadedCluster:
    """A cluster and its sessions; what they cost so far, by shape."""

    def __init__(self, target: Target, sessions: int) -> None:
        self._target = target
        self._crowd = SteadyCrowd(target.address, sessions)

    def run(self, shape: str, rate: int, seconds: float) -> dict[str, float]:
        """CPU seconds of each role, and `messages`, `seconds` and the generator's CPU seconds."""
        before = self._target.cpu_by_role()
        delivered = self._crowd.run(shape, rate, seconds)
        after = self._target.cpu_by_role()
        self._crowd.settle()
        generator_s = delivered.generator_cpu * delivered.seconds
        found = {"messages": delivered.messages, "seconds": delivered.seconds, "generator": generator_s}
        return found | {role: after[role] - before[role] for role in ROLES}

    def close(self) -> None:
        """End the sessions' process."""
        self._crowd.close()


@contextlib.contextmanager
def loaded_clusters(sessions: int) -> Iterator[dict[str, LoadedCluster]]:
    """Both clusters with their sessions open. Raises UnavailableError, PeerError."""
    with contextlib.ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="lexicast-bench-")))
        made = {}
        for name, config in CONFIGS.items():
            folder = directory / name
            folder.mkdir()
            target = start_lexicast(folder, config, name)
            stack.callback(target.stop)
            made[name] = LoadedCluster(target, sessions)
            stack.callback(made[name].close)
        yield made


def measure_session_state(report: DriverReport, progress: reports.Steps) -> None:
    """`quasi_active_cpu`, of the dearest shape, and of each."""
    options = report.options
    samples: dict[str, dict[str, list[dict[str, float]]]] = {shape: {name: [] for name in CONFIGS} for shape in SHAPES}
    for number in range(options.state_rounds):
        progress.step(f"{options.state_sessions:,} sessions' state: round {number + 1} of {options.state_rounds}")
        try:
            with loaded_clusters(options.state_sessions) as clusters:
                for shape in SHAPES:
                    for name, found in _round(clusters, shape, options, number).items():
                        samples[shape][name].append(found)
        except PeerError as error:
            report.problem(f"{options.state_sessions} sessions: {error}")
    report.samples["session_state"] = samples
    _figures(report, samples)


def _round(clusters: dict[str, LoadedCluster], shape: str, options: Any, number: int) -> dict[str, dict[str, float]]:
    """The sums of each cluster's turns."""
    sums: dict[str, dict[str, float]] = {name: {} for name in clusters}
    names = list(clusters)
    for turn in range(TURNS):
        for name in names if (number + turn) % 2 == 0 else names[::-1]:
            found = clusters[name].run(shape, options.state_rate, options.state_seconds)
            sums[name] = {key: sums[name].get(key, 0.0) + value for key, value in found.items()}
    return sums


def costs(samples: dict[str, list[dict[str, float]]], role: str) -> list[float]:
    """What telling and saving costs in each round, as a share of what there is without."""
    pairs = zip(samples[TOLD], samples[UNTOLD], strict=False)
    return [told[role] / told["messages"] / (bare[role] / bare["messages"]) - 1 for told, bare in pairs if bare[role]]


def _figures(report: DriverReport, samples: dict[str, dict[str, list[dict[str, float]]]]) -> None:
    medians, rows = [], []
    for shape, by_name in samples.items():
        cost = costs(by_name, "brokers")
        report.figure(f"quasi_active_cpu_{shape}", reports.median(cost))
        report.figure(f"quasi_active_coordinator_cpu_{shape}", reports.median(costs(by_name, "coordinators")))
        if not cost:
            continue
        medians.append(reports.median(cost) or 0.0)
        us = {
            (name, role): reports.median([each[role] / each["messages"] * 1e6 for each in by_name[name]]) or 0.0
            for name in CONFIGS
            for role in ROLES
        }
        for (name, role), value in us.items():
            report.figure(f"session_state_{shape}_{name}_{role}_us", value)
        cells = [f"{us[UNTOLD, role]:.1f}, {us[TOLD, role]:.1f}" for role in ROLES]
        runs = [each for found in by_name.values() for each in found]
        rate = min([each["messages"] / each["seconds"] for each in runs])
        if rate < LEAST_OF_RATE * report.options.state_rate:
            report.problem(f"{shape}: {rate:.0f} messages/s instead of {report.options.state_rate}")
        spread = f"{min(cost):.3f} to {max(cost):.3f}"
        rows.append([shape, cells[0], f"{medians[-1]:.3f}", spread, cells[1], f"{rate:,.0f}"])
    report.figure("quasi_active_cpu", max(medians, default=None))
    columns = ["shape", "broker, us a message: untold, told", "cost", "spread", "coordinator, us", "messages/s"]
    options = report.options
    title = f"{options.state_sessions:,} sessions whose homes know how far they are, median of {options.state_rounds}"
    report.table(title, columns, rows)
