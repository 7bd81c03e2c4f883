"""The conditions of the crowd, most of them around a hot spot. Pure."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Final

from .messages import COLDEST, DEGREES, PARTS, Fields

SPREAD: Final = 0.1
PART_WIDTH: Final = 1.0
CELSIUS_WIDTH: Final = 2.0
BAR_WIDTH: Final = 0.05


@dataclass(frozen=True, slots=True)
class CrowdBox:
    """The least part, celsius and bar that a condition is true of."""

    part: float
    celsius: float
    bar: float

    @property
    def where(self) -> str:
        """The condition."""
        return (
            f"part BETWEEN {self.part} AND {self.part + PART_WIDTH} "
            f"AND reading.celsius BETWEEN {self.celsius} AND {self.celsius + CELSIUS_WIDTH} "
            f"AND reading.bar BETWEEN {self.bar} AND {self.bar + BAR_WIDTH}"
        )

    def holds(self, fields: Fields) -> bool:
        """The same in Python."""
        part, celsius, bar = (float(each) for each in (fields["part"], *fields["reading"].values()))
        return (
            self.part <= part <= self.part + PART_WIDTH
            and self.celsius <= celsius <= self.celsius + CELSIUS_WIDTH
            and self.bar <= bar <= self.bar + BAR_WIDTH
        )


def boxes_around(turn: int, count: int, seed: int) -> list[CrowdBox]:
    """Around the hot spot of that turn."""
    chance = random.Random(f"{seed} {turn}")
    spot = [chance.random() for _ in range(3)]
    return [
        CrowdBox(
            round(PARTS * chance.gauss(spot[0], SPREAD), 3),
            round(COLDEST + DEGREES * chance.gauss(spot[1], SPREAD), 3),
            round(1 + chance.gauss(spot[2], SPREAD), 4),
        )
        for _ in range(count)
    ]
