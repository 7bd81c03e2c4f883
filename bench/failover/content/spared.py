"""What matchers spared brokers, summed up over coordinators that come and go. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

COUNTED: Final = ("given_records", "withheld_records", "asked_records", "unanswered_parts")


class SparedRecords:
    """`totals`: of COUNTED. A coordinator's counts begin at 0 with its process; what it has counted between the last
    look and its end is not known."""

    def __init__(self) -> None:
        self.totals: Counter[str] = Counter()
        self._before: dict[tuple[str, int], Mapping[str, int]] = {}

    def looked(self, coordinators: Mapping[str, Mapping[str, Any]]) -> None:
        """What coordinators say of themselves now, by name."""
        for name, said in coordinators.items():
            if "matching" not in said:  # it does not answer
                continue
            key, now = (name, int(said["pid"])), said["matching"]
            before = self._before.get(key, {})
            for counted in COUNTED:
                self.totals[counted] += now[counted] - before.get(counted, 0)
            self._before[key] = {counted: now[counted] for counted in COUNTED}

    def withheld_share(self) -> float | None:
        """The part of the records that matchers were asked about, and that brokers were spared; None: none were."""
        given, withheld = self.totals["given_records"], self.totals["withheld_records"]
        return withheld / (given + withheld) if given + withheld else None
