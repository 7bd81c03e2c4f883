"""The decoder of blocks into messages: topics through a bounded cache, payloads decompressed a run at a time."""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Callable
from datetime import datetime
from itertools import count, islice
from typing import Final, NamedTuple

from lexicast.cluster.blocks import FIRST_DICTIONARY, QOS_MASK, RAW, RETAIN, STREAMED, Block, Run
from lexicast.cluster.errors import DictionaryError, LexicastError, PeerError
from lexicast.cluster.points_in_time import utc
from lexicast.cluster.positions import Position
from lexicast.cluster.security.authors import publisher_of
from lexicast.compression.dictionary import Held, shown
from lexicast.compression.opening import NoRoomError, Room
from lexicast.compression.streams.readers import StreamReaders

from .dictionaries import Dictionaries
from .messages import DamagedMessage, Message, unpack_properties

TOPICS_MAX: Final = 100_000

# the packed dictionary with that id, None when the cluster does not have it
Fetch = Callable[[int], Awaitable[bytes | None]]


class Decoded(NamedTuple):
    """A block's messages in order. `error`: what stopped the decoding; `resume` is the offset to go on from."""

    messages: list[Message]
    error: LexicastError | None
    resume: int


class Frames:
    """Reads the topic streams of one subscription's stream of blocks. `lost`: one cannot be read any further."""

    def __init__(self, held: Held, payload_bytes_max: int) -> None:
        self._readers = StreamReaders(held, payload_bytes_max)
        # Group -> offset up to which frames were read: one that is asked for again, after an error in its block, is not
        # read twice.
        self._read_to: dict[int, int] = {}
        self.lost = False

    def read(self, topic: bytes, frames: list[bytes], group: int, end: int) -> list[bytes]:
        """The payloads of a run of frames that ends at offset `end`; none when they were read before.

        Raises DictionaryError: the run is lost, and what follows it until a key frame.
        """
        if end <= self._read_to.get(group, 0):
            return []
        self._read_to[group] = end
        try:
            return [self._readers.decode(topic, frame) for frame in frames]
        except DictionaryError:
            self.lost = True
            raise


def _read(frames: Frames | None, topic: bytes, payloads: list[bytes], group: int, end: int) -> list[bytes]:
    if frames is None:
        raise DictionaryError(f"no family, no dictionary: topic {shown(topic)} came as a stream that nobody asked for")
    return frames.read(topic, payloads, group, end)


def _mark(messages: list[Message], index: int, why: DictionaryError) -> None:
    fields = [getattr(messages[index], field.name) for field in dataclasses.fields(Message)]
    messages[index] = DamagedMessage(str(why), *fields)


def _stopped(messages: list[Message], failed: dict[int, DictionaryError], first: int) -> Decoded:
    """At the first payloads of a run that cannot be decompressed; it goes on behind them."""
    stretch = min(failed)
    end = next(index for index in count(stretch) if index not in failed)
    return Decoded(messages, failed[stretch], first + end)


