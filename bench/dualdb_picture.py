"""The curves of figures 5 and 6: cumulative time over operations, each engine as far as it was run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot

Curve = tuple[str, list[float], int]


def draw(path: Path, curves: Mapping[str, Sequence[Curve]], seconds: Sequence[float], operations: int) -> None:
    """One panel a workload (engine, cumulative seconds a batch, operations a batch), one for DualDB's long run."""
    figure, panels = pyplot.subplots(1, len(curves) + 1, figsize=(6 * (len(curves) + 1), 4.5))
    for panel, (title, lines) in zip(panels, curves.items(), strict=False):
        for name, cumulative, batch in lines:
            panel.plot([batch * (at + 1) / 1e6 for at in range(len(cumulative))], cumulative, label=name)
        panel.set(
            title=f"subscriptions to publications {title}",
            xlabel="million operations",
            ylabel="cumulative seconds",
            xscale="log",
            yscale="log",
        )
        panel.legend()
    part = operations / len(seconds)
    panels[-1].plot([part * (at + 1) / 1e6 for at in range(len(seconds))], [s / part * 1e6 for s in seconds])
    panels[-1].set(title="DualDB alone", xlabel="million operations", ylabel="us an operation", ylim=(0, None))
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
