"""Events a second of the index, the scan and the closures, by subscriptions and by the size of a batch."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import matplotlib

matplotlib.use("Agg")  # no display is needed, and none may be there

from matplotlib.figure import Figure

_STYLES: Final = {"index": "C0-o", "scan": "C1-o", "closures": "C3o"}
# Of each number: events a second of each matcher.
_Measured = Mapping[int, Mapping[str, float]]


def draw_rates(folder: Path, by_number: _Measured, by_batch: _Measured) -> None:
    """One picture with two panels."""
    figure = Figure(figsize=(9, 4), dpi=110, facecolor="white", layout="constrained")
    left, right = figure.subplots(1, 2)
    _draw(left, by_number, "subscriptions (width 10%, 4 dimensions, batches of 256)")
    _draw(right, by_batch, "events at once (40,000 subscriptions)")
    left.set_ylabel("events/s on one core")
    figure.savefig(folder / "srem_index.png")


def _draw(panel: Any, measured: _Measured, label: str) -> None:
    for name, style in _STYLES.items():
        points = [(number, rates[name]) for number, rates in measured.items() if name in rates]
        panel.plot(*zip(*points, strict=True), style, label=name)
    panel.set(xscale="log", yscale="log", xlabel=label)
    panel.grid(alpha=0.3)
    panel.legend()
