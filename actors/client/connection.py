"""The client's connection: one link to some broker, found again when it breaks.

An `Endpoint` is a broker as the client may reach it. Links are tried first, local ones before others; where none can
be dialled and there is an actor handle, the same byte stream goes over batched Ray calls (`call_link`).
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol, TypeAlias

from lexicast.cluster.errors import AuthenticationError, LexicastError, PeerError, UnavailableError

from ..link.call_link import BrokerCalls, dial_calls
from ..link.link import Link
from ..link.sockets import dial

ROLE: Final = "client"
DIAL_TIMEOUT_S: Final = 5.0
CLOSE_TIMEOUT_S: Final = 2.0
BACKOFF_FIRST_S: Final = 0.05
BACKOFF_MOST_S: Final = 2.0

log = logging.getLogger("lexicast.client")


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One broker. `addresses` are link addresses; `calls` reaches it through Ray; `handle` is its raw actor handle."""

    name: str
    addresses: tuple[str, ...]
    cluster_id: str
    key: bytes = field(repr=False)
    calls: BrokerCalls | None = None
    handle: Any = None

    def is_local(self) -> bool:
        """Whether one of its Unix-domain sockets is here."""
        return any(a.startswith("unix:") and Path(a[5:]).exists() for a in self.addresses)


Resolve: TypeAlias = Callable[[], Awaitable[list[Endpoint]]]


class ConnectionUser(Protocol):
    """Who is told what happens on the connection."""

    def on_open(self, link: Link) -> None:
        """A link is open. Raises PeerError when it leads to the wrong place."""

    def on_message(self, message: tuple[Any, ...]) -> None:
        """A message arrived."""

    def on_lost(self) -> None:
        """The link ended; another one is being looked for."""

    def on_writable(self) -> None:
        """The link can be written again."""

    def on_failure(self, error: LexicastError) -> None:
        """No link could be had for as long as was allowed."""


