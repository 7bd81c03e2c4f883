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

from ..data.flights import WEATHER
from .report import AWARE, PLAIN, PYTHON, DemoReport

Floats = npt.NDArray[np.float64]

GREY: Final = "#6b7280"
ORANGE: Final = "#d97706"
BLUE: Final = "#1d4ed8"
GREEN: Final = "#059669"

LEARNING_S: Final = 5.0
FOOTNOTE: Final = (
    "measured: all bytes of the connection, both ways, counted at the socket (headers, acknowledgements and the "
    "dictionaries themselves included).  computed: the same events as MQTT 5 packets, QoS 1, with\nacknowledgements.  "
    "Dotted lines: the first dictionary of a topic family has been learned from its messages and published: from there "
    "on its publishers and dictionary-aware subscribers use it."
)


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


def draw(report: DemoReport, file: Path) -> None:
    """Writes the PNG."""
    figure = Figure(figsize=(18, 9), dpi=100, facecolor="white")
    replay, outcome = report.replay, report.outcome
    weather = len(replay.events) - replay.flights
    title = (
        f"{replay.flights:,} flights and {weather:,} weather reports as JSON over MQTT: "
        "bytes with and without learned dictionaries"
    )
    figure.suptitle(title, x=0.045, ha="left", fontsize=16, fontweight="bold")
    end_s = (outcome.end_ns - outcome.start_ns) / 1e9
    rows = [("To one subscriber", _to_subscribers(report)), ("From the three airports", _from_publishers(report))]
    for axes, (where, curves) in zip(figure.subplots(2, 3), rows, strict=True):
        _cumulative(axes[0], where, curves, end_s)
        _learning(axes[1], where, curves, min(LEARNING_S, end_s), _first_dictionaries(report))
        _per_second(axes[2], where, curves, end_s)
        for axis in axes:
            axis.set_xlabel("seconds since the replay began")
    figure.text(0.045, 0.012, FOOTNOTE, fontsize=9.5, color=GREY, va="bottom")
    figure.subplots_adjust(left=0.045, right=0.99, top=0.895, bottom=0.125, hspace=0.32, wspace=0.16)
    figure.savefig(file)


def _measured(report: DemoReport, *links: str) -> tuple[Floats, Floats]:
    carried = report.outcome.carried
    at_s = (np.array(carried.at_ns, dtype=float) - report.outcome.start_ns) / 1e9
    return at_s, np.sum([carried.bytes[link] for link in links], axis=0).astype(float)


def _computed(at_ns: npt.NDArray[np.int64], sizes: npt.NDArray[np.int64], start_ns: int) -> tuple[Floats, Floats]:
    order = np.argsort(at_ns)
    return (at_ns[order] - start_ns) / 1e9, np.cumsum(sizes[order]).astype(float)


def _to_subscribers(report: DemoReport) -> list[Curve]:
    account = report.outcome.arrivals[PLAIN]
    ours = account.numbers >= 0
    sizes = report.sizes.deflated[account.numbers[ours]]
    deflate = _computed(account.at_ns[ours], sizes, report.outcome.start_ns)
    return [
        Curve("plain MQTT (measured)", GREY, *_measured(report, PLAIN)),
        Curve("DEFLATE each message (computed)", ORANGE, *deflate, dashed=True),
        Curve("dictionary-aware MQTT (measured)", BLUE, *_measured(report, AWARE)),
        Curve("Python client (measured)", GREEN, *_measured(report, PYTHON)),
    ]


def _from_publishers(report: DemoReport) -> list[Curve]:
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
    end = np.array([end_s])
    whole = curves[0].at(end)[0]
    for curve in curves:
        total = curve.at(end)[0]
        saved = "" if curve is curves[0] else f", {100 - 100 * total / whole:.0f}% less"
        _plot(axis, curve, end_s, 1e6, f"{curve.label}: {total / 1e6:.1f} MB{saved}")
    _dress(axis, f"{where}: megabytes so far", "MB", end_s)
    axis.legend(loc="upper left", frameon=False, fontsize=10)
    axis.set_ylim(top=1.15 * whole / 1e6)


def _learning(axis: Axes, where: str, curves: list[Curve], end_s: float, learned: list[tuple[float, str]]) -> None:
    for curve in curves:
        _plot(axis, curve, end_s, 1e3, "")
    _dress(axis, f"{where}: kilobytes so far, the first {end_s:.0f} seconds", "kB", end_s)
    place = axis.get_xaxis_transform()
    for number, (at_s, family) in enumerate(one for one in learned if one[0] < end_s):
        axis.axvline(at_s, color=BLUE, lw=0.8, ls=":")
        # One below the other: they are often learned at the same moment.
        height = 0.99 - 0.055 * number
        axis.text(at_s, height, f" {family}", color=BLUE, fontsize=9, transform=place, va="top")


def _per_second(axis: Axes, where: str, curves: list[Curve], end_s: float) -> None:
    step = 1.0 if end_s >= 8 else 0.25  # the links are looked at four times a second
    edges = np.arange(0, end_s + step / 2, step)
    for curve in curves:
        rate = np.diff(curve.at(edges)) / step / 1e3
        axis.stairs(rate, edges, color=curve.colour, lw=1.8, ls="--" if curve.dashed else "-", baseline=None)
    _dress(axis, f"{where}: kilobytes a second", "kB/s", end_s)


def _plot(axis: Axes, curve: Curve, end_s: float, unit: float, label: str) -> None:
    when = np.linspace(0, end_s, 400)
    axis.plot(when, curve.at(when) / unit, color=curve.colour, lw=2, ls="--" if curve.dashed else "-", label=label)


def _dress(axis: Axes, heading: str, unit: str, end_s: float) -> None:
    axis.set_title(heading, loc="left", fontsize=12)
    axis.set_ylabel(unit)
    axis.set_ylim(bottom=0)
    axis.set_xlim(0, end_s)
    axis.set_axisbelow(True)
    axis.grid(axis="y", color="#e5e7eb")
    for side in ("top", "right"):
        axis.spines[side].set_visible(False)


def _first_dictionaries(report: DemoReport) -> list[tuple[float, str]]:
    """When each family's first one was published (seconds since the start), and the family."""
    first = dict[str, float]()
    for one in sorted(report.learned, key=lambda one: one.time_us):
        at_s = (one.time_us - report.outcome.start_us) / 1e6
        first.setdefault(one.dictionary.family.decode(errors="replace"), at_s)
    return sorted((at_s, family) for family, at_s in first.items())
