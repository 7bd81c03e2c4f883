"""`lexicast spark train-regression`: one model of MC for all families (thesis section 5.3.2), fitted by Spark ML.

replay     every family's newest messages, in parallel, to observations (`regression_observations`)
fit        ordinary least squares on the thesis' two features; and, to see whether more would help, the same with
           squares and products of four features, and of log MC. Each is judged on families it has not seen
publish    the observations that a sampling broker's model starts from, and the fitted plane, as JSON, retained on
           MODEL_TOPIC
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from rich.console import Console
from rich.table import Table

import lexicast
from lexicast.cluster.config.tables import CompressionConfig
from lexicast.cluster.errors import UsageError
from lexicast.cluster.points_in_time import Since, Until
from lexicast.cluster.topics.names import MODEL_TOPIC
from lexicast.compression.regression import OBSERVATIONS_MIN, pack_model

from ..history.dataframe import history, release
from ..history.reading import Progress
from ..spark.environment import spark_session
from ..spark.errors import job_errors
from ..spark.progress import JobProgress
from .families import GIVE_UP_S, current_dictionaries, families_of, topics_of
from .pictures import draw_regression
from .regression_observations import Fit, Observation, Regression, error_doublings, replay

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql import SparkSession

MESSAGES_MAX: Final = 20_000
"""Newest messages of a family that are replayed."""

_ROW: Final = (
    "family BINARY, mean_deviation DOUBLE, mean_score DOUBLE, messages DOUBLE, base DOUBLE, mean_bytes DOUBLE, "
    "reduction DOUBLE, censored BOOLEAN"
)


def train_regression(
    console: Console,
    connect: Mapping[str, Any],
    config: CompressionConfig,
    filter: str,
    since: str,
    until: str | None,
    executors: int,
    picture: Path | None,
    dry_run: bool,
) -> None:
    """Train, show, publish. Raises LexicastError."""
    with JobProgress(console) as progress, job_errors(), ExitStack() as stack:
        progress.say("starting Spark")
        spark = stack.enter_context(spark_session(**connect, executors=executors))
        found = fit_regression(
            spark,
            connect,
            config,
            filter,
            since=since,
            until=until,
            progress=progress.read,
            computing=lambda: stack.enter_context(progress.computing(spark, "replaying, fitting")),
        )
        if found.pays and not dry_run:
            asyncio.run(publish_regression(connect, found))
    show_regression(console, found)
    if picture is not None:
        draw_regression(found, picture)
        console.print(f"picture: {picture}", soft_wrap=True)
    console.print(what_becomes_of(found, dry_run))


def fit_regression(
    spark: SparkSession,
    connect: Mapping[str, Any],
    config: CompressionConfig,
    filter: str = "#",
    *,
    since: Since = "beginning",
    until: Until = None,
    progress: Progress | None = None,
    computing: Callable[[], None] = lambda: None,
) -> Regression:
    """The regression over every family in the history; publishes nothing. Raises as `history`, UsageError where there
    are fewer than OBSERVATIONS_MIN observations, UnavailableError (more than TOPICS_MAX topics: use a filter)."""
    held = asyncio.run(current_dictionaries(connect))
    columns = ["topic", "group", "offset", "time", "payload"]
    frame = history(spark, filter, since=since, until=until, columns=columns, progress=progress)
    frame = frame.where("payload IS NOT NULL")
    computing()
    try:
        pairs = list(families_of(topics_of(frame), config, held.values()).items())
        rows = _replayed(spark, frame, pairs).collect() if pairs else []
    finally:
        release(frame)
    found = [(bytes(row.family), Observation(*row[1:])) for row in rows]
    if len(found) < OBSERVATIONS_MIN:
        raise UsageError(
            f"{len(found)} observations in this history, at least {OBSERVATIONS_MIN} are needed: a family gives its "
            "first one after 700 messages, and one more with each half-doubling"
        )
    return fit_models(spark, found)


def _replayed(spark: SparkSession, frame: Any, pairs: Sequence[tuple[str, bytes]]) -> Any:
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    families = spark.createDataFrame(pairs, "topic STRING, family BINARY")
    newest = Window.partitionBy("family").orderBy(f.desc("time"), f.desc("group"), f.desc("offset"))
    joined = frame.join(f.broadcast(families), "topic").withColumn("rank", f.row_number().over(newest))
    kept = joined.where(f.col("rank") <= MESSAGES_MAX).select("family", "rank", "payload")
    return kept.groupBy("family").applyInPandas(_work, _ROW)


def _work(rows: pd.DataFrame) -> pd.DataFrame:
    """One family, in a Spark executor's Python."""
    import pandas as pd

    family = bytes(rows["family"].iloc[0])
    ordered = rows.sort_values("rank", ascending=False)["payload"]
    made = [(family, *row) for row in replay([bytes(payload) for payload in ordered])]
    return pd.DataFrame(made, columns=[field.split()[0] for field in _ROW.split(", ")])


