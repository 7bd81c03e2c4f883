"""The picture of the demo of content subscriptions: messages, bytes and CPU, live over time and in the past."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Final

import matplotlib

matplotlib.use("Agg")  # no display is needed, and none may be there

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from .report import LIVE_ALL, LIVE_WHERE, PAST_ALL, PAST_WHERE, Way, WhereReport

GREY: Final = "#6b7280"
BLUE: Final = "#1d4ed8"
COLOURS: Final = {LIVE_ALL: GREY, PAST_ALL: GREY, LIVE_WHERE: BLUE, PAST_WHERE: BLUE}
LABELS: Final = {
    LIVE_ALL: "all received, filtered in the client",
    LIVE_WHERE: "the condition given to the broker",
    PAST_ALL: "all received, filtered in the client",
    PAST_WHERE: "the condition given to the broker",
}
HEADINGS: Final = ("messages received", "megabytes", "seconds of CPU")
FOOTNOTE: Final = (
    "bytes: of the connection, both ways, counted at the socket.  CPU: of the client's process, from being connected "
    "on.  live: paho, MQTT 5, QoS 1, both at once.  past: the Python client, one after the other; its link carries "
    "blocks as they are stored, compressed."
)
TITLE_CHARACTERS: Final = 150


def draw(report: WhereReport, file: Path) -> None:
    """Writes the PNG."""
    figure = Figure(figsize=(18, 9), dpi=100, facecolor="white")
    same = "" if report.problems() else ", in the same order in all four"
    title = f"{report.wanted:,} of {len(report.replay.events):,} events{same}: where {report.where}"
    figure.suptitle(
        textwrap.fill(title, TITLE_CHARACTERS, max_lines=2, placeholder=" ..."),
        x=0.045, ha="left", fontsize=14, fontweight="bold",
    )  # fmt: skip
    live, past = figure.subplots(2, 3)
    _live(report, live)
    _past(report, past)
    figure.text(0.045, 0.012, FOOTNOTE, fontsize=9.5, color=GREY, va="bottom")
    figure.subplots_adjust(left=0.045, right=0.985, top=0.87, bottom=0.09, hspace=0.36, wspace=0.2)
    figure.savefig(file)


def _live(report: WhereReport, axes: list[Axes]) -> None:
    start_ns, carried = report.outcome.start_ns, report.outcome.carried
    end_s = (report.outcome.end_ns - start_ns) / 1e9
    for axis, heading in zip(axes, HEADINGS, strict=True):
        axis.set_title(f"live: {heading} so far", loc="left", fontsize=12)
        axis.set_xlabel("seconds since the replay began")
        axis.set_xlim(0, end_s)
    carried_s = (np.array(carried.at_ns) - start_ns) / 1e9
    for name in (LIVE_ALL, LIVE_WHERE):
        trail = report.trails[name]
        told_s = (np.array(trail.at_ns) - start_ns) / 1e9
        curves = (
            (told_s, np.array(trail.received, dtype=float)),
            (carried_s, np.array(carried.bytes[name]) / 1e6),
            (told_s, np.array(trail.cpu_s)),
        )
        for axis, (at_s, values), end in zip(axes, curves, _ends(report.ways[name]), strict=True):
            axis.plot(at_s, values, color=COLOURS[name], lw=2, label=f"{LABELS[name]}: {end}")
    for axis in axes:
        _dress(axis)
        axis.set_ylim(0, 1.3 * axis.get_ylim()[1])


def _past(report: WhereReport, axes: list[Axes]) -> None:
    for axis, heading in zip(axes, HEADINGS, strict=True):
        axis.set_title(f"past: {heading}", loc="left", fontsize=12)
    for place, name in ((1, PAST_ALL), (0, PAST_WHERE)):
        way = report.ways[name]
        values = (way.received, way.link_bytes / 1e6, way.cpu_s)
        for axis, value, end in zip(axes, values, _ends(way), strict=True):
            axis.barh(place, value, color=COLOURS[name], height=0.5, label=f"{LABELS[name]}: {end}")
    for axis in axes:
        _dress(axis)
        axis.set_ylim(-0.6, 2.2)
        axis.set_yticks([])


def _ends(way: Way) -> tuple[str, str, str]:
    """Messages, bytes and CPU in words."""
    return f"{way.received:,}", f"{way.link_bytes / 1e6:,.3f} MB", f"{way.cpu_s:,.3f} s"


def _dress(axis: Axes) -> None:
    axis.set_axisbelow(True)
    axis.grid(color="#e5e7eb")
    axis.legend(loc="upper left", frameon=False, fontsize=10)
    for side in ("top", "right"):
        axis.spines[side].set_visible(False)
