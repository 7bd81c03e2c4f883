"""A subscription of the blocking client."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import CancelledError
from contextlib import suppress
from types import TracebackType

from lexicast.cluster.errors import LexicastError, UnavailableError, UsageError
from lexicast.cluster.positions import Cursor, Position

from ..messages import Message
from ..subscription import BATCH_MESSAGES, Subscription
from .loop_thread import LoopThread

log = logging.getLogger("lexicast.client")


class SyncSubscription:
    """As `lexicast.Subscription`, made by `SyncClient.subscribe`: iterate it, or enter it and iterate it; or have a
    thread of its own call a function (`start`).

    By one thread at a time; any thread may close it.
    """

    def __init__(self, thread: LoopThread, subscription: Subscription) -> None:
        self._thread = thread
        self._subscription = subscription
        self._messages: Iterator[Message] = iter(())
        self._last: Message | None = None
        # Of a group: what was given and not told done, the last one or (`next_batch`) all of it being in hand still.
        self._given: list[Message] = []
        self._in_hand = 0
        self._tells_given = subscription.feed.tells_given
        self._caller: threading.Thread | None = None
        self._closing = False
        self._error: BaseException | None = None

    @property
    def filters(self) -> tuple[str, ...]:
        """As `Subscription.filters`."""
        return self._subscription.filters

    @property
    def position(self) -> Position | None:
        """As `Subscription.position`."""
        return None if self._last is None else self._last.position

    @property
    def cursor(self) -> Cursor:
        """As `Subscription.cursor`."""
        return self._subscription.feed.cursor_after(self._last)

    @property
    def dropped(self) -> int:
        """As `Subscription.dropped`."""
        return self._subscription.dropped

    def __enter__(self) -> SyncSubscription:
        self._thread.call(self._subscription.__aenter__())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            if self._caller is None:
                self._tell_done(len(self._given))
            self.close()
        else:
            self._stop()

    def __iter__(self) -> SyncSubscription:
        return self

    def __next__(self) -> Message:
        message = next(self._messages, None)
        if message is None:
            batch = self._thread.call(self._take())
            if not batch:
                raise StopIteration
            self._messages = iter(batch)
            message = next(self._messages)
        self._last = message
        if self._tells_given:
            self._given.append(message)
            self._in_hand = 1
        return message

    async def _take(self) -> list[Message]:
        """The next messages, none at the end."""
        self._tell_given()
        try:
            return await self._subscription.feed.take()
        except StopAsyncIteration:
            return []

    def _tell_given(self) -> None:
        if self._given:
            given, self._given = self._given, []
            self._subscription.feed.given(given)

    def _tell_done(self, count: int) -> None:
        """The user has done with so many of what was given."""

        async def tell() -> None:
            self._subscription.feed.given(self._given[:count])

        if count > 0:
            with suppress(UnavailableError):
                self._thread.call(tell())

    def next_batch(self, most: int = BATCH_MESSAGES, timeout_s: float | None = None) -> list[Message]:
        """As `Subscription.next_batch`; at the end StopIteration."""
        batch = self._thread.call(self._next_batch(most, timeout_s))
        if batch is None:
            raise StopIteration
        if batch:
            self._last = batch[-1]
            self._given = list(batch) if self._tells_given else []
            self._in_hand = len(self._given)
        return batch

    async def _next_batch(self, most: int, timeout_s: float | None) -> list[Message] | None:
        self._tell_given()
        self._subscription.feed.give_back(list(self._messages))
        try:
            return await self._subscription.next_batch(most, timeout_s)
        except StopAsyncIteration:
            return None

    def ack(self, messages: Message | Iterable[Message]) -> None:
        """As `Subscription.ack`; by any thread."""

        async def tell() -> None:
            self._subscription.ack(messages)

        self._thread.call(tell())

    def call(self, callback: Callable[[Message], object]) -> None:
        """Call `callback` with each message, in this thread, until the subscription ends.

        Raises what the callback raises: the subscription is closed then. Else as iterating.
        """
        with self:
            for message in self:
                callback(message)

    def start(self, callback: Callable[[Message], object]) -> SyncSubscription:
        """Call `callback` with each message, in a thread of its own, until it is closed; returns this subscription once
        it is registered.

        What the callback raises ends it, is logged, and raised by `close` or where the `with` block ends. Raises
        UsageError: it has begun; else as entering.
        """
        if self._caller is not None:
            raise UsageError("it was started: a subscription has one callback")
        self._thread.call(self._subscription.__aenter__())
        self._caller = threading.Thread(target=self._call, args=(callback,), name="lexicast-callback", daemon=True)
        self._caller.start()
        return self

    def _call(self, callback: Callable[[Message], object]) -> None:
        try:
            while (message := self._next_to_call()) is not None:
                callback(message)
        except BaseException as error:
            self._error = error
            log.exception("the callback of %s has ended", ", ".join(self.filters))
            self._end()

    def _next_to_call(self) -> Message | None:
        try:
            return next(self, None)
        except (LexicastError, CancelledError):
            if self._closing or self._thread.stopping:
                return None
            raise

    def close(self) -> None:
        """As `Subscription.close`; returns once a callback that was started has returned, and raises what it raised."""
        self._stop()
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _stop(self) -> None:
        self._closing = True
        self._end()
        if self._caller is not None and self._caller is not threading.current_thread():
            self._caller.join()

    def _end(self) -> None:
        self._tell_done(len(self._given) - self._in_hand)
        self._messages = iter(())
        with suppress(UnavailableError):
            self._thread.call(self._subscription.close())
