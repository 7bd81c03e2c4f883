"""The demo's picture: bytes over time on the links, with and without dictionaries."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import matplotlib

matplotlib.use("Agg")  # no display is needed, and none may be there

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from .demo_data import WEATHER
from .demo_replay import AWARE, PLAIN, PYTHON
from .demo_report import Report

Floats = npt.NDArray[np.float64]

GREY: Final = "#6b7280"
ORANGE: Final = "#d97706"
BLUE: Final = "#1d4ed8"
GREEN: Final = "#059669"


class Curve:
    """Cumulative bytes over seconds since the start."""

    def __init__(self, label: str, colour: str, at_s: Floats, total: Floats, dashed: bool = False) -> None:
        self.label = label
        self.colour = colour
        self.at_s = at_s
        self.total = total
        self.dashed = dashed

    def at(self, when: Floats) -> Floats:
        """Bytes at these times."""
        return np.interp(when, self.at_s, self.total)


def draw(report: Report, file: Path) -> None:
    """Writes the PNG."""
    figure = Figure(figsize=(14, 9), dpi=110, facecolor="white")
    axes = figure.subplots(2, 2, sharex=True)
    outcome, replay = report.outcome, report.replay
    figure.suptitle(
        f"{replay.flights:,} flights and {len(replay.events) - replay.flights:,} weather reports as JSON over MQTT: "
        "bytes with and without learned dictionaries",
        x=0.06,
        ha="left",
        fontsize=15,
        fontweight="bold",
    )
    end_s = (outcome.end_ns - outcome.start_ns) / 1e9
    rows = [("To one subscriber", _to_subscribers(report)), ("From the three airports", _from_publishers(report))]
    for (cumulative, rate), (where, curves) in zip(axes, rows, strict=True):
        _cumulative(cumulative, where, curves, end_s)
        _per_second(rate, where, curves, end_s)
        _mark_dictionaries(cumulative, report, text=False)
        _mark_dictionaries(rate, report, text=True)
    for axis in axes[1]:
        axis.set_xlabel("seconds since the replay began")
    figure.text(
        0.06,
        0.012,
        "measured: all bytes of the connection, both ways, counted at the socket (headers, acknowledgements and the "
        "dictionaries themselves included).  computed: the same events as MQTT 5 packets,\n"
        "QoS 1, with acknowledgements.  Dotted lines: "
        "a topic family's dictionary has been learned from its first messages and published.",
        fontsize=9,
        color=GREY,
        va="bottom",
    )
    figure.subplots_adjust(left=0.06, right=0.985, top=0.9, bottom=0.12, hspace=0.22, wspace=0.16)
    figure.savefig(file)


def _measured(report: Report, *links: str) -> tuple[Floats, Floats]:
    carried = report.outcome.carried
    at_s = (np.array(carried.at_ns, dtype=float) - report.outcome.start_ns) / 1e9
    return at_s, np.sum([carried.bytes[link] for link in links], axis=0).astype(float)


def _computed(at_ns: npt.NDArray[np.int64], sizes: npt.NDArray[np.int64], start_ns: int) -> tuple[Floats, Floats]:
    order = np.argsort(at_ns)
    return (at_ns[order] - start_ns) / 1e9, np.cumsum(sizes[order]).astype(float)


def _to_subscribers(report: Report) -> list[Curve]:
    account = report.outcome.accounts[AWARE]
    ours = account.numbers >= 0
    sizes = report.sizes.deflated[account.numbers[ours]]
    deflate = _computed(account.at_ns[ours], sizes, report.outcome.start_ns)
    return [
        Curve("plain MQTT (measured)", GREY, *_measured(report, PLAIN)),
        Curve("DEFLATE each message (computed)", ORANGE, *deflate, dashed=True),
        Curve("dictionary-aware MQTT (measured)", BLUE, *_measured(report, AWARE)),
        Curve("Python client (measured)", GREEN, *_measured(report, PYTHON)),
    ]


def _from_publishers(report: Report) -> list[Curve]:
    airports = [name for name in report.replay.publishers if name != WEATHER]
    theirs = np.array([event.publisher != WEATHER for event in report.replay.events])
    sent_ns, start_ns = report.outcome.sent_ns[theirs], report.outcome.start_ns
    return [
        Curve("uncompressed (computed)", GREY, *_computed(sent_ns, report.sizes.raw[theirs], start_ns), dashed=True),
        Curve(
            "DEFLATE each message (computed)",
            ORANGE,
            *_computed(sent_ns, report.sizes.deflated[theirs], start_ns),
            dashed=True,
        ),
        Curve("dictionary-aware MQTT (measured)", BLUE, *_measured(report, *airports)),
    ]


def _cumulative(axis: Axes, where: str, curves: list[Curve], end_s: float) -> None:
    when = np.linspace(0, end_s, 400)
    whole = curves[0].at(np.array([end_s]))[0]
    for curve in curves:
        total = curve.at(when) / 1e6
        saved = 100 - 100 * curve.at(np.array([end_s]))[0] / whole
        label = f"{curve.label}: {total[-1]:.1f} MB" + ("" if curve is curves[0] else f", {saved:.0f}% less")
        axis.plot(when, total, color=curve.colour, lw=2, ls="--" if curve.dashed else "-", label=label)
    _dress(axis, f"{where}: megabytes so far", "MB", end_s)
    axis.legend(loc="upper left", frameon=False, fontsize=10)


def _per_second(axis: Axes, where: str, curves: list[Curve], end_s: float) -> None:
    # Whole seconds; of a very short run, tenths.
    step = 1.0 if end_s >= 8 else 0.25
    edges = np.arange(0, end_s + step / 2, step)
    for curve in curves:
        rate = np.diff(curve.at(edges)) / step / 1e3
        axis.stairs(rate, edges, color=curve.colour, lw=2, ls="--" if curve.dashed else "-", baseline=None)
    _dress(axis, f"{where}: kilobytes a second", "kB/s", end_s)


def _dress(axis: Axes, heading: str, unit: str, end_s: float) -> None:
    axis.set_title(heading, loc="left", fontsize=12)
    axis.set_ylabel(unit)
    axis.set_ylim(bottom=0)
    axis.set_xlim(0, end_s)
    axis.grid(axis="y", color="#e5e7eb")
    axis.tick_params(labelbottom=True)
    for side in ("top", "right"):
        axis.spines[side].set_visible(False)


def _mark_dictionaries(axis: Axes, report: Report, *, text: bool) -> None:
    start_us = report.outcome.start_us
    seen = dict[bytes, float]()
    for one in sorted(report.learned, key=lambda one: one.time_us):
        seen.setdefault(one.dictionary.family, (one.time_us - start_us) / 1e6)
    for at_s in seen.values():
        axis.axvline(at_s, color=BLUE, lw=0.8, ls=":")
    if text and seen:
        first = min(seen.values())
        place = axis.get_xaxis_transform()
        axis.text(first, 1.0, " first dictionaries", color=BLUE, fontsize=9, transform=place, va="top")
