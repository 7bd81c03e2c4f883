"""`lexicast spark`, `channel` and `export`: the jobs of `lexicast.raydp_jobs`, each a program of its own.

They stand above the actors, which therefore cannot import them: the job's process takes this one's place, so that
Ctrl-C and SIGTERM reach it.
"""

from __future__ import annotations

import os
import sys
from typing import Final

import typer

_SETTINGS: Final = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}


def add_jobs(app: typer.Typer) -> None:
    """Mount them."""
    for command in (spark, channel, export):
        app.command(context_settings=_SETTINGS)(command)


def spark(context: typer.Context) -> None:
    """Train dictionaries and the regression over the history, or ask it in SQL (needs lexicast[spark])."""
    _become("spark", context)


def channel(context: typer.Context) -> None:
    """Channels: SQL over history and live state, answered again and again for whoever subscribes."""
    _become("channel", context)


def export(context: typer.Context) -> None:
    """Write the history as parquet files."""
    _become("export", context)


def _become(command: str, context: typer.Context) -> None:
    module = "lexicast.raydp_jobs.cli"
    os.execv(sys.executable, [sys.executable, "-m", module, command, *context.args])
