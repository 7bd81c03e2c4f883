"""The past of some topics, asked of a broker page by page."""

from __future__ import annotations

from typing import Any, Final, Protocol

from lexicast.cluster.blocks import PUBLICATIONS, Block
from lexicast.cluster.errors import PeerError
from lexicast.cluster.points_in_time import WireSince
from lexicast.cluster.positions import Cursor

HISTORY_BYTES: Final = 1024 * 1024


class Requests(Protocol):
    """Who asks the broker."""

    async def request(self, method: str, *arguments: Any) -> Any:
        """A request that may be repeated: asked again on the next link when one ends."""


class Pages(Protocol):
    """Pages of blocks."""

    async def next(self) -> list[Block] | None:
        """The next page, perhaps an empty one; None at the end."""


class HistoryPages:
    """The past, page by page (about HISTORY_BYTES each). A cancelled `next` loses nothing: it is asked again."""

    def __init__(
        self,
        requests: Requests,
        filters: tuple[bytes, ...],
        since: WireSince,
        until_us: int,
        where: str | None = None,
    ) -> None:
        self._requests = requests
        self._where = where
        self._filters = filters
        self._since = since
        self._until_us = until_us
        self._cursor: Cursor | None = None
        self._done = False

    async def next(self) -> list[Block] | None:
        """The next page, perhaps an empty one; None at the end. Raises what `Requests.request` raises."""
        if self._done:
            return None
        reply = await self._requests.request(
            "history", self._filters, self._since, self._until_us, self._cursor, HISTORY_BYTES, self._where
        )
        try:
            page = [block for wire in reply["blocks"] if (block := Block.from_wire(wire)).kind == PUBLICATIONS]
            cursor, done = dict(reply["cursor"]), bool(reply["done"])
        except (KeyError, TypeError, ValueError) as error:
            raise PeerError(f"the broker's page of history cannot be read: {error!r}") from None
        if not done and not page and cursor == self._cursor:
            raise PeerError("the broker's history does not move on")
        self._cursor, self._done = cursor, done
        return page


class LastPages:
    """The last `count` of each topic, page by page, a topic after the other; as `HistoryPages`."""

    def __init__(
        self,
        requests: Requests,
        filters: tuple[bytes, ...],
        since: WireSince,
        until_us: int,
        count: int,
        where: str | None = None,
    ) -> None:
        self._requests = requests
        self._where = where
        self._asked = (filters, since, until_us, count)
        self._after: Any = None
        self._done = False

    async def next(self) -> list[Block] | None:
        """See `HistoryPages.next`."""
        if self._done:
            return None
        reply = await self._requests.request("last", *self._asked, self._after, HISTORY_BYTES, self._where)
        try:
            page = [block for wire in reply["blocks"] if (block := Block.from_wire(wire)).kind == PUBLICATIONS]
            after = reply["after"]
        except (KeyError, TypeError, ValueError) as error:
            raise PeerError(f"the broker's page of last messages cannot be read: {error!r}") from None
        if after is not None and after == self._after:
            raise PeerError("the broker's last messages do not move on")
        self._after, self._done = after, after is None
        return page


async def counted(
    requests: Requests, filters: tuple[bytes, ...], since: WireSince, until_us: int, where: str | None = None
) -> int:
    """How many messages the past has. Raises what `Requests.request` raises."""
    cursor: Cursor | None = None
    found = 0
    while True:
        reply = await requests.request("count", filters, since, until_us, cursor, where)
        try:
            count, left, done = int(reply["count"]), dict(reply["cursor"]), bool(reply["done"])
        except (KeyError, TypeError, ValueError) as error:
            raise PeerError(f"the broker's count cannot be read: {error!r}") from None
        found += count
        if done:
            return found
        if left == cursor:
            raise PeerError("the broker's count does not move on")
        cursor = left
