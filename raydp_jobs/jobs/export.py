"""`lexicast export`: the history as parquet files, with a bar."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from lexicast.actors.launch.ray_nodes import disconnect_ray

from ..history.dataframe import export_parquet
from ..spark.environment import join_ray
from ..spark.errors import job_errors
from ..spark.progress import JobProgress


def export_history(
    console: Console,
    connect: Mapping[str, Any],
    folder: Path,
    filter: str,
    since: str,
    until: str | None,
    columns: Sequence[str] | None,
    where: str | None,
    expired: bool,
) -> None:
    """Write them. Raises LexicastError."""
    join_ray(connect.get("address"), connect.get("data_dir"))
    try:
        with JobProgress(console) as progress, job_errors():
            rows = export_parquet(
                folder,
                filter,
                since=since,
                until=until,
                columns=columns,
                where=where,
                expired=expired,
                progress=progress.read,
            )
    finally:
        disconnect_ray()
    size = sum(file.stat().st_size for file in folder.iterdir())
    console.print(f"{rows:,} messages, {size:,} bytes in {folder}", soft_wrap=True)
