"""What a broker reports of its conditions and of what it takes, so that cells can be planned; and the maps of cells
that come back with the membership."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

from lexicast.cluster.content.boxes import Boxes
from lexicast.cluster.errors import LexicastError
from lexicast.cluster.hpartition.cell_report import CELLS_MAX, SAMPLE_MAX, CellReport
from lexicast.cluster.hpartition.live_map import LiveMap
from lexicast.cluster.membership import OperatedCoordination

from .event_columns import EventColumns
from .told_conditions import ToldConditions

log = logging.getLogger(__name__)

REPORT_S: Final = 2.0
# A map that has been followed is told so soon: the next one waits for it.
LOOK_S: Final = 0.1


class CellReports:
    """See the module's docstring."""

    def __init__(
        self, name: str, coordination: OperatedCoordination, told: ToldConditions, columns: EventColumns
    ) -> None:
        self._name = name
        self._coordination = coordination
        self._told = told
        self._columns = columns
        self._members_version = -1
        told.on_cells = self.follow

    def follow(self, version: int, plain: Any) -> None:
        """The map that the membership of that version has, as plain values, None: none; the coordination server says
        so, or a matcher does."""
        if version < self._members_version:
            return
        self._members_version = version
        if plain is not None and plain[0] != self._told.map.version:
            try:
                self._told.follow(LiveMap.of_plain(plain))
            except LexicastError as error:
                log.warning("cells stay as they are: %s", error)

    async def run(self) -> None:
        """Every REPORT_S, and when a map has been followed, until cancelled."""
        version, waited_s = -1, REPORT_S
        while True:
            if waited_s >= REPORT_S or version != self._told.map.version:
                version, waited_s = self._told.map.version, 0.0
                try:
                    await self._coordination.cells_report(self._name, self.report().to_plain())
                except LexicastError as error:
                    log.debug("conditions are reported later: %s", error)
            await asyncio.sleep(LOOK_S)
            waited_s += LOOK_S

    def report(self) -> CellReport:
        """What there is to tell."""
        told, columns = self._told, self._columns
        asked, columns.asked_cells = columns.asked_cells, Counter()
        most = dict(asked.most_common(CELLS_MAX))
        boxes = [_bounds(box) for box in told.sample(SAMPLE_MAX)]
        held = {cell: told.cells[cell] for cell in most}
        return CellReport(told.map.version, len(told), tuple(boxes), tuple(columns.seen), most, held)


def _bounds(boxes: Boxes) -> Mapping[str, tuple[float, float]]:
    """The first box's; most have one."""
    first = boxes.boxes[0] if boxes.boxes else {}
    return {column: (interval.low, interval.high) for column, interval in first.items()}
