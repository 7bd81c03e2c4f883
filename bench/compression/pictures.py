"""The thesis' figures 4.3.1, 5.4.4 and 5.5.1, drawn from what the compression driver measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib

matplotlib.use("Agg")

from matplotlib.figure import Figure


def draw_heat_map(
    path: Path, name: str, rows: Sequence[float], columns: Sequence[int], cells: Sequence[Sequence[float]]
) -> None:
    """Figure 4.3.1: reduction by dictionary multiplier (rows) and history (columns)."""
    figure = Figure(figsize=(7, 5), layout="constrained")
    axes = figure.subplots()
    image = axes.imshow(cells, aspect="auto", origin="lower", cmap="viridis")
    axes.set_xticks(range(len(columns)), [str(size) for size in columns])
    axes.set_yticks(range(len(rows)), [f"{size:g}" for size in rows])
    axes.set_xlabel("messages of history")
    axes.set_ylabel("dictionary, mean messages")
    axes.set_title(f"{name}: bandwidth reduction in %, dictionary every 5,500 messages")
    figure.colorbar(image)
    figure.savefig(path, dpi=120)


def draw_over_time(path: Path, name: str, lines: Mapping[str, Sequence[float]]) -> None:
    """Figure 5.4.4: reduction in each hundredth of the corpus, dictionaries included."""
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.subplots()
    for label, values in lines.items():
        axes.plot(values, label=label, linewidth=1.2)
    axes.set_ylim(bottom=max(-20, min(min(values, default=0) for values in lines.values())))
    axes.set_xlabel("hundredths of the corpus")
    axes.set_ylabel("bandwidth reduction in %")
    axes.set_title(name)
    axes.legend()
    figure.savefig(path, dpi=120)


def draw_batches(path: Path, sizes: Sequence[int], lines: Mapping[str, Sequence[float]]) -> None:
    """Figure 5.5.1: reduction by messages in a batch."""
    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.subplots()
    for label, values in lines.items():
        axes.plot(range(len(sizes)), values, marker="o", label=label)
    axes.set_xticks(range(len(sizes)), [str(size) for size in sizes])
    axes.set_xlabel("messages in a batch")
    axes.set_ylabel("mean bandwidth reduction in %")
    axes.legend()
    figure.savefig(path, dpi=120)
