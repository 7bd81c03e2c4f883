"""The home of sessions: who owns each, by compare-and-set on its generation; what becomes of those that nobody owns.

The coordinator that leads a client id's group decides. A broker takes a session over before it answers CONNECT; the
generation grows with each take-over, and what an older generation still wants to save is refused, so two brokers
never serve one session. `SessionHome` is the table as it will be once everything sequenced is durable: the store's rows
(`session_memory`) under a layer of the changes on their way. Written is what changed (`session_transitions.record_of`).

Every session has somebody. Its owner while that lives; else the home itself, which publishes wills when they are due,
through whichever broker is linked (at least once: a broker that dies of it leaves it to the next), and forgets sessions
when they expire. An owner is gone when a newer incarnation of the broker comes, or has had no link for ORPHANED_S; one
that was only cut off finds its generation taken when it comes back.

A session that is to end with its connection, and has no will, is not written at all. Here it is known by the broker
that serves it (`_fleeting`), and a coordinator that has forgotten it is told again when that broker's link comes back
(`hold`): until then two connections of one client id may be served, which neither the groups' marks (each has a uid of
its own) nor anything stored notices. The same way a broker that was cut off hears of sessions that it has lost.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Container, Coroutine, Iterable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias

from lexicast.cluster.clock import Clock
from lexicast.cluster.errors import LexicastError, StaleEpochError, UnavailableError
from lexicast.cluster.protocol.session_floor import Standings
from lexicast.cluster.protocol.sessions import SessionClaim, SessionGrant, SessionHeld, SessionLeft
from lexicast.cluster.records import ControlRecord, SessionSaved

from ..loop.one_at_a_time import OneAtATime
from .peers import BrokerPeer
from .session_memory import SessionMemory
from .session_owners import ANY_BROKER, SessionOwners
from .session_transitions import belongs_elsewhere, continues, due_will, has_expired, moved_on, orphaned, record_of

log = logging.getLogger(__name__)

YIELD_TIMEOUT_S = 3.0

WILL_TIMEOUT_S = 10.0
# Sessions looked up, and settled at a time, in one sweep.
SETTLED_AT_ONCE = 100


# Topic group and client id.
SessionKey: TypeAlias = tuple[int, str]
# (filters, place); () where nothing has happened since the row; None where nobody knows.
HandedOver: TypeAlias = tuple[bytes, bytes] | tuple[()] | None


class SessionStore(Protocol):
    """What the store tells of sessions."""

    def session(self, group: int, client_id: str) -> SessionSaved | None:
        """The durable row."""

    def sessions(self, group: int) -> Iterable[SessionSaved]:
        """All rows of a group, read in short steps; on any thread."""

    def due_sessions(self, now_us: int, limit: int, groups: Container[int]) -> list[tuple[int, SessionSaved]]:
        """Sessions of `groups` to which something is to happen by now."""


# More than 25 methods: one table, under a layer of the changes on their way.
class SessionHome:
    """Sessions whose home groups are led here."""

    def __init__(
        self,
        store: SessionStore,
        append: Callable[[int, ControlRecord, Callable[[Exception | None], None]], None],
        peers: dict[str, BrokerPeer],
        clock: Clock,
    ) -> None:
        self._store = store
        self._durable = SessionMemory(store.session)
        self._append = append
        self._peers = peers
        self._clock = clock
        self._changing: dict[tuple[int, str], tuple[SessionSaved | None, int]] = {}
        self._fleeting: dict[tuple[int, str], SessionSaved] = {}
        self._turns: OneAtATime[SessionKey] = OneAtATime()
        self._writes = 0
        self._standings = Standings()
        self.owners = SessionOwners(peers, clock)
        self._looking = False
        self._tasks: set[asyncio.Task[None]] = set()

    def get(self, group: int, client_id: str) -> SessionSaved | None:
        """The session as it will be."""
        fleeting = self._fleeting.get((group, client_id))
        return fleeting if fleeting is not None else self._lasting(group, client_id)

    def _lasting(self, group: int, client_id: str) -> SessionSaved | None:
        change = self._changing.get((group, client_id))
        return change[0] if change is not None else self._durable.get((group, client_id))

    # -- taken over

    def open(self, peer: BrokerPeer, group: int, client_id: str, asked: SessionClaim) -> Awaitable[SessionGrant]:
        """Give the session to `peer`; the owner until now is told to let go and hands over its last state.

        Asked again, because its answer was lost, it answers the same. That of another user is neither given nor
        disturbed: the grant names who that is. Raises StaleEpochError when the broker has asked for a later connection
        meanwhile, UnavailableError when a will that is due cannot be published.
        """
        return self._open_at_once(peer, (group, client_id), asked) or self._open(peer, (group, client_id), asked)

    def _open_at_once(self, peer: BrokerPeer, key: SessionKey, asked: SessionClaim) -> Awaitable[SessionGrant] | None:
        """The session of a client that comes (back), as most do: nobody owns it, or a broker that is gone, and no will
        is due."""
        if key in self._turns:
            return None
        try:
            current = self.get(*key)
        except LexicastError:
            return None  # it is told where it is tried again
        now_us = self._clock.time_us()
        goes_on = continues(current, asked.user, asked.clean, now_us)
        if current is not None and (
            self._reachable(current)
            or (current.owner, current.incarnation) == (peer.name, peer.incarnation)
            or due_will(current, goes_on, now_us)
        ):
            return None
        if belongs_elsewhere(current, asked.user, asked.over, now_us):
            return None
        saved = _taken_up(peer, key[1], asked, current, now_us)
        if current is not None and goes_on:
            filters, place = _state(current, None, self._standings.of(current))
            saved = saved._replace(uid=current.uid, filters=filters, place=place)
        granted: asyncio.Future[SessionGrant] = asyncio.get_running_loop().create_future()
        turn = self._turns.begin(key)

        def written(error: Exception | None) -> None:
            self._turns.end(key, turn)
            if error is None and peer.link.closed:
                self.owners.suspect(peer.name)
            if granted.done():
                return
            if error is None:
                granted.set_result(_grant(saved, goes_on))
            else:
                granted.set_exception(error)

        try:
            self._write_and(key, saved, written)
        except BaseException:  # or whoever comes next would wait for this turn for ever
            self._turns.end(key, turn)
            raise
        return granted

    async def _open(self, peer: BrokerPeer, key: SessionKey, asked: SessionClaim) -> SessionGrant:
        client_id = key[1]
        async with self._turns.of(key):
            current = self.get(*key)
            if current is not None and belongs_elsewhere(current, asked.user, asked.over, self._clock.time_us()):
                return SessionGrant(b"", 0, False, b"", b"", current.user)
            if current is not None and (current.owner, current.incarnation) == (peer.name, peer.incarnation):
                if current.connection == asked.connection:
                    return _grant(current, current.uid != asked.uid)
                if current.connection > asked.connection:
                    raise StaleEpochError(f"session {client_id!r}: a later connection has it")
            clean = asked.clean or (current is not None and current.user != asked.user)
            handed_over = await self._handed_over(current, clean)
            current = self.get(*key)
            if current is not None and not current.owner:
                handed_over = None  # it was let go meanwhile
            now_us = self._clock.time_us()
            goes_on = continues(current, asked.user, asked.clean, now_us)
            if current is not None and handed_over is None and (will := due_will(current, goes_on, now_us)):
                await self._publish_will(peer, client_id, will, current.user)
            saved = _taken_up(peer, client_id, asked, current, now_us)
            if current is not None and goes_on:
                filters, place = _state(current, handed_over, self._standings.of(current))
                saved = saved._replace(uid=current.uid, filters=filters, place=place)
            await self._write(key, saved)
            if peer.link.closed:
                self.owners.suspect(peer.name)
            return _grant(saved, goes_on)

    def _reachable(self, current: SessionSaved) -> BrokerPeer | None:
        """The owner of a session, where it can be asked; None: there is none, or it is gone."""
        owner = self._peers.get(current.owner)
        if owner is None or owner.incarnation != current.incarnation or owner.link.closed:
            return None
        return owner

    async def _handed_over(self, current: SessionSaved | None, clean: bool) -> HandedOver:
        """(filters, place) of the present owner; () when it has served nothing yet, and its row and will are no more
        than they were; None when there is no owner, or none that answers: then its row counts."""
        owner = None if current is None else self._reachable(current)
        if current is None or owner is None:
            return None
        try:
            async with asyncio.timeout(YIELD_TIMEOUT_S):
                answer = await owner.link.request("session_yield", current.client_id, current.generation, clean)
        except (LexicastError, TimeoutError):
            return None
        if answer is None:
            return None
        return tuple(answer)

    # -- what its owner says

    async def save(self, group: int, client_id: str, generation: int, left: SessionLeft) -> None:
        """Write what changed. Raises StaleEpochError."""
        current = self._owned(group, client_id, generation)
        saved = current._replace(
            expiry_s=left.expiry_s,
            expires_us=left.expires_us,
            will_us=left.will_us,
            filters=current.filters if left.filters is None else left.filters,
            place=left.place,
        )
        if left.expires_us:
            saved = saved._replace(owner="", incarnation=0, connection=0)
        if saved != current:
            await self._write((group, client_id), saved)

    async def end(self, group: int, client_id: str, generation: int) -> None:
        """Forget the session. Raises StaleEpochError."""
        self._owned(group, client_id, generation)
        await self._write((group, client_id), None)

    async def forgo(self, peer: BrokerPeer, group: int, client_id: str, connection: int) -> None:
        """`peer` has opened the session for this connection, which ended before it had the answer: it is nobody's,
        stands where it was, and has no will, for the connection was never accepted [MQTT-3.1.2-8]. One before it may
        be served there still, or have been: the session is that one's then."""
        key = group, client_id
        async with self._turns.of(key):
            current = self.get(*key)
            if current is None or (current.owner, current.incarnation) != (peer.name, peer.incarnation):
                return
            if current.connection == connection:
                left = orphaned(current._replace(will=b""), self._clock.time_us(), {})
                await self._write(key, left if current.expiry_s else None)

    def _owned(self, group: int, client_id: str, generation: int) -> SessionSaved:
        current = self.get(group, client_id)
        if current is None or current.generation != generation:
            raise StaleEpochError(f"session {client_id!r}: generation {generation} was taken over")
        return current

    def hold(self, peer: BrokerPeer, held: Iterable[SessionHeld]) -> list[tuple[str, int]]:
        """A broker's sessions, told again as its link comes back: those not written here are known again. Returns the
        (client id, generation) of those that it has lost meanwhile."""
        lost: list[tuple[str, int]] = []
        for group, client_id, uid, generation, connection, lasting, user in held:
            found = self.get(group, client_id)
            if found is not None and found.generation == generation:
                continue
            newer = found is None or ((group, client_id) in self._fleeting and found.generation < generation)
            if lasting or not newer:
                lost.append((client_id, generation))
                continue
            owner = (peer.name, peer.incarnation, connection)
            self._fleeting[group, client_id] = SessionSaved(
                client_id, uid, generation, *owner, 0, 0, 0, b"", b"", b"", user
            )
            if found is not None:
                self._spawn(self._let_go(found))
        return lost

    async def _let_go(self, older: SessionSaved) -> None:
        await self._handed_over(older, True)

    def stand(
        self, peer: BrokerPeer, below: int, floor: Mapping[int, int], exceptions: Mapping[int, bytes | None]
    ) -> None:
        """How far a broker's sessions have got; see `session_floor.Standing`. `floor` holds what has moved."""
        self._standings.tell((peer.name, peer.incarnation), below, floor, exceptions)

    # -- writing

    async def keep(self, group: int, session: SessionSaved) -> None:
        """Write a row that no broker owns, as it is; returns when that is durable. Raises LexicastError."""
        await self._write((group, session.client_id), session)

    async def _write(self, key: SessionKey, after: SessionSaved | None) -> None:
        """Have it be `after` (None: there is none); returns when that is durable."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def written(error: Exception | None) -> None:
            if not future.done():
                future.set_exception(error) if error is not None else future.set_result(None)

        self._write_and(key, after, written)
        await future

    def _write_and(
        self, key: SessionKey, after: SessionSaved | None, written: Callable[[Exception | None], None]
    ) -> None:
        """The same; `written(error)` when it is durable."""
        self._fleeting.pop(key, None)
        before = self._lasting(*key)
        fleeting = after is not None and not (after.expiry_s or after.will or (before and before.uid == after.uid))
        lasting = None if fleeting else after

        def done(error: Exception | None) -> None:
            if error is None and fleeting and after is not None:
                self._fleeting[key] = after
            written(error)

        if lasting is not None or before is not None:
            self._append_change(key, before, lasting, done)
        else:
            done(None)

    def _append_change(
        self,
        key: SessionKey,
        before: SessionSaved | None,
        after: SessionSaved | None,
        written: Callable[[Exception | None], None],
    ) -> None:
        self._writes += 1
        number = self._writes
        self._changing[key] = (after, number)

        def done(error: Exception | None) -> None:
            change = self._changing.get(key)
            if change is not None and change[1] == number:
                del self._changing[key]
            if error is None:
                self._durable.put(key, after)
            else:
                self._durable.forget(key)
            written(error)

        try:
            self._append(key[0], record_of(before, after), done)
        except BaseException:
            self._changing.pop(key, None)
            raise

    # -- groups that come and go

    def opened(self, groups: Sequence[int]) -> None:
        """Sessions of these groups live here from now on. Their owners tell of those that are not written; those whose
        owner is gone are looked for. What was read of them while others led them is out of date."""
        self._durable.forget_groups(set(groups))
        self.owners.suspect(ANY_BROKER)

    def closed(self, groups: Sequence[int]) -> None:
        """They live elsewhere from now on."""
        gone = set(groups)
        for key in [key for key in self._fleeting if key[0] in gone]:
            del self._fleeting[key]
        for key in [key for key in self._changing if key[0] in gone]:
            del self._changing[key]
        self._durable.forget_groups(gone)

    # -- those that nobody owns

    def sweep(self, groups: Collection[int]) -> None:
        """Call it often: what is due in these groups happens, a bounded number at a time. Raises StoreError."""
        for group, session in self._store.due_sessions(self._clock.time_us(), SETTLED_AT_ONCE, groups):
            if (group, session.client_id) not in self._turns and len(self._tasks) < SETTLED_AT_ONCE:
                self._spawn(self._settle(group, session.client_id))
        if not self._looking and self.owners.take_due():
            self._looking = True
            self._spawn(self._look_for_orphans(list(groups)))

    async def _look_for_orphans(self, groups: list[int]) -> None:
        """Take every session from an owner that is gone."""
        try:
            found = await asyncio.to_thread(
                lambda: [(g, s.client_id) for g in groups for s in self._store.sessions(g) if self.owners.is_gone(s)]
            )
            for at in range(0, len(found), SETTLED_AT_ONCE):
                await asyncio.gather(*[self._orphan(*key) for key in found[at : at + SETTLED_AT_ONCE]])
        except LexicastError as error:
            log.error("sessions whose broker is gone are looked for later: %s", error)
            self.owners.suspect(ANY_BROKER)
            return
        finally:
            self._looking = False
        for key in [key for key, session in self._fleeting.items() if self.owners.is_gone(session)]:
            del self._fleeting[key]
        self._standings.forget_before({name: peer.incarnation for name, peer in self._peers.items()})

    async def _orphan(self, group: int, client_id: str) -> None:
        async with self._turns.of((group, client_id)):
            session = self.get(group, client_id)
            if session is not None and self.owners.is_gone(session):
                left = orphaned(session, self.owners.gone_us(session), self._standings.of(session))
                await self._write((group, client_id), left)

    async def _settle(self, group: int, client_id: str) -> None:
        """Publish a will that is due, forget a session whose time is over."""
        async with self._turns.of((group, client_id)):
            session = self.get(group, client_id)
            now_us = self._clock.time_us()
            if session is None or session.owner:
                return
            over = has_expired(session, now_us)
            if session.will_us and (over or session.will_us <= now_us):
                if not await self._published(client_id, session.will, session.user):
                    return  # it still is due: the next sweep tries again
                session = session._replace(will_us=0)
            await self._write((group, client_id), None if over else session)

    async def _published(self, client_id: str, will: bytes, user: str) -> bool:
        """Have some broker publish a will; False when none can now."""
        for peer in [peer for peer in self._peers.values() if not peer.link.closed]:
            try:
                await self._publish_will(peer, client_id, will, user)
                return True
            except UnavailableError as error:
                log.debug("%s", error)
        return False

    async def _publish_will(self, peer: BrokerPeer, client_id: str, will: bytes, user: str) -> None:
        """Returns when it is stored, or is one that no broker can publish. Raises UnavailableError."""
        try:
            async with asyncio.timeout(WILL_TIMEOUT_S):
                await peer.link.request("session_will", client_id, will, user)
        except (UnavailableError, TimeoutError) as error:
            raise UnavailableError(f"{peer.name} has not published the will of {client_id!r}: {error}") from None
        except LexicastError as error:
            log.error("the will of %r cannot be published: %s", client_id, error)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._finished)

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if task.cancelled() or (error := task.exception()) is None:
            return
        if isinstance(error, LexicastError):
            log.warning("work for a session is left to the next sweep: %s", error)
        else:
            log.error("work for a session failed", exc_info=error)

    async def close(self) -> None:
        """Leave what is under way."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


def _taken_up(
    peer: BrokerPeer, client_id: str, asked: SessionClaim, current: SessionSaved | None, now_us: int
) -> SessionSaved:
    """A session that begins with this connection, after `current`."""
    return SessionSaved(
        client_id,
        asked.uid,
        # Never one that an ended session of this name had: what is still under way for that one must not match.
        now_us if current is None else max(current.generation + 1, now_us),
        peer.name,
        peer.incarnation,
        asked.connection,
        asked.expiry_s,
        0,
        0,
        asked.filters,
        asked.will,
        asked.place,
        asked.user,
    )


def _state(current: SessionSaved, handed_over: HandedOver, floor: Mapping[int, int]) -> tuple[bytes, bytes]:
    """(filters, place) to go on from."""
    if handed_over:
        return handed_over
    if not current.owner or handed_over is not None:
        return current.filters, current.place  # where it was left, nothing has happened since
    return current.filters, moved_on(current.place, floor)


def _grant(session: SessionSaved, present: bool) -> SessionGrant:
    return SessionGrant(session.uid, session.generation, present, session.filters, session.place, session.user)
