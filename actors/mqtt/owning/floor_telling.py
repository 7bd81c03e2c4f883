"""The homes of a broker's sessions are told, round by round, how far all have got (`session_floor`).

Looked at are those sessions alone that have something in flight or lag: they and their subscribers enter themselves
(`session.Unsettled`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from lexicast.cluster.protocol.session_floor import EXCEPTION_OFFSETS_MAX, SessionFloor, packed_exceptions

from ..session import Session, Unsettled

if TYPE_CHECKING:
    from ...broker.engine import BrokerEngine
    from ..subscriber import MqttSubscriber

# Sessions looked at in a round before other work has its turn.
SESSIONS_A_TURN = 1_000


class Serving(Protocol):
    """Whoever serves a session."""

    session: Session
    subscriber: MqttSubscriber


class FloorTelling:
    """See the module's docstring. `owners`: the sessions that are served, by client id, as they are now."""

    def __init__(self, engine: BrokerEngine, owners: Mapping[str, Serving], unsettled: Unsettled) -> None:
        self._engine = engine
        self._owners = owners
        self._unsettled = unsettled
        self._floor = SessionFloor()
        self._told: dict[str, dict[int, int]] = {}

    def forget(self, coordinator: str) -> None:
        """It is told everything again: what it keeps of it is in its memory only."""
        self._told.pop(coordinator, None)

    async def tell(self, below: int, unknown: Callable[[], Iterable[int]]) -> None:
        """A round. `below`: connections from there on are not told of; `unknown`: those, asked for when all have been
        looked at, that are not served any more though their homes have not heard of it.
        """
        heads = dict(self._engine.live.heads)
        behind = await self._behind()
        behind += [(connection, None) for connection in unknown()]
        exceptions = packed_exceptions(self._floor.move(heads, behind))
        floor = self._floor.floor
        for name, pipeline in self._engine.coordinators.pipelines.items():
            told = self._told.get(name, {})
            moved = {group: offset for group, offset in floor.items() if told.get(group) != offset}

            def done(error: Exception | None, _: Any, name: str = name) -> None:
                if error is not None:
                    self.forget(name)

            # Before it is told: where that cannot be it hears so at once.
            self._told[name] = dict(floor)
            pipeline.call(done, "sessions_stand", below, moved, exceptions)

    async def _behind(self) -> list[tuple[int, dict[int, int] | None]]:
        """(connection, group -> lowest offset not acknowledged) of those that are behind; None: too many lag."""
        behind: list[tuple[int, dict[int, int] | None]] = []
        room = EXCEPTION_OFFSETS_MAX
        lagging = self._unsettled.lagging
        for at, client_id in enumerate({**lagging, **self._unsettled.in_flight}):
            owner = self._owners.get(client_id)
            if owner is not None:
                subscriber = owner.subscriber
                room -= len(subscriber.lagging)
                if room < 0 and subscriber.lagging:
                    behind.append((owner.session.connection, None))
                elif frontier := subscriber.frontier():
                    behind.append((owner.session.connection, frontier))
                if not subscriber.lagging:
                    lagging.pop(client_id, None)
            if at % SESSIONS_A_TURN == SESSIONS_A_TURN - 1:
                await asyncio.sleep(0)
        return behind
