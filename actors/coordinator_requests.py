"""What brokers ask of a coordinator beside publishing: subscriptions, catching up, sessions, dictionaries.

Cuts: a subscription takes effect where the group's deliveries stand when it is placed (`Group.delivered`); everything
before is the past, to be fetched, everything from there on arrives live on the link, after the reply. Every answer
that names such a place is sent in the same turn in which the place was read, after the blocks offered before it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from lexicast.cluster.blocks import RETAIN, Block
from lexicast.cluster.errors import LexicastError, PeerError, UsageError
from lexicast.cluster.positions import topic_group
from lexicast.cluster.records import (
    ControlRecord,
    DictionaryStored,
    Released,
    SessionEnded,
    SessionSaved,
    Subscribed,
    Unsubscribed,
)
from lexicast.cluster.selection import offsets_of, select, select_from, select_topics
from lexicast.cluster.topics import check_filter, is_wildcard, matches
from lexicast.storage.format import DamageError
from lexicast.storage.reader import ReadResult

from .link import Link
from .peers import BrokerPeer, recorded_filters

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
        self._bringing_up: dict[BrokerPeer, asyncio.Task[None]] = {}
        self._expired_us = 0
        self._now: dict[str, Callable[..., Any]] = {
            "resume": self.resume,
            "subscribe": self.subscribe,
            "unsubscribe": self.unsubscribe,
            "offsets_at": self.offsets_at,
            "first_kept": self.first_kept,
            "records": self.records,
            "session_generation": self.session_generation,
            "dictionary": self.dictionary,
            "dictionary_put": self.dictionary_put,
            "status": lambda peer: self._server.status(),
        }
        self._later: dict[str, Callable[..., Any]] = {
            "fetch": self.fetch,
            "retained": self.retained,
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

    # -- a broker comes (back)

    def resume(self, link: Link, heads: dict[int, int], filters: Iterable[bytes]) -> dict[str, Any]:
        """A broker (re)opens its link: it wants `filters`, and in each group of `heads` what is not before its head.

        Replaces what an earlier link or incarnation of the broker had. Returns the heads of the other groups, and the
        sessions that an earlier incarnation left without letting go ("orphans").
        """
        server = self._server
        old = server.routing.peers.get(link.name)
        if old is not None and old.incarnation > link.incarnation:
            raise PeerError(f"{link.name} has been replaced by a newer incarnation")
        peer = BrokerPeer(link.name, link.incarnation, link)
        recorded = recorded_filters(server.store, peer.name, self._groups_of) if old is None else old.recorded()
        if old is not None:
            server.routing.drop(old)
            if old.link is not link:
                old.link.abort()
        server.routing.peers[peer.name] = peer
        wanted = set(filters)
        for gone in sorted(recorded.keys() - wanted):
            self._record(gone, Unsubscribed(peer.name, gone.decode()))
        for topic_filter in sorted(wanted):
            # What the log says already keeps its cut: a broker that dials again changes nothing.
            self._subscribe_one(peer, topic_filter, recorded.get(topic_filter) != peer.incarnation)
        server.routing.flush()
        for number, group in server.sequencer.groups.items():
            head = heads.get(number)
            if head is not None and head < group.delivered:
                peer.behind[number] = head
        if peer.behind:
            self.bring_up(peer)
        # A broker that only had to dial again still serves its sessions.
        orphans = self._orphans(peer) if old is None or old.incarnation < peer.incarnation else []
        groups = server.sequencer.groups
        fresh = {n: (g.epoch, g.delivered) for n, g in groups.items() if n not in peer.behind}
        return {"heads": fresh, "orphans": orphans}

    def _orphans(self, peer: BrokerPeer) -> list[tuple[int, tuple[Any, ...]]]:
        store = self._server.store
        return [
            (group, tuple(session))
            for group in self._server.sequencer.groups
            for session in store.sessions(group)
            if session.owner == peer.name and session.incarnation < peer.incarnation
        ]

    def bring_up(self, peer: BrokerPeer) -> None:
        """Serve a broker that is behind, from the store, until it is live."""
        if peer not in self._bringing_up:
            self._bringing_up[peer] = asyncio.create_task(self._bring_up_and_forget(peer))

    async def _bring_up_and_forget(self, peer: BrokerPeer) -> None:
        try:
            await self._bring_up(peer)
        except LexicastError as error:
            log.error("%s cannot be brought up: %s", peer.name, error)
            peer.link.abort()
        finally:
            # In the very step in which it ends: `on_writable` may start the next one at once.
            del self._bringing_up[peer]

    async def _bring_up(self, peer: BrokerPeer) -> None:
        while peer.behind and not peer.link.closed and peer.link.writable:
            for group in list(peer.behind):
                if not peer.link.writable:
                    return  # on_writable starts this again
                wanted = _matcher(list(peer.filters))
                blocks, after, live = await self._read(group, peer.behind[group], wanted, READ_STEP_BYTES)
                if blocks:
                    peer.send(blocks)
                if live:
                    del peer.behind[group]
                else:
                    peer.behind[group] = after
        self._server.tell_heads(peer)

    # -- subscriptions

    def subscribe(self, peer: BrokerPeer, filters: Iterable[bytes], retained: bool) -> dict[str, Any]:
        """Back-end subscriptions. Returns "cut": group -> first live offset; "retained": those of exact filters;
        "behind": the groups in which older blocks are still to come on this link, before the cut.
        """
        filters = list(filters)
        self._server.routing.flush()
        for topic_filter in filters:
            check_filter(topic_filter)
            self._subscribe_one(peer, topic_filter)
        groups = self._groups_of(filters)
        cut = {number: self._server.sequencer.groups[number].delivered for number in groups}
        found = self._retained(filters) if retained else []
        behind = [number for number in groups if number in peer.behind]
        return {"cut": cut, "retained": [block.to_wire() for block in found], "behind": behind}

    def _subscribe_one(self, peer: BrokerPeer, topic_filter: bytes, record_it: bool = True) -> None:
        if self._server.routing.insert(peer, topic_filter) and record_it:
            now_us = self._server.clock.time_us()
            record = Subscribed(peer.name, peer.incarnation, topic_filter.decode(), now_us, TIME_MAX_US)
            self._record(topic_filter, record)

    def unsubscribe(self, peer: BrokerPeer, filters: Iterable[bytes]) -> None:
        """The broker has no subscriber left for `filters`."""
        for topic_filter in filters:
            if self._server.routing.remove(peer, topic_filter):
                self._record(topic_filter, Unsubscribed(peer.name, topic_filter.decode()))

    def _record(self, topic_filter: bytes, record: ControlRecord) -> None:
        for group in self._groups_of([topic_filter]):
            self._server.append_control(group, record, _ignore)

    def _groups_of(self, filters: Iterable[bytes]) -> list[int]:
        led = self._server.sequencer.groups
        groups: set[int] = set()
        for topic_filter in filters:
            if is_wildcard(topic_filter):
                return list(led)
            groups.add(topic_group(topic_filter, self._server.store.groups))
        return [group for group in groups if group in led]

    async def retained(self, peer: BrokerPeer, filters: Iterable[bytes]) -> list[Any]:
        """Retained records of topics that match, each current at some time since the question."""
        filters = list(filters)
        wild = [name for name in filters if is_wildcard(name)]
        found = self._retained([name for name in filters if not is_wildcard(name)])
        if wild:
            groups, wanted, store = self._groups_of(wild), _matcher(wild), self._server.store
            # What is not in the store yet is looked at first: what is committed meanwhile is then in one of both.
            waiting = {group: self._waiting_retained(group, wanted) for group in groups}
            stored = await asyncio.to_thread(lambda: {group: store.retained(group, wanted) for group in groups})
            for group in groups:
                found += _newest(stored[group], waiting[group])
        return [block.to_wire() for block in found]

    def _retained(self, names: list[bytes]) -> list[Block]:
        """The same at once, for exact filters."""
        found: list[Block] = []
        for name in names:
            for group in self._groups_of([name]):
                block = self._server.store.retained_topic(group, name)
                stored = [] if block is None else [block]
                found += _newest(stored, self._waiting_retained(group, name.__eq__))
        return found

    def _waiting_retained(self, group: int, wanted: Callable[[bytes], bool]) -> dict[bytes, Block]:
        latest: dict[bytes, Block] = {}
        for block in self._server.sequencer.waiting(group, 0):
            latest.update(_retained_records(block, wanted))
        return latest

    # -- the past

    async def fetch(
        self, peer: BrokerPeer, cursor: dict[int, int], filters: Iterable[bytes], bytes_max: int
    ) -> dict[str, Any]:
        """Records at or after `cursor` in its groups that match `filters`, about `bytes_max` bytes of them.

        Returns "blocks"; "cursor": where each group was left; "live": the groups read to where live delivery on this
        link goes on; "first": group -> first offset kept, where the cursor lay before it (something was discarded).
        """
        wanted = _matcher(list(filters))
        room = min(bytes_max, FETCH_BYTES_MAX)
        blocks: list[Any] = []
        after: dict[int, int] = {}
        read: list[int] = []
        for group, offset in cursor.items():
            if group not in self._server.sequencer.groups:
                raise UsageError(f"group {group} is not led here")
            if room <= 0:
                break
            found, after[group], live = await self._read(group, offset, wanted, room)
            blocks += found
            room -= sum([block.size_bytes for block in found]) + 1
            if live:
                read.append(group)
        self._server.routing.flush()
        groups, store = self._server.sequencer.groups, self._server.store
        return {
            "blocks": [block.to_wire() for block in blocks],
            "cursor": after,
            # What was read to its end before another group's read gave way to other work may have grown since.
            "live": [g for g in read if g not in peer.behind and after[g] >= groups[g].delivered],
            "first": {g: first for g in after if (first := store.first_kept(g)) > cursor[g]},
        }

    async def _read(
        self, group: int, offset: int, wanted: Callable[[bytes], bool], bytes_max: int
    ) -> tuple[list[Block], int, bool]:
        """(blocks, where to go on, whether that is where live delivery stands); no other work runs after a True."""
        server = self._server
        state = server.sequencer.groups[group]
        if offset < state.committed:
            upto = state.committed - 1
            if state.committed - offset > TAIL_RECORDS_MAX:
                result = await asyncio.to_thread(self._read_sound, group, offset, bytes_max, upto, wanted)
            else:
                result = self._read_sound(group, offset, bytes_max, upto, wanted)
            if result.next_offset == offset:
                # Nothing is left there: retention or expiry took the group's last blocks.
                result = result._replace(next_offset=upto + 1)
            if result.next_offset <= upto or result.next_offset < state.committed:
                return result.blocks, result.next_offset, False
            blocks, offset = result.blocks, result.next_offset
        else:
            blocks = []
        room = bytes_max - sum([block.size_bytes for block in blocks])
        for block in server.sequencer.waiting(group, offset):
            part = select_from(block, offset)
            part = None if part is None else select_topics(part, wanted)
            if part is not None:
                if blocks and room <= 0:  # as much as the disk is behind may wait here
                    return blocks, max(offset, block.first), False
                blocks.append(part)
                room -= part.size_bytes
        return blocks, max(offset, state.delivered), True

    def _read_sound(
        self, group: int, offset: int, bytes_max: int, upto: int, wanted: Callable[[bytes], bool]
    ) -> ReadResult:
        """What the store holds, passing what is damaged: one bad record must not keep a reader from all later ones.

        It is noted in `CoordinatorServer.damaged`: `lexicast status` warns of it.
        """
        read = self._server.store.read
        try:
            return read(group, offset, bytes_max=bytes_max, upto=upto, topics=wanted)
        except DamageError as error:
            self._server.note_damage(error)
            damaged = max(error.offset, offset)
        if damaged > offset:
            # What lies before it, unless it is the head of a whole block that is damaged.
            with suppress(DamageError):
                return read(group, offset, bytes_max=bytes_max, upto=damaged - 1, topics=wanted)
        return ReadResult([], damaged + 1, offset)

    def offsets_at(self, peer: BrokerPeer, groups: Iterable[int] | None, time_us: int) -> dict[int, int]:
        """For each group (None: all led here) the first offset whose time is at or after `time_us`."""
        led = self._server.sequencer.groups
        wanted = list(led) if groups is None else [group for group in groups if group in led]
        return {group: self._server.store.offset_at(group, time_us) for group in wanted}

    def first_kept(self, peer: BrokerPeer, groups: Iterable[int]) -> dict[int, int]:
        """The first offset that retention has left in each group."""
        led = self._server.sequencer.groups
        return {group: self._server.store.first_kept(group) for group in groups if group in led}

    def records(self, peer: BrokerPeer, group: int, offsets: Iterable[int]) -> list[Any]:
        """Single records by offset, each as a block of its own; those no longer kept are left out."""
        found: list[Any] = []
        for offset in list(offsets)[:RECORDS_MAX]:
            for block in self._server.store.read(group, offset, bytes_max=1, upto=offset).blocks:
                part = select(block, [at == offset for at in offsets_of(block)])
                if part is not None:
                    found.append(part.to_wire())
        return found

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


def _matcher(filters: list[bytes]) -> Callable[[bytes], bool]:
    """Whether a topic matches one of `filters`; of its own, since a long read runs on another thread."""
    known: dict[bytes, bool] = {}
    exact = frozenset(filters)
    wild = [topic_filter for topic_filter in filters if is_wildcard(topic_filter)]

    def wanted(topic: bytes) -> bool:
        found = known.get(topic)
        if found is None:
            found = topic in exact or any([matches(topic_filter, topic) for topic_filter in wild])
            if len(known) >= TOPICS_REMEMBERED:
                known.clear()
            known[topic] = found
        return found

    return wanted


def _newest(stored: Iterable[Block], waiting: dict[bytes, Block]) -> list[Block]:
    """One retained record a topic, the one with the higher offset; cleared ones are left out."""
    latest = {block.meta.topics[block.meta.runs[0].topic]: block for block in stored}
    for topic, block in waiting.items():
        if topic not in latest or latest[topic].last < block.first:
            latest[topic] = block
    return [block for block in latest.values() if block.body]


def _retained_records(block: Block, wanted: Callable[[bytes], bool]) -> dict[bytes, Block]:
    """topic -> the last retained record of `block` on it, as a block of its own."""
    runs = block.meta.runs
    if not any([run.flags & RETAIN for run in runs]):
        return {}
    last: dict[bytes, int] = {}
    record = 0
    for run in runs:
        record += run.count
        topic = block.meta.topics[run.topic]
        if run.flags & RETAIN and wanted(topic):
            last[topic] = record - 1
    count = block.count
    found = {}
    for topic, index in last.items():
        part = select(block, [i == index for i in range(count)])
        if part is not None:
            found[topic] = part
    return found
