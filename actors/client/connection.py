"""The client's connection: one link to some broker, found again when it breaks.

Which broker is tried next, and how soon, `ft.broker_choice` decides; which there are, `known_brokers` knows: from the
address that the client was given, and, while it is connected, from its broker, which is asked now and then. Of a
broker's addresses local ones come first; where none can be dialled and there is an actor handle, the same byte stream
goes over batched Ray calls (`call_link`).
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from contextlib import suppress
from functools import partial
from typing import Any, Final, Protocol

from lexicast.cluster.errors import (
    AuthenticationError,
    LexicastError,
    PeerError,
    UnavailableError,
    UntrustedBrokerError,
)
from lexicast.cluster.protocol.broker_list import read_broker_list
from lexicast.ft.broker_choice import BrokerChoice

from ..link.call_link import dial_calls
from ..link.link import Link
from ..link.sockets import dial
from ..link.user_sockets import dial_as_user
from .known_brokers import Endpoint, KnownBrokers, Resolve

ROLE: Final = "client"
DIAL_TIMEOUT_S: Final = 5.0
CLOSE_TIMEOUT_S: Final = 2.0
# While no broker answers, the address is looked at again so often; while one does, it is asked which others there are.
LOOK_AGAIN_S: Final = 0.5
ASK_AGAIN_S: Final = 60.0

log = logging.getLogger("lexicast.client")


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
        self._brokers = KnownBrokers(resolve)
        self._choice = BrokerChoice()
        self._hello = (ROLE, name, incarnation)
        self._user = user
        self._give_up_s = give_up_s
        self._up = asyncio.Event()
        self._lost = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._refusal: PeerError | None = None
        self._error: LexicastError | None = None
        self._over_calls = False
        self._refused_login: AuthenticationError | None = None
        self.link: Link | None = None
        self.endpoint: Endpoint | None = None
        # Whether the link is a Unix-domain socket: bytes cost next to nothing there.
        self.is_local = False
        self.links = 0

    @property
    def endpoints(self) -> list[Endpoint]:
        """The brokers that are known."""
        return list(self._brokers.endpoints.values())

    async def open(self) -> None:
        """Connect once. Raises UnavailableError, AuthenticationError or PeerError when no broker can be had."""
        await self._brokers.find()
        await self._try_each()
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
            if self.endpoint is not None:
                self._choice.lost(self.endpoint.name, self._brokers.backups, time.monotonic())
            self._user.on_lost()

    # -- looking for a broker

    def _opened(self, endpoint: Endpoint, link: Link) -> Connection | None:
        if self.link is not None or self._error is not None:  # a dial that was given up came through after all
            return None
        self.link = link
        try:
            self._user.on_open(link)
        except PeerError as error:
            self._refusal, self.link = error, None
            return None
        self.endpoint = endpoint
        self._brokers.forget_backups()
        self._choice.answered(endpoint.name, time.monotonic())
        self.links += 1
        self._lost.clear()
        self._up.set()
        return self

    async def _supervise(self) -> None:
        """Find a link whenever there is none. However this ends, whoever waits is told."""
        try:
            while True:
                await self._ask()
                with suppress(TimeoutError):
                    async with asyncio.timeout(ASK_AGAIN_S * random.uniform(0.5, 1.0)):
                        await self._lost.wait()
                if self.link is None:
                    await self._find()
        except Exception as error:
            if not isinstance(error, UnavailableError | AuthenticationError):
                log.exception("looking for a broker has failed")
                error = UnavailableError(f"looking for a broker has failed: {error!r}")
            self.stop(error)
            self._user.on_failure(error)

    async def _ask(self) -> None:
        """Which brokers there are, of the one that is connected: where it is lost, they are known."""
        link, endpoint = self.link, self.endpoint
        if link is None or endpoint is None or self._over_calls:  # addresses are of no use to who reaches none
            return
        try:
            told = read_broker_list(await link.request("brokers"))
        except LexicastError as error:
            log.debug("%s does not tell which brokers there are: %s", endpoint.name, error)
        else:
            self._brokers.told(told, endpoint, str(link.info.get("broker", endpoint.name)))

    async def _find(self) -> None:
        """Return when a link is open. Raises UnavailableError when none could be had for `give_up_s`,
        AuthenticationError when a user's login is refused: to try it again would be to guess."""
        began_s = looked_s = time.monotonic()
        reason: Exception | None = None
        try:
            async with asyncio.timeout(self._give_up_s):
                while self.link is None:
                    await asyncio.sleep(self._choice.pause_s())
                    reason = await self._try_next()
                    if self._refused_login is not None:
                        raise self._refused_login
                    if reason is not None and time.monotonic() - looked_s >= LOOK_AGAIN_S:
                        await self._look_again()
                        looked_s = time.monotonic()
        except TimeoutError:
            if self.link is None:
                waited_s = time.monotonic() - began_s
                why = str(reason or "") or "the last attempt did not come to an end"
                raise UnavailableError(f"no broker for {waited_s:.1f} s: {why}") from None

    async def _look_again(self) -> None:
        """Brokers may have moved; what was known stays good enough while nobody can be asked."""
        with suppress(LexicastError, OSError):
            async with asyncio.timeout(DIAL_TIMEOUT_S):
                await self._brokers.find()

    async def _try_each(self) -> None:
        """Try every broker once, without a pause."""
        names, last = ", ".join(self._brokers.endpoints) or "none is known", None
        for _ in self._brokers.endpoints:
            last = await self._try_next(patient=True)
            if last is None:
                return
        if isinstance(last, LexicastError):
            raise last
        raise UnavailableError(f"no broker can be reached ({names}): {str(last or '') or 'is the cluster up?'}")

    async def _try_next(self, patient: bool = False) -> Exception | None:
        """One attempt: None where a link is open, else why not."""
        endpoints, now_s = self._brokers.endpoints, time.monotonic()
        if not endpoints:
            return UnavailableError("no broker is known: is the cluster up?")
        near = {name for name, endpoint in endpoints.items() if endpoint.is_local()}
        endpoint = endpoints[self._choice.next(endpoints, near, now_s)]
        self._refused_login = None
        try:
            await self._dial(endpoint, DIAL_TIMEOUT_S if patient else self._choice.patience_s())
        except (LexicastError, OSError) as error:
            self._choice.failed(endpoint.name, time.monotonic())
            if isinstance(error, AuthenticationError) and self._is_final(endpoint, error):
                self._refused_login = error
            log.debug("%s: %s", endpoint.name, error)
            return error
        return None

    def _is_final(self, endpoint: Endpoint, error: AuthenticationError) -> bool:
        """Whether a user's login is refused. At a broker of which another one told, it may be the place that is wrong:
        an address that the certificate does not name, a network that no password crosses, a machine that lets its own
        clients alone in without a login."""
        if endpoint.login is None:
            return False
        heard = endpoint.login.secret is not None and not isinstance(error, UntrustedBrokerError)
        return heard or self._brokers.was_given(endpoint.name)

    async def _dial(self, endpoint: Endpoint, patience_s: float) -> None:
        last: Exception | None = None
        opened = partial(self._opened, endpoint)
        for address in endpoint.addresses:
            self.is_local, self._over_calls = address.startswith("unix:"), False
            try:
                if endpoint.login is not None:
                    claim, context = endpoint.login.claim(self._hello[1]), endpoint.login.context
                    await dial_as_user(address, claim, context, opened, patience_s)
                    return
                await dial(address, endpoint.key, endpoint.cluster_id, self._hello, opened, timeout_s=patience_s)
                return
            except AuthenticationError:
                raise
            except (LexicastError, OSError) as error:
                last = self._refused() or error
        if endpoint.calls is None:
            raise last or UnavailableError(f"broker {endpoint.name} has no address")
        self.is_local, self._over_calls = False, True
        try:
            await dial_calls(endpoint.calls, endpoint.key, endpoint.cluster_id, self._hello, opened)
        except (LexicastError, OSError) as error:
            raise self._refused() or error from None

    def _refused(self) -> PeerError | None:
        refusal, self._refusal = self._refusal, None
        return refusal