class Decoder:
    """Turns blocks into messages; fetches dictionaries that are missing."""

    def __init__(self, dictionaries: Dictionaries, fetch: Fetch) -> None:
        self._dictionaries = dictionaries
        self._fetch = fetch
        self._topics: dict[bytes, str] = {}

    def frames(self) -> Frames:
        """A reader of topic streams for a subscription's new stream of blocks."""
        return Frames(self._dictionaries.held, self._dictionaries.payload_bytes_max)

    def room(self) -> Room:
        """Room for what is taken at once."""
        return self._dictionaries.room()

    async def decode(
        self,
        block: Block,
        start: int,
        *,
        retain: bool | None = None,
        frames: Frames | None = None,
        room: Room | None = None,
    ) -> Decoded:
        """The messages of `block` from offset `start` on. `retain` None: as published. `frames`: reads topic streams.

        Never raises for a payload that cannot be decompressed: the messages before it come with the error, and the
        caller asks again from `resume`; so it does, without an error, where there is no `room` for more of them.
        Raises PeerError for a block that cannot be read.
        """
        damaged = await self._hold(block)
        return self._decode(block, start, retain, damaged, frames, room or self.room(), through=False)

    async def decode_all(self, block: Block, start: int) -> Decoded:
        """The messages of a stored block from offset `start` on, as many as there is room for at once (`resume`); a
        payload that cannot be decompressed is a DamagedMessage's.

        Raises PeerError for a block that cannot be read.
        """
        return self._decode(block, start, None, await self._hold(block), None, self.room(), through=True)

    async def _hold(self, block: Block) -> dict[int, DictionaryError]:
        """Fetch what the block needs; the errors of dictionaries that are damaged."""
        damaged: dict[int, DictionaryError] = {}
        for dictionary in block.meta.dictionaries:
            if dictionary != STREAMED and dictionary not in self._dictionaries:
                try:
                    packed = await self._fetch(dictionary)
                    if packed is not None:
                        self._dictionaries.hold(packed)
                except DictionaryError as error:  # matters only where a payload needs it
                    damaged[dictionary] = error
        return damaged

    def _decode(
        self,
        block: Block,
        start: int,
        retain: bool | None,
        damaged: dict[int, DictionaryError],
        frames: Frames | None,
        room: Room,
        through: bool,
    ) -> Decoded:
        meta, payloads, group, time = block.meta, block.payloads(), block.group, utc(block.time_us)
        named = meta.dictionaries
        streamed = FIRST_DICTIONARY + named.index(STREAMED) if STREAMED in named else None
        topics = [self._topics.get(name) or self._topic(name) for name in meta.topics]
        messages: list[Message] = []
        offset, at = block.first, 0
        for run in meta.runs:
            offset += run.skip
            mine = payloads[at : at + run.count]
            first, at, offset = offset, at + run.count, offset + run.count
            failed: dict[int, DictionaryError] = {}
            full: int | None = None
            try:
                if run.encoding == streamed:
                    mine = _read(frames, meta.topics[run.topic], mine, group, offset)
                if offset <= start:
                    continue
                if first < start:
                    mine, first = mine[start - first :], start
                topic = topics[run.topic]
                if run.encoding not in (RAW, streamed):
                    mine, failed, full = self._raw(meta.dictionaries, run, mine, damaged, room)
                    if failed and not through:
                        mine = mine[: min(failed)]
                publisher = publisher_of(meta.origins[run.origin]) if run.origin >= 0 else None
            except DictionaryError as error:
                return Decoded(messages, error, max(offset, start))
            except IndexError as error:
                raise PeerError(f"group {group} offset {first}: the block is damaged: {error}") from None
            messages += self._messages(block, time, run, topic, mine, first, publisher, retain)
            if failed and not through:
                return _stopped(messages, failed, first)
            for index, why in failed.items():
                _mark(messages, index - len(mine), why)
            if full is not None:
                return Decoded(messages, None, first + full)
        if at != len(payloads):
            raise PeerError(f"group {group} offset {block.first}: runs and payloads of the block disagree")
        return Decoded(messages, None, block.last + 1)

    @staticmethod
    def _messages(
        block: Block,
        time: datetime,
        run: Run,
        topic: str,
        payloads: list[bytes],
        first: int,
        publisher: str | None,
        retain: bool | None,
    ) -> list[Message]:
        """Those of one run, or of its end, from this offset on."""
        new = tuple.__new__  # what Position(...) does, without its 0.2 us of checking names
        group, epoch, qos = block.group, block.epoch, run.flags & QOS_MASK
        retained = bool(run.flags & RETAIN) if retain is None else retain
        properties = unpack_properties(run.properties) if run.properties else None
        return [
            Message(topic, payload, new(Position, (group, epoch, place)), time, qos, retained, properties, publisher)
            for place, payload in enumerate(payloads, first)
        ]

    def _raw(
        self,
        dictionaries: tuple[int, ...],
        run: Run,
        payloads: list[bytes],
        damaged: dict[int, DictionaryError],
        room: Room,
    ) -> tuple[list[bytes], dict[int, DictionaryError], int | None]:
        """A run's payloads, empty for those that cannot be decompressed; by their index why; and how many there are,
        where there was no room for all."""
        named = dictionaries[run.encoding - FIRST_DICTIONARY] if run.encoding >= FIRST_DICTIONARY else None
        if named in damaged:
            return [b""] * len(payloads), dict.fromkeys(range(len(payloads)), damaged[named]), None
        try:
            return self._dictionaries.decompress(run.encoding, named, payloads, room), {}, None
        except DictionaryError:
            found = list(self._dictionaries.decompress_each(run.encoding, named, payloads, room))
        full = next((index for index, error in enumerate(found) if isinstance(error, NoRoomError)), None)
        found = found[:full]
        failed = {index: error for index, error in enumerate(found) if isinstance(error, DictionaryError)}
        return [b"" if isinstance(payload, DictionaryError) else payload for payload in found], failed, full

    def _topic(self, name: bytes) -> str:
        if len(self._topics) >= TOPICS_MAX:
            for old in list(islice(self._topics, TOPICS_MAX // 2)):
                del self._topics[old]
        try:
            topic = self._topics[name] = name.decode()
        except UnicodeDecodeError as error:
            raise PeerError(f"a block names a topic that is not UTF-8: {error}") from None
        return topic