class Connection:
    """Keeps a link open; see the module's docstring. `give_up_s` None: looks for a broker for ever."""

    def __init__(
        self, resolve: Resolve, name: str, incarnation: int, user: ConnectionUser, give_up_s: float | None
    ) -> None:
        self._resolve = resolve
        self._hello = (ROLE, name, incarnation)
        self._user = user
        self._give_up_s = give_up_s
        self._endpoints: list[Endpoint] = []
        self._up = asyncio.Event()
        self._lost = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._refusal: PeerError | None = None
        self._error: LexicastError | None = None
        self.link: Link | None = None
        self.endpoint: Endpoint | None = None
        # Whether the link is a Unix-domain socket: bytes cost next to nothing there.
        self.is_local = False
        self.links = 0

    async def open(self) -> None:
        """Connect once. Raises UnavailableError, AuthenticationError or PeerError when no broker can be had."""
        self._endpoints = await self._resolve()
        await self._connect()
        self._task = asyncio.get_running_loop().create_task(self._supervise())

    async def close(self) -> None:
        """End the link."""
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
        self.stop(UnavailableError("the client is closed"))
        link = self.link
        if link is not None:
            link.close()
            try:
                async with asyncio.timeout(CLOSE_TIMEOUT_S):
                    await self._lost.wait()
            except TimeoutError:
                link.abort()

    def stop(self, error: LexicastError) -> None:
        """Whoever waits for a link gets `error`."""
        self._error = error
        self._up.set()

    async def wait_link(self) -> Link:
        """The open link, waiting for one. Raises what ended the connection."""
        while self.link is None:
            if self._error is not None:
                raise self._error
            await self._up.wait()
        return self.link

    # -- LinkUser

    def on_message(self, link: Link, message: tuple[Any, ...]) -> None:
        if link is self.link:
            self._user.on_message(message)

    def on_writable(self, link: Link) -> None:
        if link is self.link:
            self._user.on_writable()

    def on_close(self, link: Link, error: Exception | None) -> None:
        if link is self.link:
            self.link = None
            self._up.clear()
            self._lost.set()
            self._user.on_lost()

    # -- looking for a broker

    def _opened(self, link: Link) -> Connection | None:
        if self.link is not None or self._error is not None:  # a dial that was given up came through after all
            return None
        self.link = link
        try:
            self._user.on_open(link)
        except PeerError as error:
            self._refusal, self.link = error, None
            return None
        self.links += 1
        self._lost.clear()
        self._up.set()
        return self

    async def _supervise(self) -> None:
        """Find a link whenever there is none. However this ends, whoever waits is told."""
        try:
            while True:
                await self._lost.wait()
                await self._find()
        except Exception as error:
            if not isinstance(error, UnavailableError):
                log.exception("looking for a broker has failed")
                error = UnavailableError(f"looking for a broker has failed: {error!r}")
            self.stop(error)
            self._user.on_failure(error)

    async def _find(self) -> None:
        """Return when a link is open. Raises UnavailableError when none could be had for `give_up_s`."""
        started, pause = time.monotonic(), BACKOFF_FIRST_S
        reason = "the last attempt did not come to an end"
        while self.link is None:
            left_s = None if self._give_up_s is None else max(0.0, started + self._give_up_s - time.monotonic())
            try:
                async with asyncio.timeout(left_s):
                    await self._connect()
                return
            except (LexicastError, OSError) as error:
                waited = time.monotonic() - started
                reason = str(error) or reason  # one that was cut off says less than one that failed before it
                if self._give_up_s is not None and waited >= self._give_up_s:
                    raise UnavailableError(f"no broker for {waited:.1f} s: {reason}") from None
                log.debug("no broker yet: %s", error)
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))
            pause = min(pause * 2, BACKOFF_MOST_S)
            await self._refresh()

    async def _refresh(self) -> None:
        """Brokers may have moved; what was known stays good enough while nobody can be asked."""
        with suppress(LexicastError, OSError, TimeoutError):
            async with asyncio.timeout(DIAL_TIMEOUT_S):
                self._endpoints = await self._resolve()

    async def _connect(self) -> None:
        """Try every broker, the one that was just lost last."""
        lost, last = self.endpoint, None
        candidates = sorted(
            self._endpoints,
            key=lambda e: (lost is not None and e.name == lost.name, not e.is_local(), random.random()),
        )
        for endpoint in candidates:
            try:
                await self._dial(endpoint)
            except (LexicastError, OSError) as error:
                last = error
                continue
            self.endpoint = endpoint
            return
        if isinstance(last, LexicastError):
            raise last
        names = ", ".join(endpoint.name for endpoint in candidates) or "none is known"
        # a TimeoutError, for one, says nothing by itself
        reason = "is the cluster up?" if last is None else str(last) or f"no answer within {DIAL_TIMEOUT_S:.0f} s"
        raise UnavailableError(f"no broker can be reached ({names}): {reason}")

    async def _dial(self, endpoint: Endpoint) -> None:
        last: Exception | None = None
        for address in endpoint.addresses:
            try:
                async with asyncio.timeout(DIAL_TIMEOUT_S):
                    await dial(address, endpoint.key, endpoint.cluster_id, self._hello, self._opened)
                self.is_local = address.startswith("unix:")
                return
            except AuthenticationError:
                raise
            except (LexicastError, OSError, TimeoutError) as error:
                last = self._refused() or error
        if endpoint.calls is None:
            raise last or UnavailableError(f"broker {endpoint.name} has no address")
        self.is_local = False
        try:
            await dial_calls(endpoint.calls, endpoint.key, endpoint.cluster_id, self._hello, self._opened)
        except (LexicastError, OSError) as error:
            raise self._refused() or error from None

    def _refused(self) -> PeerError | None:
        refusal, self._refusal = self._refusal, None
        return refusal
