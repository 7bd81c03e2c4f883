"""The streams of a Python client: its subscriptions, whose blocks come as stored, cut to what each filter wants.

A full socket puts all streams of a link behind; they are brought up when it has drained.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, Any

import msgpack

from lexicast.cluster.blocks import Block
from lexicast.cluster.errors import LimitError, NotAuthorizedError, UsageError
from lexicast.cluster.protocol.messages import DELIVER
from lexicast.cluster.topics.names import matches
from lexicast.compression.wire import STREAMS_VERSION, ZSTD_VERSION
from lexicast.storage.log.block_cuts import only_topic

from ...link.link import Link
from ..content.choosing import chosen
from ..dictionaries.link_choice import ConnectionDictionaries
from ..encoding import LINK, BlockView, EncodedBlock, Grant, Grants, Kind
from ..engine import BrokerEngine
from ..feeds.retained_feed import RetainedFeed
from ..security.rights import ClientRights
from ..subscriber import Subscriber, SubscriberBroker
from .history import Since, beginning_of, check_filters
from .past_requests import condition_of
from .sample_stream import SampleStream
from .user_rights import UserRights

if TYPE_CHECKING:
    from lexicast.compression.dictionary import Dictionary

STREAMS_MAX = 10_000
# By whether topic streams are taken; those in whose connections dictionaries come as they pay are aware.
KINDS = {False: Kind(LINK), True: Kind(LINK, streams=True)}
AWARE_KINDS = {False: Kind(LINK, aware=True), True: Kind(LINK, aware=True, streams=True)}
PACK = msgpack.Packer(autoreset=True).pack


class LinkStream(Subscriber):
    """One subscription of a Python client. `dictionaries`: those of its link, where they come as they pay; `rights`: a
    user's, who began then."""

    __slots__ = ("_began_us", "_client", "_dictionaries", "_prefix", "number")

    def __init__(
        self,
        broker: SubscriberBroker,
        client: ClientStreams,
        number: int,
        drops: bool,
        streams: bool,
        dictionaries: ConnectionDictionaries | None = None,
        rights: ClientRights | None = None,
        began_us: int = 0,
    ) -> None:
        super().__init__(broker, (KINDS if dictionaries is None else AWARE_KINDS)[streams], drops, rights)
        # What is older is the past, which is a right of its own.
        self._began_us = began_us
        self._client = client
        self._dictionaries = dictionaries
        self.number = number
        # (DELIVER, number, [block]): everything but the block, which is packed once for all.
        self._prefix = b"\x93" + PACK(DELIVER) + PACK(number) + b"\x91"

    def write(self, data: bytes) -> None:
        """Send one packed block."""
        self._client.send_block(self._prefix + data)

    def write_tagged(self, encoded: EncodedBlock) -> None:
        """The form for the dictionaries that the client has."""
        if self._dictionaries is not None:
            encoded = self._dictionaries.form(encoded)
        self.write(encoded.data)

    def take_view(self, view: BlockView, grants: Grants, encoded: EncodedBlock | None) -> bool:
        """What is out of the past, as far as it may be read."""
        block, rights = view.block, self.rights
        if rights is not None and block.time_us < self._began_us and rights.restricted:
            before, topics, may = grants, block.meta.topics, rights.may_read_past
            grants = tuple([grant if may(topic) else None for topic, grant in zip(topics, grants, strict=True)])
            if not any(grants):
                self.lagging[block.group] = block.last + 1
                return True
            if grants != before and encoded is not None:
                encoded = self.broker.encoder.shared(self.kind, view, grants)
        return super().take_view(view, grants, encoded)

    def gets_dictionary(self, dictionary: Dictionary, instead_of_bytes: bool = False) -> bool:
        return self._dictionaries is None or self._dictionaries.gets(dictionary, instead_of_bytes)

    def has_dictionary(self, dictionary: int) -> bool:
        return self._dictionaries is None or self._dictionaries.introductions.knows(dictionary)


