"""The writes of one turn, gathered into one: a write is a call of the kernel each, and wakes the peer."""

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
        self.size_bytes = 0

    def add(self, data: bytes) -> None:
        """Write this behind what was added before."""
        if not self._parts:
            asyncio.get_running_loop().call_soon(self.flush)
        self._parts.append(data)
        self.size_bytes += len(data)
        if self.size_bytes >= GATHERED_BYTES_MAX:
            self.flush()

    def flush(self) -> None:
        """Write all now: what is written otherwise stands behind it."""
        if self._parts:
            parts = self._parts
            self.clear()
            self._write(parts[0] if len(parts) == 1 else b"".join(parts))

    def clear(self) -> None:
        """Write nothing of it."""
        self._parts, self.size_bytes = [], 0
