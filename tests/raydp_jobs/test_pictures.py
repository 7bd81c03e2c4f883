"""Pictures of the Spark jobs and their demo: what they say and leave out, and that no text covers another."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from matplotlib import pyplot
from matplotlib.text import Text

from lexicast.bench.demo_spark.channel import EMERGENCIES, KM, WAYS, shelters
from lexicast.bench.demo_spark.pictures import draw_delays, draw_map
from lexicast.compression.dictionary import Dictionary
from lexicast.raydp_jobs.jobs.dictionary_choice import Choice, HistoryCandidate
from lexicast.raydp_jobs.jobs.pictures import FAMILIES_MAX, draw_dictionaries, draw_regression
from lexicast.raydp_jobs.jobs.regression_observations import Fit, Observation, Regression


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """The figures, open for inspection."""
    kept: list[Any] = []
    monkeypatch.setattr(pyplot, "close", lambda figure: kept.append(figure))
    yield kept
    monkeypatch.undo()
    pyplot.close("all")


def choice(at: int, better: bool) -> Choice:
    dictionary = Dictionary(b"a/+", "deflate-9", b"content") if better else None
    return Choice(
        b"flights/%d/+" % at, 1_000 * (at + 1), 200.0, 60.0, 50.0 if better else 59.9,
        HistoryCandidate("zstd", 1, "x", 200), 900, 10_000, "better" if better else "not worth it", dictionary,
    )  # fmt: skip


def texts(figure: Any) -> str:
    return "\n".join(text.get_text() for text in figure.findobj(Text))


def test_dictionaries_show_what_is_gained(drawn: list[Any], tmp_path: Path) -> None:
    draw_dictionaries([choice(at, at % 9 == 5) for at in range(40)], tmp_path / "d.png")
    said = texts(drawn[0])
    assert "4 of 40 families get a better dictionary" in said
    assert "not worth it" not in said
    assert said.count("(+5.0 points)") == 4
    names = [tick.get_text() for tick in drawn[0].axes[0].get_yticklabels()]
    assert len(names) == FAMILIES_MAX
    assert {name.split("/")[1] for name in names[:4]} == {"5", "14", "23", "32"}, "those that gain stand on top"
    draw_dictionaries([], tmp_path / "none.png")


def test_the_regression_has_titles_and_no_empty_entries(drawn: list[Any], tmp_path: Path) -> None:
    rows = [(b"a/+", Observation(1.0, 2.0, 100.0 * (at + 1), 10.0, 200.0, 70.0, False)) for at in range(8)]
    fits = [Fit("two features", 0.5, 10.0, 0.9, 1.0, (1.0, 1.0)), Fit("log", 0.6, 1.0, float("nan"), 1.0, (1.0, 1.0))]
    draw_regression(Regression(rows, fits, 6.9, [1.0] * 8), tmp_path / "r.png")
    (figure,) = drawn
    assert all(axes.get_title(loc="left") for axes in figure.axes)
    assert "8 observations of 1 families" in texts(figure)
    assert [text.get_text() for text in figure.axes[0].get_legend().get_texts()] == [
        "bootstrap (MC.base)",
        "regression",
    ]
    assert "nan" not in texts(figure)


def test_no_text_of_the_map_covers_another(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pictures = importlib.import_module("lexicast.bench.demo_spark.pictures")
    found: list[Any] = []
    place = pictures.label
    monkeypatch.setattr(pictures, "label", lambda axes, marks: found.extend(place(axes, marks)))
    told = [("ann", WAYS["ann"][1], "flood"), ("bob", WAYS["bob"][3], "crash")]
    draw_map(WAYS, {kind: where for kind, (_, where) in EMERGENCIES.items()}, shelters(), told, KM, tmp_path / "m.png")
    assert len(found) == sum(map(len, WAYS.values())) + len(EMERGENCIES) + len(shelters())
    assert not [(a, b) for a in found for b in found if a is not b and a.overlaps(b)]


def test_delays(tmp_path: Path) -> None:
    draw_delays([("AA", 100, 12.5, 300), ("UA", 50, 3.0, 90)], tmp_path / "q.png")
    assert (tmp_path / "q.png").read_bytes().startswith(b"\x89PNG")
