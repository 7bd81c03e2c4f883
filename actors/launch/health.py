"""The health of a cluster that serves, watched by `lexicast up`; the watch survives whatever it watches.

A node's end, a Ray that cannot be asked, a defect in what is asked: each is told, once, and watched on. Only Ctrl-C,
`lexicast down` and the end of the Ray that `up` itself started end it: the healthy nodes of a cluster do not go down
with a sick one.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable
from typing import Any, Final

from lexicast.cluster.errors import LexicastError, UnavailableError

log = logging.getLogger(__name__)

HEALTH_PERIOD_S: Final = 5.0
RETRY_S: Final = 1.0

Tell = Callable[[str], None]


async def keep_watching(look: Callable[[], Awaitable[None]], tell: Tell, retry_s: float = RETRY_S) -> None:
    """`look` again and again until cancelled. What it raises is told when it is another than the last time."""
    told = ""
    while True:
        try:
            await look()
            told = ""
        except Exception as error:
            if not isinstance(error, LexicastError):
                log.debug("watching", exc_info=True)
            reason = str(error) if isinstance(error, LexicastError) else f"watching the cluster failed: {error!r}"
            if without_numbers(reason) != told:
                told = without_numbers(reason)
                tell(f"{reason}; trying on")
            await asyncio.sleep(retry_s)


class Health:
    """Says what goes wrong, when it begins and when it is over."""

    def __init__(self, snapshot: Callable[[], Awaitable[dict[str, Any]]], tell: Tell) -> None:
        self._snapshot = snapshot
        self._tell = tell
        # What goes wrong now, as it was told last, by what stays the same of it.
        self._known: dict[str, str] = {}

    async def look(self) -> None:
        """One look, HEALTH_PERIOD_S after the last."""
        await asyncio.sleep(HEALTH_PERIOD_S)
        try:
            found = {without_numbers(warning): warning for warning in (await self._snapshot())["warnings"]}
        except UnavailableError:
            return  # nobody can be asked: who follows the membership says so
        for key in sorted(found.keys() - self._known.keys()):
            self._tell(found[key])
        for key in sorted(self._known.keys() - found.keys()):
            self._tell(f"no longer: {self._known[key]}")
        self._known = {key: self._known.get(key, warning) for key, warning in found.items()}


def without_numbers(warning: str) -> str:
    """What stays the same of a warning while its figures move: to its first semicolon, and what kind it is."""
    return re.sub(r"[\d,.]+ (?=[A-Za-z])", "", warning.partition(";")[0])
