"""The pictures of `demo_spark` that no job draws."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot
from matplotlib.patches import Ellipse

BLUE, ORANGE, RED, GREY = "#2b6cb0", "#c05621", "#c53030", "#718096"
KM_A_DEGREE: Final = 111.2

Place = tuple[float, float]
"""Latitude and longitude in degrees."""


def draw_delays(rows: Sequence[Sequence[Any]], file: Path) -> None:
    """The answer in SQL: rows of carrier, flights, mean delay, worst delay."""
    names = [f"{carrier} ({flights:,})" for carrier, flights, *_ in rows]
    figure, axes = pyplot.subplots(figsize=(8, 1 + 0.4 * len(rows)), layout="constrained")
    bars = axes.barh(names, [row[2] for row in rows], color=BLUE)
    axes.bar_label(bars, [f"{mean:.1f}; worst {worst:,}" for _, _, mean, worst in rows], padding=4, fontsize=8)
    axes.invert_yaxis()
    axes.margins(x=0.18)
    axes.set_xlabel("mean departure delay (minutes)")
    axes.set_ylabel("carrier (flights)")
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(file, dpi=150)
    pyplot.close(figure)


def draw_map(
    ways: Mapping[str, Sequence[Place]],
    emergencies: Mapping[str, Place],
    shelters: Mapping[str, Place],
    delivered: Sequence[tuple[str, Place, str]],
    km: float,
    file: Path,
) -> None:
    """Where subscribers went, what happened, and an arrow from where each was told of it: (who, where, emergency)."""
    figure, axes = pyplot.subplots(figsize=(8.5, 7), layout="constrained")
    for (name, way), colour in zip(ways.items(), (BLUE, ORANGE), strict=False):
        axes.plot([lon for _, lon in way], [lat for lat, _ in way], "o-", color=colour, label=f"{name}'s way")
        for at, (lat, lon) in enumerate(way):
            axes.annotate(f"{name} {at + 1}", (lon, lat), (5, 5), textcoords="offset points", color=colour, fontsize=8)
    for name, (lat, lon) in shelters.items():
        axes.plot(lon, lat, "s", color=GREY, markersize=6)
        axes.annotate(name, (lon, lat), (6, -10), textcoords="offset points", color=GREY, fontsize=7)
    for name, (lat, lon) in emergencies.items():
        axes.plot(lon, lat, "*", color=RED, markersize=16)
        axes.annotate(name, (lon, lat), (10, 8), textcoords="offset points", color=RED, fontsize=9)
        ring = Ellipse(  # a degree of longitude is shorter than one of latitude here
            (lon, lat), 2 * km / KM_A_DEGREE * 1.2, 2 * km / KM_A_DEGREE, fill=False, color=RED, alpha=0.25
        )
        axes.add_patch(ring)
    for _who, (lat, lon), name in delivered:
        to_lat, to_lon = emergencies[name]
        arrow = {"arrowstyle": "<-", "color": RED, "linestyle": "dashed", "alpha": 0.7}
        axes.annotate("", (lon, lat), (to_lon, to_lat), arrowprops=arrow)
    axes.plot([], [], "*", color=RED, markersize=12, linestyle="", label=f"emergency; ring: {km:g} km")
    axes.plot([], [], "s", color=GREY, linestyle="", label="shelter")
    axes.plot([], [], "--", color=RED, alpha=0.7, label="told of it here")
    axes.set_aspect(1.2)
    axes.set(xlabel="longitude", ylabel="latitude", title="EmergenciesNearMe: who was told of what, and where")
    axes.margins(0.06)
    axes.legend(fontsize=8, loc="lower left")
    figure.savefig(file, dpi=150)
    pyplot.close(figure)
