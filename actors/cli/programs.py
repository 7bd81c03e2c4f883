"""`lexicast spark`, `channel`, `export` and `demo`: programs of their own, which read their arguments themselves.

They stand above the actors, which therefore cannot import them: a program's process takes this one's place, so that
Ctrl-C and SIGTERM reach it and it can stop what it has started.
"""

from __future__ import annotations

import os
import sys
from typing import Final

import typer

JOBS: Final = "lexicast.raydp_jobs.cli"
PASSED_ON: Final = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}


def spark(context: typer.Context) -> None:
    """Train dictionaries and the regression over the history, or ask it in SQL (needs lexicast[spark])."""
    _become(JOBS, "spark", *context.args)


def channel(context: typer.Context) -> None:
    """Channels: SQL over history and live state, answered again and again for whoever subscribes."""
    _become(JOBS, "channel", *context.args)


def export(context: typer.Context) -> None:
    """Write the history as parquet files."""
    _become(JOBS, "export", *context.args)


def demo(context: typer.Context) -> None:
    """Replay real flight events through a cluster and show what arrived and in how many bytes (--help: options)."""
    _become("lexicast.bench.demo", *context.args)


def _become(module: str, *arguments: str) -> None:
    os.execv(sys.executable, [sys.executable, "-m", module, *arguments])
