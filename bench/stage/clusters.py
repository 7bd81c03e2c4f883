"""A lexicast cluster as a child process, started and asked through its own command line, as an operator does it."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from lexicast.cluster.errors import UnavailableError

from .servers import Target, from_ready_file

READY_FILE: Final = "lexicast.json"
DATA: Final = "data"


def lexicast_command(*arguments: str) -> list[str]:
    """The command line `lexicast ARGUMENTS`, of this package, installed or not."""
    return [sys.executable, "-m", "lexicast.actors.cli", *arguments]


def start_lexicast(folder: Path, config: str = "", name: str = "lexicast") -> Target:
    """`lexicast up` with its files in `folder`: defaults but for the port, the directory and what `config` (TOML) says.

    Raises `UnavailableError` when it does not start.
    """
    ready, settings = folder / READY_FILE, folder / "lexicast.toml"
    settings.write_text(config)
    options = ["--config", str(settings), "--data-dir", str(folder / DATA), "--mqtt-port", "0"]
    return from_ready_file(name, lexicast_command("up", *options, "--ready-file", str(ready)), folder, ready)


@contextlib.contextmanager
def running_cluster(folder: Path, config: str = "") -> Iterator[dict[str, Any]]:
    """A cluster with its files in `folder`; gives what it wrote of itself (run.json). `config`: see `start_lexicast`.

    Raises `UnavailableError` when it does not start.
    """
    target = start_lexicast(folder, config)
    try:
        yield json.loads((folder / READY_FILE).read_text())
    finally:
        target.stop()


def data_dir(target: Target) -> Path:
    """Where a cluster of `start_lexicast` keeps its data."""
    return target.log.parent / DATA


def cluster_status(target: Target) -> dict[str, Any]:
    """What `lexicast status --json` tells of it. Raises `UnavailableError`."""
    command = lexicast_command("status", "--json", "--data-dir", str(data_dir(target)))
    told = subprocess.run(command, capture_output=True, text=True)
    if told.returncode:
        raise UnavailableError(f"lexicast status: {told.stderr.strip()[-300:]}")
    found: dict[str, Any] = json.loads(told.stdout)
    return found
