"""The links of a matcher to others of its overlay: dialled when there is something to say, kept for contacts.

Whoever has dialled ends a link that is of no use any more. One that ends otherwise is dialled again where the other is
a contact: what does not answer then is gone, which is known at once.

What is to be said meanwhile waits. Where a member cannot be reached, what waits comes back: it may go another way.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection
from typing import Any, Final, Protocol

from lexicast.cluster.errors import LexicastError, PeerError, UnavailableError
from lexicast.cluster.skipcloud.wire import AddressBook, Addresses

from ...link.link import Link, LinkUser
from ...link.turn_writes import TurnWrites

log = logging.getLogger(__name__)

# Of one that is dialled; more are lost, as on a wire.
WAITING_MAX: Final = 1_024
# Beyond it what is routed is lost: whoever is behind that link does not keep up.
BUFFERED_BYTES_MAX: Final = 16 * 1024 * 1024
DIAL_S: Final = 1.0
ADDRESSES_KEPT_MAX: Final = 4_096

OverlayMessage = tuple[Any, ...]
Dial = Callable[[Addresses, LinkUser], Awaitable[Link]]


class NeighboursUser(Protocol):
    """Who uses them."""

    def heard(self, link: Link, message: OverlayMessage) -> None:
        """A neighbour says something. May raise PeerError: its link ends."""

    def wants(self, name: str) -> bool:
        """Whether it is to be linked, though nothing is to be said."""

    def unreachable(self, name: str, unsent: list[OverlayMessage]) -> None:
        """It cannot be reached, or says no more; `unsent`: what it has not been sent."""


class Neighbours:
    """See the module's docstring. `links`: those that stand, by name; `said`: messages so far."""

    def __init__(self, name: str, dial: Dial, user: NeighboursUser) -> None:
        self.book = AddressBook(ADDRESSES_KEPT_MAX)
        self.links: dict[str, Link] = {}
        self.said = 0
        self._name = name
        self._dial = dial
        self._user = user
        self._waiting: dict[str, list[OverlayMessage]] = {}
        self._dialling: dict[str, asyncio.Task[None]] = {}
        self._writes = TurnWrites()
        self._closed = False
        # All that stand, in the order in which they came, and whether they were dialled here.
        self._every: dict[Link, bool] = {}

    def send(self, name: str, message: OverlayMessage) -> bool:
        """Send something at the end of this turn, or once it is linked; False: it cannot be reached."""
        link = self.links.get(name)
        if link is not None:
            if link.write_buffer_bytes() > BUFFERED_BYTES_MAX:
                return False
            self._writes.send(link, message)
            self.said += 1
            return True
        if self._closed or name not in self.book.addresses or name == self._name:
            return False
        waiting = self._waiting.setdefault(name, [])
        if len(waiting) < WAITING_MAX:
            waiting.append(message)
        self._reach(name)
        return True

    def _reach(self, name: str) -> None:
        if name not in self._dialling:
            self._waiting.setdefault(name, [])
            self._dialling[name] = asyncio.get_running_loop().create_task(self._reached(name))

    async def _reached(self, name: str) -> None:
        try:
            async with asyncio.timeout(DIAL_S):
                link = await self._dial(self.book.addresses.get(name, ()), self)
            if link.closed:
                raise UnavailableError(f"{name} ended its link at once")
            if link.info.get("matcher", name) != name:
                link.abort()
                raise PeerError(f"where {name} was there is {link.info.get('matcher')}")
        except (OSError, LexicastError) as error:
            log.debug("%s cannot be reached: %s", name, error)
            self._dialling.pop(name, None)
            if name not in self.links:  # it may have dialled meanwhile
                self._user.unreachable(name, self._waiting.pop(name, []))
            return
        self._dialling.pop(name, None)
        link.name = name
        self._linked(link, True)

    def _linked(self, link: Link, dialled: bool) -> None:
        self._every[link] = dialled
        if self._closed:
            link.close()
        elif link.closed:
            self.on_close(link, None)
        else:
            self.links.setdefault(link.name, link)
            for message in self._waiting.pop(link.name, []):
                self.send(link.name, message)

    def opened(self, link: Link) -> LinkUser:
        """Another matcher has dialled."""
        asyncio.get_running_loop().call_soon(self._linked, link, False)  # it is open after this
        return self

    # -- LinkUser

    def on_message(self, link: Link, message: OverlayMessage) -> None:
        """A neighbour says something."""
        self._user.heard(link, message)

    def on_close(self, link: Link, error: Exception | None) -> None:
        """It may be gone, or has no use for the link: it is dialled again, which tells."""
        self._every.pop(link, None)
        if self.links.get(link.name) is link:
            del self.links[link.name]
            other = next((each for each in self._every if each.name == link.name and not each.closed), None)
            if other is not None:
                self.links[link.name] = other
            elif self._user.wants(link.name):
                self._reach(link.name)

    def on_writable(self, link: Link) -> None:
        """What does not go is lost."""

    # -- life

    def keep(self, names: Collection[str], most: int) -> None:
        """These are contacts: of the links to others that were dialled here so many are kept, those that came last."""
        others = [link for link, dialled in self._every.items() if dialled and link.name not in names]
        for link in others[: max(0, len(others) - most)]:
            if self.links.get(link.name) is link:
                del self.links[link.name]
            link.close()

    def close(self) -> None:
        """End all links, and have no more."""
        self._closed = True
        for task in self._dialling.values():
            task.cancel()
        links, self.links, self._every = list(self._every), {}, {}
        self._dialling.clear()
        self._waiting.clear()
        for link in links:
            link.close()
