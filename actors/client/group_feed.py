"""The feed of a consumer group's member: what its share deals it, each message to one member of the group.

A message counts as done when the next one is asked for, of batches the whole batch; where the client, its link or its
broker goes before that, the message goes to another member. Where the link breaks what is in hand is forgotten: it is
dealt anew, to whomever.
"""

from __future__ import annotations

import asyncio
from collections.abc import Container, Iterable, Sequence
from typing import Any, Protocol, TypeAlias

from lexicast.cluster.blocks import PUBLICATIONS, Block
from lexicast.cluster.errors import PeerError
from lexicast.cluster.points_in_time import WireSince
from lexicast.cluster.positions import Cursor

from .messages import Message
from .subscription_feed import FeedHost, SubscriptionFeed, _Piece

# Group, first and last offset.
Ranges: TypeAlias = list[tuple[int, int, int]]


def ranges_of(messages: Iterable[Message]) -> Ranges:
    """The offsets of messages, neighbours as one range."""
    ranges: Ranges = []
    for message in messages:
        group, _, offset = message.position
        if ranges and ranges[-1][0] == group and ranges[-1][2] + 1 == offset:
            ranges[-1] = (group, ranges[-1][1], offset)
        else:
            ranges.append((group, offset, offset))
    return ranges


class GroupHost(FeedHost, Protocol):
    """What it needs of its client beside what any feed does."""

    def tell_done(self, stream: int, ranges: Ranges) -> None:
        """Tell the broker what was done; where there is no link it is dealt anew anyway."""


class GroupFeed(SubscriptionFeed):
    """See the module's docstring."""

    tells_given = True

    def __init__(self, host: GroupHost, group: str, filter: bytes, since: WireSince, options: dict[str, Any]) -> None:
        super().__init__(host, (filter,), since, None, options)
        self._group_host = host
        self._group = group
        self._ranges: Ranges = []
        self._done: Ranges = []
        self._telling = False

    def deliver(self, blocks: list[Any]) -> None:
        """DELIVER of its stream; what is dealt again may lie before what came last. Raises PeerError."""
        for wire in blocks:
            block = Block.from_wire(wire)
            if block.kind == PUBLICATIONS:
                self._put(_Piece(block, block.first, None))
        self._arrived.set()

    def link_lost(self) -> None:
        """What is in hand is others' now."""
        super().link_lost()
        self._buffer.clear()
        self._buffered = 0
        self._rest = []
        self._ranges, self._done = [], []

    def given(self, messages: Sequence[Message]) -> None:
        """The user has done with them."""
        self._tell_soon(ranges_of(messages))

    def finish(self) -> None:
        """The user has done with all that was taken."""
        ranges, self._ranges = self._ranges, []
        self._tell_soon(ranges)

    def _handed_over(self, kept: list[tuple[int, int]]) -> None:
        """What the user has is not done yet."""

    def _tell_soon(self, ranges: Ranges) -> None:
        self._done += ranges
        if self._done and not self._telling:
            self._telling = True
            asyncio.get_running_loop().call_soon(self.tell)

    def tell(self) -> None:
        """Tell what is done."""
        self._telling = False
        done, self._done = self._done, []
        if done and self._stream:
            self._group_host.tell_done(self._stream, done)

    def close(self) -> None:
        """What was not given goes to others."""
        self.tell()
        super().close()

    def cursor_after(self, last: Message | None) -> Cursor:
        """None of its own: the group has one."""
        return {}

    async def _decode(self) -> list[Message]:
        piece = self._buffer[0]
        try:
            messages = await super()._decode()
        except PeerError:
            # Whoever goes on after the error has done with it: it would take room of the window for ever.
            self._ranges.append((piece.block.group, piece.start, piece.block.last))
            raise
        if self._pieces:
            group, reached = self._pieces.pop()
            self._ranges.append((group, piece.start, reached - 1))
        return messages

    async def _register(self) -> None:
        self._stream = self._host.open_stream(self)
        since = None if self._registered else self._since
        self._host.hold(self)
        try:
            await self._host.request_once(
                "group_join", self._stream, self._group, self.filters[0], since, self._options
            )
            self._registered = True
        except BaseException:
            self._let_go()
            raise
        finally:
            self._host.release(self)


class SettledFeed(GroupFeed):
    """The same, where each message is done when its user says so, in any order; what can never be given is at once."""

    tells_given = False

    def finish(self) -> None:
        """What was taken is not done by being given."""
        self._pieces.clear()

    def settle(self, done: Ranges) -> None:
        """These are done; told in the event loop's next turn, with others."""
        self._tell_soon(done)

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
