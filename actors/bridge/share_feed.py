"""The feed of a bridge's topic: a consumer group's, whose messages are done when the other broker has them."""

from __future__ import annotations

from typing import Final

from lexicast.cluster.bridges.hops import SHARE_PREFIX
from lexicast.cluster.points_in_time import WireSince

from ..client.group_feed import GroupHost, SettledFeed

# Dealt and not done, at most: more than any window of the other side, less than a share has open.
WINDOW: Final = 8_192


def bridge_share(name: str) -> str:
    """The share's name of bridge `name`."""
    return SHARE_PREFIX + name


class BridgeFeed(SettledFeed):
    """See the module's docstring."""

    retain_as_published = True

    def __init__(self, host: GroupHost, bridge: str, filter: bytes, since: WireSince) -> None:
        super().__init__(host, bridge_share(bridge), filter, since, {"where": None, "window": WINDOW})
