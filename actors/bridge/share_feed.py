"""The feed of a bridge's topic: a consumer group's, whose messages are done when the other broker has them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Final

from lexicast.cluster.blocks import Block
from lexicast.cluster.bridges.hops import SHARE_PREFIX
from lexicast.cluster.errors import LexicastError
from lexicast.cluster.points_in_time import WireSince

from ..client.group_feed import GroupHost, SettledFeed
from ..client.messages import Message
from .dealt_positions import Place, ranges
from .dealt_records import DealtRecords

# Dealt and not done, at most: more than any window of the other side, less than a share has open.
WINDOW: Final = 8_192


def bridge_share(name: str) -> str:
    """The share's name of bridge `name`."""
    return SHARE_PREFIX + name


class ExpiringMessage(Message):
    """A publication that nobody is to get after `expires_us`, microseconds since the epoch."""

    __slots__ = ("expires_us",)

    def __init__(self, expires_us: int, of: Message) -> None:
        super().__init__(of.topic, of.payload, of.position, of.time, of.qos, of.retain, of.properties, of.publisher)
        self.expires_us = expires_us


class BridgeFeed(SettledFeed):
    """See the module's docstring."""

    retain_as_published = True

    def __init__(self, host: GroupHost, bridge: str, filter: bytes, since: WireSince) -> None:
        super().__init__(host, bridge_share(bridge), filter, since, {"where": None, "window": WINDOW})
        self._settled: list[Place] = []

    def settle_places(self, places: Iterable[Place]) -> None:
        """These are done; told in the event loop's next turn, with others."""
        self._settled += places
        if not self._telling:
            self._telling = True
            asyncio.get_running_loop().call_soon(self.tell)

    def tell(self) -> None:
        """Tell what is done."""
        settled, self._settled = self._settled, []
        self._done += ranges(settled)
        super().tell()

    def link_lost(self) -> None:
        """What is in hand is dealt anew."""
        super().link_lost()
        self._settled = []

    async def take_records(self, records: DealtRecords, most: int) -> None:
        """Add what has been dealt, one record at least, and what else is at hand until there are `most`. Raises as
        `take`, where nothing was added."""
        self._host.check_loop()
        await self._give_way()
        while not len(records):
            await self._ready()
            while self._buffer and self._error is None and len(records) < most and self._room.left_bytes > 0:
                piece = self._buffer[0]
                if piece.start == piece.block.first and records.add_block(piece.block):
                    self._drop_first(piece)
                else:
                    records.add_messages(await self._at_hand(len(records) > 0))
        self._turn += len(records)

    async def _at_hand(self, keeps_error: bool) -> list[Message]:
        """The messages of one block; where it cannot be read that is raised now, or `keeps_error` by the next
        `_ready`."""
        try:
            return await self._decode()
        except LexicastError as error:
            if not keeps_error:
                raise
            self._error = error
            return []

    async def _decode(self) -> list[Message]:
        block = self._buffer[0].block
        messages = await super()._decode()
        expires = _expiries(block)
        return [_expiring(message, expires) for message in messages] if expires else messages


def _expiries(block: Block) -> dict[int, int]:
    """When the publications of a block expire that do, in microseconds since the epoch, by offset."""
    if not any([run.expiry_ms for run in block.meta.runs]):
        return {}
    return {each.offset: block.time_us + 1_000 * each.expiry_ms for each in block.records() if each.expiry_ms}


def _expiring(message: Message, expires: dict[int, int]) -> Message:
    expires_us = expires.get(message.position.offset)
    return message if expires_us is None else ExpiringMessage(expires_us, message)
