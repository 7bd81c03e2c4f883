"""What the jobs' commands share."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any, Final, TypeAlias

import typer
from rich.console import Console

from lexicast.actors.cli_common import find_cluster
from lexicast.actors.spark_environment import NO_SPARK, installed
from lexicast.cluster.errors import UnavailableError

FilterOption: TypeAlias = Annotated[str, typer.Option("--filter", "-f", help="Topics: + one level, # all below.")]
SinceOption: TypeAlias = Annotated[str, typer.Option(help="A duration (1h), a time, or 'beginning'.")]
UntilOption: TypeAlias = Annotated[str | None, typer.Option(help="Up to this time.", show_default=False)]
ExecutorsOption: TypeAlias = Annotated[int, typer.Option(min=1, help="Spark executors, one CPU and 1 GB each.")]
DryRunOption: TypeAlias = Annotated[bool, typer.Option("--dry-run", help="Say what would be done, and do nothing.")]
PictureOption: TypeAlias = Annotated[
    Path | None, typer.Option(help="Draw it into this file (PNG, SVG, PDF).", show_default=False)
]

WIDTH: Final = 120


def console() -> Console:
    """Tables go to stdout; a file or pipe has no width of its own."""
    return Console(width=None if sys.stdout.isatty() else WIDTH, highlight=False)


def connection(address: str | None, data_dir: Path | None) -> dict[str, Any]:
    """The arguments of `spark_session` and of `lexicast.connect`. Raises UnavailableError without Spark."""
    if not installed():
        raise UnavailableError(NO_SPARK)
    return find_cluster(address, data_dir)
