"""A job's progress: one bar for what is read from the stores, one for what Spark computes."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

POLL_S: Final = 0.25


class JobProgress:
    """Bars on a terminal, nothing elsewhere. Use it as a context manager."""

    def __init__(self, console: Console) -> None:
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[share]}"),
            TextColumn("{task.fields[note]}"),
            TimeElapsedColumn(),
        )
        self._bars = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
        self._tasks: dict[str, Any] = {}

    def __enter__(self) -> JobProgress:
        self._bars.start()
        return self

    def __exit__(self, *unused: object) -> None:
        self._bars.stop()

    def say(self, text: str) -> None:
        """What is done next, of unknown length."""
        self._show(text, None, 0, "")

    def read(self, done: int, total: int, rows: int) -> None:
        """For `history(progress=...)`."""
        self._show("reading the history", total, done, f"{rows:,} messages")

    def _show(self, text: str, total: int | None, done: int, note: str) -> None:
        for name, task in self._tasks.items():
            if name != text:
                self._bars.update(task, visible=False)
        share = f"{100 * done / total:3.0f}%" if total else ""
        if text not in self._tasks:
            self._tasks[text] = self._bars.add_task(text, total=total, note=note, share=share)
        self._bars.update(self._tasks[text], total=total, completed=done, note=note, share=share, visible=True)

    @contextmanager
    def computing(self, spark: SparkSession, text: str) -> Iterator[None]:
        """Follow Spark's stages meanwhile."""
        ended = threading.Event()
        thread = threading.Thread(target=self._follow, args=(spark, text, ended), daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()

    def _follow(self, spark: SparkSession, text: str, ended: threading.Event) -> None:
        tracker = spark.sparkContext.statusTracker()
        while not ended.wait(POLL_S):
            with suppress(Exception):  # a stage may end between the two questions, and so may Spark
                stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
                known = [stage for stage in stages if stage is not None]
                total = sum(stage.numTasks for stage in known)
                if total:
                    self._show(text, total, sum(stage.numCompletedTasks for stage in known), f"{total} tasks")
