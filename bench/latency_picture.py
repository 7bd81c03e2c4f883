"""The latency driver's picture: p50 and p99 against the rate, a target a colour, up to where it is saturated."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import matplotlib

matplotlib.use("Agg")  # no display is needed, and none may be there

from matplotlib.figure import Figure

COLOURS: Final = {"lexicast": "#1d4ed8", "mosquitto": "#d97706", "nats": "#059669", "toy": "#6b7280"}


def draw(curves: Mapping[str, Mapping[int, Mapping[str, Any]]], file: Path) -> None:
    """Writes the PNG. `curves` has, by target and messages/s, p50_ms, p99_ms, delivered_per_s and saturated."""
    figure = Figure(figsize=(8.5, 5.2), dpi=110, facecolor="white", layout="constrained")
    axis = figure.subplots()
    for name, points in curves.items():
        kept = [rate for rate, point in points.items() if not point["saturated"] and point["p50_ms"] is not None]
        for part, style in (("p50", "-"), ("p99", "--")):
            values = [points[rate][f"{part}_ms"] for rate in kept]
            axis.plot(kept, values, style, marker=".", color=COLOURS[name], label=f"{name} {part}")
        for point in points.values():
            if point["saturated"] and point["delivered_per_s"]:
                axis.axvline(point["delivered_per_s"], color=COLOURS[name], linestyle=":", alpha=0.7)
    axis.set(xscale="log", yscale="log", xlabel="messages a second", ylabel="publish to delivery [ms]")
    axis.set_title("QoS 0, one to one (dotted: what was delivered of a rate that was too high)", fontsize=10)
    axis.grid(True, which="major", alpha=0.3)
    axis.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside lower center", frameon=False, ncols=max(1, len(curves)))
    figure.savefig(file)
