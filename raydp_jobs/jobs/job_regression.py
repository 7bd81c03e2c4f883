"""`lexicast spark train-regression`: the job with its progress and its tables."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import ExitStack
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from lexicast.cluster.config.tables import CompressionConfig
from lexicast.cluster.topics.names import MODEL_TOPIC

from ..spark.environment import spark_session
from ..spark.errors import told
from ..spark.progress import JobProgress
from .pictures import draw_regression as draw
from .train_regression import Regression, publish, train_from_history


def run(
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
    with JobProgress(console) as progress, told(), ExitStack() as stack:
        progress.say("starting Spark")
        spark = stack.enter_context(spark_session(**connect, executors=executors))
        found = train_from_history(
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
            asyncio.run(publish(connect, found))
    show(console, found)
    if picture is not None:
        draw(found, picture)
        console.print(f"picture: {picture}", soft_wrap=True)
    console.print(verdict(found, dry_run))


def verdict(found: Regression, dry_run: bool) -> str:
    """What becomes of it."""
    if not found.pays:
        return "not published: on families not seen nothing shows that the first is better than MC.base"
    done = "would be published" if dry_run else "published"
    return f"the first, whose features PREDICT has at hand, {done} on {MODEL_TOPIC.decode()}"


def _doublings(error: float) -> str:
    return f"{error:.2f} doublings" if isfinite(error) else "too few families"


def show(console: Console, found: Regression) -> None:
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
