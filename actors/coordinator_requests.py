"""What brokers ask of a coordinator beside publishing: dispatch; sessions, QoS 2 and dictionaries.

Subscriptions are in `interest`, catching up in `past`, retained publications in `retained`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from lexicast.cluster.errors import LexicastError, PeerError, UsageError
from lexicast.cluster.records import (
    ControlRecord,
    DictionaryStored,
    Released,
    SessionEnded,
    SessionSaved,
)
from lexicast.cluster.requests import COORDINATOR
from lexicast.cluster.shapes import GROUP, check_request

from .interest import Interest
from .link import Link
from .past import Past
from .peers import BrokerPeer
from .retained import RetainedRequests

if TYPE_CHECKING:
    from .coordinator import CoordinatorServer

log = logging.getLogger(__name__)

FETCH_BYTES_MAX = 4 * 1024 * 1024
READ_STEP_BYTES = 1024 * 1024
# A tail of at most this many records is read in the event loop, so that the answer can say "and from here on live".
TAIL_RECORDS_MAX = 20_000
SESSIONS_EXPIRED_AT_ONCE = 1_000
# Records of one `records` request: a session's window is smaller.
RECORDS_MAX = 65_535
EXPIRY_PERIOD_US = 5_000_000
TIME_MAX_US = 2**63 - 1
# Topics whose match is remembered for the length of one request.
TOPICS_REMEMBERED = 10_000


class CoordinatorRequests:
    """Dispatch and the requests themselves."""

    def __init__(self, server: CoordinatorServer) -> None:
        self._server = server
        self.past = past = Past(server)
        retained = RetainedRequests(server)
        self.interest = interest = Interest(server, past)
        self._expired_us = 0
        self._now: dict[str, Callable[..., Any]] = {
            "resume": interest.resume,
            "register": interest.register,
            "serve": interest.serve,
            "adopted": interest.adopted,
            "subscribe": interest.subscribe,
            "unsubscribe": interest.unsubscribe,
            "offsets_at": past.offsets_at,
            "first_kept": past.first_kept,
            "records": past.records,
            "session_generation": self.session_generation,
            "dictionary": self.dictionary,
            "dictionary_put": self.dictionary_put,
            "status": lambda peer: self._server.status(),
        }
        self._later: dict[str, Callable[..., Any]] = {
            "fetch": past.fetch,
            "retained": retained.retained,
            "session_open": self.session_open,
            "session_save": self.session_save,
            "session_end": self.session_end,
            "release": self.release,
        }

    def handle(self, link: Link, number: int, method: str, arguments: tuple[Any, ...]) -> None:
        """Run one request and answer it."""
        peer = self._server.routing.peers.get(link.name)
        if method != "resume" and (peer is None or peer.link is not link):
            raise PeerError(f"{link.name} asks for {method} before `resume`")
        check_request(COORDINATOR, method, arguments)
        try:
            if COORDINATOR.get(method, ())[:1] == (GROUP,):
                self._server.sequencer.check_led(arguments[0])
        except UsageError as error:
            link.reply(number, error)
            return
        if method in self._now:
            try:
                result = self._now[method](peer if method != "resume" else link, *arguments)
            except PeerError:
                raise
            except LexicastError as error:
                link.reply(number, error)
            else:
                link.reply(number, None, result)
        elif method in self._later:
            link.answer(number, self._later[method](peer, *arguments))
        else:
            link.reply(number, UsageError(f"no such request: {method}"))

    # -- sessions

    def session_generation(self, peer: BrokerPeer, group: int, client_id: str) -> tuple[bytes, int] | None:
        """The session's uid and generation; None when there is no such session."""
        session = self._server.sessions.get(group, client_id)
        return None if session is None else (session.uid, session.generation)

    async def session_open(
        self, peer: BrokerPeer, group: int, client_id: str, clean: bool, uid: bytes, state: bytes
    ) -> Any:
        """See `Sessions.open`."""
        now_us = self._server.clock.time_us()
        return tuple(await self._server.sessions.open(peer, group, client_id, clean, uid, state, now_us))

    async def session_save(
        self, peer: BrokerPeer, group: int, client_id: str, generation: int, expires_us: int, state: bytes
    ) -> None:
        """See `Sessions.save`."""
        await self._server.sessions.save(group, client_id, generation, expires_us, state)

    async def session_end(self, peer: BrokerPeer, group: int, client_id: str, generation: int) -> None:
        """See `Sessions.end`."""
        await self._server.sessions.end(group, client_id, generation)

    def expire_sessions(self) -> None:
        """Forget sessions whose expiry has passed; a bounded number at a time."""
        now_us = self._server.clock.time_us()
        if now_us - self._expired_us < EXPIRY_PERIOD_US:
            return
        self._expired_us = now_us
        for group, session in self._server.store.expired_sessions(now_us, SESSIONS_EXPIRED_AT_ONCE):
            current: SessionSaved | None = self._server.sessions.get(group, session.client_id)
            if current is not None and 0 < current.expires_us <= now_us:
                ended = SessionEnded(current.client_id, current.uid, current.generation)
                self._server.append_control(group, ended, _ignore)

    # -- QoS 2 and dictionaries

    async def release(
        self, peer: BrokerPeer, groups: Iterable[int] | None, uid: bytes, packet_ids: tuple[int, ...]
    ) -> None:
        """PUBREL: the groups (None: all led here) forget these packet ids; returns when that is durable."""
        led = self._server.sequencer.groups
        if groups is None:
            wanted = [group for group in led if self._remembers(group, uid, packet_ids)]
        else:
            wanted = [group for group in groups if group in led]
        await asyncio.gather(*[self._append(group, Released(uid, packet_ids)) for group in wanted])
        for group in wanted:
            self._server.sequencer.release(group, uid, packet_ids)

    def _remembers(self, group: int, uid: bytes, packet_ids: tuple[int, ...]) -> bool:
        """Whether a group remembers one of these: a client that releases what nobody knows costs no record."""
        marks, store = self._server.sequencer.groups[group].marks, self._server.store
        return any([(uid, i) in marks or store.mark(group, uid, i) is not None for i in packet_ids])

    def dictionary_put(self, peer: BrokerPeer, group: int, dictionary: int, family: str, content: bytes) -> None:
        """Have a dictionary in the group's log; what is published after this on the link may refer to it."""
        known = self._server.memory.dictionaries(group)
        if dictionary not in known:
            known.add(dictionary)
            self._server.append_control(group, DictionaryStored(dictionary, family, content), _ignore)
            self._server.place_control()

    def dictionary(self, peer: BrokerPeer, dictionary: int) -> bytes | None:
        """The content of a dictionary that any group led here holds; None when none does."""
        for group in self._server.sequencer.groups:
            if dictionary in self._server.memory.dictionaries(group):
                stored = self._server.store.dictionary(group, dictionary)
                if stored is not None:
                    return stored.content
        return None

    async def _append(self, group: int, record: ControlRecord) -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def done(error: Exception | None) -> None:
            if not future.done():
                future.set_exception(error) if error is not None else future.set_result(None)

        self._server.append_control(group, record, done)
        await future


def _ignore(error: Exception | None) -> None:
    """For records whose commit nobody waits for: a failure shows in the store itself."""
