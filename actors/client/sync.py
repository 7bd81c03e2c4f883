"""The Python client for programs without an event loop: the same names, blocking.

    with lexicast.sync.connect() as bus:
        bus.publish("flights/JFK", "...")
        for message in bus.subscribe("flights/+", since="10m"):
            print(message.topic, message.payload)

The asynchronous client runs in a thread of its own. A SyncClient may be used by several threads, one SyncSubscription
by one thread at a time. Ctrl-C (or any exception raised into a waiting call) cancels what was waited for and leaves
the client usable.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Coroutine, Iterable, Iterator, Mapping
from types import TracebackType
from typing import Any, TypeVar

from lexicast.cluster.errors import UnavailableError
from lexicast.cluster.points_in_time import Since, Until
from lexicast.cluster.positions import Cursor, Position
from lexicast.cluster.protocol.requests import GROUP_WINDOW

from ..link.credentials import Secret, Tls
from .client import Client
from .connect import connect as connect_async
from .messages import Message, Properties
from .publisher import BATCH_BYTES
from .subscription import Subscription
from .subscription_feed import BUFFER_BYTES, CATCH_UP

T = TypeVar("T")

HISTORY_CHUNK = 1_024


def connect(
    address: str | None = None,
    *,
    data_dir: str | os.PathLike[str] | None = None,
    user: str | None = None,
    password: Secret | None = None,
    token: Secret | None = None,
    tls: Tls | None = None,
    client_id: str | None = None,
    compress: bool = True,
    give_up_s: float | None = None,
    key: bytes | None = None,
    batch_s: float = 0.0,
    batch_bytes: int = BATCH_BYTES,
) -> SyncClient:
    """Connect, blocking; arguments and errors as `lexicast.connect` and `Client.open`."""
    return SyncClient(
        connect_async(
            address,
            data_dir=data_dir,
            user=user,
            password=password,
            token=token,
            tls=tls,
            client_id=client_id,
            compress=compress,
            give_up_s=give_up_s,
            key=key,
            batch_s=batch_s,
            batch_bytes=batch_bytes,
        )
    )


class _LoopThread:
    """An event loop in a thread of its own (daemonic: a program that forgets to close may still end).

    The loop runs there from its first to its last round: the caller's thread may run a loop itself, as a notebook's
    does, and a thread runs one at a time.
    """

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="lexicast-client", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._loop.run_forever()
            self._loop.run_until_complete(self._finish())
        finally:
            self._loop.close()

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Run `work` there and wait for it; cancelled there when this wait is interrupted."""
        if not self._thread.is_alive():
            work.close()
            raise UnavailableError("the client is closed")
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def stop(self) -> None:
        """End loop and thread."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()

    async def _finish(self) -> None:
        """What a cancelled call left behind ends before its loop does."""
        left = asyncio.all_tasks() - {asyncio.current_task()}
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        await self._loop.shutdown_asyncgens()


class SyncClient:
    """The blocking client, made by `connect`; see `lexicast.Client` for what each method does, raises and guarantees.

    Several threads may use it. Ctrl-C cancels what is waited for and leaves the client usable.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        self._thread = _LoopThread()
        try:
            self._thread.call(client.open())
        except BaseException:
            self._thread.stop()
            raise

    @property
    def client_id(self) -> str:
        """What names this client as a publisher."""
        return self._client.client_id

    def __enter__(self) -> SyncClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """As `Client.close`; a second call does nothing."""
        try:
            self._thread.call(self._client.close())
        except UnavailableError:
            return
        finally:
            self._thread.stop()

    def publish(
        self,
        topic: str,
        payload: bytes | str,
        *,
        qos: int = 1,
        retain: bool = False,
        expiry_s: float | None = None,
        properties: Properties | Mapping[str, str] | None = None,
    ) -> Position:
        """As `Client.publish`. Waits for each acknowledgement: many messages go by `publish_many`."""
        return self._thread.call(
            self._client.publish(topic, payload, qos=qos, retain=retain, expiry_s=expiry_s, properties=properties)
        )

    def publish_many(
        self,
        messages: Iterable[tuple[str, bytes | str]],
        *,
        qos: int = 1,
        retain: bool = False,
        expiry_s: float | None = None,
        properties: Properties | Mapping[str, str] | None = None,
    ) -> list[Position]:
        """As `Client.publish_many`. The iterable is read in the client's thread."""
        return self._thread.call(
            self._client.publish_many(messages, qos=qos, retain=retain, expiry_s=expiry_s, properties=properties)
        )

    def flush(self) -> None:
        """As `Client.flush`."""
        self._thread.call(self._client.flush())

    def subscribe(
        self,
        filter: str | Iterable[str],
        since: Since = None,
        *,
        qos: int = 1,
        until: Until = None,
        where: str | None = None,
        slow: str = CATCH_UP,
        buffer_bytes: int = BUFFER_BYTES,
        group: str | None = None,
        group_window: int = GROUP_WINDOW,
    ) -> SyncSubscription:
        """As `Client.subscribe`; of a `group` what comes at once counts as done when what follows it is asked for."""

        async def make() -> Subscription:
            return self._client.subscribe(
                filter,
                since,
                qos=qos,
                until=until,
                where=where,
                slow=slow,
                buffer_bytes=buffer_bytes,
                group=group,
                group_window=group_window,
            )

        return SyncSubscription(self._thread, self._thread.call(make()))

    def history(
        self,
        filter: str | Iterable[str],
        since: Since = "beginning",
        until: Until = None,
        limit: int | None = None,
        *,
        last: int | None = None,
        where: str | None = None,
    ) -> Iterator[Message]:
        """As `Client.history`."""
        messages = self._client.history(filter, since, until, limit, last=last, where=where)

        async def chunk() -> list[Message]:
            found: list[Message] = []
            async for message in messages:
                found.append(message)
                if len(found) == HISTORY_CHUNK:
                    break
            return found

        while found := self._thread.call(chunk()):
            yield from found

    def count(
        self,
        filter: str | Iterable[str],
        since: Since = "beginning",
        until: Until = None,
        *,
        where: str | None = None,
    ) -> int:
        """As `Client.count`."""
        return self._thread.call(self._client.count(filter, since, until, where=where))

    def status(self) -> Any:
        """As `Client.status`."""
        return self._thread.call(self._client.status())

    @property
    def statistics(self) -> dict[str, int]:
        """As `Client.statistics`."""
        return self._client.statistics

    @property
    def broker(self) -> Any:
        """As `Client.broker`: `ray.get(bus.broker.status.remote())`."""
        return self._client.broker

    @property
    def broker_name(self) -> str:
        """As `Client.broker_name`."""
        return self._client.broker_name


class SyncSubscription:
    """As `lexicast.Subscription`, made by `SyncClient.subscribe`: iterate it, or enter it and iterate it.

    By one thread at a time.
    """

    def __init__(self, thread: _LoopThread, subscription: Subscription) -> None:
        self._thread = thread
        self._subscription = subscription
        self._messages: Iterator[Message] = iter(())
        self._last: Message | None = None

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
        self.close()

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
        return message

    async def _take(self) -> list[Message]:
        """The next messages, none at the end."""
        try:
            return await self._subscription.feed.take()
        except StopAsyncIteration:
            return []

    def close(self) -> None:
        """As `Subscription.close`."""
        self._messages = iter(())
        try:
            self._thread.call(self._subscription.close())
        except UnavailableError:
            return
