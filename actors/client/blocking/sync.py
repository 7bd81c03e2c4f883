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

import os
from collections.abc import Iterable, Iterator, Mapping
from types import TracebackType
from typing import Any

from lexicast.cluster.errors import UnavailableError
from lexicast.cluster.points_in_time import Since, Until
from lexicast.cluster.positions import Position
from lexicast.cluster.protocol.requests import GROUP_WINDOW

from ...link.credentials import Secret, Tls
from ..client import Client
from ..connect import connect as connect_async
from ..messages import Message, Properties
from ..publisher import BATCH_BYTES
from ..subscription import Subscription
from ..subscription_feed import BUFFER_BYTES, CATCH_UP
from .loop_thread import LoopThread
from .sync_subscription import SyncSubscription

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


class SyncClient:
    """The blocking client, made by `connect`; see `lexicast.Client` for what each method does, raises and guarantees.

    Several threads may use it. Ctrl-C cancels what is waited for and leaves the client usable.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        self._thread = LoopThread()
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

    def publish_nowait(
        self,
        topic: str,
        payload: bytes | str,
        *,
        qos: int = 0,
        retain: bool = False,
        expiry_s: float | None = None,
        properties: Properties | Mapping[str, str] | None = None,
    ) -> None:
        """As `Client.publish_nowait`."""

        async def hand_over() -> None:
            self._client.publish_nowait(
                topic, payload, qos=qos, retain=retain, expiry_s=expiry_s, properties=properties
            )

        self._thread.call(hand_over())

    def request(
        self,
        topic: str,
        payload: bytes | str,
        *,
        timeout_s: float = 10.0,
        qos: int = 1,
        properties: Properties | Mapping[str, str] | None = None,
    ) -> Message:
        """As `Client.request`."""
        return self._thread.call(
            self._client.request(topic, payload, timeout_s=timeout_s, qos=qos, properties=properties)
        )

    def reply(
        self,
        request: Message,
        payload: bytes | str,
        *,
        qos: int = 1,
        expiry_s: float | None = None,
        properties: Properties | Mapping[str, str] | None = None,
    ) -> Position:
        """As `Client.reply`."""
        return self._thread.call(
            self._client.reply(request, payload, qos=qos, expiry_s=expiry_s, properties=properties)
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
        sample_records_per_s: int | None = None,
        group: str | None = None,
        group_window: int = GROUP_WINDOW,
        manual_ack: bool = False,
    ) -> SyncSubscription:
        """As `Client.subscribe`; of a `group` what came at once is done when what follows it is asked for, or when the
        `with` block ends without an error."""

        async def make() -> Subscription:
            return self._client.subscribe(
                filter,
                since,
                qos=qos,
                until=until,
                where=where,
                slow=slow,
                buffer_bytes=buffer_bytes,
                sample_records_per_s=sample_records_per_s,
                group=group,
                group_window=group_window,
                manual_ack=manual_ack,
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
