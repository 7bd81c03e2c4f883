"""A subscription of the Python client, as its user iterates it; what moves it is its feed (`subscription_feed`)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from inspect import isawaitable
from types import TracebackType
from typing import Final

from lexicast.cluster.errors import UsageError
from lexicast.cluster.positions import Cursor, Position

from .group_feed import SettledFeed, ranges_of
from .messages import Message
from .subscription_feed import SubscriptionFeed

# What `next_batch` gives at the most: what is at hand may be the whole buffer, at 500 B a message.
BATCH_MESSAGES: Final = 10_000


class Subscription:
    """The messages that match a filter, or any of several, in order within each topic group, each once. Made by
    `Client.subscribe`.

    Iterate it (`async for message in subscription`), by one task at a time; iterating registers it with the broker,
    and so does entering it (`async with`), which returns when the cut between past and future is fixed. It ends at
    `until`, or when it or the client is closed.

    Raises from iteration: UnavailableError (the client gave up looking for a broker, or the broker refused), TopicError
    (the broker refused the filter), DictionaryError (a payload whose dictionary is missing; iterating on goes on
    after it).
    """

    def __init__(self, feed: SubscriptionFeed) -> None:
        # for lexicast's own parts; everything below is the user's
        self.feed = feed
        self._iterator: Iterator[Message] = iter(())
        self._last: Message | None = None
        # What `next_batch` gave last, of feeds that are told.
        self._batch: tuple[Message, ...] = ()
        self._tells_given = feed.tells_given

    @property
    def filters(self) -> tuple[str, ...]:
        """The topic filters."""
        return tuple([name.decode() for name in self.feed.filters])

    @property
    def position(self) -> Position | None:
        """The position of the last message that was given: for an exact topic `since=position` goes on after it."""
        return None if self._last is None else self._last.position

    @property
    def cursor(self) -> Cursor:
        """{group: next offset} after the last message that iteration gave: `since=cursor` goes on from there.

        Empty before the subscription is registered.
        """
        return self.feed.cursor_after(self._last)

    @property
    def dropped(self) -> int:
        """Messages for which there was no room (`slow="drop"`)."""
        return self.feed.dropped

    async def __aenter__(self) -> Subscription:
        await self.feed.register()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self._tell_given()
        await self.close()

    def _tell_given(self) -> None:
        """The user has done with what was given last."""
        if self._tells_given and self._last is not None:
            self.feed.given(self._batch or (self._last,))
            self._batch = ()

    def __aiter__(self) -> Subscription:
        return self

    async def __anext__(self) -> Message:
        if self._tells_given:
            self._tell_given()
        message = next(self._iterator, None)
        if message is None:
            self._iterator = iter(await self.feed.take())
            message = next(self._iterator)
        self._last = message
        return message

    async def next_batch(self, most: int = BATCH_MESSAGES, timeout_s: float | None = None) -> list[Message]:
        """All messages at hand, at most so many, at least one: faster than one by one. None when none has come for
        `timeout_s` seconds.

        Raises StopAsyncIteration at the end, UsageError. A wait that is cancelled loses nothing.
        """
        if most < 1:
            raise UsageError(f"most={most!r}: give a number from 1")
        self._tell_given()
        batch = list(self._iterator) or await self._taken(timeout_s)
        try:
            if 0 < len(batch) < most:
                await self.feed.add_at_hand(batch, most)
        except BaseException:
            self.feed.give_back(batch)
            raise
        if len(batch) > most:
            self.feed.give_back(batch[most:])
            del batch[most:]
        if batch:
            self._last = batch[-1]
            self._batch = tuple(batch) if self._tells_given else ()
        return batch

    async def _taken(self, timeout_s: float | None) -> list[Message]:
        if timeout_s is None:
            return await self.feed.take()
        try:
            async with asyncio.timeout(timeout_s) as limit:
                return await self.feed.take()
        except TimeoutError:
            if limit.expired():
                return []
            raise

    def ack(self, messages: Message | Iterable[Message]) -> None:
        """Of a consumer group with `manual_ack`: these are done, and go to no other member; each by itself, in any
        order. The broker is told at once, and not waited for.

        Raises UsageError: no such group.
        """
        if not isinstance(self.feed, SettledFeed):
            raise UsageError("what is acknowledged by hand comes of subscribe(..., group=NAME, manual_ack=True)")
        self.feed.settle(ranges_of([messages] if isinstance(messages, Message) else messages))

    async def call(self, callback: Callable[[Message], object]) -> None:
        """Call `callback` with each message until the subscription ends, and await what it gives where it is a
        coroutine function. Many of them side by side: a task each.

        Raises what the callback raises: the subscription is closed then, and the message goes to another member of its
        group. Else as iterating.
        """
        async with self:
            async for message in self:
                result = callback(message)
                if isawaitable(result):
                    await result

    async def close(self) -> None:
        """End the subscription; iteration stops."""
        self.feed.close()
        self._iterator = iter(())
