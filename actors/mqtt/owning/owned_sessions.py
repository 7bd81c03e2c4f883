"""A broker's MQTT sessions: opened and handed over through their home coordinator, saved, let go.

`OwnedSessions` performs what `session.Session` decides and `session_home` guards: a session is taken over there before
CONNACK. While it is served here, two things go to its home, so that after this broker's death it goes on elsewhere with
repeats, but without loss:

    every round       how far all sessions have got (`floor_telling`), kept in the home's memory: at most a round is
                      sent again when this broker dies
    now and then      the session's place, in the log: when all of the cluster dies. The most unsaved first
                      (`saving_order`), at most SAVES_A_ROUND a round

Wills of connections that end here are published here (`wills`); those that wait for their delay wait in the session's
home, and so do those that cannot be published now.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from hashlib import blake2b
from itertools import chain
from typing import TYPE_CHECKING, Any, Protocol

from lexicast.cluster.blocks import Block
from lexicast.cluster.clock import US_PER_S
from lexicast.cluster.errors import (
    LexicastError,
    NotOwnerError,
    PeerError,
    StaleEpochError,
    StoreFullError,
    UnavailableError,
)
from lexicast.cluster.positions import topic_group
from lexicast.cluster.protocol.sessions import SessionClaim, SessionGrant, SessionLeft, session_expires_us

from ...broker.pipelines.pipeline import Pipeline
from ...loop.turns import Turns
from ..codec.packets import Will
from ..session import Session, Unsettled
from ..session_state import filters_of, place_of, restoring, will_bytes, will_delay_s, writing_filters
from ..wills import WillPublisher
from .floor_telling import FloorTelling
from .forgone_sessions import ForgoneSessions
from .handed_over import HandedOverStates
from .saving_order import SavingOrder

if TYPE_CHECKING:
    from ...broker.engine import BrokerEngine
    from ..subscriber import MqttSubscriber

log = logging.getLogger(__name__)

SAVES_A_ROUND = 100
# Sessions that a home is told of at once when its link comes back.
HELD_AT_ONCE = 1_000
RETRY_S = 0.05
CLOSE_TIMEOUT_S = 5.0
# How long a home that asks for a session waits until it is saved and its will is stored: less than it waits for the
# answer.
LETTING_GO_S = 1.0
# So long after a session was handed over its home may not have written that: as long as it waits for the answer and for
# a will, and whoever leads its group next asks again.
YIELDED_S = 15.0
# A session that was let go and that its home has no room for is saved again after a while, which doubles.
FULL_AGAIN_FIRST_S = 0.25
FULL_AGAIN_MOST_S = 60.0
# What a session has that begins.
NO_FILTERS = filters_of(Session("", b"", 0))
NO_PLACE = place_of(Session("", b"", 0))


class Owner(Protocol):
    """The connection that serves a session."""

    session: Session
    subscriber: MqttSubscriber

    def taken_over(self, clean: bool) -> None:
        """Let the client go; the session is as it was left."""

    def snapshot(self) -> Session:
        """The session with its cursor as it stands."""


class OwnedSessions:
    """See the module's docstring."""

    def __init__(self, engine: BrokerEngine, knows_user: Callable[[str], bool]) -> None:
        """`knows_user`: whether there still is a user of this name; sessions of those that were are nobody's."""
        self._engine = engine
        self._knows_user = knows_user
        self.owners: dict[str, Owner] = {}
        self._saving: set[str] = set()
        # Sessions whose connection has ended here, by client id, until they are saved and their wills are out.
        self.letting_go: dict[str, asyncio.Task[None]] = {}
        # Wills of connections whose session was taken over, by client id, until they are stored.
        self._last_words: dict[str, asyncio.Task[None]] = {}
        # What is let go, and the numbers of the connections that have ended: till their homes have heard of that.
        self._going: dict[asyncio.Task[None], int] = {}
        # Client ids being opened here -> the numbers of the connections that do so; and up to which generation the home
        # has given them to others meanwhile.
        self._opening: dict[str, set[int]] = {}
        self._forgone = ForgoneSessions(self._ask_home)
        self._handed_over = HandedOverStates()
        # The numbers of connections whose session was handed over a moment ago: to its home it may be theirs still.
        self._yielded: set[int] = set()
        self._passed_on: dict[str, int] = {}
        self._connections = 0
        self._unsettled = Unsettled()
        self._telling = FloorTelling(engine, self.owners, self._unsettled)
        self._order = SavingOrder()
        self._checking: dict[str, asyncio.Task[None]] = {}
        self._wills = WillPublisher(engine.coordinators, engine.rights)
        # What a home may ask, by method name.
        self.requests: Mapping[str, Callable[..., Awaitable[Any]]] = {
            "session_yield": self._yield,
            "session_will": self._wills.publish_for_home,
        }

    def home(self, client_id: str) -> tuple[int, Pipeline]:
        """The group and the coordinator where the session lives. Raises UnavailableError."""
        group = topic_group(client_id.encode(), self._engine.groups)
        pipeline = self._engine.coordinators.pipeline_of(group)
        if pipeline is None:
            raise UnavailableError(f"no coordinator leads group {group} now")
        return group, pipeline

    async def _ask_home(self, method: str, client_id: str, *arguments: Any) -> Any:
        """A request to the session's home, again while that cannot be reached. Raises TimeoutError."""
        loop, limit_s = asyncio.get_running_loop(), self._engine.config.link.request_timeout_s
        until_s = loop.time() + limit_s
        while True:
            try:
                group, pipeline = self.home(client_id)
                # The link has a limit for it: to set one here too would cost as much as all else that is done here.
                return await pipeline.request(method, group, client_id, *arguments, timeout_s=until_s - loop.time())
            except UnavailableError:
                if loop.time() + RETRY_S > until_s:
                    raise TimeoutError(f"the home of {client_id!r} has not answered for {limit_s:.0f} s") from None
            await asyncio.sleep(RETRY_S)

    # -- opened

    @contextmanager
    def opening(self, session: Session) -> Iterator[None]:
        """Around `open` and `take`."""
        self._connections += 1
        session.connection = self._connections
        client_id = session.client_id
        self._opening.setdefault(client_id, set()).add(session.connection)
        try:
            yield
        finally:
            self._opening[client_id].discard(session.connection)
            if not self._opening[client_id]:
                del self._opening[client_id]
                self._passed_on.pop(client_id, None)

    async def open(self, clean: bool, session: Session) -> bool:
        """Take the session over and fill `session` with its state; then `take` it, or `let_go`. Whether it was there.

        `session` comes with the user, will and expiry of its new connection. Raises StaleEpochError when a later
        connection has it, NotOwnerError when it is another user's, TimeoutError, LexicastError.
        """
        try:
            return await self._open(clean, session)
        except (StaleEpochError, NotOwnerError):
            raise
        except BaseException:  # its home may have given it; so where this is cancelled
            self._forgone.forgo(session.client_id, session.connection)
            raise

    async def _open(self, clean: bool, session: Session) -> bool:
        asked = SessionClaim(
            clean,
            secrets.token_bytes(16),
            session.connection,
            session.expiry_s,
            will_bytes(session.will),
            NO_FILTERS,
            NO_PLACE,
            session.user,
        )
        opened = SessionGrant(*await self._ask_home("session_open", session.client_id, tuple(asked)))
        if opened.user not in ("", session.user) and not self._knows_user(opened.user):
            asked = asked._replace(over=opened.user)
            opened = SessionGrant(*await self._ask_home("session_open", session.client_id, tuple(asked)))
        if opened.user != session.user:
            raise NotOwnerError(f"session {session.client_id!r} belongs to another user")
        session.uid, session.generation = opened.uid, opened.generation
        present = opened.present
        if present:
            try:
                turns = Turns()
                for _ in restoring(session, opened.filters, opened.place):
                    await turns.give_way()
            except PeerError as error:
                log.error("session %r starts anew: %s", session.client_id, error)
                present = False
        self._saved(session, opened.filters)
        if session.subscriptions and not session.cursor:
            # It was left while its first filters were placed: where it stands is not saved yet, and it is asked for the
            # same filters again. Without a place it would begin anew where this broker dies.
            session.filters_saved = b""
        return present

    def take(self, owner: Owner, session: Session) -> bool:
        """Serve the session from now on; False when the home has given it to another connection meanwhile."""
        if session.generation <= self._passed_on.get(session.client_id, -1):
            return False
        if (before := self.owners.get(session.client_id)) is not None:
            before.session.unsettled = Unsettled()
        self.owners[session.client_id] = owner
        session.unsettled = self._unsettled
        self._unsettled.lagging[session.client_id] = None
        if session.in_flight:
            self._unsettled.in_flight[session.client_id] = None
        return True

    def leave(self, owner: Owner) -> None:
        """Its connection serves the session no more."""
        client_id = owner.session.client_id
        # Another connection's session of this name may enter itself: this one has no say any more.
        owner.session.unsettled = Unsettled()
        if self.owners.get(client_id) is owner:
            del self.owners[client_id]
            self._unsettled.forget(client_id)
            self._order.left(client_id)

    async def _yield(self, client_id: str, generation: int, clean: bool) -> tuple[bytes, bytes] | tuple[()]:
        """The session goes to another connection: end this one and hand over its state; () when it had not begun to be
        served. One that was handed over, or let go, before is handed over again, with what it had then. A will that is
        due is stored by then: once another connection has the session, nobody but this broker knows of it."""
        owner = self.owners.get(client_id)
        if owner is not None and owner.session.generation == generation:
            owner.taken_over(clean)
            state = filters_of(owner.session), place_of(owner.session, handed_over=True)
            self._handed_over.keep(client_id, generation, state)
            self._yielded.add(owner.session.connection)
            asyncio.get_running_loop().call_later(YIELDED_S, self._yielded.discard, owner.session.connection)
        under_way = [task for each in (self.letting_go, self._last_words) if (task := each.get(client_id)) is not None]
        if under_way:
            await asyncio.wait(under_way, timeout=LETTING_GO_S)
        found = self._handed_over.of(client_id, generation)
        if found is None and client_id in self._opening:
            self._passed_on[client_id] = max(generation, self._passed_on.get(client_id, -1))
        # One that was never served here stands where it was: how far this broker has got says nothing of it.
        return found or ()

    def resumed(self, pipeline: Pipeline) -> None:
        """A coordinator's link stands: what it keeps in memory only it is told again."""
        name = pipeline.member.name
        self._telling.forget(name)
        if name not in self._checking:
            task = self._checking[name] = asyncio.get_running_loop().create_task(self._check(pipeline))
            task.add_done_callback(lambda _: self._checking.pop(name))

    async def _check(self, pipeline: Pipeline) -> None:
        """Tell which sessions are served here, and let those go that have another owner by now."""
        served = [(owner, owner.session) for owner in self.owners.values()]
        mine = [(owner, session) for owner, session in served if self._is_home(pipeline, session.client_id)]
        for at in range(0, len(mine), HELD_AT_ONCE):
            page = mine[at : at + HELD_AT_ONCE]
            held = [
                (
                    topic_group(session.client_id.encode(), self._engine.groups),
                    session.client_id,
                    session.uid,
                    session.generation,
                    session.connection,
                    bool(session.expiry_s) or session.will is not None,
                    session.user,
                )
                for _, session in page
            ]
            try:
                lost = {(name, generation) for name, generation in await pipeline.request("sessions_hold", held)}
            except LexicastError as error:
                log.debug("sessions are told of when the link stands again: %s", error)
                return
            for owner, session in page:
                still = self.owners.get(session.client_id) is owner
                if still and (session.client_id, session.generation) in lost:
                    owner.taken_over(False)

    def _is_home(self, pipeline: Pipeline, client_id: str) -> bool:
        return self._engine.coordinators.pipeline_of(topic_group(client_id.encode(), self._engine.groups)) is pipeline

    # -- let go

    def let_go(self, session: Session, will: Will | None = None) -> None:
        """The connection ended: publish its will, if one is due, and keep the session until it expires, or end it."""
        client_id = session.client_id
        task = asyncio.get_running_loop().create_task(self._let_go(session, will))
        self.letting_go[client_id] = task
        self._going[task] = session.connection

        def done(_: object) -> None:
            del self._going[task]
            if self.letting_go.get(client_id) is task:
                del self.letting_go[client_id]

        task.add_done_callback(done)

    async def _let_go(self, session: Session, will: Will | None) -> None:
        now_us = self._engine.clock.time_us()
        wait_s = min(will_delay_s(will), session.expiry_s)
        published = will is None or (wait_s == 0 and await self._wills.publish(session.client_id, will, session.user))
        left = SessionLeft(
            session.expiry_s,
            session_expires_us(session.expiry_s, now_us),
            0 if published else now_us + wait_s * US_PER_S,
            filters_of(session),
            place_of(session, handed_over=True),
        )
        # Its home may give it to another connection before it has this.
        self._handed_over.keep(session.client_id, session.generation, (filters_of(session), left.place))
        again_s = 0.0
        while True:
            try:
                if left.expiry_s or left.will_us:
                    await self._ask_home("session_save", session.client_id, session.generation, tuple(left))
                else:
                    await self._ask_home("session_end", session.client_id, session.generation)
                return
            except StaleEpochError:
                # Taken over meanwhile: it belongs to another connection now.
                if will is not None and not published:
                    self.will_of_taken(session, will, False)
                return
            except StoreFullError as error:
                # Nobody else would do it, as below.
                again_s = min(max(2 * again_s, FULL_AGAIN_FIRST_S), FULL_AGAIN_MOST_S)
                log.warning("session %r cannot be saved now: %s", session.client_id, error)
                await asyncio.sleep(again_s)
            except TimeoutError:
                # Nobody else would do it: to its home this broker still serves the session.
                log.warning("session %r cannot be saved now: its home does not answer", session.client_id)
            except LexicastError as error:
                log.error("session %r could not be saved: %s", session.client_id, error)
                return

    # -- saved

    def _saved(self, session: Session, filters: bytes) -> None:
        session.filters_saved = _digest(filters)
        session.sent_saved = session.sent
        session.saved_s = self._engine.clock.monotonic()

    async def round(self) -> None:
        """Tell the homes how far the sessions have got, and save those that most need it.

        A home that does not answer holds up its own sessions and nobody else's: their saves go on beside later rounds.
        """
        below = min([min(numbers) for numbers in self._opening.values()], default=self._connections + 1)
        # To its home a session that was let go, handed over or never taken is served here until that is written.
        unknown = self._going.values(), self._forgone.connections, self._yielded
        await self._telling.tell(below, lambda: [*chain(*unknown)])
        self._order.sent_to(self._unsettled.sent_to)
        self._unsettled.sent_to.clear()
        # Who always has something in flight enters `sent_to` only once.
        self._order.sent_to(self._unsettled.in_flight)
        turns = Turns()
        asked = self.owners, self._engine.clock.monotonic(), SAVES_A_ROUND, self._saving
        for _ in self._order.choosing(*asked):
            await turns.give_way()
        for client_id in self._order.take(*asked):
            self._save_beside(client_id)
            await turns.give_way()

    def _save_beside(self, client_id: str) -> None:
        def saved(error: Exception | None) -> None:
            self._saving.discard(client_id)
            if error is not None:
                log.debug("session %r is saved later: %s", client_id, error)

        owner = self.owners.get(client_id)
        if owner is not None:
            self._saving.add(client_id)
            self._save(owner, saved)

    async def save_now(self, client_id: str, owner: Owner) -> None:
        """Save a session whose subscriptions have changed; returns when that is durable, or when `owner` serves it no
        more. Raises LexicastError, TimeoutError.
        """
        turns = Turns()
        for _ in writing_filters(owner.session):
            await turns.give_way()
        if _digest(filters_of(owner.session)) == owner.session.filters_saved:
            return  # most devices subscribe at every connect to what they are subscribed to
        async with asyncio.timeout(self._engine.config.link.request_timeout_s):
            while self.owners.get(client_id) is owner:
                try:
                    await self._try_save(owner)
                    return
                except UnavailableError:
                    pass
                await asyncio.sleep(RETRY_S)

    async def _try_save(self, owner: Owner) -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def saved(error: Exception | None) -> None:
            if not future.done():
                future.set_exception(error) if error is not None else future.set_result(None)

        self._save(owner, saved)
        await future

    def _save(self, owner: Owner, saved: Callable[[Exception | None], None]) -> None:
        """Save the session as it is now; `saved(error)` when that is durable, or another connection has it."""
        session = owner.snapshot()
        filters, sent = filters_of(session), session.sent
        same = _digest(filters) == session.filters_saved
        left = SessionLeft(session.expiry_s, 0, 0, None if same else filters, place_of(session))

        def done(error: Exception | None, _: Any) -> None:
            if error is None:
                self._saved(session, filters)
                session.sent_saved = sent
            elif isinstance(error, StaleEpochError):
                error = None
                if self.owners.get(session.client_id) is owner:
                    owner.taken_over(False)
            saved(error)

        try:
            group, pipeline = self.home(session.client_id)
        except UnavailableError as error:
            saved(error)
        else:
            pipeline.call(done, "session_save", group, session.client_id, session.generation, tuple(left))

    # -- wills

    def will_of_taken(self, session: Session, will: Will, clean: bool) -> None:
        """A session was taken over: its will is due unless it was to wait for just that. A clean start ends the
        session, and so does its connection's end where it has no expiry."""
        ended = clean or session.expiry_s == 0
        if ended or not will_delay_s(will):
            task = self._wills.publish_kept(session.client_id, will, session.user)
            self._last_words[session.client_id] = task
            task.add_done_callback(partial(self._said, session.client_id))

    def _said(self, client_id: str, task: asyncio.Task[None]) -> None:
        if self._last_words.get(client_id) is task:
            del self._last_words[client_id]

    # -- publications of earlier connections

    async def content(self, positions: Iterable[tuple[int, int]]) -> dict[tuple[int, int], Block]:
        """Single records by (group, offset), as far as they are still kept. Raises LexicastError, TimeoutError."""
        by_group: dict[int, list[int]] = {}
        for group, offset in positions:
            by_group.setdefault(group, []).append(offset)
        found: dict[tuple[int, int], Block] = {}
        async with asyncio.timeout(self._engine.config.link.request_timeout_s):
            for group, offsets in by_group.items():
                for wire in await self._records(group, sorted(offsets)):
                    block = Block.from_wire(wire)
                    found[group, block.first + block.meta.runs[0].skip] = block
        return found

    async def _records(self, group: int, offsets: list[int]) -> Any:
        while True:
            pipeline = self._engine.coordinators.pipeline_of(group)
            try:
                if pipeline is not None:
                    return await pipeline.request("records", group, offsets)
            except UnavailableError:
                pass
            await asyncio.sleep(RETRY_S)

    async def close(self) -> None:
        """Returns when the wills are out and what was let go is saved, or after CLOSE_TIMEOUT_S: then the homes do it
        when they find this broker gone."""
        work: list[asyncio.Future[Any]] = [*self.letting_go.values(), *self._wills.waiting]
        if work:
            await asyncio.wait(work, timeout=CLOSE_TIMEOUT_S)
        for task in [*self.letting_go.values(), *self._checking.values()]:
            task.cancel()
        self._forgone.close()
        self._wills.close()


def _digest(filters: bytes) -> bytes:
    return blake2b(filters, digest_size=16).digest()
