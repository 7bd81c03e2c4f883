"""The home of sessions: who owns each session, by compare-and-set on its generation.

The coordinator that leads a client id's group decides. A broker takes a session over before it answers CONNECT; the
generation grows with each take-over, and what an older generation still wants to save is refused, so two brokers
never serve one session. `Sessions` is the table as it will be once everything sequenced is durable: the store's rows
under a layer of the changes on their way.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from lexicast.cluster.errors import LexicastError, StaleEpochError
from lexicast.cluster.records import ControlRecord, SessionEnded, SessionSaved

from .peers import BrokerPeer

YIELD_TIMEOUT_S = 3.0


class SessionStore(Protocol):
    """What the store tells of sessions."""

    def session(self, group: int, client_id: str) -> SessionSaved | None:
        """The durable row."""


class Opened(NamedTuple):
    """The answer to `session_open`."""

    uid: bytes
    generation: int
    present: bool
    state: bytes


class Sessions:
    """Sessions whose home groups are led here."""

    def __init__(
        self,
        store: SessionStore,
        append: Callable[[int, ControlRecord, Callable[[Exception | None], None]], None],
        peers: dict[str, BrokerPeer],
    ) -> None:
        self._store = store
        self._append = append
        self._peers = peers
        self._changing: dict[tuple[int, str], tuple[SessionSaved | None, int]] = {}
        # Each with the number of those who hold it or wait for it.
        self._locks: dict[tuple[int, str], tuple[asyncio.Lock, int]] = {}
        self._writes = 0

    def get(self, group: int, client_id: str) -> SessionSaved | None:
        """The session as it will be."""
        change = self._changing.get((group, client_id))
        return change[0] if change is not None else self._store.session(group, client_id)

    async def open(
        self, peer: BrokerPeer, group: int, client_id: str, clean: bool, new_uid: bytes, new_state: bytes, now_us: int
    ) -> Opened:
        """Give the session to `peer`; the owner until now is told to let go and hands over its last state.

        `new_uid`, `new_state`: the session's, if it begins now.
        """
        key = (group, client_id)
        lock, users = self._locks.get(key) or (asyncio.Lock(), 0)
        self._locks[key] = (lock, users + 1)
        try:
            async with lock:
                yielded = await self._yielded(self.get(group, client_id), clean)
                current = self.get(group, client_id)
                expired = current is not None and 0 < current.expires_us <= now_us
                present = current is not None and not clean and not expired
                # Never one that an ended session of this name had: what is still under way for that one must not match.
                generation = now_us if current is None else current.generation + 1
                state = new_state
                if current is not None and present:
                    state = yielded if yielded is not None else current.state
                uid = current.uid if current is not None and present else new_uid
                saved = SessionSaved(client_id, uid, generation, peer.name, peer.incarnation, 0, state)
                await self._write(group, client_id, saved)
                return Opened(uid, generation, present, state)
        finally:
            users = self._locks[key][1] - 1
            if users:
                self._locks[key] = (lock, users)
            else:
                del self._locks[key]

    async def _yielded(self, current: SessionSaved | None, clean: bool) -> bytes | None:
        """The state that the present owner hands over; None when there is no owner to ask (its saved state counts)."""
        if current is None or not current.owner:
            return None
        owner = self._peers.get(current.owner)
        if owner is None or owner.incarnation != current.incarnation or owner.link.closed:
            return None
        try:
            async with asyncio.timeout(YIELD_TIMEOUT_S):
                state: bytes | None = await owner.link.request(
                    "session_yield", current.client_id, current.generation, clean
                )
                return state
        except (LexicastError, TimeoutError):
            return None

    async def save(self, group: int, client_id: str, generation: int, expires_us: int, state: bytes) -> None:
        """Replace the state. `expires_us` not 0: the client is gone, nobody owns the session.

        Raises StaleEpochError.
        """
        current = self._owned(group, client_id, generation)
        owner = "" if expires_us else current.owner
        saved = current._replace(owner=owner, expires_us=expires_us, state=state)
        await self._write(group, client_id, saved)

    async def end(self, group: int, client_id: str, generation: int) -> None:
        """Forget the session. Raises StaleEpochError."""
        current = self._owned(group, client_id, generation)
        await self._write(group, client_id, None, SessionEnded(client_id, current.uid, generation))

    def _owned(self, group: int, client_id: str, generation: int) -> SessionSaved:
        current = self.get(group, client_id)
        if current is None or current.generation != generation:
            raise StaleEpochError(f"session {client_id!r}: generation {generation} was taken over")
        return current

    async def _write(
        self, group: int, client_id: str, saved: SessionSaved | None, record: ControlRecord | None = None
    ) -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._writes += 1
        number = self._writes
        self._changing[group, client_id] = (saved, number)

        def done(error: Exception | None) -> None:
            change = self._changing.get((group, client_id))
            if change is not None and change[1] == number:
                del self._changing[group, client_id]
            if not future.done():
                future.set_exception(error) if error is not None else future.set_result(None)

        change: Any = record if record is not None else saved
        self._append(group, change, done)
        await future
