"""What a group's member tells done of what it cannot read."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from lexicast.actors.client.group_feed import GroupFeed, Ranges
from lexicast.cluster.blocks import PUBLICATIONS, RAW, Block, Meta, Run, pack_meta
from lexicast.cluster.errors import PeerError


class Host:
    """Reads nothing."""

    def __init__(self) -> None:
        self.told: list[Ranges] = []
        self.decoder = SimpleNamespace(decode=self.decode, room=lambda: None)

    def check_loop(self) -> None:
        """It is this one."""

    async def decode(self, *_: object, **__: object) -> None:
        raise PeerError("a block that nobody can read")

    def tell_done(self, stream: int, ranges: Ranges) -> None:
        self.told.append(ranges)

    def close_stream(self, stream: int) -> None:
        """It has none."""

    def abandon(self, stream: int) -> None:
        """It has none."""


def fed(host: Any) -> GroupFeed:
    feed = GroupFeed(host, "g", b"t", None, {})
    feed._stream = 1
    meta = Meta((b"t",), (Run(0, 0, 0, RAW, 0, None, -1, 2),), (), (), (), ())
    block = Block(3, 1, 7, 8, 9, PUBLICATIONS, pack_meta(meta), b"\1\0\0\0" * 2, b"ab")
    feed.deliver([block.to_wire()])
    return feed


async def test_what_cannot_be_read_is_done_once_its_user_goes_on() -> None:
    host = Host()
    feed = fed(host)
    with pytest.raises(PeerError):
        await feed.take()
    await asyncio.sleep(0)
    assert host.told == []
    going_on = asyncio.ensure_future(feed.take())
    await asyncio.sleep(0.01)
    going_on.cancel()
    assert host.told == [[(3, 7, 8)]]


async def test_what_cannot_be_read_goes_to_others_where_its_user_leaves() -> None:
    host = Host()
    feed = fed(host)
    with pytest.raises(PeerError):
        await feed.take()
    feed.close()
    await asyncio.sleep(0)
    assert host.told == []
