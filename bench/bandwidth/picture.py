"""The bandwidth driver's picture: the times as bars, one panel a corpus and rate."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import matplotlib

matplotlib.use("Agg")  # no display is needed, and none may be there

from matplotlib.figure import Figure

from ..data.message_files import MessageFile
from .cells import METHODS, Moved, Setting

COLOURS: Final = {"nothing": "#6b7280", "deflate": "#d97706", "predict": "#1d4ed8"}
LABELS: Final = {"nothing": "uncompressed", "deflate": "DEFLATE by the program", "predict": "PREDICT (lexicast.mqtt)"}
WIDTH: Final = 0.27


def draw(outcomes: dict[Setting, Moved], data: dict[str, MessageFile], file: Path) -> None:
    """Writes the PNG."""
    panels = list(dict.fromkeys((cell.corpus, cell.mbit) for cell in outcomes))
    figure = Figure(figsize=(5.5 * len(panels), 4.6), dpi=110, facecolor="white", layout="constrained")
    axes = figure.subplots(1, len(panels), squeeze=False)[0]
    for panel, ((corpus, mbit), axis) in enumerate(zip(panels, axes, strict=True)):
        cells = [cell for cell in outcomes if (cell.corpus, cell.mbit) == (corpus, mbit)]
        clients = list(dict.fromkeys(cell.clients for cell in cells))
        for place, method in enumerate(METHODS):
            seconds = [outcomes[cell].seconds for cell in cells if cell.method == method]
            at = [x + (place - 1) * WIDTH for x in range(len(clients))]
            bars = axis.bar(at, seconds, WIDTH, color=COLOURS[method], label=LABELS[method])
            axis.bar_label(bars, fmt="%.1f", fontsize=8)
        axis.set_xticks(range(len(clients)), [str(count) for count in clients])
        axis.set_xlabel("publishers, and as many subscribers")
        axis.set_title(f"{data[corpus].messages:,} messages of {corpus}, {mbit} Mbit/s a client", fontsize=10)
        axis.spines[["top", "right"]].set_visible(False)
        if panel == 0:
            axis.set_ylabel("seconds until every subscriber has everything")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=len(METHODS), frameon=False)
    figure.savefig(file)
