"""A home of sessions whose table becomes durable when a test says so, and the brokers that own them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any

from lexicast.actors.coordinator.peers import BrokerPeer
from lexicast.actors.coordinator.session_home import SessionHome
from lexicast.actors.mqtt.codec.packets import Will
from lexicast.actors.mqtt.session import Session
from lexicast.actors.mqtt.session_state import filters_of, place_of, restore, will_bytes
from lexicast.cluster.clock import ManualClock
from lexicast.cluster.protocol.sessions import SessionClaim, SessionGrant, SessionLeft
from lexicast.cluster.records import ControlRecord, SessionEnded, SessionMoved, SessionSaved
from lexicast.storage.tables.sessions import due_us

from .harness import eventually

GROUP = 2
CLIENT = "client"
HOUR = 3_600
NEVER = 2**63 - 1
US = 1_000_000
NOTHING_YET, NOBODY = (), None
WILL = will_bytes(Will(b"w", b"gone"))
WAITS = will_bytes(Will(b"w", b"gone", properties={24: 60}))


class Link:
    """A broker's link that answers `session_yield` as the test says, and takes wills."""

    def __init__(self, answer: Any) -> None:
        self.closed = False
        self.answer = answer
        self.asked: list[tuple[Any, ...]] = []
        self.wills: list[bytes] = []
        self.will_users: list[str] = []
        self.will_error: Exception | None = None

    def request(self, method: str, *what: Any) -> asyncio.Future[Any]:
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        if method == "session_will":
            if self.will_error is None:
                self.wills.append(what[1])
                self.will_users.append(what[2])
                future.set_result(None)
            else:
                future.set_exception(self.will_error)
            return future
        self.asked.append((method, *what))
        if isinstance(self.answer, Exception):
            future.set_exception(self.answer)
        elif self.answer is not Ellipsis:  # an owner that does not answer
            future.set_result(self.answer)
        return future


class Table:
    """What is durable."""

    def __init__(self) -> None:
        self.rows: dict[tuple[int, str], SessionSaved] = {}

    def session(self, group: int, client_id: str) -> SessionSaved | None:
        return self.rows.get((group, client_id))

    def sessions(self, group: int) -> Iterable[SessionSaved]:
        return [row for (number, _), row in self.rows.items() if number == group]

    def due_sessions(self, now_us: int, limit: int, groups: object = None) -> list[tuple[int, SessionSaved]]:
        return [(group, row) for (group, _), row in self.rows.items() if 0 < due_us(row) <= now_us][:limit]


class Home:
    """`Sessions` over a table that becomes durable when the test says so."""

    def __init__(self) -> None:
        self.table = Table()
        self.rows = self.table.rows
        self.log: list[ControlRecord] = []
        self.waiting: list[tuple[ControlRecord, Callable[[Exception | None], None]]] = []
        self.holds = False
        self.peers: dict[str, BrokerPeer] = {}
        self.clock = ManualClock()
        self.start()

    def start(self) -> None:
        """A coordinator that knows what is durable."""
        self.peers.clear()
        self.sessions = SessionHome(self.table, self.append, self.peers, self.clock)

    def append(self, group: int, record: ControlRecord, done: Callable[[Exception | None], None]) -> None:
        assert group == GROUP
        self.log.append(record)
        self.waiting.append((record, done))
        if not self.holds:
            asyncio.get_running_loop().call_soon(self.commit)

    def commit(self, error: Exception | None = None) -> None:
        waiting, self.waiting = self.waiting, []
        for record, done in waiting:
            if error is None:
                self.apply(record)
            done(error)

    def apply(self, record: ControlRecord) -> None:
        match record:
            case SessionSaved():
                self.rows[GROUP, record.client_id] = record
            case SessionMoved():
                changed = {name: getattr(record, name) for name in record._fields if getattr(record, name) != b""}
                self.rows[GROUP, record.client_id] = self.rows[GROUP, record.client_id]._replace(**changed)
            case SessionEnded():
                self.rows.pop((GROUP, record.client_id), None)

    def broker(self, name: str, answer: Any = NOBODY, incarnation: int = 1) -> BrokerPeer:
        link: Any = Link(answer)
        known = self.peers.get(name)
        peer = self.peers[name] = BrokerPeer(name, incarnation, link)
        self.sessions.owners.linked(peer, known is None or known.incarnation < incarnation)
        return peer

    def lose(self, peer: BrokerPeer) -> None:
        """The broker's link breaks."""
        link(peer).closed = True
        self.sessions.owners.unlinked(peer.name)

    async def open(self, peer: BrokerPeer, connection: int = 1, **asked: Any) -> SessionGrant:
        known: dict[str, Any] = {
            "clean": False,
            "uid": b"new",
            "connection": connection,
            "expiry_s": HOUR,
            "will": b"",
            "filters": b"",
            "place": b"begin",
        }
        return await self.sessions.open(peer, GROUP, CLIENT, SessionClaim(**known | asked))

    async def save(self, generation: int, place: bytes, filters: bytes | None = None) -> None:
        await self.sessions.save(GROUP, CLIENT, generation, SessionLeft(HOUR, 0, 0, filters, place))

    async def leave(
        self, generation: int, place: bytes = b"left", expires_us: int = NEVER, will_us: int = 0, expiry_s: int = HOUR
    ) -> None:
        await self.sessions.save(GROUP, CLIENT, generation, SessionLeft(expiry_s, expires_us, will_us, None, place))

    async def sweep(self, seconds: float = 0.0) -> None:
        """Time passes; what is due then happens."""
        self.clock.advance(seconds)
        for _ in range(3):
            self.sessions.sweep([GROUP])
            await eventually(lambda: not self.sessions._tasks)

    def get(self) -> SessionSaved | None:
        return self.sessions.get(GROUP, CLIENT)

    def row(self) -> SessionSaved:
        return self.rows[GROUP, CLIENT]


def link(peer: BrokerPeer) -> Any:
    return peer.link


def place(cursor: int, received: bool = False) -> bytes:
    session = Session(CLIENT, b"u", 1)
    session.cursor, session.received = {GROUP: cursor}, {5: 1}
    return place_of(session, received)


def read(filters: bytes, found: bytes) -> Session:
    session = Session(CLIENT, b"u", 1)
    restore(session, filters or filters_of(session), found)
    return session
