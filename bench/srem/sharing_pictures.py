"""Pictures of the parts `hpartition`, `skipcloud` and `loss`, each with what the paper's abstract says beside it."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Protocol

import matplotlib

matplotlib.use("Agg")  # no display is needed, and none may be there

from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter

ABSTRACT: Final = {
    "sharing": "The matching rate is 3.7 to 40.4 times that of BlueDove's single-dimensional partition.",
    "savings": "The traffic of routing events in SkipCloud is at least 60% less than in Chord, at 64 servers.",
    "loss": "Loss is back to 0 in tens of seconds after a large number of servers have failed at once.",
}
"""What the abstract of the original paper claims, in short."""


class Rated(Protocol):
    """What is drawn of `matching.Matched`."""

    @property
    def events_s(self) -> float: ...


class Costed(Protocol):
    """What is drawn of `overlay_messages.OverlayCost`."""

    @property
    def name(self) -> str: ...

    def messages(self, rate: float) -> float: ...


def draw_sharing(
    folder: Path, by_matchers: Mapping[int, Mapping[str, Rated]], sweep: Mapping[str, Mapping[str, Rated]]
) -> None:
    """Rates by matchers, and of the sweep."""
    figure = _figure()
    left, right = figure.subplots(1, 2, width_ratios=[2, 3])
    names = list(next(iter(by_matchers.values())))
    for name in names:
        left.plot(list(by_matchers), [rates[name].events_s for rates in by_matchers.values()], "-o", label=name)
    left.set(xscale="log", yscale="log", xlabel="matchers (simulated)", ylabel="events/s")
    left.set_xticks(list(by_matchers), list(map(str, by_matchers)))
    left.xaxis.set_minor_formatter(NullFormatter())
    left.legend(fontsize=8)
    rows = dict(reversed(list(sweep.items())))
    for name in names:
        right.plot([rates[name].events_s for rates in rows.values()], list(rows), "o", label=name)
    right.set(xscale="log", xlabel=f"events/s of {max(by_matchers)} matchers, one thing changed")
    _save(figure, folder, "sharing")


def draw_savings(folder: Path, chord: Costed, found: Sequence[Costed], rates: Sequence[float]) -> None:
    """What is saved of Chord's messages, by (b, m) and rate of lookups."""
    figure = _figure()
    panel = figure.subplots()
    for rate in rates:
        saved = [100 * (1 - each.messages(rate) / chord.messages(rate)) for each in found]
        panel.plot([each.name for each in found], saved, "o", label=f"{rate:g} lookups a member and period")
    panel.axhline(60, color="k", linestyle="--", linewidth=1, label="the paper")
    panel.set(ylabel="% fewer messages than Chord", ylim=(min(0, panel.get_ylim()[0]), 100))
    panel.tick_params(axis="x", rotation=45)
    panel.legend(fontsize=8)
    _save(figure, folder, "savings")


def draw_loss(folder: Path, curves: Mapping[str, Sequence[float]]) -> None:
    """Loss by cycles since a failure."""
    figure = _figure()
    panel = figure.subplots()
    for name, curve in curves.items():
        panel.plot(range(len(curve)), [100 * lost for lost in curve], label=name)
    panel.set(xlabel="cycles since the failure", ylabel="% of lookups lost", ylim=(0, None))
    panel.legend(fontsize=8)
    _save(figure, folder, "loss")


def _figure() -> Any:
    return Figure(figsize=(11, 5), dpi=110, facecolor="white", layout="constrained")


def _save(figure: Any, folder: Path, key: str) -> None:
    for panel in figure.axes:
        panel.grid(True, which="major", alpha=0.3)
    figure.suptitle(textwrap.fill(f"The paper's abstract: {ABSTRACT[key]}", 100), fontsize=10)
    figure.savefig(folder / f"srem_{key}.png")
