"""Retained publications on their way to one MQTT connection: a page at a time, as its window and its socket allow.

The next page is asked for when the last one is sent, so a client that takes little holds one page here. One that cannot
be had now is asked for again: what is retained comes late rather than not at all.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Mapping
from typing import Protocol

from lexicast.cluster.blocks import Block
from lexicast.cluster.errors import IndexNotReadyError, LexicastError

from ..broker.encoding import Grant
from ..loop import turns as turns_of

log = logging.getLogger(__name__)

RETRY_S = 0.5
# What fails so often in a row by a fault of this program would fail for ever; what stands behind it is sent.
FAULTS_MAX = 3


class Feed(Protocol):
    """Pages of publications: `RetainedFeed`, `LastFeed`."""

    @property
    def done(self) -> bool:
        """Whether there is no further page."""

    async def page(self) -> list[tuple[bytes, Block]]:
        """The next page: (filter, a block of one record) each. Raises LexicastError; ask again then."""


class RetainedSending:
    """See the module's docstring. `send(block, grant)` sends one, False when it does not fit now; `is_free()`: nothing
    is in the way; `go_on()`: to be called when this has been sent or may be."""

    __slots__ = ("_asking", "_faults", "_feeds", "_go_on", "_is_free", "_send", "_waiting")

    def __init__(
        self, send: Callable[[Block, Grant], bool], is_free: Callable[[], bool], go_on: Callable[[], None]
    ) -> None:
        self._send = send
        self._is_free = is_free
        self._go_on = go_on
        self._feeds: deque[tuple[Feed, Mapping[bytes, Grant]]] = deque()
        self._waiting: deque[tuple[Block, Grant]] = deque()
        self._asking: asyncio.Task[None] | None = None
        self._faults = 0

    def __bool__(self) -> bool:
        """Whether some are at hand and not sent."""
        return bool(self._waiting)

    @property
    def done(self) -> bool:
        """Whether all have been sent."""
        return not (self._waiting or self._feeds)

    def add(self, feed: Feed, grants: Mapping[bytes, Grant]) -> None:
        """What is retained for new subscriptions, granted so."""
        self._feeds.append((feed, grants))
        self._ask()

    def send(self) -> bool:
        """Send what is at hand, for the length of a turn. True when none is left."""
        until_s, sent = turns_of.now_s() + turns_of.TURN_S, 0
        waiting = self._waiting
        while waiting:
            if not (self._is_free() and self._send(*waiting[0])):
                return False
            waiting.popleft()
            sent += 1
            if not sent % 16 and turns_of.now_s() >= until_s:
                asyncio.get_running_loop().call_soon(self._go_on)
                return False
        self._ask()
        return True

    def _ask(self) -> None:
        if self._feeds and not self._waiting and self._asking is None:
            self._asking = asyncio.get_running_loop().create_task(self._take_page())

    async def _take_page(self) -> None:
        feed, grants = self._feeds[0]
        failed = True
        try:
            self._waiting.extend([(block, grants[name]) for name, block in await feed.page()])
        except LexicastError as error:
            # An index may be minutes in the making, and every subscriber that waits for it asks again and again.
            level = logging.DEBUG if isinstance(error, IndexNotReadyError) else logging.WARNING
            log.log(level, "earlier publications come later: %s", error)
            self._faults = 0
        except Exception:
            self._faults += 1
            given_up = self._faults >= FAULTS_MAX
            log.exception("earlier publications %s", "are given up" if given_up else "come later")
        else:
            self._faults, failed = 0, False
        if failed:
            await asyncio.sleep(RETRY_S)
        self._asking = None
        if feed.done or self._faults >= FAULTS_MAX:
            self._faults = 0
            self._feeds.popleft()
        self._go_on()
        self._ask()

    def close(self) -> None:
        """The connection has ended."""
        self._feeds.clear()
        self._waiting.clear()
        if self._asking is not None:
            self._asking.cancel()
            self._asking = None
