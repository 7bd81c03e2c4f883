"""What jobs decide and say of what they have found, without Spark."""

from __future__ import annotations

from io import StringIO

from rich.console import Console

from lexicast.raydp_jobs.jobs.regression_observations import Fit, Regression
from lexicast.raydp_jobs.jobs.train_regression import show_regression, what_becomes_of
from lexicast.raydp_jobs.spark.sql_check import unknown_tables


def test_tables_that_a_plan_reads() -> None:
    plan = """
CTE [a, B]
:  +- 'UnresolvedRelation [flights], [], false
+- 'Join Inner, ('f.x = 'h.x)
   :- 'UnresolvedRelation [b], [], false
   :- 'UnresolvedRelation [parquet, /a/b], [], false
   +- 'UnresolvedRelation [History], [], false"""
    assert unknown_tables(plan, ["history"]) == ["flights"]
    assert unknown_tables(plan, ["history", "FLIGHTS"]) == []


def test_a_regression_of_which_nothing_is_known_is_not_published() -> None:
    def regression(unseen: float) -> Regression:
        return Regression([], [Fit("two features (thesis)", 0.02, 10.0, unseen, 1.0, (1.0, 1.0))], 6.9, [0.0])

    assert regression(0.9).pays
    assert "would be published on $sdc-model" in what_becomes_of(regression(0.9), dry_run=True)
    for unseen in (7.0, float("nan")):
        assert not regression(unseen).pays
        assert what_becomes_of(regression(unseen), dry_run=False).startswith("not published")
    said = StringIO()
    show_regression(Console(file=said, width=120), regression(float("nan")))
    assert "nan" not in said.getvalue()
    assert "too few families" in said.getvalue()
