"""The pictures of what the jobs have found (PNG, SVG, PDF: as the file's name ends)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import isfinite
from pathlib import Path
from typing import Any, Final

from lexicast.cluster.errors import StoreError

from .dictionary_choice import Choice
from .regression_observations import Regression

FAMILIES_MAX: Final = 16
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
    """What is saved of each family now, and with the history's dictionary where that is better. Raises StoreError."""
    measured = [choice for choice in choices if choice.candidate is not None]
    better = [choice for choice in measured if choice.dictionary is not None]
    # those that gain first, by the bytes that they gain; the others by their bytes
    shown = sorted(measured, key=lambda choice: (-_gained(choice), -choice.raw * choice.messages))[:FAMILIES_MAX]
    places = range(len(shown))
    with _figure(file, 1, 9.5, 1.6 + 0.42 * max(1, len(shown))) as axes:
        axes.barh(places, [c.current_percent for c in shown], 0.62, color=NOW, label="saved now")
        for at, choice in zip(places, shown, strict=True):
            if choice.dictionary is not None:
                gain = choice.proposed_percent - choice.current_percent
                axes.barh([at], [gain], 0.62, left=[choice.current_percent], color=BETTER)
                text, colour = f"{choice.proposed_percent:.0f}%  (+{gain:.1f} points)", BETTER
            else:
                text, colour = f"{choice.current_percent:.0f}%", "#4a5568"
            end = max(choice.current_percent, choice.proposed_percent if choice.dictionary is not None else 0.0, 0.0)
            axes.annotate(text, (end, at), (5, 0), textcoords="offset points", va="center", fontsize=8, color=colour)
        if better:
            axes.barh([0], [0], color=BETTER, label="more, with the history's dictionary")
        names = [f"{choice.family.decode(errors='replace')} ({choice.messages:,})" for choice in shown]
        axes.set_yticks(list(places), names, fontsize=8)
        axes.set_ylim(max(len(shown), 1) - 0.4, -0.6)
        axes.set_xlim(min([0.0, *[choice.current_percent for choice in shown]]), 118)
        axes.set_xticks(range(0, 101, 20))
        axes.set_xlabel("bytes saved on later messages, the dictionary's own counted (%)", fontsize=9)
        axes.spines[["top", "right"]].set_visible(False)
        axes.set_title(_headline(measured, better), loc="left", fontsize=11)
        if shown:
            axes.figure.legend(loc="outside lower center", ncols=2, fontsize=8, frameon=False)


def _gained(choice: Choice) -> float:
    """The bytes that the family's history would have taken less with the proposed dictionary."""
    return 0.0 if choice.dictionary is None else (choice.current - choice.proposed) * choice.messages


def _headline(measured: Sequence[Choice], better: Sequence[Choice]) -> str:
    sent = sum(choice.current * choice.messages for choice in measured)
    if not better:
        return f"{len(measured)} families: their dictionaries are as good as the history's"
    percent = 100 * sum(map(_gained, better)) / max(sent, 1.0)
    return f"{len(better)} of {len(measured)} families get a better dictionary: {percent:.1f}% fewer bytes over all"


def draw_regression(found: Regression, file: Path) -> None:
    """MC as predicted against what was right, the residuals, and the errors on unseen families. Raises StoreError."""
    rows = [row for _, row in found.observations]
    right = [row.messages for row in rows]
    fitted = [max(messages - residual, 1.0) for messages, residual in zip(right, found.residuals, strict=True)]
    with _figure(file, 3, 13, 4.6) as (compared, spread, errors):
        compared.scatter(right, [max(row.base, 1.0) for row in rows], s=16, color=NOW, label="bootstrap (MC.base)")
        # open: the history ended first, so that the right MC is that much at least
        for censored, face in ((False, PROPOSED), (True, "none")):
            of = [at for at, row in enumerate(rows) if row.censored is censored]
            label = "regression" if face == PROPOSED else "regression; right is this or more"
            if of:
                places = [right[at] for at in of], [fitted[at] for at in of]
                compared.scatter(*places, s=18, facecolors=face, edgecolors=PROPOSED, label=label)
        ends = [min(right) / 2, max(right) * 2]
        compared.plot(ends, ends, color="black", linewidth=0.8)
        compared.set(xscale="log", yscale="log", xlabel="MC that was right (messages)", ylabel="MC as predicted")
        compared.set_title("predicted against right (line: equal)", loc="left", fontsize=9)
        compared.legend(fontsize=7, frameon=True, framealpha=0.8)
        spread.scatter(fitted, found.residuals, s=16, color=PROPOSED)
        spread.axhline(0, color="black", linewidth=0.8)
        spread.set(xlabel="MC as predicted by the regression", ylabel="residual (messages)")
        spread.set_title("what the regression leaves unexplained", loc="left", fontsize=9)
        known = [("bootstrap (MC.base)", found.bootstrap_doublings)]
        known += [(fit.name, fit.unseen_doublings) for fit in found.fits if isfinite(fit.unseen_doublings)]
        bars = errors.barh([name for name, _ in known], [value for _, value in known])
        for bar in bars[1:]:
            bar.set_color(PROPOSED)
        bars[0].set_color(NOW)
        errors.bar_label(bars, fmt="%.2f", padding=3, fontsize=8)
        errors.invert_yaxis()
        errors.margins(x=0.15)
        errors.set_xlabel("mean error on families not seen (doublings; less is better)")
        errors.set_title("off by how many doublings", loc="left", fontsize=9)
        for axes in (compared, spread, errors):
            axes.spines[["top", "right"]].set_visible(False)
        families = len({family for family, _ in found.observations})
        title = f"When to look at a dictionary again: {len(rows)} observations of {families} families"
        compared.figure.suptitle(title, x=0.01, ha="left", fontsize=12)
