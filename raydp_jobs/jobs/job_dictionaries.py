"""`lexicast spark train-dictionaries`: the job with its progress, its table and its picture."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from lexicast.cluster.config.tables import CompressionConfig

from ..spark.environment import spark_session
from ..spark.errors import told
from ..spark.progress import JobProgress
from .dictionary_choice import Choice
from .pictures import draw_dictionaries as draw
from .train_dictionaries import publish, train_from_history


def run(
    console: Console,
    connect: Mapping[str, Any],
    config: CompressionConfig,
    filter: str,
    since: str,
    until: str | None,
    subscribers: int,
    executors: int,
    picture: Path | None,
    dry_run: bool,
) -> None:
    """Train, show, publish. Raises LexicastError."""
    with JobProgress(console) as progress, told(), ExitStack() as stack:
        progress.say("starting Spark")
        spark = stack.enter_context(spark_session(**connect, executors=executors))
        choices = train_from_history(
            spark,
            connect,
            config,
            filter,
            since=since,
            until=until,
            subscribers=subscribers,
            progress=progress.read,
            computing=lambda: stack.enter_context(progress.computing(spark, "training dictionaries")),
        )
        better = [choice.dictionary for choice in choices if choice.dictionary is not None]
        if better and not dry_run:
            asyncio.run(publish(connect, better))
    console.print(table(choices))
    done = "would be published" if dry_run else "published"
    console.print(f"{len(better)} of {len(choices)} families: a better dictionary {done}")
    if picture is not None:
        draw(choices, picture)
        console.print(f"picture: {picture}", soft_wrap=True)


def table(choices: Sequence[Choice]) -> Table:
    """Families, current and proposed reduction, and why."""
    made = Table(title="dictionaries from the history, measured on later messages", title_justify="left")
    made.add_column("family", overflow="fold")
    for name in ("messages", "mean bytes", "now", "proposed", "dictionary", "as sent"):
        made.add_column(name, justify="right")
    made.add_column("why")
    for choice in choices:
        found = choice.candidate
        made.add_row(
            choice.family.decode(errors="replace"),
            f"{choice.messages:,}",
            f"{choice.raw:,.0f}" if found else "-",
            f"{choice.current_percent:.1f}%" if found else "-",
            f"{choice.proposed_percent:.1f}%" if found else "-",
            f"{found.codec} {found.source}, {found.size:,} B" if found else "-",
            f"{choice.packed_bytes:,} B" if found else "-",
            choice.reason,
        )
    return made
