"""The requests of brokers to a coordinator: their dispatch; QoS 2 and dictionaries.

Subscriptions are in `interest`, catching up in `past`, the history for clients in `history`, retained publications in
`retained`, sessions in `session_requests`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Any

from lexicast.cluster.errors import LedElsewhereError, LexicastError, PeerError, UsageError
from lexicast.cluster.protocol.requests import COORDINATOR
from lexicast.cluster.protocol.shapes import GROUP, check_request
from lexicast.cluster.records import ControlRecord, DictionaryStored, Released

from ..link.link import Link
from ..status.report import plain
from ..tracing.group_traces import GroupTraces
from .history import HistoryRequests
from .interest import Interest
from .last_publications import LastPublications
from .led_groups import LedGroups
from .past import Past
from .peers import BrokerPeer
from .retained import RetainedRequests
from .session_home import SessionHome
from .session_requests import SessionRequests
from .shares.led_shares import LedShares

log = logging.getLogger(__name__)

# Names of one answer: about 2 ms.
TOPICS_MAX = 200


class CoordinatorRequests:
    """Dispatch and the requests themselves."""

    def __init__(
        self,
        led: LedGroups,
        home: SessionHome,
        interest: Interest,
        past: Past,
        shares: LedShares,
        status: Callable[[], dict[str, Any]],
    ) -> None:
        """`status`: see `CoordinatorServer.status`."""
        self._led = led
        self.traces = GroupTraces(led, shares)
        # What answers each request: in the turn in which it came, and by a coroutine.
        self.at_once: dict[str, Callable[..., Any]] = {
            "resume": interest.resume,
            "register": interest.register,
            "serve": interest.serve,
            "resume_groups": interest.resume_groups,
            "subscribe": interest.subscribe,
            "unsubscribe": interest.unsubscribe,
            "choose": interest.choose,
            "offsets_at": past.offsets_at,
            "records": past.records,
            "dictionary": self.dictionary,
            "dictionary_put": self.dictionary_put,
            "share_told": shares.told,
            "share_leave": shares.leave,
            "topics": self.topics,
            "trace": self.traces.trace,
            "trace_begin": self.traces.begin,
            "trace_end": self.traces.end,
            "status": lambda peer: plain(status()),
        }
        history = HistoryRequests(led, past)
        self.later: dict[str, Callable[..., Any]] = {
            "fetch": past.fetch,
            "history": history.history,
            "count": history.count,
            "last": LastPublications(led, past).last,
            "retained": RetainedRequests(led).retained,
            "release": self.release,
            "share_join": shares.join,
        }
        sessions = SessionRequests(home)
        self.at_once |= sessions.at_once
        self.later |= sessions.later

    def handle(self, link: Link, number: int, method: str, arguments: tuple[Any, ...]) -> None:
        """Run one request and answer it."""
        peer = self._led.routing.peers.get(link.name)
        if method != "resume" and (peer is None or peer.link is not link):
            raise PeerError(f"{link.name} asks for {method} before `resume`")
        check_request(COORDINATOR, method, arguments)
        try:
            if COORDINATOR.get(method, ())[:1] == (GROUP,):
                self._led.check_served(arguments[0])
        except LedElsewhereError as error:
            link.reply(number, error)
            return
        if method in self.at_once:
            try:
                result = self.at_once[method](peer if method != "resume" else link, *arguments)
            except PeerError:
                raise
            except LexicastError as error:
                link.reply(number, error)
            else:
                link.reply(number, None, result)
        elif method in self.later:
            try:
                work = self.later[method](peer, *arguments)
            except PeerError:
                raise
            except LexicastError as error:
                link.reply(number, error)
            else:
                link.answer(number, work)
        else:
            link.reply(number, UsageError(f"no such request: {method}"))

    # -- topics

    def topics(self, peer: BrokerPeer, prefix: bytes, start: bytes, most: int) -> list[tuple[bytes, bool]]:
        """See `topic_levels.topic_level`; TOPICS_MAX at the most."""
        return self._led.store.by_topic.level(prefix, start, min(most, TOPICS_MAX))

    # -- QoS 2 and dictionaries

    async def release(
        self, peer: BrokerPeer, groups: Iterable[int], uid: bytes, generation: int, packet_ids: tuple[int, ...]
    ) -> None:
        """PUBREL: the groups forget these packet ids; returns when that is durable.

        Raises LedElsewhereError, and nothing is forgotten, when one of them is not led here: an id that its new leader
        remembers would make the client's next publication under it a repeat.
        """
        groups = list(groups)
        self._led.check_served(*groups)
        sequencer = self._led.sequencer
        # A client that releases what nobody knows costs no record.
        wanted = [group for group in groups if sequencer.remembers(group, uid, generation, packet_ids)]
        released = [self._release(group, Released(uid, packet_ids, generation)) for group in wanted]
        self._led.place_control()  # what comes later in this turn under these ids stands behind it
        await asyncio.gather(*released)

    def _release(self, group: int, record: Released) -> asyncio.Future[None]:
        sequencer, uid, packet_ids = self._led.sequencer, record.session_uid, record.packet_ids
        below = sequencer.begin_release(group, uid, record.generation, packet_ids)
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def done(error: Exception | None) -> None:
            sequencer.end_release(group, uid, packet_ids, below, error is None)
            if not future.done():
                future.set_exception(error) if error is not None else future.set_result(None)

        self._led.append_control(group, record, done)
        return future

    def dictionary_put(self, peer: BrokerPeer, group: int, dictionary: int, family: str, content: bytes) -> None:
        """Have a dictionary in the group's log; what is published after this on the link may refer to it."""
        known = self._led.memory.dictionaries(group)
        if dictionary not in known:
            known.add(dictionary)

            def done(error: Exception | None) -> None:
                if error is not None:
                    known.discard(dictionary)

            self._led.append_control(group, DictionaryStored(dictionary, family, content), done)
            self._led.place_control()

    def dictionary(self, peer: BrokerPeer, dictionary: int) -> bytes | None:
        """The content of a dictionary that any group led here holds; None when none does."""
        for group in self._led.sequencer.groups:
            if dictionary in self._led.memory.dictionaries(group):
                stored = self._led.store.tables.dictionary(group, dictionary)
                if stored is not None:
                    return stored.content
        return None

    async def _append(self, group: int, record: ControlRecord) -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def done(error: Exception | None) -> None:
            if not future.done():
                future.set_exception(error) if error is not None else future.set_result(None)

        self._led.append_control(group, record, done)
        await future


def _ignore(error: Exception | None) -> None:
    """For records whose commit nobody waits for: a failure shows in the store itself."""
