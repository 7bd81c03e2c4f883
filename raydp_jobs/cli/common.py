"""The options that the jobs' commands share, and what they look at before anything is started."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, Any, Final, TypeAlias

import typer
from rich.console import Console

from lexicast.actors.cli.common import find_cluster
from lexicast.actors.client.address import read_run
from lexicast.actors.launch.spark_environment import prepare_spark
from lexicast.cluster.errors import UnavailableError, UsageError

FilterOption: TypeAlias = Annotated[str, typer.Option("--filter", "-f", help="Topics: + one level, # all below.")]
WhereOption: TypeAlias = Annotated[
    str | None, typer.Option(help='A condition on the content, such as "delay > 30".', show_default=False)
]
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
    if not sys.stdout.isatty():
        return Console(width=WIDTH, highlight=False)
    # By a descriptor of its own: bars move while Spark starts, whose processes write to stdout (`environment.quiet`).
    return Console(file=os.fdopen(os.dup(sys.stdout.fileno()), "w"), highlight=False)


PICTURES: Final = (".pdf", ".png", ".svg")


def needs_spark() -> None:
    """Raises UnavailableError where there is no Spark or no Java for it; what it needs in the environment is set."""
    prepare_spark()
    needs_arrow()


def cluster(address: str | None, data_dir: Path | None) -> dict[str, Any]:
    """The arguments of `spark_session` and of `lexicast.connect`. Raises UnavailableError when none runs there."""
    found = find_cluster(address, data_dir)
    if "data_dir" in found:
        read_run(found["data_dir"])
    return found


def needs_arrow() -> None:
    """Raises UnavailableError where pyarrow is not installed."""
    try:
        import pyarrow  # noqa: F401 # whether it can be imported is the question
    except ImportError:
        raise UnavailableError("pyarrow is not installed: pip install pyarrow, or 'lexicast[spark]' for all") from None


def check_picture(file: Path | None) -> None:
    """Before an hour's work: whether a picture may be written there. Raises UsageError."""
    if file is None:
        return
    if file.suffix.lower() not in PICTURES:
        raise UsageError(f"--picture {file}: its name ends in {', '.join(PICTURES)}")
    if not file.absolute().parent.is_dir():
        raise UsageError(f"--picture {file}: {file.absolute().parent} is no folder: create it first")
