"""What a turn of the event loop has to say on several links: one write of each at its end."""

from __future__ import annotations

import asyncio
from typing import Any

from .circuit_link import TellingLink


class TurnWrites:
    """See the module's docstring."""

    def __init__(self) -> None:
        self._links: dict[TellingLink, None] = {}

    def send(self, link: TellingLink, message: tuple[Any, ...]) -> None:
        """Send something at the end of this turn."""
        if not self._links:
            asyncio.get_running_loop().call_soon(self._flush)
        self._links[link] = None
        link.gather(message)

    def _flush(self) -> None:
        links, self._links = self._links, {}
        for link in links:
            if not link.closed:
                link.flush()
