"""A broker's MQTT sessions: opened and handed over through their home coordinator, saved, ended; and their wills.

`Sessions` performs what `session.Session` decides and `session_home` guards: a session is taken over there before
CONNACK; while it is served here its state is saved now and then (at most SAVES_A_ROUND a round), so that after this
broker's death it goes on elsewhere with repeats, but without loss.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Protocol

from lexicast.cluster.blocks import RETAIN, Block
from lexicast.cluster.errors import LexicastError, PeerError, StaleEpochError, UnavailableError
from lexicast.cluster.positions import topic_group
from lexicast.cluster.properties import carried
from lexicast.cluster.records import SessionSaved

from .mqtt_packets import Will
from .mqtt_properties import MESSAGE_EXPIRY_S, WILL_DELAY_S
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


class Owner(Protocol):
    """The connection that serves a session."""

    session: Session

    def taken_over(self) -> bytes:
        """Let the client go; its last state."""

    def snapshot(self) -> Session:
        """The session with its cursor as it stands."""


class Sessions:
    """See the module's docstring."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.owners: dict[str, Owner] = {}
        self._letting_go: dict[str, asyncio.Task[None]] = {}
        self._saved: dict[str, bytes] = {}
        self._wills: set[asyncio.Task[None]] = set()
        self._next_round: list[str] = []
        engine.requests["session_yield"] = self._yield
        engine.orphans = self._adopt_orphans

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

    async def open(self, client_id: str, clean: bool, session: Session) -> Opened:
        """Take the session over and fill `session` with its state. Raises TimeoutError, LexicastError."""
        uid = secrets.token_bytes(16)
        opened = Opened(*await self._ask_home("session_open", client_id, clean, uid))
        if opened.present and opened.state:
            try:
                from_state(session, opened.state)
            except PeerError as error:
                log.error("session %r: its saved state cannot be read and starts anew: %s", client_id, error)
                opened = opened._replace(present=False)
        session.uid, session.generation = opened.uid, opened.generation
        return opened

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

    async def _let_go(self, session: Session) -> None:
        try:
            if session.expiry_s == 0:
                await self._ask_home("session_end", session.client_id, session.generation)
                return
            expires_us = NEVER_US
            if session.expiry_s != NEVER_S:
                expires_us = self._engine.clock.time_us() + session.expiry_s * 1_000_000
            state = to_state(session)
            await self._ask_home("session_save", session.client_id, session.generation, expires_us, state)
        except StaleEpochError:
            pass  # taken over meanwhile: it belongs to another connection now
        except (LexicastError, TimeoutError) as error:
            log.warning("session %r could not be saved: %s", session.client_id, error)

    async def _yield(self, client_id: str, generation: int) -> bytes | None:
        """The session goes to another connection: end this one and hand over its state."""
        letting_go = self._letting_go.get(client_id)
        if letting_go is not None:
            await asyncio.wait([letting_go])
            return None
        owner = self.owners.get(client_id)
        if owner is None or owner.session.generation != generation:
            return None
        return owner.taken_over()

    async def save_round(self) -> None:
        """Save the sessions whose state has changed since they were saved, a bounded number at a time."""
        if not self._next_round:
            self._next_round = [c for c, owner in self.owners.items() if owner.session.expiry_s]
        batch, self._next_round = self._next_round[:SAVES_A_ROUND], self._next_round[SAVES_A_ROUND:]
        await asyncio.gather(*[self._save(client_id) for client_id in batch])

    async def _save(self, client_id: str) -> None:
        owner = self.owners.get(client_id)
        if owner is None:
            return
        session = owner.snapshot()
        state = to_state(session)
        if self._saved.get(client_id) == state:
            return
        try:
            group, pipeline = self.home(client_id)
            await pipeline.request("session_save", group, client_id, session.generation, 0, state)
        except StaleEpochError:
            if self.owners.get(client_id) is owner:
                owner.taken_over()
        except LexicastError as error:
            log.debug("session %r is saved later: %s", client_id, error)
        else:
            if self.owners.get(client_id) is owner:
                self._saved[client_id] = state

    # -- wills

    def publish_will(self, session: Session, will: Will) -> None:
        """Publish a will now, or when its delay has passed and the session has not been taken up [MQTT-3.1.3-9]."""
        delay_s = int((will.properties or {}).get(WILL_DELAY_S, 0))
        delay_s = min(delay_s, session.expiry_s)
        if delay_s == 0:
            self._publish_will(session.client_id, will)
            return
        task = asyncio.get_running_loop().create_task(self._will_later(session, will, delay_s))
        self._wills.add(task)
        task.add_done_callback(self._wills.discard)

    async def _will_later(self, session: Session, will: Will, delay_s: int) -> None:
        await asyncio.sleep(delay_s)
        try:
            generation = await self._ask_home("session_generation", session.client_id)
        except (LexicastError, TimeoutError):
            generation = session.generation
        if generation in (None, session.generation):
            self._publish_will(session.client_id, will)

    def _publish_will(self, client_id: str, will: Will) -> None:
        properties = will.properties or {}
        expiry_ms = int(properties.get(MESSAGE_EXPIRY_S, 0)) * 1000
        flags = will.qos | (RETAIN if will.retain else 0)
        try:
            self._engine.publish(
                will.topic, flags, [will.payload], client_id, expiry_ms=expiry_ms, properties=carried(properties)
            )
        except UnavailableError as error:
            log.error("the will of %r could not be published: %s", client_id, error)

    def _adopt_orphans(self, pipeline: Pipeline, orphans: Iterable[tuple[int, tuple[Any, ...]]]) -> None:
        """Sessions that an earlier incarnation of this broker died with: their wills are due, they have no owner."""
        for _, fields in orphans:
            saved = SessionSaved(*fields)
            session = Session(saved.client_id, saved.uid, saved.generation)
            try:
                if saved.state:
                    from_state(session, saved.state)
            except PeerError as error:
                log.error("session %r: %s", saved.client_id, error)
            if session.will is not None:
                self.publish_will(session, session.will)
                session.will = None
            if saved.client_id not in self.owners:
                self.let_go(session)

    # -- publications of earlier connections

    async def content(self, positions: Iterable[tuple[int, int]]) -> dict[tuple[int, int], Block]:
        """Single records by (group, offset), as far as they are still kept."""
        by_group: dict[int, list[int]] = {}
        for group, offset in positions:
            by_group.setdefault(group, []).append(offset)
        found: dict[tuple[int, int], Block] = {}
        for group, offsets in by_group.items():
            pipeline = self._engine.pipeline_of(group)
            if pipeline is None:
                continue
            for wire in await pipeline.request("records", group, sorted(offsets)):
                block = Block.from_wire(wire)
                found[group, block.first + block.meta.runs[0].skip] = block
        return found

    async def close(self) -> None:
        """Wait until what was let go is saved."""
        for task in list(self._wills):
            task.cancel()
        if self._letting_go:
            await asyncio.wait(list(self._letting_go.values()), timeout=5.0)
