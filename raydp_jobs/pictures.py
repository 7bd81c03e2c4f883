"""Pictures of what the jobs have found (PNG, SVG, PDF: as the file's name ends)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from lexicast.cluster.errors import StoreError

from .choosing import Choice

if TYPE_CHECKING:
    from .train_regression import Regression

FAMILIES_MAX: Final = 30
NOW, PROPOSED, BETTER = "#9aa5b1", "#2b6cb0", "#c05621"


@contextmanager
def _figure(file: Path, columns: int, width: float, height: float) -> Iterator[Any]:
    """Axes to draw on, saved at the end. Raises StoreError."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, columns, figsize=(width, height), layout="constrained")
    try:
        yield axes
        figure.savefig(file, dpi=150)
    except OSError as error:
        raise StoreError(f"cannot write {file}: {error.strerror or error}") from None
    finally:
        pyplot.close(figure)


def draw_dictionaries(choices: Sequence[Choice], file: Path) -> None:
    """Current and proposed reduction of each family, those with most bytes on top. Raises StoreError."""
    shown = [choice for choice in choices if choice.candidate is not None][:FAMILIES_MAX]
    places = range(len(shown))
    least = min([0.0, *[choice.current_percent for choice in shown]])
    with _figure(file, 1, 9.5, 1.4 + 0.42 * max(1, len(shown))) as axes:
        axes.barh([at - 0.2 for at in places], [c.current_percent for c in shown], 0.38, label="now", color=NOW)
        colours = [PROPOSED if choice.dictionary is None else BETTER for choice in shown]
        axes.barh([at + 0.2 for at in places], [c.proposed_percent for c in shown], 0.38, color=colours)
        axes.barh([0], [0], color=BETTER, label="from history: published")
        axes.barh([0], [0], color=PROPOSED, label="from history: not worth it")
        for at, choice in zip(places, shown, strict=True):
            axes.annotate(choice.reason, (101, at), va="center", fontsize=7, annotation_clip=False)
        names = [f"{choice.family.decode(errors='replace')} ({choice.messages:,})" for choice in shown]
        axes.set_yticks(list(places), names, fontsize=8)
        axes.set_ylim(max(len(shown), 1) - 0.4, -0.6)
        axes.set_xlim(least, 100)
        axes.set_xlabel("bandwidth reduction on later messages, the dictionary included (%)", fontsize=9)
        axes.spines[["top", "right"]].set_visible(False)
        axes.figure.legend(loc="outside upper center", ncols=3, fontsize=8, frameon=False)


def draw_regression(found: Regression, file: Path) -> None:
    """MC as predicted against what was right, the residuals, and the errors on unseen families. Raises StoreError."""
    rows = [row for _, row in found.observations]
    right = [row.messages for row in rows]
    fitted = [max(messages - residual, 1.0) for messages, residual in zip(right, found.residuals, strict=True)]
    with _figure(file, 3, 13, 4.2) as (compared, spread, errors):
        compared.scatter(right, [max(row.base, 1.0) for row in rows], s=16, color=NOW, label="bootstrap: MC.base")
        # open: the history ended first, so that the right MC is that much at least
        for censored, face in ((False, PROPOSED), (True, "none")):
            of = [at for at, row in enumerate(rows) if row.censored is censored]
            label = "regression (thesis)" if face == PROPOSED else "the same; right is this or more"
            places = [right[at] for at in of], [fitted[at] for at in of]
            compared.scatter(*places, s=18, facecolors=face, edgecolors=PROPOSED, label=label)
        ends = [min(right) / 2, max(right) * 2]
        compared.plot(ends, ends, color="black", linewidth=0.8, label="right")
        compared.set(xscale="log", yscale="log", xlabel="MC that was right (messages)", ylabel="MC as predicted")
        compared.legend(fontsize=7, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2, frameon=False)
        spread.scatter(fitted, found.residuals, s=16, color=PROPOSED)
        spread.axhline(0, color="black", linewidth=0.8)
        spread.set(xlabel="MC as predicted by the regression", ylabel="residual (messages)")
        names = ["bootstrap: MC.base", *[fit.name for fit in found.fits]]
        values = [found.bootstrap_doublings, *[fit.unseen_doublings for fit in found.fits]]
        bars = errors.barh(names, values, color=[NOW, *[PROPOSED] * len(found.fits)])
        errors.bar_label(bars, fmt="%.2f", padding=3, fontsize=8)
        errors.invert_yaxis()
        errors.margins(x=0.15)
        errors.set_xlabel("mean error on unseen families (doublings)")
        for axes in (compared, spread, errors):
            axes.spines[["top", "right"]].set_visible(False)
