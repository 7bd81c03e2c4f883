"""Part `plain`: what content subscriptions cost those who have none, by the commit before there were any.

    plain_ratio             speed of the fan-out to plain subscribers, in process, by that of the commit BEFORE: the
                            least of the loads (`plain_rounds`)
    plain_ratio_...         of each load; plain_beside_...: with content subscriptions to other topics at the same
                            broker

The sources of both run as they are (nothing compiled), in processes of their own that take turns. Other processes only
ever slow a round down, so each process counts with its best one; and since two processes are never quite alike, the
median of several pairs is taken. Without the project's git repository the figures are null.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Self

from lexicast.cluster.errors import PeerError

from ... import report as reports
from ...report import DriverReport, Steps
from .plain_rounds import LOADS

BEFORE: Final = "d7352e4"
BESIDE: Final = 2_000
PAIRS: Final = 6
QUICK_PAIRS: Final = 1
ROUNDS: Final = 15
QUICK_ROUNDS: Final = 2
_ROOT: Final = Path(__file__).resolve().parents[3]
_SOURCES: Final = "src"


def steps(quick: bool) -> int:
    """How many steps `measure` announces."""
    return QUICK_PAIRS if quick else PAIRS


def measure(report: DriverReport, progress: Steps) -> None:
    """See the module's docstring."""
    quick = report.options.quick
    best: list[dict[str, dict[str, float]]] = []
    with tempfile.TemporaryDirectory(prefix="lexicast-srem-") as name:
        before = sources_before(Path(name))
        if before is None:
            report.missing(BEFORE, f"commit {BEFORE} is not at hand: run this in the project's git repository")
        for pair in range(steps(quick)):
            progress.step(f"plain: pair {pair + 1}")
            if before is not None:
                best.append(_best_s(before, QUICK_ROUNDS if quick else ROUNDS))
    report.samples["plain_s"] = best
    rows = []
    for key, target in (("plain_ratio", "now"), ("plain_beside", "beside")):
        found = {
            load: reports.median_ratio([each["before"][load] for each in best], [each[target][load] for each in best])
            for load in LOADS
        }
        for load, ratio in found.items():
            report.figure(f"{key}_{load}", ratio)
        report.figure(key, min([each for each in found.values() if each is not None], default=None))
        rows.append([target, *[reports.format_number(ratio, 3) for ratio in found.values()]])
    report.table(f"fan-out to plain subscribers, speed by that of {BEFORE}", ["", *LOADS], rows)


def sources_before(folder: Path) -> Path | None:
    """The sources of BEFORE, unpacked into `folder`: what is to be in the path. None: there is no such commit."""
    archive = folder / "before.tar"
    command = ["git", "-C", str(_ROOT), "archive", "--output", str(archive), BEFORE]
    try:
        subprocess.run(command, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    subprocess.run(["tar", "-xf", str(archive), "-C", str(folder)], check=True)
    return folder / _SOURCES


class Rounds:
    """A process that runs `plain_rounds` with the sources of `path`; a context manager."""

    def __init__(self, path: Path, *arguments: str) -> None:
        rounds = Path(__file__).resolve().with_name("plain_rounds.py")
        environment = {**os.environ, "PYTHONPATH": str(path), "PYTHONHASHSEED": "0", "LEXICAST_PURE": "1"}
        # -P: the file's own folder is not in the path, where modules of this package would hide others.
        self._process = subprocess.Popen(
            [sys.executable, "-P", str(rounds), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *unused: object) -> None:
        with self._process as process:
            process.kill()

    def round_s(self, load: str) -> float:
        """Seconds of CPU of a round. Raises PeerError when the process is gone."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(load + "\n")
            self._process.stdin.flush()
        told = self._process.stdout.readline()
        if not told:
            raise PeerError(f"a process of the part plain has ended with code {self._process.wait()}")
        return float(told)


@contextlib.contextmanager
def _targets(before: Path) -> Iterator[dict[str, Rounds]]:
    now = _ROOT / _SOURCES
    with Rounds(before) as old, Rounds(now) as new, Rounds(now, "--content", str(BESIDE)) as beside:
        yield {"before": old, "now": new, "beside": beside}


def _best_s(before: Path, rounds: int) -> dict[str, dict[str, float]]:
    """Of each target and load the least seconds of CPU; the targets take turns, in an order that rotates."""
    with _targets(before) as targets:
        found: dict[str, dict[str, list[float]]] = {name: {load: [] for load in LOADS} for name in targets}
        order = list(targets)
        for number in range(rounds):
            for load in LOADS:
                for name in order[number % len(order) :] + order[: number % len(order)]:
                    found[name][load].append(targets[name].round_s(load))
    return {name: {load: min(each) for load, each in loads.items()} for name, loads in found.items()}
