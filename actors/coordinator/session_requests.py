"""The requests of brokers about sessions: see `session_home`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from lexicast.cluster.protocol.sessions import SessionClaim, SessionHeld, SessionLeft

from .peers import BrokerPeer
from .session_home import SessionHome


class SessionRequests:
    """`at_once` and `later`: what is answered in the turn in which it comes, and what waits for something."""

    def __init__(self, home: SessionHome) -> None:
        self._home = home
        self.at_once: dict[str, Callable[..., Any]] = {
            "sessions_hold": self.hold,
            "sessions_stand": self.stand,
        }
        self.later: dict[str, Callable[..., Any]] = {
            "session_open": self.open,
            "session_save": self.save,
            "session_end": self.end,
            "session_forgo": self.forgo,
        }

    def open(self, peer: BrokerPeer, group: int, client_id: str, asked: Any) -> Awaitable[Any]:
        """See `SessionHome.open`."""
        return self._home.open(peer, group, client_id, SessionClaim(*asked))

    async def save(self, peer: BrokerPeer, group: int, client_id: str, generation: int, left: Any) -> None:
        """See `SessionHome.save`."""
        await self._home.save(group, client_id, generation, SessionLeft(*left))

    async def end(self, peer: BrokerPeer, group: int, client_id: str, generation: int) -> None:
        """See `SessionHome.end`."""
        await self._home.end(group, client_id, generation)

    async def forgo(self, peer: BrokerPeer, group: int, client_id: str, connection: int) -> None:
        """See `SessionHome.forgo`."""
        await self._home.forgo(peer, group, client_id, connection)

    def hold(self, peer: BrokerPeer, held: Any) -> Any:
        """See `SessionHome.hold`."""
        return self._home.hold(peer, [SessionHeld(*each) for each in held])

    def stand(self, peer: BrokerPeer, below: int, floor: Any, exceptions: Any) -> None:
        """See `SessionHome.stand`."""
        self._home.stand(peer, below, floor, exceptions)
