"""What a broker tells of conditions and publications, so that cells can be cut, and found to be hot."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from ..errors import PeerError
from .partition import CellId

SAMPLE_MAX: Final = 256
CELLS_MAX: Final = 1_024

# By column: what a box bounds, what a publication has.
Bounds = Mapping[str, tuple[float, float]]
Values = Mapping[str, float]


class CellReport(NamedTuple):
    """`version`: of the map by which matchers know its conditions; `boxes`, `events`: samples, of its `conditions` and
    of the publications that it takes; `asked`: by cell publications since the last report; `held`: by cell conditions.
    """

    version: int
    conditions: int
    boxes: tuple[Bounds, ...]
    events: tuple[Values, ...]
    asked: Mapping[CellId, int]
    held: Mapping[CellId, int]

    def to_plain(self) -> tuple[Any, ...]:
        """Numbers, texts, tuples and dicts."""
        return (
            self.version,
            self.conditions,
            [dict(box) for box in self.boxes],
            [dict(event) for event in self.events],
            [(tuple(cell), count) for cell, count in self.asked.items()],
            [(tuple(cell), count) for cell, count in self.held.items()],
        )

    @staticmethod
    def of_plain(plain: Any) -> CellReport:
        """What `to_plain` gave. Raises PeerError: it is none, or too much."""
        try:
            version, conditions, boxes, events, asked, held = plain
            if max(len(boxes), len(events)) > SAMPLE_MAX or max(len(asked), len(held)) > CELLS_MAX:
                raise ValueError("too long")
            return CellReport(
                int(version),
                int(conditions),
                tuple([{str(c): (float(low), float(high)) for c, (low, high) in box.items()} for box in boxes]),
                tuple([{str(c): float(value) for c, value in event.items()} for event in events]),
                {CellId(*cell): int(count) for cell, count in asked},
                {CellId(*cell): int(count) for cell, count in held},
            )
        except (ValueError, TypeError, AttributeError) as error:
            raise PeerError(f"not a report on conditions: {error}") from None
