"""The progress of a demo: one bar for what is published, one a subscriber, with the bytes of its link."""

from __future__ import annotations

from collections.abc import Mapping

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from ..stage.links import Carried
from .replay import PUBLISHED


class Bars:
    """See the module's docstring. `totals`: by name how many messages are expected; `titles`: what each is called."""

    def __init__(self, console: Console, totals: Mapping[str, int], titles: Mapping[str, str]) -> None:
        columns = (
            TextColumn("{task.description}"),
            BarColumn(bar_width=40),
            TextColumn("{task.completed:,} of {task.total:,}"),
            TextColumn("{task.fields[link]}"),
            TimeElapsedColumn(),
        )
        self._bars = Progress(*columns, console=console, transient=True, refresh_per_second=5)
        self._tasks: dict[str, TaskID] = {
            name: self._bars.add_task(titles.get(name, name), total=total, link="") for name, total in totals.items()
        }

    def __enter__(self) -> Bars:
        self._bars.start()
        return self

    def __exit__(self, *unused: object) -> None:
        self._bars.stop()

    def update(self, counts: Mapping[str, int], carried: Carried) -> None:
        """Shows how far each is."""
        for name, count in counts.items():
            link = "" if name == PUBLISHED else f"{carried.now(name) / 1e6:,.1f} MB"
            self._bars.update(self._tasks[name], completed=count, link=link)