def fit_models(spark: SparkSession, found: Sequence[tuple[bytes, Observation]]) -> Regression:
    """The models: first the thesis', which is the one published."""
    frame = spark.createDataFrame([(family, *row) for family, row in found], _ROW).cache()
    try:
        two, four = ["mean_deviation", "mean_score"], ["mean_deviation", "mean_score", "mean_bytes", "reduction"]
        fits = [
            _fit(frame, "two features (thesis)", two, 1, False, found),
            _fit(frame, "four features, squares", four, 2, False, found),
            _fit(frame, "four features, log MC", four, 1, True, found),
        ]
    finally:
        frame.unpersist()
    plane = (fits[0].intercept, *fits[0].coefficients)
    residuals = [
        row.messages - (plane[0] + plane[1] * row.mean_deviation + plane[2] * row.mean_score) for _, row in found
    ]
    bootstrap = float(np.mean([error_doublings(row.base, row.messages) for _, row in found]))
    return Regression(list(found), fits, bootstrap, residuals)


def _fit(
    frame: Any, name: str, features: Sequence[str], degree: int, log: bool, found: Sequence[tuple[bytes, Observation]]
) -> Fit:
    from pyspark.ml import Pipeline
    from pyspark.ml.feature import PolynomialExpansion, StandardScaler, VectorAssembler
    from pyspark.ml.regression import LinearRegression
    from pyspark.sql import functions as f

    label = f.log2("messages") if log else f.col("messages")
    labelled = frame.withColumn("label", label)
    stages: list[Any] = [VectorAssembler(inputCols=list(features), outputCol="raw")]
    last = "raw"
    if degree > 1:
        stages += [
            StandardScaler(inputCol="raw", outputCol="scaled", withMean=True),
            PolynomialExpansion(degree=degree, inputCol="scaled", outputCol="expanded"),
        ]
        last = "expanded"
    # a plane through few points needs no penalty in the thesis' model; more features do
    line = LinearRegression(featuresCol=last, labelCol="label", regParam=0.0 if degree == 1 and not log else 0.1)
    whole = Pipeline(stages=[*stages, line]).fit(labelled).stages[-1]
    errors: list[float] = []
    low, high = min(row.messages for _, row in found), max(row.messages for _, row in found)
    for family in sorted({family for family, _ in found}):
        own = f.col("family") == f.lit(bytearray(family))
        seen = labelled.where(~own)
        if seen.count() < OBSERVATIONS_MIN:
            continue
        predicted = Pipeline(stages=[*stages, line]).fit(seen).transform(labelled.where(own))
        for row in predicted.select("prediction", "messages").collect():
            value = 2.0**row.prediction if log else row.prediction
            errors.append(error_doublings(min(max(value, low / 2), 2 * high), row.messages))
    unseen = float(np.mean(errors)) if errors else float("nan")
    summary = whole.summary
    return Fit(
        name, summary.r2, summary.rootMeanSquaredError, unseen, whole.intercept, tuple(whole.coefficients.toArray())
    )


async def publish_regression(connect: Mapping[str, Any], regression: Regression) -> None:
    """Publish the model, retained."""
    async with lexicast.connect(**connect, give_up_s=GIVE_UP_S) as bus:
        await bus.publish(MODEL_TOPIC.decode(), pack_regression(regression), qos=1, retain=True)


def pack_regression(regression: Regression) -> bytes:
    """The model as it is published, made now (`compression.regression`)."""
    rows = [[row.mean_deviation, row.mean_score, row.messages] for _, row in regression.observations]
    thesis = regression.fits[0]
    return pack_model(rows, time.time_ns() // 1_000, [thesis.intercept, *thesis.coefficients])


def what_becomes_of(found: Regression, dry_run: bool) -> str:
    """What becomes of it."""
    if not found.pays:
        return "not published: on families not seen nothing shows that the first is better than MC.base"
    done = "would be published" if dry_run else "published"
    return f"the first, whose features PREDICT has at hand, {done} on {MODEL_TOPIC.decode()}"


def _doublings(error: float) -> str:
    return f"{error:.2f} doublings" if isfinite(error) else "too few families"


def show_regression(console: Console, found: Regression) -> None:
    """The models side by side, and the residuals of the thesis' one."""
    families = {family for family, _ in found.observations}
    title = f"MC from {len(found.observations)} observations of {len(families)} families"
    made = Table(title=title, title_justify="left")
    made.add_column("model")
    for name in ("R2", "RMSE, messages", "error on unseen families"):
        made.add_column(name, justify="right")
    made.add_row("bootstrap: MC.base", "-", "-", _doublings(found.bootstrap_doublings))
    for each in found.fits:
        rmse = f"{each.rmse:,.2f}" + (" (log2)" if "log" in each.name else "")
        made.add_row(each.name, f"{each.r2:.2f}", rmse, _doublings(each.unseen_doublings))
    console.print(made)
    low, middle, high = np.percentile(found.residuals, [10, 50, 90])
    console.print(f"residuals of the first, 10th to 90th percentile: {low:,.0f} to {high:,.0f}, median {middle:,.0f}")
