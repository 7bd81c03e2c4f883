"""A broker's MQTT sessions: opened and handed over through their home coordinator, saved, ended; and their wills.

`Sessions` performs what `session.Session` decides and `session_home` guards: a session is taken over there before
CONNACK; while it is served here its state is saved now and then (at most SAVES_A_ROUND a round), so that after this
broker's death it goes on elsewhere with repeats, but without loss.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Coroutine, Iterable, Iterator
from contextlib import contextmanager
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from lexicast.cluster.blocks import RETAIN, Block
from lexicast.cluster.errors import LexicastError, PeerError, StaleEpochError, UnavailableError
from lexicast.cluster.positions import topic_group
from lexicast.cluster.properties import carried
from lexicast.cluster.records import SessionSaved

from .mqtt_packets import Will
from .mqtt_properties import WILL_DELAY_S, expiry_ms
from .pipeline import Pipeline
from .session import Session
from .session_home import Opened
from .session_state import from_state, to_state

if TYPE_CHECKING:
    from .engine import Engine

log = logging.getLogger(__name__)

SAVES_A_ROUND = 500
NEVER_US = 2**63 - 1
NEVER_S = 2**32 - 1
RETRY_S = 0.05
CLOSE_TIMEOUT_S = 5.0


class Owner(Protocol):
    """The connection that serves a session."""

    session: Session

    def taken_over(self, clean: bool) -> bytes:
        """Let the client go; its last state."""

    def snapshot(self) -> Session:
        """The session with its cursor as it stands."""


class DelayedWill(NamedTuple):
    """A will that waits for its delay."""

    session: Session
    will: Will
    task: asyncio.Task[None]


class Sessions:
    """See the module's docstring."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.owners: dict[str, Owner] = {}
        self._letting_go: dict[str, asyncio.Task[bool]] = {}
        # Client ids being opened here -> how many connections do so, and up to which generation the home has given
        # them to others meanwhile.
        self._opening: dict[str, int] = {}
        self._passed_on: dict[str, int] = {}
        # Digests of the states last saved.
        self._saved: dict[str, bytes] = {}
        self._delayed: dict[str, DelayedWill] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._next_round: list[str] = []
        engine.requests["session_yield"] = self._yield
        engine.adopt_orphans(self._adopt_orphans)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def home(self, client_id: str) -> tuple[int, Pipeline]:
        """The group and the coordinator where the session lives. Raises UnavailableError."""
        group = topic_group(client_id.encode(), self._engine.groups)
        pipeline = self._engine.pipeline_of(group)
        if pipeline is None:
            raise UnavailableError(f"no coordinator leads group {group} now")
        return group, pipeline

    async def _ask_home(self, method: str, client_id: str, *arguments: Any) -> Any:
        """A request to the session's home, again while that cannot be reached. Raises TimeoutError."""
        async with asyncio.timeout(self._engine.config.link.request_timeout_s):
            while True:
                try:
                    group, pipeline = self.home(client_id)
                    return await pipeline.request(method, group, client_id, *arguments)
                except UnavailableError:
                    await asyncio.sleep(RETRY_S)

    # -- life of a session

    @contextmanager
    def opening(self, client_id: str) -> Iterator[None]:
        """Around `open` and `take`."""
        self._opening[client_id] = self._opening.get(client_id, 0) + 1
        try:
            yield
        finally:
            self._opening[client_id] -= 1
            if not self._opening[client_id]:
                del self._opening[client_id]
                self._passed_on.pop(client_id, None)

    async def open(self, client_id: str, clean: bool, session: Session) -> Opened:
        """Take the session over and fill `session` with its state; then `take` it, or `let_go`.

        `session` comes with the will and expiry of its new connection. Raises TimeoutError, LexicastError.
        """
        expiry_s, will = session.expiry_s, session.will
        session.uid = secrets.token_bytes(16)
        opened = Opened(*await self._ask_home("session_open", client_id, clean, session.uid, to_state(session)))
        if opened.present:
            try:
                from_state(session, opened.state)
            except PeerError as error:
                log.error("session %r: its saved state cannot be read and starts anew: %s", client_id, error)
                opened = opened._replace(present=False)
        session.uid, session.generation = opened.uid, opened.generation
        if opened.present and session.will is not None:
            # Its broker died, and nobody else has published it.
            self.will_of_taken(session, session.will, clean)
        session.expiry_s, session.will = expiry_s, will
        self._settle_delayed(client_id, continued=opened.present)
        return opened

    def take(self, client_id: str, owner: Owner, session: Session) -> bool:
        """Serve the session from now on; False when the home has given it to another connection meanwhile."""
        if session.generation <= self._passed_on.get(client_id, -1):
            return False
        self.owners[client_id] = owner
        return True

    def let_go(self, session: Session) -> None:
        """The connection ended: keep the session until it expires, or end it."""
        client_id = session.client_id
        self._saved.pop(client_id, None)
        task = asyncio.get_running_loop().create_task(self._let_go(session))
        self._letting_go[client_id] = task

        def done(_: object) -> None:
            if self._letting_go.get(client_id) is task:
                del self._letting_go[client_id]

        task.add_done_callback(done)

    async def _let_go(self, session: Session) -> bool:
        """Whether the session still was this broker's to let go."""
        try:
            if session.expiry_s == 0:
                await self._ask_home("session_end", session.client_id, session.generation)
                return True
            expires_us = NEVER_US
            if session.expiry_s != NEVER_S:
                expires_us = self._engine.clock.time_us() + session.expiry_s * 1_000_000
            state = to_state(session)
            await self._ask_home("session_save", session.client_id, session.generation, expires_us, state)
        except StaleEpochError:
            return False  # taken over meanwhile: it belongs to another connection now
        except (LexicastError, TimeoutError) as error:
            log.warning("session %r could not be saved: %s", session.client_id, error)
        return True

    async def _yield(self, client_id: str, generation: int, clean: bool) -> bytes | None:
        """The session goes to another connection: end this one and hand over its state."""
        owner = self.owners.get(client_id)
        if owner is not None and owner.session.generation == generation:
            return owner.taken_over(clean)
        letting_go = self._letting_go.get(client_id)
        if letting_go is not None:
            await asyncio.wait([letting_go])
        if client_id in self._opening:
            self._passed_on[client_id] = max(generation, self._passed_on.get(client_id, -1))
        return None

    async def save_round(self) -> None:
        """Save the sessions whose state has changed since they were saved, a bounded number at a time."""
        if not self._next_round:
            self._next_round = [c for c, o in self.owners.items() if o.session.expiry_s or o.session.will is not None]
        batch, self._next_round = self._next_round[:SAVES_A_ROUND], self._next_round[SAVES_A_ROUND:]
        await asyncio.gather(*[self._save(client_id) for client_id in batch])

    def save_soon(self, client_id: str) -> None:
        """Save a session without anybody waiting for it."""
        self._spawn(self._save(client_id))

    async def save_now(self, client_id: str, owner: Owner) -> None:
        """Save a session; returns when that is durable, or when `owner` serves it no more.

        Raises LexicastError, TimeoutError.
        """
        async with asyncio.timeout(self._engine.config.link.request_timeout_s):
            while self.owners.get(client_id) is owner:
                try:
                    await self._try_save(client_id, owner)
                    return
                except UnavailableError:
                    await asyncio.sleep(RETRY_S)

    async def _save(self, client_id: str) -> None:
        owner = self.owners.get(client_id)
        if owner is None:
            return
        try:
            await self._try_save(client_id, owner)
        except LexicastError as error:
            log.debug("session %r is saved later: %s", client_id, error)

    async def _try_save(self, client_id: str, owner: Owner) -> None:
        session = owner.snapshot()
        state = to_state(session)
        digest = blake2b(state, digest_size=16).digest()
        if self._saved.get(client_id) == digest:
            return
        group, pipeline = self.home(client_id)
        try:
            await pipeline.request("session_save", group, client_id, session.generation, 0, state)
        except StaleEpochError:
            if self.owners.get(client_id) is owner:
                owner.taken_over(False)
        else:
            if self.owners.get(client_id) is owner:
                self._saved[client_id] = digest

    # -- wills

    def publish_will(self, session: Session, will: Will) -> None:
        """Publish a will now, or when its delay has passed and the session has not been taken up [MQTT-3.1.3-9]."""
        delay_s = min(int((will.properties or {}).get(WILL_DELAY_S, 0)), session.expiry_s)
        if delay_s == 0:
            self._publish_will(session.client_id, will)
            return
        self._settle_delayed(session.client_id, continued=False)
        task = self._spawn(self._will_later(session, will, delay_s))
        self._delayed[session.client_id] = DelayedWill(session, will, task)

    def will_of_taken(self, session: Session, will: Will, clean: bool) -> None:
        """A session was taken over: its will is due unless it was to wait for just that; a clean start ends it."""
        if clean or not (will.properties or {}).get(WILL_DELAY_S):
            self._publish_will(session.client_id, will)

    def _settle_delayed(self, client_id: str, continued: bool) -> None:
        """The client is back on this broker: its session goes on and there is no will, or has ended and it is due."""
        delayed = self._delayed.pop(client_id, None)
        if delayed is not None:
            delayed.task.cancel()
            if not continued:
                self._publish_will(client_id, delayed.will)

    async def _will_later(self, session: Session, will: Will, delay_s: int) -> None:
        await asyncio.sleep(delay_s)
        client_id = session.client_id
        try:
            found = await self._ask_home("session_generation", client_id)
        except (LexicastError, TimeoutError):
            found = None
        self._delayed.pop(client_id, None)
        # Gone, or never taken up again, or begun anew: only a session that went on elsewhere keeps its will back.
        if found is None or found[0] != session.uid or found[1] == session.generation:
            self._publish_will(client_id, will)

    def _publish_will(self, client_id: str, will: Will) -> None:
        properties = will.properties or {}
        flags = will.qos | (RETAIN if will.retain else 0)
        try:
            self._engine.publish(
                will.topic,
                flags,
                [will.payload],
                client_id,
                expiry_ms=expiry_ms(properties),
                properties=carried(properties),
            )
        except UnavailableError as error:
            log.error("the will of %r could not be published: %s", client_id, error)

    def _adopt_orphans(self, orphans: Iterable[tuple[int, tuple[Any, ...]]]) -> None:
        """Sessions that an earlier incarnation of this broker died with: they have no owner, their wills are due."""
        for _, fields in orphans:
            saved = SessionSaved(*fields)
            if saved.client_id not in self.owners:
                self._spawn(self._adopt(saved))

    async def _adopt(self, saved: SessionSaved) -> None:
        session = Session(saved.client_id, saved.uid, saved.generation)
        try:
            from_state(session, saved.state)
        except PeerError as error:
            log.error("session %r: %s", saved.client_id, error)
        will, session.will = session.will, None
        # Whoever has taken it over meanwhile has found the will in its state.
        if await self._let_go(session) and will is not None:
            self.publish_will(session, will)

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
            pipeline = self._engine.pipeline_of(group)
            try:
                if pipeline is not None:
                    return await pipeline.request("records", group, offsets)
            except UnavailableError:
                pass
            await asyncio.sleep(RETRY_S)

    async def close(self) -> None:
        """Publish the wills that wait (this broker will not be there when they are due) and wait until what was let go
        is saved."""
        for client_id in list(self._delayed):
            self._settle_delayed(client_id, continued=False)
        if self._letting_go:
            await asyncio.wait(list(self._letting_go.values()), timeout=CLOSE_TIMEOUT_S)
        for task in list(self._tasks):
            task.cancel()
