"""The links of a matcher to brokers and coordinators: dialled again and again while they serve.

It dials, so neither brokers nor coordinators have to follow who matches: a link that stands is one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, Protocol

from lexicast.cluster.errors import LexicastError, PeerError
from lexicast.cluster.membership import Member
from lexicast.cluster.protocol.messages import ASK, ROUTE, WANTS

from ..link.circuit_link import TellingLink
from ..link.link import Link, LinkUser
from ..loop.background import keep_going

log = logging.getLogger(__name__)

AGAIN_S: Final = 0.1
AGAIN_MOST_S: Final = 1.0

Dial = Callable[[tuple[str, ...], LinkUser], Awaitable[Link]]


class ServesLinks(Protocol):
    """What the links' other ends say goes there."""

    def told(self, link: TellingLink, version: int, number: int, changes: Any) -> None:
        """A broker's conditions begin and end. Raises PeerError."""

    def asked(self, link: Any, message: tuple[Any, ...]) -> None:
        """A coordinator asks."""

    def route(self, source: str, message: tuple[Any, ...]) -> None:
        """Something is to be routed."""

    def came(self, link: Link, incarnation: int, is_broker: bool) -> None:
        """A link stands; of a broker with that incarnation."""

    def broker_gone(self, link: TellingLink) -> None:
        """A broker's link, or circuit, has ended."""


class BrokerLink:
    """The link, or circuit, to a broker: what its subscribers want."""

    def __init__(self, server: ServesLinks) -> None:
        self.ended = asyncio.Event()
        self._server = server

    def on_message(self, link: TellingLink, message: tuple[Any, ...]) -> None:
        """Conditions begin and end; or something is to be routed."""
        if message[0] == ROUTE:
            self._server.route(link.name, message)
        elif message[0] == WANTS:
            self._server.told(link, *message[1:])
        else:
            raise PeerError(f"{link.name} sent a message of kind {message[0]}")

    def on_close(self, link: TellingLink, error: Exception | None) -> None:
        """The broker is dialled again, and tells everything again."""
        self.ended.set()
        self._server.broker_gone(link)

    def on_writable(self, link: Link) -> None:
        """Little is said."""


class CoordinatorLink:
    """The link to a coordinator: it asks."""

    def __init__(self, server: ServesLinks) -> None:
        self.ended = asyncio.Event()
        self._server = server

    def on_message(self, link: Link, message: tuple[Any, ...]) -> None:
        """Who wants these publications?"""
        if message[0] == ROUTE:
            self._server.route(link.name, message)
        elif message[0] == ASK:
            self._server.asked(link, message)
        else:
            raise PeerError(f"{link.name} sent a message of kind {message[0]}")

    def on_close(self, link: Link, error: Exception | None) -> None:
        """The coordinator is dialled again."""
        self.ended.set()

    def on_writable(self, link: Link) -> None:
        """A coordinator asks no more than it may have under way."""


class ServedLinks:
    """See the module's docstring."""

    def __init__(self, server: ServesLinks, dial: Dial) -> None:
        self._server = server
        self._dial = dial
        self._dialled: dict[str, tuple[Member, asyncio.Task[None]]] = {}
        self._links: dict[str, Link] = {}

    def __len__(self) -> int:
        return len(self._dialled)

    def get(self, name: str) -> Link | None:
        """The link to a broker or coordinator, if it stands."""
        link = self._links.get(name)
        return None if link is None or link.closed else link

    def follow(self, wanted: Mapping[str, Member], brokers: Mapping[str, Member]) -> None:
        """These are to be linked from now on; of them those are brokers."""
        for name in [n for n, (member, _) in self._dialled.items() if not _same(wanted.get(n), member)]:
            self._dialled.pop(name)[1].cancel()
        for name, member in wanted.items():
            if name not in self._dialled:
                keeping = self._keep_linked(member, name in brokers)
                self._dialled[name] = member, keep_going(keeping, f"the link to {name}")

    async def _keep_linked(self, member: Member, is_broker: bool) -> None:
        wait_s, link = AGAIN_S, None
        try:
            while True:
                user = BrokerLink(self._server) if is_broker else CoordinatorLink(self._server)
                try:
                    link = await self._dial(member.addresses, user)
                    link.name = member.name
                    wait_s = AGAIN_S
                    if not link.closed:
                        self._links[member.name] = link
                        self._server.came(link, member.incarnation, is_broker)
                    await user.ended.wait()
                except (OSError, LexicastError) as error:
                    log.debug("link to %s: %s", member.name, error)
                await asyncio.sleep(wait_s)
                wait_s = min(2 * wait_s, AGAIN_MOST_S)
        finally:
            if link is not None:
                if self._links.get(member.name) is link:
                    del self._links[member.name]
                link.close()

    def tell(self, message: tuple[Any, ...]) -> None:
        """Say something to all."""
        for link in self._links.values():
            link.send(message)

    def tasks(self) -> list[asyncio.Task[None]]:
        """What keeps the links; whoever ends them ends these."""
        return [task for _, task in self._dialled.values()]


def _same(one: Member | None, other: Member) -> bool:
    """Whether both are one process; a roster tells less of a member than the coordination server does."""
    return one is not None and (one.incarnation, one.addresses) == (other.incarnation, other.addresses)
