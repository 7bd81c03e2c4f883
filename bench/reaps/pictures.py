"""The paper's figures 4a to 4d, 5a and 5b as ours came out, with what the paper says of each beside it."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import matplotlib

matplotlib.use("Agg")  # no display is needed, and none may be there

from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter

from .failures import FailedOver
from .overheads import Overheads
from .population import WorldSetting
from .replication_run import Curves

PAPER: Final = {
    "4a": "REAPS incurs no notification overhead; exploiting subscription similarity lowers that of AR as well.",
    "4b": "REAPS exploits subscription similarity and hence produces less subscription overhead than RND.",
    "4c": "REAPS has fewer non-overlapping remote backup subscriptions than RND; in this simulation it has zero.",
    "4d": "More messages, fewer duplicates; by a threshold slightly fewer than periodically for the same messages.",
    "5a": "More failures in one cluster: a higher volume of duplicate notifications.",
    "5b": "More failures in one cluster: more remote fail-overs, and so a higher recovery latency.",
}
"""What section VI-B says, in short; its text gives no numbers."""

_MB: Final = 1e6
_PANELS_A_ROW: Final = 4
# Field of Overheads, label, style: a panel's lines.
_Lines = Sequence[tuple[str, str, str]]
_RETRIEVED: Final = (
    ("retrieved_active_random", "AR, random backups", "C7-o"),
    ("retrieved_active", "AR, LCS and MMCS", "C1-o"),
    ("retrieved_warm", "REAPS, if local backups retrieved", "C2--o"),
    ("retrieved", "REAPS", "C0-o"),
)
_PRESUBSCRIBED: Final = (
    ("presubscribed_random", "RND", "k-o"),
    ("presubscribed_plain", "LCS as in the paper", "C2--o"),
    ("presubscribed", "LCS, improved", "C0-o"),
)
_REMOTE: Final = (
    ("remote_max_random", "RND", "k-o"),
    ("remote_max_plain", "MMCS as in the paper", "C2--o"),
    ("remote_max", "MMCS, improved", "C0-o"),
)

Found = Mapping[WorldSetting, Overheads]


def draw_overheads(folder: Path, found: Found) -> None:
    """Figures 4a, 4b and 4c: a panel for each number of subscribers and subscriptions, by locality."""
    _by_locality(folder / "figure_4a.png", "4a", found, _RETRIEVED, "MB/s retrieved a broker", _MB)
    _by_locality(folder / "figure_4b.png", "4b", found, _PRESUBSCRIBED, "subscriptions, original and for backups", 1.0)
    _by_locality(folder / "figure_4c.png", "4c", found, _REMOTE, "most non-overlapping remote a broker", 1.0)


def _by_locality(path: Path, key: str, found: Found, lines: _Lines, label: str, unit: float) -> None:
    kinds = list(dict.fromkeys([setting._replace(locality=0.0) for setting in found]))
    rows = -(-len(kinds) // _PANELS_A_ROW)
    columns = min(len(kinds), _PANELS_A_ROW)
    figure = Figure(figsize=(3.2 * columns, 0.4 + 3.2 * rows), dpi=110, facecolor="white", layout="constrained")
    panels = figure.subplots(rows, columns, squeeze=False).ravel()
    for panel in panels[len(kinds) :]:
        panel.remove()
    for panel, kind in zip(panels, kinds, strict=False):
        chosen = {setting.locality: each for setting, each in found.items() if setting._replace(locality=0.0) == kind}
        base = [each.original if key == "4b" else 0.0 for each in chosen.values()]
        for field, name, style in lines:
            values = [(extra + getattr(each, field)) / unit for extra, each in zip(base, chosen.values(), strict=True)]
            panel.plot(list(chosen), values, style, label=name, markersize=3)
        if key == "4b":
            panel.plot(list(chosen), base, "C3-", label="original")
        panel.set(xlabel="locality", ylim=(0, None))
        people = f"{kind.subscribers:,} subscribers of {kind.each_wants}"
        panel.set_title(f"{people}\nzipf {kind.zipf:g}, capacity {kind.headroom:g} loads", fontsize=8)
        panel.grid(True, alpha=0.3)
    figure.axes[0].set_ylabel(label)
    figure.axes[0].legend(fontsize=7)
    _save(figure, path, key)


def draw_replication(folder: Path, found: Curves) -> None:
    """Figure 4d: by messages, and by the positions in them."""
    figure = Figure(figsize=(10, 4.6), dpi=110, facecolor="white", layout="constrained")
    panels = figure.subplots(1, 2)
    for panel, cost in zip(panels, ("messages_per_s", "positions_per_s"), strict=True):
        for method, rows in found.methods.items():
            costs, volumes = [getattr(each, cost) for each in rows], [each.retrieved_bytes / _MB for each in rows]
            panel.plot(costs, volumes, "-o", label=method, markersize=3)
        panel.set(xscale="log", yscale="log", xlabel=f"{cost.partition('_')[0]} to the backup a second")
        panel.set_ylabel("MB retrieved again after a takeover")
        panel.xaxis.set_minor_formatter(NullFormatter())
        panel.grid(True, which="major", alpha=0.3)
    panels[0].legend(fontsize=8)
    _save(figure, folder / "figure_4d.png", "4d")


def draw_failures(folder: Path, found: Mapping[str, Sequence[FailedOver]]) -> None:
    """Figures 5a and 5b: by how many brokers of one cluster fail. `found`: a line a kind of backups."""
    figure = Figure(figsize=(10, 4.6), dpi=110, facecolor="white", layout="constrained")
    left, right = figure.subplots(1, 2)
    for name, rows in found.items():
        counts = [each.failed for each in rows]
        left.plot(counts, [each.retrieved_bytes / _MB for each in rows], "-o", label=f"{name}: retrieved", markersize=3)
        right.plot(
            counts, [each.delivered_bytes / _MB for each in rows], "-o", label=f"{name}: delivered", markersize=3
        )
    _finish_failures(figure, "MB twice")
    _save(figure, folder / "figure_5a.png", "5a")
    figure = Figure(figsize=(10, 4.6), dpi=110, facecolor="white", layout="constrained")
    left, right = figure.subplots(1, 2)
    for name, rows in found.items():
        counts = [each.failed for each in rows]
        left.plot(counts, [each.remote for each in rows], "-o", label=name, markersize=3)
        right.plot(counts, [each.recovery_s for each in rows], "-o", label=name, markersize=3)
    _finish_failures(figure, "brokers that fail over to a remote backup")
    right.set_ylabel("s until the last subscriber is back (a model)")
    _save(figure, folder / "figure_5b.png", "5b")


def _finish_failures(figure: Any, label: str) -> None:
    for panel in figure.axes:
        panel.set(xlabel="brokers of one cluster that fail", ylabel=label, ylim=(0, None))
        panel.legend(fontsize=8)
        panel.grid(True, alpha=0.3)


def _save(figure: Any, path: Path, key: str) -> None:
    figure.suptitle(textwrap.fill(f"Figure {key}. The paper says: {PAPER[key]}", 95), fontsize=9)
    figure.savefig(path)
