"""A subscription of the Python client, as its user iterates it; what moves it is its feed (`subscription_feed`)."""

from __future__ import annotations

from collections.abc import Iterator
from types import TracebackType
from typing import Final

from lexicast.cluster.positions import Cursor, Position

from .messages import Message
from .subscription_feed import SubscriptionFeed

# What `next_batch` gives at the most, one block more: what is at hand may be the whole buffer, at 500 B a message.
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
        """The user has done with the last message."""
        if self._tells_given and self._last is not None:
            self.feed.given(self._last)

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

    async def next_batch(self) -> list[Message]:
        """All messages at hand (up to some BATCH_MESSAGES), at least one: faster than one by one.

        Raises StopAsyncIteration at the end. A wait that is cancelled loses nothing.
        """
        batch = list(self._iterator) or await self.feed.take()
        try:
            await self.feed.add_at_hand(batch, BATCH_MESSAGES)
        except BaseException:
            self._iterator = iter(batch)  # the next call gives them
            raise
        self._iterator = iter(())
        self._last = batch[-1]
        return batch

    async def close(self) -> None:
        """End the subscription; iteration stops."""
        self.feed.close()
        self._iterator = iter(())
