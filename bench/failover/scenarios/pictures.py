"""The scenarios' picture: the paper's figures 3a and 3b, repeats against the publishing rate, and the storm."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import matplotlib

matplotlib.use("Agg")  # no display is needed, and none may be there

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from .cases import BROKER, LOCAL, REMOTE
from .telling import Found

COLOURS: Final = {LOCAL: "#1d4ed8", REMOTE: "#7c3aed"}
OTHERS: Final = "#d97706"


def draw_scenarios(found: Found, file: Path) -> None:
    """Writes the PNG."""
    figure = Figure(figsize=(12, 8.4), dpi=110, facecolor="white", layout="constrained")
    (progress, counts), (repeats, storm) = figure.subplots(2, 2)
    _progress(progress, found)
    _counts(counts, found)
    _repeats(repeats, found)
    _storm(storm, found)
    for axis in (progress, counts, repeats, storm):
        axis.grid(True, which="major", alpha=0.3)
        axis.spines[["top", "right"]].set_visible(False)
    figure.savefig(file)


def _progress(axis: Axes, found: Found) -> None:
    for towards, colour in COLOURS.items():
        for number, run in enumerate(found.of(BROKER, towards)):
            times = run.migrated_ms()
            axis.step(
                times, range(1, len(times) + 1), where="post", color=colour, linewidth=1.2, label=_once(towards, number)
            )
    axis.set(xlabel="ms after the kill", ylabel="subscribers migrated (CONNACK of the session)")
    axis.set_title("one broker dies: local and remote takeover (REAPS, figure 3a)", fontsize=9)
    _legend(axis)


def _counts(axis: Axes, found: Found) -> None:
    for towards, colour in COLOURS.items():
        runs = [run for run in found.counts(BROKER, towards) if run.lasted_ms() is not None]
        sessions = [run.case.sessions for run in runs]
        axis.plot(
            sessions,
            [run.lasted_ms() or 0.0 for run in runs],
            "o",
            color=colour,
            markersize=4,
            alpha=0.7,
            label=towards,
        )
    axis.set(xscale="log", xlabel="subscribers of the broker", ylabel="ms from the kill till the last one is served")
    axis.set_title("by the number of subscribers (figure 3b)", fontsize=9)
    _legend(axis)


def _repeats(axis: Axes, found: Found) -> None:
    for towards, colour in COLOURS.items():
        runs = [run for run in found.rates() if run.case.towards == towards]
        points = [(run.case.rate, count) for run in runs for count in sorted(set(run.repeats()))]
        if points:
            axis.plot(*zip(*points, strict=True), ".", color=colour, alpha=0.5, label=towards)
    most = max([run.case.rate for run in found.rates()], default=0.0)
    axis.plot([0, most], [0, most], ":", color="#6b7280", linewidth=1, label="a second's messages")
    axis.set(xlabel="messages/s to each subscriber", ylabel="messages that it got again")
    axis.set_title("repeats: a session goes on from where its broker told that it was", fontsize=9)
    _legend(axis)


def _storm(axis: Axes, found: Found) -> None:
    right = axis.twinx()
    for number, storm in enumerate(found.storms):
        back = storm.back_s()
        axis.step(
            back, range(1, len(back) + 1), where="post", color=COLOURS[LOCAL], label=_once("clients back", number)
        )
        times, delays = zip(*storm.meanwhile, strict=True) if storm.meanwhile else ((), ())
        right.plot(times, delays, ".", color=OTHERS, markersize=2, alpha=0.3)
    right.set(yscale="log", ylabel="delay of the unaffected [ms] (dots)")
    right.spines["top"].set_visible(False)
    axis.set(xlabel="s after the kill", ylabel="clients back")
    axis.set_title("the storm: all clients of a dead broker come back at once", fontsize=9)
    _legend(axis)


def _once(name: str, number: int) -> str:
    return name if number == 0 else "_"


def _legend(axis: Axes) -> None:
    if axis.get_legend_handles_labels()[0]:
        axis.legend(fontsize=8, frameon=False)
