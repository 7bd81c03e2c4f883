"""`lexicast spark sql`: one question about the past."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from lexicast.actors.status.printable import printable

from ..history.dataframe import history, release
from ..history.reading import planned
from ..spark.environment import spark_session
from ..spark.errors import job_errors
from ..spark.progress import JobProgress

TABLE = "history"


def answer_question(
    console: Console,
    connect: Mapping[str, Any],
    query: str,
    filter: str,
    since: str,
    until: str | None,
    schema: str | None,
    where: str | None,
    limit: int,
    as_json: bool,
    executors: int,
    dry_run: bool,
) -> None:
    """Answer it. Raises UsageError (the query is wrong), LexicastError."""
    with JobProgress(console) as progress, job_errors():
        progress.say("starting Spark")
        with spark_session(**connect, executors=executors) as spark:
            if dry_run:
                extent = planned(filter, since, until)
            frame = history(
                spark,
                filter,
                since=since,
                # of nothing at all, in a dry run: the query is looked at by Spark, and no message is read
                until="beginning" if dry_run else until,
                schema=None if dry_run and schema == "json" else schema,
                where=where,
                progress=progress.read,
            )
            frame.createOrReplaceTempView(TABLE)
            asked = spark.sql(query)
            names = asked.columns
            with progress.computing(spark, "computing"):
                rows = [] if dry_run else [tuple(row) for row in asked.limit(limit + 1).collect()]
            release(frame)
    if dry_run:
        console.print(f"would read {extent[0]:,} messages, {extent[1]:,} bytes as stored; columns: {', '.join(names)}")
    else:
        show_rows(console, names, rows[:limit], as_json, more=len(rows) > limit)


def show_rows(console: Console, names: Sequence[str], rows: Sequence[Sequence[Any]], as_json: bool, more: bool) -> None:
    """The answer as a table, or one JSON object a row."""
    if as_json:
        for row in rows:
            typer.echo(json.dumps(dict(zip(names, row, strict=True)), default=cell_text))
        return
    made = Table()
    for at, name in enumerate(names):
        number = all(isinstance(row[at], int | float) for row in rows)
        made.add_column(escape(name), justify="right" if rows and number else "left", overflow="fold")
    for row in rows:
        made.add_row(*[escape(printable(cell_text(value), kept="\n")) for value in row])
    console.print(made)
    if more:
        console.print(f"and more than these {len(rows):,} rows: --limit shows more")


def cell_text(value: Any) -> str:
    """A value in a table: bytes as text where they are text, else as hexadecimal digits."""
    if isinstance(value, bytes | bytearray):
        try:
            return bytes(value).decode()
        except UnicodeDecodeError:
            return bytes(value).hex()
    if isinstance(value, float):
        return f"{value:,.3f}"
    return "" if value is None else str(value)
