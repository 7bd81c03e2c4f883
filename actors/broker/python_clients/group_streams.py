"""The consumer groups of a Python client: members of shares, whose records come as its other streams' blocks do.

A member is dealt `window` records, and is sent them as stored; the client tells which ones its user has done with, by
ranges of what it got. What expires on the way, or is left out by a condition, is done here. Where the link ends all
that was not told done goes to others.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from lexicast.cluster.blocks import Block
from lexicast.cluster.errors import UsageError
from lexicast.cluster.protocol.requests import GROUP_WINDOW, GROUP_WINDOW_MAX
from lexicast.cluster.selection import for_readers, offsets_of
from lexicast.cluster.topics.names import check_share_name

from ..content.choosing import chosen
from ..encoding import Grant, Grants
from ..security.rights import ClientRights
from ..shares.dealt_blocks import DealtPart
from ..shares.shared_members import ShareKey
from .history import Since, beginning_of, check_filters
from .past_requests import condition_of
from .streams import PACK, STREAMS_MAX, ClientStreams, MemberStream
from .user_rights import UserRights

if TYPE_CHECKING:
    from ...link.link import Link
    from ..engine import BrokerEngine


class GroupStream(MemberStream):
    """One member."""

    __slots__ = ("_dealt", "_engine", "_given", "_grant_of_all", "_key")

    def __init__(
        self,
        engine: BrokerEngine,
        client: ClientStreams,
        number: int,
        share: str,
        filter: bytes,
        grant: Grant,
        rights: ClientRights | None = None,
    ) -> None:
        began_us = engine.subscriptions.now_us
        super().__init__(engine.subscriptions, client, number, False, False, client.dictionaries, rights, began_us)
        self._engine = engine
        self._key = ShareKey(share, filter, engine.shares.member_name(f"python {id(client):x}"))
        self._grant_of_all = grant
        self._dealt: deque[DealtPart] = deque()
        # Sent and not told done, by group.
        self._given: dict[int, set[int]] = {}

    async def join(self, window: int, since: dict[int, int] | None) -> None:
        """See `SharedMembers.join`."""
        await self._engine.shares.join(self._key, self, window, since)

    def take_dealt(self, parts: list[DealtPart]) -> None:
        """See `ShareMember`."""
        self._dealt.extend(parts)
        self._send_dealt()

    def held(self) -> dict[int, list[int]]:
        """See `ShareMember`."""
        held = {group: [*offsets] for group, offsets in self._given.items()}
        for part in self._dealt:
            held.setdefault(part.group, []).extend(part.offsets())
        return held

    def _send_dealt(self) -> None:
        while self._dealt and not (self.blocked or self.closed):
            part = self._dealt.popleft()
            try:
                if self._gets_all(part):
                    self._send_all(part.block())
                else:
                    self._send_block(part.block())
            except Exception:
                self._engine.shares.undeliverable(self._key, part)

    def _gets_all(self, part: DealtPart) -> bool:
        """Whether none of it can be left out, nor is in other dictionaries: nothing of it has to be looked at."""
        rights = self.rights
        restricted = rights is not None and rights.restricted
        return not (restricted or part.dealt.expires or self._grant_of_all.chooses or self._dictionaries is not None)

    def _send_all(self, block: Block) -> None:
        self.write(PACK(for_readers(block).to_wire()))
        first, last = block.first, block.last
        offsets = range(first, last + 1) if last - first + 1 == block.count else offsets_of(block)
        given = self._given.get(block.group)
        if given is None:
            self._given[block.group] = set(offsets)
        else:
            given.update(offsets)

    def _send_block(self, block: Block) -> None:
        offsets = set(offsets_of(block))
        sent: set[int] = set()
        granted = self._granted_of(block)
        found = chosen(self.broker.view(block), granted, self._engine.encoder) if any(granted) else None
        if found is not None:
            view, grants = found
            at = view.block.first
            for run in view.block.meta.runs:
                at += run.skip
                if grants[run.topic] is not None and not view.expired(run):
                    sent.update(range(at, at + run.count))
                at += run.count
            encoded = self._engine.encoder.shared(self.kind, view, grants)
            if encoded.data:
                self.write_tagged(encoded)
        if sent:
            self._given.setdefault(block.group, set()).update(sent)
        if offsets > sent:
            self._engine.shares.done(self._key, block.group, offsets - sent)

    def _granted_of(self, block: Block) -> Grants:
        """How it gets each topic of a block; what it may not read is done with, for nobody would read it here."""
        topics, rights = block.meta.topics, self.rights
        if rights is None or not rights.restricted:
            return (self._grant_of_all,) * len(topics)
        may = rights.may_read_past if block.time_us < self._began_us else rights.may_read
        return tuple([self._grant_of_all if may(topic) else None for topic in topics])

    def done(self, ranges: Iterable[tuple[int, int, int]]) -> None:
        for group, first, last in ranges:
            given = self._given.get(group)
            if given is None:
                continue
            few = last - first < len(given)
            done = given.intersection(range(first, last + 1)) if few else {o for o in given if first <= o <= last}
            given -= done
            if not given:
                del self._given[group]
            if done:
                self._engine.shares.done(self._key, group, done)

    def unblock(self) -> None:
        """The socket takes more."""
        super().unblock()
        self._send_dealt()

    def refresh(self) -> None:
        """Never `ready`: it is in no fan-out."""
        self.ready = False

    def leave(self) -> None:
        self.closed = True
        self._dealt.clear()
        self._given = {}
        self._engine.shares.leave(self._key)


class GroupStreams:
    """The members of one client, among its streams."""

    def __init__(
        self, engine: BrokerEngine, link: Link, streams: ClientStreams, user: UserRights | None = None
    ) -> None:
        """`user`: as `ClientStreams`."""
        self._engine = engine
        self._user = user
        self._link = link
        self._streams = streams

    async def join(
        self, number: int, share: str, filter: bytes, since: Since | None, options: dict[str, Any]
    ) -> dict[str, Any]:
        """A new stream, which is a member of the share; `since`: where that begins if it is new. Options: "where",
        "window". Raises TopicError, UsageError, LexicastError, TimeoutError."""
        check_filters((filter,))
        check_share_name(share)
        if self._user is not None:
            self._user.check_filters((filter,), past=since is not None and since[0] == "time")
            self._streams.check_count(1)
        window = options.get("window", GROUP_WINDOW)
        if type(window) is not int or not 0 < window <= GROUP_WINDOW_MAX:
            raise UsageError(f"window={window!r}: give a number from 1 to {GROUP_WINDOW_MAX}")
        if number in self._streams.members or len(self._streams) >= STREAMS_MAX:
            raise UsageError(f"stream {number} exists, or there are {STREAMS_MAX} already")
        where = condition_of(options.get("where"))
        if where is not None:
            self._engine.predicates.check(where)
        start = None if since is None else await beginning_of(self._engine.coordinators, (filter,), since)
        rights = None if self._user is None else self._user.of_topics
        stream = GroupStream(self._engine, self._streams, number, share, filter, Grant(where=where), rights)
        self._streams.members[number] = stream
        if not self._link.writable:
            stream.block()
        try:
            await stream.join(window, start)
        except BaseException:
            self._streams.members.pop(number, None)
            stream.leave()
            raise
        if self._link.closed:
            stream.leave()
        return {}

    async def done(self, number: int, ranges: tuple[tuple[int, int, int], ...]) -> None:
        """See `GroupStream.done`."""
        stream = self._streams.members.get(number)
        if stream is not None:
            stream.done(ranges)
