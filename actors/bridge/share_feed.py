"""The feed of a bridge's topic: a consumer group's, whose messages are done when the other broker has them."""

from __future__ import annotations

from collections.abc import Container, Iterable
from typing import Final

from lexicast.cluster.bridges.hops import SHARE_PREFIX
from lexicast.cluster.errors import PeerError
from lexicast.cluster.points_in_time import WireSince

from ..client.group_feed import GroupFeed, GroupHost
from ..client.messages import Message

# Dealt and not done, at most: more than any window of the other side, less than a share has open.
WINDOW: Final = 8_192


def bridge_share(name: str) -> str:
    """The share's name of bridge `name`."""
    return SHARE_PREFIX + name


class BridgeFeed(GroupFeed):
    """See the module's docstring."""

    retain_as_published = True

    def __init__(self, host: GroupHost, bridge: str, filter: bytes, since: WireSince) -> None:
        super().__init__(host, bridge_share(bridge), filter, since, {"where": None, "window": WINDOW})

    def finish(self) -> None:
        """What was taken is not done by being given."""
        self._pieces.clear()

    def settle(self, done: Iterable[tuple[int, int, int]]) -> None:
        """These are done; told in the event loop's next turn, with others."""
        self._tell_soon(list(done))

    async def _decode(self) -> list[Message]:
        try:
            messages = await super()._decode()
        except PeerError:
            self._settle_but({})
            raise
        if self._error is None:
            self._ranges.clear()
        else:  # what cannot be decompressed is never given
            self._settle_but({message.position.offset: None for message in messages})
        return messages

    def _settle_but(self, given: Container[int]) -> None:
        ranges, self._ranges = self._ranges, []
        for group, first, last in ranges:
            self.settle([(group, offset, offset) for offset in range(first, last + 1) if offset not in given])
