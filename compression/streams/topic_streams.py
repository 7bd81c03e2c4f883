"""A sender's topic streams: which topics have one, what each begins with, and who can read a batch. Pure.

The sender knows who is in step: each `FrameBatch` has a number and says which one it follows, and a session that took
that one may have it. So whatever is not a live batch (a full socket, catching up, what is sent again) needs no code to
be right. The link keeps the order and loses nothing.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from ..codecs import FIELDS
from ..dictionary import Dictionary
from .topic_stream import FrameComparison, TopicStream
from .zstd_blocks import ZSTD_STREAMS_MAX

STREAMS_MAX: Final = 256
"""Readers that every receiver keeps, and so the most streams that a sender may have."""

ASKED_EVERY: Final = 16
"""Batches after which those that follow a stream are asked again whether they have the model that it may go over to."""


class FrameBatch:
    """Consecutive frames of one stream.

    `slot`: the stream's place among its sender's (below `streams_max`); `number`, unique among all batches of a sender,
    and that of the stream's batch before. `dictionary`: what the key frame at its beginning refers to; `model`: the
    field model whose stream it is; `of_zstd`: the stream is one of zstd. For who is out of step: `past_bytes`, about
    what the key frame costs that brings the past along (None: none is to be had), and where one is to be had what
    frames spare of standalone payloads, with the family's newest dictionary (`newest`) and with none. `waited`:
    somebody is out of step who could read a stream that begins anew.
    """

    __slots__ = (
        "_stream",
        "_with_past",
        "before",
        "comparison",
        "dictionary",
        "frames",
        "is_key",
        "model",
        "newest",
        "number",
        "of_zstd",
        "past_bytes",
        "slot",
        "spared_bytes",
        "spared_plain_bytes",
        "waited",
    )

    def __init__(self, stream: TopicStream, slot: int, number: int, before: int, newest: Dictionary | None) -> None:
        self._stream = stream
        self.slot = slot
        self.number = number
        self.before = before
        self.newest = newest
        self.is_key = stream.begins
        self.model = stream.dictionary if stream.of_fields else None
        self.of_zstd = stream.of_zstd
        self.dictionary = stream.dictionary if self.is_key else None
        self.past_bytes = stream.past_bytes()
        self.frames: list[bytes] = []
        self.comparison: FrameComparison | None = None
        self.spared_bytes = self.spared_plain_bytes = 0
        self.waited = False
        self._with_past: bytes | None = None

    def encode(self, payloads: Sequence[bytes], standalone_bytes: int) -> None:
        """Make the frames."""
        stream = self._stream
        self.frames, self.comparison = stream.encode(payloads, standalone_bytes, self.newest)
        if self.past_bytes is None:
            return  # no past is to be earned by what frames spare
        size = sum(map(len, self.frames))
        self.spared_bytes = max(0, standalone_bytes - size)
        plain_bytes = standalone_bytes if self.newest is None else stream.plain_bytes(payloads)
        self.spared_plain_bytes = max(0, plain_bytes - size)

    def follows(self, taken: dict[int, int]) -> bool:
        """Whether a session that took these batches (slot -> number) can read this one."""
        return self.is_key or taken.get(self.slot) == self.before

    def is_earned(self, missed: dict[int, int], has_newest: bool) -> bool:
        """Whether a session that is out of step is sent the past now: what it has missed is counted by slot."""
        if self.past_bytes is None:
            return False
        missed_bytes = missed.get(self.slot, 0)
        if missed_bytes >= self.past_bytes:
            missed.pop(self.slot, None)
            return True
        missed[self.slot] = missed_bytes + (self.spared_bytes if has_newest else self.spared_plain_bytes)
        return False

    def with_past(self) -> list[bytes]:
        """The frames for who is out of step, of a batch that has `past_bytes`: the first brings the past along. To be
        asked before the stream's next batch."""
        if self._with_past is None:
            self._with_past = self._stream.with_past(self.frames)
        return [self._with_past, *self.frames[1:]]


