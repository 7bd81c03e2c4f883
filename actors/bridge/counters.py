"""What a bridge has done, for `lexicast status`."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from typing import Any, Final

ERROR_CHARACTERS_MAX: Final = 300


@dataclass(slots=True)
class BridgeCounters:
    """Since the bridge's process began. `looped`: not sent, or not taken, since it had been there; `refused`: the other
    broker does not take it, or this cluster does not; `damaged`: cannot be decompressed; `repeats`: dealt again."""

    sent: int = 0
    received: int = 0
    looped_out: int = 0
    looped_in: int = 0
    refused_out: int = 0
    refused_in: int = 0
    retried_out: int = 0
    retried_in: int = 0
    damaged: int = 0
    connects: int = 0
    errors: int = 0
    last_error: str = ""
    last_error_us: int = 0

    def error(self, text: str) -> None:
        """Something went wrong."""
        self.errors += 1
        self.last_error = text[:ERROR_CHARACTERS_MAX]
        self.last_error_us = time.time_ns() // 1_000

    def plain(self) -> dict[str, Any]:
        """As plain values."""
        return asdict(self)
