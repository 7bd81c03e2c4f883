"""The cells of content subscriptions, as the coordination server keeps them: planned from what brokers report.

All of it is in memory: a server that starts again makes a map with a higher number, and brokers tell matchers anew what
that gives to them. Registry: nothing.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from typing import Any, Final

from lexicast.cluster.hpartition.cell_report import CellReport
from lexicast.cluster.hpartition.planning import CellPlanner

# A broker that has not reported for so long is not waited for.
LOST_S: Final = 20.0


class ContentCells:
    """See the module's docstring. `map`: as plain values; None as long as there is no matcher."""

    def __init__(self, version: int | None = None) -> None:
        """`version`: of its first map, beyond any that was given before; None: by the clock."""
        self._planner = CellPlanner(time.time_ns() // 1_000_000 if version is None else version)
        self._heard_s: dict[str, float] = {}
        self.map: tuple[Any, ...] | None = None

    def told(self, broker: str, report: Any, now_s: float) -> None:
        """A broker reports (`CellReport.to_plain`). Raises PeerError."""
        self._planner.told(broker, CellReport.of_plain(report))
        self._heard_s[broker] = now_s

    def turn(self, brokers: Collection[str], matchers: Collection[str], now_s: float) -> bool:
        """Whether there is another map now; `brokers`, `matchers`: that serve."""
        if not matchers and self.map is None:
            return False
        living = [name for name in brokers if now_s - self._heard_s.get(name, -LOST_S) < LOST_S]
        made = self._planner.turn(living, matchers)
        if made is not None:
            self.map = made.to_plain()
        return made is not None

    def status(self) -> dict[str, Any]:
        """For `lexicast status`."""
        now = self._planner.map
        cells = now.cells
        return {
            "version": now.version,
            "matchers": len(now.matchers),
            "columns": list(now.columns),
            "cells": 0 if cells is None else cells.partition.cells + len(cells.splits),
            "split": 0 if cells is None else len(cells.splits),
            "with_more_copies": 0 if cells is None else len(cells.copies),
            "handed_over": 0 if cells is None else len(cells.handovers),
        }
