"""The pictures of `demo_spark` that no job draws."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot
from matplotlib.patches import Ellipse
from matplotlib.transforms import Bbox

BLUE, ORANGE, RED, GREY = "#2b6cb0", "#c05621", "#c53030", "#718096"
KM_A_DEGREE: Final = 111.2
_ROUND: Final[tuple[tuple[float, float], ...]] = (
    (1, 0.7),
    (1, -0.7),
    (-1, 0.7),
    (-1, -0.7),
    (0, 1),
    (0, -1),
    (1, 0),
    (-1, 0),
)

# Half a mark, with some room.
MARK_PIXELS: Final = 6.0
# Where a text may stand beside its mark (points), the best first.
SIDES: Final[tuple[tuple[float, float], ...]] = tuple(
    [(x * far, y * far) for far in (9, 14, 20, 28) for x, y in _ROUND]
)

Place = tuple[float, float]
"""Latitude and longitude in degrees."""
Mark = tuple[str, Place, str, float]
"""What is written at a place, its colour and its size (points)."""


def draw_delays(rows: Sequence[Sequence[Any]], file: Path) -> None:
    """The answer in SQL: rows of carrier, flights, mean delay, worst delay."""
    names = [f"{carrier} ({flights:,})" for carrier, flights, *_ in rows]
    figure, axes = pyplot.subplots(figsize=(8, 1 + 0.4 * len(rows)), layout="constrained")
    bars = axes.barh(names, [row[2] for row in rows], color=BLUE)
    axes.bar_label(bars, [f"{mean:.1f}; worst {worst:,}" for _, _, mean, worst in rows], padding=4, fontsize=8)
    axes.invert_yaxis()
    axes.margins(x=0.18)
    axes.set_title("Asked of the history in SQL: which carriers are late", loc="left", fontsize=11)
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
    marks: list[Mark] = []
    for (name, way), colour in zip(ways.items(), (BLUE, ORANGE), strict=False):
        axes.plot([lon for _, lon in way], [lat for lat, _ in way], "o-", color=colour, label=f"{name}'s way")
        marks += [(f"{name} {at + 1}", place, colour, 8.0) for at, place in enumerate(way)]
    for name, (lat, lon) in shelters.items():
        axes.plot(lon, lat, "s", color=GREY, markersize=6)
        marks.append((name, (lat, lon), GREY, 7.0))
    for name, (lat, lon) in emergencies.items():
        axes.plot(lon, lat, "*", color=RED, markersize=16)
        marks.insert(0, (name, (lat, lon), RED, 10.0))
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
    label(axes, marks)
    figure.savefig(file, dpi=150)
    pyplot.close(figure)


def label(axes: Any, marks: Sequence[Mark]) -> list[Any]:
    """Write each mark's text beside its place, where it covers no other text and no mark; the first ones choose first.

    Returns the texts' boxes, in pixels.
    """
    figure = axes.figure
    figure.canvas.draw()  # fixes where everything is
    taken = [axes.get_legend().get_window_extent()] if axes.get_legend() is not None else []
    for _, (lat, lon), _, _ in marks:
        x, y = axes.transData.transform((lon, lat))
        taken.append(Bbox.from_bounds(x - MARK_PIXELS, y - MARK_PIXELS, 2 * MARK_PIXELS, 2 * MARK_PIXELS))
    boxes = []
    for text, (lat, lon), colour, size in marks:
        written = axes.annotate(text, (lon, lat), SIDES[0], textcoords="offset points", color=colour, fontsize=size)
        tried: list[tuple[int, int, tuple[float, float], Any]] = []
        for side in SIDES:
            written.xyann = side
            written.set(ha="left" if side[0] > 0 else "right" if side[0] < 0 else "center", va="center")
            box = written.get_window_extent(figure.canvas.get_renderer())
            outside = not (axes.bbox.containsx(box.x0) and axes.bbox.containsx(box.x1))
            tried.append((sum(box.overlaps(other) for other in taken) + outside, len(tried), side, box))
            if tried[-1][0] == 0:
                break
        _, _, side, box = min(tried, key=lambda each: each[:2])
        written.xyann = side
        written.set(ha="left" if side[0] > 0 else "right" if side[0] < 0 else "center")
        taken.append(box)
        boxes.append(box)
    return boxes
