"""The form that all drivers share: options, progress, ratios, the table, the JSON file, the exit code.

A ratio is the median, over at least `ROUNDS` rounds, of ratios computed *within* a round: the targets take turns in
each round (in a rotating order), so a slow spell of the machine hits both sides of a ratio.

Exit codes: 0 measured; 1 an error, or a target lost or failed something; 2 wrong options; 3 a peer is missing and
`--require-peers` was given; 130 stopped by Ctrl-C.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import statistics
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, Final

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from lexicast import compiled
from lexicast.cluster.errors import LexicastError, UsageError

from .peers import targets

ROUNDS = 5
"""Least number of interleaved rounds behind a ratio."""


def integers(text: str) -> list[int]:
    """An option's value such as `1,100,1000`: positive integers."""
    values = [int(part) for part in text.split(",")]
    if min(values) < 1:
        raise ValueError(f"{text}: only numbers from 1")
    return values


def positive(text: str) -> int:
    """An option's value: an integer from 1."""
    return integers(text)[0]


def qualities(text: str) -> list[int]:
    """The option `--qos`: 0, 1 or 0,1."""
    values = [int(part) for part in text.split(",")]
    if not set(values) <= {0, 1}:
        raise ValueError(f"{text}: only 0 and 1")
    return values


def parser(driver: str, description: str | None, *, default_targets: str) -> argparse.ArgumentParser:
    """The options that every driver has; a driver adds its own."""
    made = argparse.ArgumentParser(
        prog=f"python -m lexicast.bench.{driver}",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument("--quick", action="store_true", help="smaller counts, same keys, done in 60 s")
    made.add_argument("--json", type=Path, metavar="FILE", help="write driver, mode, machine, samples and figures here")
    made.add_argument("--rounds", type=positive, help=f"interleaved rounds (default {ROUNDS})", default=ROUNDS)
    names = ", ".join(targets.NAMES)
    made.add_argument("--targets", default=default_targets, help=f"comma-separated, of {names} (default %(default)s)")
    made.add_argument("--require-peers", action="store_true", help="exit with code 3 when a peer is not installed")
    return made


ALL_PEERS: Final = "lexicast,mosquitto,nats"
WEBSOCKET_PEERS: Final = "lexicast,mosquitto"


def add_transport(made: argparse.ArgumentParser) -> None:
    """How clients come: TCP, or WebSocket, whose figures begin with `ws_`."""
    made.add_argument(
        "--transport", choices=("tcp", "ws"), default="tcp", help=f"ws: WebSocket; of {WEBSOCKET_PEERS} (default tcp)"
    )


def by_websocket(options: argparse.Namespace) -> bool:
    """Whether clients come over WebSocket; who is not asked for by name, and has none, is left out."""
    if options.transport == "ws" and options.targets == ALL_PEERS:
        options.targets = WEBSOCKET_PEERS
    return bool(options.transport == "ws")


class Steps:
    """Progress of a driver: a bar on a terminal, one line a step elsewhere. Drawn only between measurements."""

    def __init__(self, console: Console, total: int) -> None:
        self._console = console
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        self._bar = Progress(*columns, console=console, auto_refresh=False, transient=True)
        self._task = self._bar.add_task("", total=total)
        self._done = 0
        self._total = total

    def __enter__(self) -> Steps:
        if self._console.is_terminal:
            self._bar.start()
        return self

    def __exit__(self, *unused: object) -> None:
        if self._console.is_terminal:
            self._bar.stop()

    def step(self, text: str) -> None:
        """Says what is done next."""
        if self._console.is_terminal:
            self._bar.update(self._task, description=text, completed=self._done, refresh=True)
        else:
            self._console.print(f"[{self._done + 1}/{self._total}] {text}", markup=False, highlight=False)
        self._done += 1


class DriverReport:
    """Collects what a driver measures and gives it out once: table, JSON, exit code."""

    def __init__(self, driver: str, options: argparse.Namespace, console: Console | None = None) -> None:
        self.options = options
        # A file or pipe has no width of its own: 80 columns would break the tables.
        self.console = console or Console(width=None if sys.stdout.isatty() else 120)
        self.samples: dict[str, Any] = {}
        self.figures: dict[str, float | None] = {}
        self._driver = driver
        self._missing: list[str] = []
        self._problems: list[str] = []
        self._tables: list[Table] = []

    def missing(self, name: str, what_to_do: str) -> None:
        """A peer that is not there: said now, and its figures stay null."""
        self._missing.append(name)
        self.console.print(f"{what_to_do} (figures against {name} are null)", style="yellow", highlight=False)

    def note(self, text: str) -> None:
        """Says something on the way, as it is: what a cluster says of itself may have square brackets."""
        self.console.print(f"  {text}", highlight=False, markup=False)

    def problem(self, text: str) -> None:
        """Something that makes the run a failed one (a loss, a target that died); said now and in the exit code."""
        self._problems.append(text)
        self.console.print(text, style="bold red", highlight=False, markup=False)

    def figure(self, key: str, value: float | None) -> None:
        """Records one figure, rounded to what the measurement can carry."""
        self.figures[key] = None if value is None else float(f"{value:.4g}")

    def table(self, title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
        """A table to print at the end; all columns but the first are aligned right."""
        made = Table(title=title, title_justify="left")
        for index, column in enumerate(columns):
            made.add_column(column, justify="left" if index == 0 else "right")
        for row in rows:
            made.add_row(*row)
        self._tables.append(made)

    def finish(self) -> int:
        """Writes the JSON file, before whoever reads the output can have gone; prints the tables and figures; returns
        the exit code."""
        if self.options.json is not None:
            self.options.json.write_text(json.dumps(self._document(), indent=2) + "\n")
        for made in self._tables:
            self.console.print(made)
        for key, value in self.figures.items():
            self.console.print(f"{key} = {'null' if value is None else value}", highlight=False)
        if self._problems:
            return 1
        return 3 if self._missing and self.options.require_peers else 0

    def _document(self) -> dict[str, Any]:
        mode = "quick" if self.options.quick else "full"
        options = {key: str(value) if isinstance(value, Path) else value for key, value in vars(self.options).items()}
        return {
            "driver": self._driver,
            "mode": mode,
            "machine": machine(self.options.targets.split(",")),
            "options": options,
            "samples": self.samples,
            "problems": self._problems,
            "figures": self.figures,
        }


def machine(target_names: Iterable[str]) -> dict[str, Any]:
    """What the figures were measured on."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    cpu_lines = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((line.partition(":")[2].strip() for line in cpu_lines if line.startswith("model name")), "unknown")
    return {
        "cpus": len(os.sched_getaffinity(0)),
        "cpu": model,
        "memory_gib": round(memory, 1),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "lexicast": compiled.state(),
        "load_1min": round(os.getloadavg()[0], 2),
        "versions": {name: told for name in target_names if (told := targets.version(name))},
    }


def median(values: Sequence[float | None]) -> float | None:
    """The median of the values that were measured; None when there is none."""
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def median_ratio(ours: Sequence[float | None] | None, theirs: Sequence[float | None] | None) -> float | None:
    """The median of the ratios within each round; None when either side was not measured."""
    pairs = zip(ours or (), theirs or (), strict=False)
    return median([a / b for a, b in pairs if a is not None and b])


def format_rate(value: float | None) -> str:
    """Deliveries/s for a table: `1.25 M`, `93 k`, `-` when not measured."""
    if value is None:
        return "-"
    return f"{value / 1e6:,.2f} M" if value >= 1e6 else f"{value / 1e3:,.1f} k"


def format_number(value: float | None, digits: int = 2) -> str:
    """A figure for a table."""
    return "-" if value is None else f"{value:,.{digits}f}"


def _interrupt(format_number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _make_folders(options: argparse.Namespace) -> None:
    """Of the files that are written when all is measured. Raises UsageError: after hours it would be too late."""
    for name in ("json", "picture"):
        file: Path | None = getattr(options, name, None)
        if file is None:
            continue
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(f"--{name} {file}: {error.strerror}") from None
        if file.is_dir() or not os.access(file if file.exists() else file.parent, os.W_OK):
            raise UsageError(f"--{name} {file}: no file can be written there")


def drive(driver: str, options: argparse.Namespace, measure: Callable[[DriverReport], None]) -> int:
    """Runs `measure` and finishes its report; SIGTERM and Ctrl-C stop everything that was started."""
    report = DriverReport(driver, options)
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        _make_folders(options)
        measure(report)
        return report.finish()
    except KeyboardInterrupt:
        print("stopped; everything that was started is stopped too", file=sys.stderr)
        return 130
    except LexicastError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
