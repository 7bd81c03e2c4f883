"""What matchers spared brokers, summed up over coordinators that come and go. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

COUNTED: Final = ("given_records", "withheld_records", "asked_records", "unanswered_parts")
ROUTED: Final = ("routed", "lost")
"""Questions, where matchers form an overlay."""


class SparedRecords:
    """`totals`: of COUNTED, and of ROUTED, as overlay_routed and overlay_lost. A coordinator's counts begin at 0
    with its process; what it has counted between the last look and its end is not known."""

    def __init__(self) -> None:
        self.totals: Counter[str] = Counter()
        self._before: dict[tuple[str, int], Mapping[str, int]] = {}

    def looked(self, coordinators: Mapping[str, Mapping[str, Any]]) -> None:
        """What coordinators say of themselves now, by name."""
        for name, said in coordinators.items():
            if "matching" not in said:  # it does not answer
                continue
            key, matching = (name, int(said["pid"])), said["matching"]
            overlay = matching.get("overlay") or {}
            now = {counted: matching[counted] for counted in COUNTED}
            now |= {f"overlay_{counted}": overlay[counted] for counted in ROUTED if counted in overlay}
            before = self._before.get(key, {})
            for counted, number in now.items():
                self.totals[counted] += number - before.get(counted, 0)
            self._before[key] = {**before, **now}

    def withheld_share(self) -> float | None:
        """The part of the records that matchers were asked about, and that brokers were spared; None: none were."""
        given, withheld = self.totals["given_records"], self.totals["withheld_records"]
        return withheld / (given + withheld) if given + withheld else None