Holds = Callable[[Dictionary, FrameBatch | None], bool]
"""Whether most of those that took this batch (None: of all that take streams) have a dictionary, or get it now."""

ReadZstd = Callable[[FrameBatch | None], bool]
"""Whether most of them read streams of zstd."""


def nobody_reads(last: FrameBatch | None) -> bool:
    """Nobody reads streams of zstd."""
    return False


@dataclass(slots=True)
class _Place:
    """A topic's stream among its sender's. `last`: its last batch; `asked`: batches since its followers were asked for
    a model, `asked_zstd`: whether they read zstd; `had_zstd`: receivers may keep a reader of zstd for it."""

    slot: int
    used_us: int
    stream: TopicStream
    newest: Dictionary | None = None
    last: FrameBatch | None = None
    asked: int = ASKED_EVERY
    asked_zstd: int = ASKED_EVERY
    had_zstd: bool = False

    @property
    def number(self) -> int:
        """Its last batch's."""
        return 0 if self.last is None else self.last.number


class TopicStreams:
    """A sender's streams by topic: at most `streams_max`, the least recently used out first.

    A topic gets a stream with its first message; where there is a dictionary for it, when it has had `ADMITTED_AFTER`
    messages while it was among the last `_CANDIDATES_MAX` topics. And only in the place of one that nothing was sent on
    for `IDLE_US`: so a multitude of topics with a message each now and then gets none. One that went out begins anew.
    """

    ADMITTED_AFTER: Final = 16
    IDLE_US: Final = 10_000_000
    _CANDIDATES_MAX: Final = 4 * STREAMS_MAX

    def __init__(self, streams_max: int = STREAMS_MAX) -> None:
        """Raises ValueError unless `streams_max` is 1 to STREAMS_MAX: receivers keep no more readers."""
        if not 1 <= streams_max <= STREAMS_MAX:
            raise ValueError(f"1 to {STREAMS_MAX} streams, not {streams_max}")
        self._slots = list(range(streams_max))
        self._streams: OrderedDict[bytes, _Place] = OrderedDict()
        self._candidates: OrderedDict[bytes, int] = OrderedDict()
        # Topics with a stream of zstd, tried or, for as long as they have their place, sent: ZSTD_STREAMS_MAX.
        self._of_zstd: OrderedDict[bytes, None] = OrderedDict()
        self._batches = 0

    def __len__(self) -> int:
        return len(self._streams)

    def forget(self, topic: bytes) -> None:
        """End the topic's stream, if it has one: the next one has nothing of its past. Its place becomes free when it
        is the least recently used one, as it does at receivers, which keep no more readers than there are places."""
        place = self._streams.get(topic)
        if place is not None:
            place.stream = TopicStream()
            self._release_zstd(topic, place)

    def slot_of(self, topic: bytes) -> int | None:
        """The slot of the topic's stream, if it has one."""
        place = self._streams.get(topic)
        return None if place is None else place.slot

    def takes(
        self,
        topic: bytes,
        messages: int,
        newest: Dictionary | None,
        holds: Holds,
        now_us: int,
        read_zstd: ReadZstd = nobody_reads,
    ) -> bool:
        """Whether the topic's next batch, of so many messages, goes as frames: to be asked once before `encode`.

        `newest`: the family's newest dictionary.
        """
        place = self._streams.get(topic) or self._admit(topic, messages, newest, now_us)
        if place is None:
            return False
        stream = place.stream
        place.newest = newest
        if stream.rests(messages, lambda: newest is None or holds(newest, place.last)):
            return False
        if stream.begins:
            stream.begin(newest if newest is not None and holds(newest, None) else None)
            return True
        if newest is not None and newest.codec == FIELDS and newest.id != stream.uses:
            self._go_over(place, newest, holds)
        if not stream.of_fields and not stream.begins:
            self._choose_zstd(topic, place, read_zstd, now_us)
        may_begin = stream.restarts and not stream.begins and stream.key_allowed
        if may_begin and place.last is not None and place.last.waited:
            stream.begin(stream.dictionary, stream.of_zstd)
        return True

    def _choose_zstd(self, topic: bytes, place: _Place, read_zstd: ReadZstd, now_us: int) -> None:
        """From DEFLATE to zstd or back, where that is shorter and most read it, or few do any more."""
        place.asked_zstd += 1
        stream = place.stream
        if place.asked_zstd < ASKED_EVERY or not (stream.of_zstd or stream.other_pays):
            return
        place.asked_zstd = 0
        if stream.of_zstd:
            if stream.other_pays or not read_zstd(None):
                stream.begin(None)
        elif read_zstd(place.last) and read_zstd(None) and self._has_room_for_zstd(topic, now_us):
            place.had_zstd = True
            stream.begin(None, of_zstd=True)

    def _has_room_for_zstd(self, topic: bytes, now_us: int) -> bool:
        """Whether the topic has, or gets, the room for a stream of zstd: also that of a trial on a topic that idles."""
        if topic not in self._of_zstd and len(self._of_zstd) >= ZSTD_STREAMS_MAX:
            idle = [other for other in self._of_zstd if self._only_tries(self._streams[other], now_us)]
            if not idle:
                return False
            self._streams[idle[0]].stream.give_up_zstd()
            del self._of_zstd[idle[0]]
        self._of_zstd[topic] = None
        return True

    def _only_tries(self, place: _Place, now_us: int) -> bool:
        return not place.had_zstd and now_us - place.used_us >= self.IDLE_US

    def _release_zstd(self, topic: bytes, place: _Place) -> None:
        if not place.had_zstd and not place.stream.holds_zstd:
            self._of_zstd.pop(topic, None)

    def _go_over(self, place: _Place, model: Dictionary, holds: Holds) -> None:
        """To another model's stream, where that is shorter and most have the model."""
        place.asked += 1
        if place.asked >= ASKED_EVERY and place.stream.wins(model):
            place.asked = 0
            if holds(model, place.last):
                place.stream.begin(model)

    def encode(self, topic: bytes, payloads: Sequence[bytes], standalone_bytes: int, now_us: int) -> FrameBatch:
        """The batch that `takes` was asked for. `standalone_bytes`: what the standalone forms have together."""
        place = self._streams[topic]
        self._streams.move_to_end(topic)
        self._batches += 1
        waited = place.last is not None and place.last.waited
        stream = place.stream
        batch = FrameBatch(stream, place.slot, self._batches, place.number, place.newest)
        stream.may_try_zstd = stream.wants_zstd and self._has_room_for_zstd(topic, now_us)
        batch.encode(payloads, standalone_bytes)
        if topic in self._of_zstd:
            self._release_zstd(topic, place)
        batch.waited = waited and not batch.is_key
        place.last, place.used_us = batch, now_us
        return batch

    def _admit(self, topic: bytes, messages: int, newest: Dictionary | None, now_us: int) -> _Place | None:
        seen = self._candidates.pop(topic, 0) + messages
        if (newest is None or seen >= self.ADMITTED_AFTER) and (self._slots or self._leave(now_us)):
            place = self._streams[topic] = _Place(self._slots.pop(), now_us, TopicStream())
            return place
        self._candidates[topic] = seen
        if len(self._candidates) > self._CANDIDATES_MAX:
            self._candidates.popitem(last=False)
        return None

    def _leave(self, now_us: int) -> bool:
        """Whether a place was made free."""
        topic, place = next(iter(self._streams.items()))
        if now_us - place.used_us < self.IDLE_US:
            return False
        del self._streams[topic]
        self._of_zstd.pop(topic, None)
        self._slots.append(place.slot)
        return True
