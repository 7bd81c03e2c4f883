"""The failover driver's picture: what each drill took, kind by kind; and delays while one of three nodes is lost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import matplotlib

matplotlib.use("Agg")  # no display is needed, and none may be there

from matplotlib.figure import Figure

from .figures import Drilled

ELSEWHERE: Final = "#1d4ed8"
RETURNED: Final = "#d97706"


def draw(
    drilled: Sequence[Drilled], stopped: Sequence[tuple[float, float]], bars: Mapping[str, float], file: Path
) -> None:
    """Writes the PNG. `stopped`: (when published, relative to the loss; delay), in seconds; `bars`: {name: seconds}."""
    figure = Figure(figsize=(11.5, 5.6), dpi=110, facecolor="white", layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(3, 2))
    kinds = list(dict.fromkeys(each.kind for each in drilled))
    for each in drilled:
        at = kinds.index(each.kind)
        left.plot(each.elsewhere_s * 1e3, at, "o", color=ELSEWHERE, markersize=4, alpha=0.7)
        for returned_s in each.returned_s:
            left.plot(returned_s * 1e3, at + 0.25, ".", color=RETURNED, markersize=3, alpha=0.5)
    for name, bar_s in bars.items():
        left.axvline(bar_s * 1e3, color="#6b7280", linestyle=":", linewidth=1)
        left.text(bar_s * 1e3, 0.01, name, fontsize=7, color="#6b7280", transform=left.get_xaxis_transform())
    left.set(xscale="log", xlabel="ms", yticks=range(len(kinds)), yticklabels=kinds)
    left.invert_yaxis()
    left.set_title("a drill's longest delay elsewhere (dots); clients of what was lost are back (small)", fontsize=9)
    if stopped:
        times, delays = zip(*stopped, strict=True)
        right.plot(times, [1e3 * delay for delay in delays], ".", color=ELSEWHERE, markersize=2, alpha=0.4)
        right.axvline(0.0, color=RETURNED, linewidth=1)
    right.set(yscale="log", xlabel="published, s after one of three nodes is lost", ylabel="publish to delivery [ms]")
    right.set_title("all subscribers, those of the lost node included", fontsize=9)
    for axis in (left, right):
        axis.grid(True, which="major", alpha=0.3)
        axis.spines[["top", "right"]].set_visible(False)
    figure.savefig(file)
