"""The curves of figures 5 and 6: cumulative time over operations and average time an operation, an engine a line.

Beside them DualDB's long run, and all engines by how many operations come at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot

from .batch_sizes import Points

Curve = list[tuple[float, float]]
"""(million operations, cumulative seconds), ascending."""

_MIB = 2**20
_LINES = {
    "dualdb": ("DualDB", "C0"),
    "dualdb_alone": ("DualDB alone, the long run", "C7"),
    "two_databases": ("two databases", "C1"),
    "leveldb": ("DualDB on LevelDB", "C4"),
    "rocksdb": ("DualDB on RocksDB", "C5"),
    "repqueries_joined": ("RepQueries, asked together", "C3"),
    "repqueries": ("RepQueries", "C2"),
    "padres": ("PADRES", "C6"),
}
_TITLES = {"3_1": "subscription-heavy, 3:1 (figure 5)", "1_3": "publication-heavy, 1:3 (figure 6)"}


def draw(
    path: Path,
    curves: Mapping[str, Mapping[str, Curve]],
    growth: Mapping[str, Any] | None,
    by_size: Points,
) -> None:
    """A column a workload: cumulative time above, average time an operation below.

    Then one by the size of a batch, one for DualDB's long run.
    """
    columns = [key for key in _TITLES if key in curves]
    count = len(columns) + bool(by_size) + (growth is not None)
    if not count:
        return
    figure, panels = pyplot.subplots(2, count, figsize=(6 * count, 8.5), squeeze=False)
    for at, key in enumerate(columns):
        _cumulative(panels[0, at], _TITLES[key], curves[key])
        _average(panels[1, at], curves[key])
    if by_size:
        _sizes(panels[0, len(columns)], panels[1, len(columns)], by_size)
    if growth is not None:
        _long_run(panels[0, -1], panels[1, -1], growth)
    named: dict[str, Any] = {}
    for panel in panels[0, : len(columns) + bool(by_size)]:
        named |= {line.get_label(): line for line in panel.get_lines()}
    figure.tight_layout(rect=(0, 0.09, 1, 1))
    if named:
        figure.legend(named.values(), named.keys(), loc="lower center", ncols=4, frameon=False)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def _cumulative(panel: Any, title: str, lines: Mapping[str, Curve]) -> None:
    for name, (label, colour) in _LINES.items():
        if name in lines:
            panel.plot(*zip(*lines[name], strict=True), label=label, color=colour)
    panel.set(title=title, ylabel="cumulative time [s]", xscale="log", yscale="log")
    _operations(panel)


def _average(panel: Any, lines: Mapping[str, Curve]) -> None:
    for name, (_, colour) in _LINES.items():
        if name in lines:
            panel.plot(*zip(*_averages(lines[name]), strict=True), color=colour)
    panel.set(ylabel="time an operation [us]", xscale="log", yscale="log")
    _operations(panel)


def _averages(curve: Curve) -> Curve:
    """Microseconds an operation (seconds a million) from each point to the next, a fortieth of the curve a step."""
    points = [(0.0, 0.0), *curve[:: max(1, len(curve) // 40)]]
    return [(end[0], (end[1] - start[1]) / (end[0] - start[0])) for start, end in pairwise(points)]


def _sizes(above: Any, below: Any, points: Points) -> None:
    for name, (label, colour) in _LINES.items():
        if name in points:
            sizes, measured = list(points[name]), list(points[name].values())
            rates = [size * len(each.batch_s) / sum(each.batch_s) for size, each in zip(sizes, measured, strict=True)]
            above.plot(sizes, rates, label=label, color=colour, marker=".")
            below.plot(sizes, [each.quantile_ms(0.5) for each in measured], color=colour, marker=".")
            below.plot(sizes, [each.quantile_ms(0.99) for each in measured], color=colour, linestyle=":")
    above.set(title="by how many come at once, 3:1", ylabel="operations/s", xscale="log", yscale="log")
    below.set(ylabel="ms a batch: p50, and p99 dotted", xscale="log", yscale="log")
    for panel in (above, below):
        panel.set_xlabel("operations at once")
        panel.grid(True, which="major", alpha=0.3)


def _long_run(above: Any, below: Any, growth: Mapping[str, Any]) -> None:
    part = growth["operations"] / len(growth["seconds"]) / 1e6
    at = [part * (number + 1) for number in range(len(growth["seconds"]))]
    for label, key in (("wall time", "seconds"), ("CPU time", "cpu_seconds")):
        above.plot(at, [seconds / part for seconds in growth[key]], label=label, marker=".")
    above.set(
        title="DualDB alone, 3:1 (last part: in turns with a young store)",
        ylabel="time an operation [us]",
        ylim=(0, None),
    )
    below.plot(at, [size / _MIB for size in growth["file_bytes"]], color="C7", marker=".", label="file")
    below.set(ylabel="file [MiB]", ylim=(0, None))
    for panel in (above, below):
        panel.legend(loc="lower right")
        _operations(panel)


def _operations(panel: Any) -> None:
    panel.set_xlabel("million operations")
    panel.grid(True, which="major", alpha=0.3)
