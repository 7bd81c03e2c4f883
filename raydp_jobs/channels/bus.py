"""A runner's connections to the cluster, in a thread of their own, since Spark blocks the runner's.

One client follows the definitions and the lease; while this runner has the lease, another one publishes under its term.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from itertools import islice
from typing import Any, Final, TypeVar

import lexicast
from lexicast.cluster.errors import LexicastError, PublishRefusedError, UnavailableError

from .definitions import DEFINITIONS_FILTER, PREFIX, Channel, unpack_channel
from .lease import (
    BEAT_S,
    LEASE_TOPIC,
    PRODUCER,
    SALT_BITS,
    TAKE_OVER_S,
    Lease,
    LeaseLostError,
    LeaseWatch,
    fence_topics,
    unpack_lease,
)
from .retained import read_retained

log = logging.getLogger(__name__)

T = TypeVar("T")

CHANNELS_MAX: Final = 1_000
PUBLISHER: Final = "channels"
# What a client gives up after; calls that take several such steps take a multiple.
GIVE_UP_S: Final = 30.0
CALL_TIMEOUT_S: Final = 300.0
TOPICS_A_QUESTION: Final = 1_000
FENCE_EXPIRY_S: Final = 60.0
STAND_BY_POLL_S: Final = 0.2
RELEASE_S: Final = 5.0
HEARD_S: Final = 0.5


class ChannelBus:
    """See the module's docstring. `name`: what this runner is called in the lease."""

    def __init__(self, connect: Mapping[str, Any], name: str | None = None) -> None:
        self._connect = dict(connect)
        self.name = name or f"{socket.gethostname()}:{os.getpid()}"
        self.channels: dict[str, Channel] = {}
        self.watch = LeaseWatch()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._following: Future[None] | None = None
        self._leader: lexicast.Client | None = None
        self._lease: Lease | None = None
        self._beating: asyncio.Task[None] | None = None
        self._held_until_s = 0.0
        self._lost = ""

    def __enter__(self) -> ChannelBus:
        self._thread.start()
        try:
            self._client = self._wait(self._open())
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, *unused: object) -> None:
        self.release()
        if self._following is not None:
            self._following.cancel()
        with suppress(LexicastError):
            self._wait(self._client.close())
        self._end()

    def _end(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        """Raises what `work` raises, UnavailableError where it comes to no end."""
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result(CALL_TIMEOUT_S)
        except TimeoutError:
            future.cancel()
            raise UnavailableError(f"the cluster has not answered within {CALL_TIMEOUT_S:.0f} s") from None

    # -- definitions and lease

    async def _open(self) -> lexicast.Client:
        client = await lexicast.connect(**self._connect, give_up_s=GIVE_UP_S).open()
        filters = [DEFINITIONS_FILTER, LEASE_TOPIC]
        followed = await client.subscribe(filters).__aenter__()
        self._following = asyncio.run_coroutine_threadsafe(self._follow(followed), self._loop)
        for topic, payload in (await read_retained(client, filters)).items():
            self.learn(topic, payload)
        return client

    async def _follow(self, followed: lexicast.Subscription) -> None:
        async for message in followed:
            self.learn(message.topic, message.payload)

    def learn(self, topic: str, payload: bytes) -> None:
        """What a runner says of itself; or a definition, with an empty payload its end."""
        if topic == LEASE_TOPIC:
            lease = unpack_lease(payload)
            if lease is not None:
                self.watch.heard(lease, time.monotonic())
            return
        name = topic.removeprefix(PREFIX)
        if not payload:
            self.channels.pop(name, None)
            return
        try:
            channel = unpack_channel(payload)
            if channel.name == name and (name in self.channels or len(self.channels) < CHANNELS_MAX):
                self.channels[name] = channel
        except LexicastError as error:
            log.warning("%s: %s", topic, error)

    def check_following(self) -> None:
        """Raises LexicastError when no news comes any more."""
        if self._following is not None and self._following.done() and not self._following.cancelled():
            self._following.result()
            raise UnavailableError("the cluster tells nothing of the channels any more")

    # -- having the lease

    def stand_by(self, ended: threading.Event, tell: Callable[[str], None]) -> bool:
        """Return once the lease may be taken, with True; False where `ended` comes first. Raises LexicastError."""
        if self.watch.open_in_s(time.monotonic()) > 0:
            tell(f"{self.watch.highest.runner} answers the channels: standing by; Ctrl-C ends it")
        while (left_s := self.watch.open_in_s(time.monotonic())) > 0 and not ended.is_set():
            ended.wait(min(left_s, STAND_BY_POLL_S))
            self.check_following()
        return not ended.is_set()

    def claim(self) -> None:
        """Take the lease: nothing of any runner before is stored any more, see `lease`. Raises LexicastError."""
        self._wait(self._claim())

    async def _claim(self) -> None:
        self._lost = ""
        lease = Lease(self.name, self.watch.next_term(time.time(), secrets.randbits(SALT_BITS)))
        client = lexicast.connect(**self._connect, client_id=PUBLISHER, give_up_s=GIVE_UP_S)
        client.internals.publisher.builder.succeed(PRODUCER, lease.term)
        self._leader, self._lease = await client.open(), lease
        await self._beat(client, lease)
        self._beating = asyncio.create_task(self._beat_on(client, lease))
        link = await client.internals.connection.wait_link()
        topics = fence_topics(int(link.info["groups"]))
        await self._published([(topic, self.name.encode()) for topic in topics], False, FENCE_EXPIRY_S)

    async def _beat_on(self, client: lexicast.Client, lease: Lease) -> None:
        try:
            while True:
                await asyncio.sleep(BEAT_S)
                await self._beat(client, lease)
        except LexicastError as error:
            self._lost = str(error)

    async def _beat(self, client: lexicast.Client, lease: Lease) -> None:
        sent_s = time.monotonic()
        await client.publish(LEASE_TOPIC, lease.pack(), retain=True)
        self._held_until_s = sent_s + TAKE_OVER_S

    def check_held(self) -> None:
        """Raises LeaseLostError unless this runner is the one that answers, LexicastError when it hears nothing."""
        self.check_following()
        if self._lease is None:
            raise LeaseLostError("this runner does not answer the channels")
        if self.watch.highest.term > self._lease.term:
            raise LeaseLostError(f"{self.watch.highest.runner or 'another runner'} has taken over")
        if self._lost or time.monotonic() > self._held_until_s:
            raise LeaseLostError(self._lost or f"nothing was acknowledged for {TAKE_OVER_S:.0f} s")

    def release(self) -> None:
        """End answering, if this runner does; whoever stands by takes over at once."""
        if self._leader is not None:
            with suppress(LexicastError):
                self._wait(self._release(self._leader))
            self._leader = self._lease = None

    async def _release(self, client: lexicast.Client) -> None:
        if self._beating is not None:
            self._beating.cancel()
            await asyncio.gather(self._beating, return_exceptions=True)
        with suppress(LexicastError, TimeoutError):
            self.check_held()
            assert self._lease is not None
            nobody = Lease("", self._lease.term)
            async with asyncio.timeout(RELEASE_S):
                await client.publish(LEASE_TOPIC, nobody.pack(), retain=True)
            self.watch.heard(nobody, time.monotonic())
        await client.close()

    # -- what the runner that answers does

    def publish(self, messages: Iterable[tuple[str, bytes]], *, retain: bool = False) -> None:
        """Publish; returns when all are stored. Raises LeaseLostError, UnavailableError."""
        self._wait(self._published(list(messages), retain))

    async def _published(self, messages: list[tuple[str, bytes]], retain: bool, expiry_s: float | None = None) -> None:
        self.check_held()
        assert self._leader is not None
        try:
            await self._leader.publish_many(messages, retain=retain, expiry_s=expiry_s)
        except PublishRefusedError as error:
            await asyncio.sleep(HEARD_S)  # who has taken over says so: its name is the better reason
            self.check_held()
            raise LeaseLostError(str(error)) from None

    def retained(self, filter: str) -> dict[str, bytes]:
        """Topic -> payload of everything that is retained below `filter`. Raises LexicastError."""
        return self._wait(read_retained(self._client, [filter]))

    def last_messages(self, topics: Iterable[str]) -> dict[str, bytes]:
        """Topic -> payload of the last message on each of the topics, of those that have one. Raises LexicastError."""
        return self._wait(self._last(list(topics)))

    async def _last(self, topics: Sequence[str]) -> dict[str, bytes]:
        left, found = iter(topics), dict[str, bytes]()
        while some := list(islice(left, TOPICS_A_QUESTION)):
            found |= {message.topic: message.payload async for message in self._client.history(some, last=1)}
        return found
