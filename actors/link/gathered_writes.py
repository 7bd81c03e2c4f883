"""The writes of one turn, gathered into one.

uvloop writes at once (`transport.write` is a call of the kernel each, 10 to 30 us where it wakes the peer), so what
goes to one peer in one turn is joined here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

# So many bytes are written before the turn ends.
GATHERED_BYTES_MAX: Final = 64 * 1024


class GatheredWrites:
    """See the module's docstring. `write(data)` is called after this turn, or in `flush`."""

    def __init__(self, write: Callable[[bytes], None]) -> None:
        self._write = write
        self._parts: list[bytes] = []
        self._flushes = False
        self.size_bytes = 0

    def add(self, data: bytes) -> None:
        """Write this behind what was added before."""
        if not self._flushes:
            self._flushes = True
            asyncio.get_running_loop().call_soon(self._turn_over)
        self.hold(data)

    def hold(self, data: bytes) -> None:
        """`add` for who calls `flush` himself in this turn: spares the loop a pass."""
        if len(data) >= GATHERED_BYTES_MAX:  # joining would copy it
            self.flush()
            self._write(data)
            return
        self._parts.append(data)
        self.size_bytes += len(data)
        if self.size_bytes >= GATHERED_BYTES_MAX:
            self.flush()

    def _turn_over(self) -> None:
        self._flushes = False
        self.flush()

    def flush(self) -> None:
        """Write all now: what is written otherwise stands behind it."""
        if self._parts:
            parts = self._parts
            self.clear()
            self._write(parts[0] if len(parts) == 1 else b"".join(parts))

    def take(self) -> bytes:
        """What was added and is not written, for who writes it himself."""
        parts = self._parts
        self.clear()
        return b"".join(parts)

    def clear(self) -> None:
        """Write nothing of it."""
        self._parts, self.size_bytes = [], 0