class MemberStream(LinkStream):
    """One that is a member of a consumer group: see `group_streams`."""

    __slots__ = ()

    def done(self, ranges: Iterable[tuple[int, int, int]]) -> None:
        """The client's user has done with what it got of these (group, first, last)."""
        raise NotImplementedError

    def leave(self) -> None:
        """The client wants no more, or has gone."""
        raise NotImplementedError


class ClientStreams:
    """The streams of one client, by the numbers that it gave them."""

    def __init__(self, engine: BrokerEngine, link: Link, user: UserRights | None = None) -> None:
        """`user`: whose they are; None: somebody's who may read everything."""
        self._engine = engine
        self._user = user
        self._subscriptions = engine.subscriptions
        self._link = link
        self._writes = engine.live.writes
        self._gathers = False
        self._streams: dict[int, LinkStream | SampleStream] = {}
        self._feeds: dict[int, RetainedFeed] = {}
        # Those that are members of consumer groups.
        self.members: dict[int, MemberStream] = {}
        # None: the client is told of all that there are.
        self.dictionaries: ConnectionDictionaries | None = None

    def __len__(self) -> int:
        return len(self._streams) + len(self.members)

    # -- the link

    @property
    def writable(self) -> bool:
        """Whether the socket takes more."""
        return self._link.writable and not self._link.closed

    def send_block(self, data: bytes) -> None:
        """`send_packed` of publications; samples are not counted as such."""
        self._writes.sent_bytes += len(data)
        self.send_packed(data)

    @property
    def closed(self) -> bool:
        """Whether the link has ended."""
        return self._link.closed

    def send_packed(self, data: bytes) -> None:
        """Send a packed message, with others that `LiveWrites` gathers; a full socket puts all streams behind."""
        if self._writes.on:
            if not self._gathers:
                self._gathers = True
                self._writes.add(self)
            self._link.gather_packed(data)
        else:
            self._link.send_packed(data)
        self._block_if_full()

    def send_gathered(self) -> None:
        """See `LiveWrites`."""
        self._gathers = False
        self._link.flush()
        self._block_if_full()

    def _block_if_full(self) -> None:
        if not self._link.writable:
            for stream in (*self._streams.values(), *self.members.values()):
                stream.block()

    def drained(self) -> None:
        """The socket takes more again."""
        for stream in (*self._streams.values(), *self.members.values()):
            stream.unblock()

    def leave(self) -> None:
        """The client has gone; its cursors are its own."""
        for stream in self._streams.values():
            self._subscriptions.leave(stream)
        for member in self.members.values():
            member.leave()
        if self.dictionaries is not None:
            self._engine.dictionary_links.ended(self.dictionaries.link)

    # -- what they are

    @property
    def samples(self) -> bool:
        """Whether this is a sampling broker's client."""
        return any(stream.samples for stream in self._streams.values())

    def some_of(self, subscribers: Collection[Subscriber]) -> bool:
        """Whether one of these is a stream of this client."""
        return any(stream in subscribers for stream in self._streams.values())

    def lagging(self) -> list[Subscriber]:
        """Those that have something to catch up with."""
        return [stream for stream in self._streams.values() if stream.lagging]

    # -- requests

    async def subscribe(
        self, number: int, filters: tuple[bytes, ...], since: Since | None, options: dict[str, Any]
    ) -> dict[str, Any]:
        """A new stream: its cursor, and the first page of what is retained.

        Raises TopicError, UsageError, UnavailableError, NotAuthorizedError.
        """
        check_filters(filters)
        if self._user is not None:
            # Who goes on where a link has broken asks for the past too, and gets of it what it may read.
            self._user.check_filters(filters, past=since is not None and since[0] == "time")
            self.check_count(len(filters))
        if number in self._streams or len(self) >= STREAMS_MAX:
            raise UsageError(f"stream {number} exists, or there are {STREAMS_MAX} already")
        stream = self._stream(number, options)
        # Nothing goes out before the reply; what comes meanwhile is caught up with.
        stream.block()
        self._streams[number] = stream
        subscriptions = self._subscriptions
        where = condition_of(options.get("where"))
        if where is not None:
            self._engine.predicates.check(where)
        try:
            # A sample begins now, also after a broken link.
            start = None if stream.samples else await beginning_of(self._engine.coordinators, filters, since)
            cuts = await subscriptions.subscribe(stream, dict.fromkeys(filters, Grant(where=where)), start=start)
            if since is None and not stream.samples and cuts:
                self._feeds[number] = subscriptions.retained(cuts)
            cursor = subscriptions.cursor_of(stream)
            page = await self.retained(number)
        except BaseException:
            subscriptions.leave(stream)
            self._streams.pop(number, None)
            self._feeds.pop(number, None)
            raise
        if self._link.closed:
            subscriptions.leave(stream)
        return {"cursor": cursor, **page}

    def check_count(self, more: int) -> None:
        """Raises LimitError: a user's client would have more filters than an MQTT session may."""
        most = self._engine.config.mqtt.subscriptions_per_session_max
        if sum([len(stream.subscriptions) for stream in self._streams.values()]) + len(self.members) + more > most:
            raise LimitError(
                f"a client has {most} filters at the most (mqtt.subscriptions_per_session_max): close subscriptions, "
                "or use wildcards"
            )

    def _stream(self, number: int, options: dict[str, Any]) -> LinkStream | SampleStream:
        records_per_s = options.get("sample_records_per_s")
        if records_per_s is None:
            streams = options.get("streams") == STREAMS_VERSION and self._engine.streamer is not None
            drops = options.get("slow") == "drop"
            rights, began_us = None if self._user is None else self._user.of_topics, self._subscriptions.now_us
            stream = LinkStream(self._subscriptions, self, number, drops, streams, self.dictionaries, rights, began_us)
            stream.reads_zstd = streams and options.get("zstd") == ZSTD_VERSION
            return stream
        if not isinstance(records_per_s, int) or records_per_s < 1:
            raise UsageError(f"sample_records_per_s={records_per_s!r}: it is a number from 1")
        if self._user is not None:
            raise NotAuthorizedError.for_operators("sample_records_per_s")
        return SampleStream(self._subscriptions, self, number, records_per_s, self._engine.dictionaries.opted_out)

    async def retained(self, number: int) -> dict[str, Any]:
        """The next page of what is retained for a stream, each topic once, and whether there are more; what is live
        follows the last one."""
        feed = self._feeds.get(number)
        found = await feed.page() if feed is not None and not feed.done else []
        if feed is not None and len(feed.filters) > 1:
            found = [
                (name, block)
                for name, block in found
                if next(each for each in feed.filters if matches(each, only_topic(block))) == name
            ]
        stream = self._streams.get(number)
        if stream is not None and stream.chooses:
            found = [(name, part) for name, block in found if (part := self._part(stream, block)) is not None]
        if self._user is not None:
            found = [(name, part) for name, block in found if (part := await self._user.of_retained(block)) is not None]
        more = feed is not None and not feed.done
        if not more:
            self._feeds.pop(number, None)
            if stream is not None:
                asyncio.get_running_loop().call_soon(self._go, stream)
        return {"retained": [block.to_wire() for _, block in found], "more": more}

    def _part(self, stream: LinkStream | SampleStream, block: Block) -> Block | None:
        """What is left of a block of one topic for a stream with a condition."""
        grants = (stream.grant(only_topic(block)),) * len(block.meta.topics)
        found = chosen(self._subscriptions.view(block), grants, self._engine.encoder)
        return None if found is None else found.view.block

    def _go(self, stream: LinkStream | SampleStream) -> None:
        """After the reply."""
        if not stream.closed and self._link.writable:
            stream.unblock()

    async def unsubscribe(self, number: int) -> None:
        """End a stream, if there is one of that number."""
        self._feeds.pop(number, None)
        stream = self._streams.pop(number, None)
        if stream is not None:
            self._subscriptions.leave(stream)
        member = self.members.pop(number, None)
        if member is not None:
            member.leave()
