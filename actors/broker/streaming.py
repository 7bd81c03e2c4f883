"""Topic streams on live links: which topics of a live block go as frames, and which subscribers get them.

A stream (`compression.topic_stream`) is made once for all subscribers of this broker that take streams. Whoever is in
step with a topic's stream, or joins because its batch begins with a key frame, gets frames; who has missed as much by
being out of step as the topic's past takes is sent that with the next frame; everybody else gets the standalone
payloads: at most VARIANTS_MAX ways to put a block together, each made once. Only live blocks have frames: what is
caught up with, retained, sent again or has a window in time is standalone, and a subscriber that got it so is out of
step by the numbers alone.

Frames cost the broker 5 to 30 us a message (decompressing what is stored, compressing it again), whoever gets them. So
`compression.stream_records_per_s` bounds how many are made: a token bucket, from which a block that is larger than what
is there takes nothing. Slow topics, those of narrow links, always fit in; a flood goes standalone.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Final

from lexicast.cluster.blocks import Meta
from lexicast.cluster.security.authors import publisher_of
from lexicast.cluster.topics.names import DICTIONARY_PREFIX
from lexicast.compression.streams.topic_streams import FrameBatch, TopicStreams
from lexicast.compression.wire import Recoder

from .dictionaries.keeper import IsOptedOut, NewestDictionary
from .encoding import BlockView, EncodedBlock, Encoder, Grants, Kind
from .topic_publishers import TopicPublishers

if TYPE_CHECKING:
    from lexicast.compression.dictionary import Dictionary

    from .subscriber import Subscriber

BURST_S: Final = 2
UNIT_BYTES: Final = 1_024
VARIANTS_MAX: Final = 8
_US_PER_S: Final = 1_000_000


class Pace:
    """A token bucket of units, a record of up to UNIT_BYTES each; BURST_S seconds' worth at most."""

    def __init__(self, units_per_s: int) -> None:
        self._units_per_s = units_per_s
        self._left = float(BURST_S * units_per_s)
        self._at_us = 0

    def allows(self, records: int, now_us: int) -> bool:
        """Whether so many records may be taken now."""
        passed_us = max(0, now_us - self._at_us)
        self._at_us = now_us
        self._left = min(float(BURST_S * self._units_per_s), self._left + passed_us * self._units_per_s / _US_PER_S)
        return self._left >= records

    def charge(self, payloads: Sequence[bytes]) -> None:
        """These were taken."""
        self._left -= sum([1 + len(payload) // UNIT_BYTES for payload in payloads])


def publisher(meta: Meta, run: int) -> str | None:
    """Who published a run, by client id; None: unknown."""
    at = meta.runs[run].origin
    if not 0 <= at < len(meta.origins):
        return None
    return publisher_of(meta.origins[at])


class Streamer:
    """Makes the frames of one broker."""

    def __init__(
        self,
        recoder: Recoder,
        newest: NewestDictionary,
        opted_out: IsOptedOut,
        records_per_s: int,
        users: bool = False,
    ) -> None:
        """`records_per_s`: how many may be made, one of more than 1 KiB counting as several. `users`: clients log in,
        so a stream holds what one of them publishes (`topic_publishers`)."""
        self._recoder = recoder
        self._newest = newest
        self._opted_out = opted_out
        self._pace = Pace(records_per_s)
        self._streams = TopicStreams()
        self._publishers = TopicPublishers(self._streams.forget) if users else None
        self.records = 0

    def stream(
        self,
        view: BlockView,
        encoder: Encoder,
        topics: Collection[int],
        tagged: bool,
        subscribers: Sequence[Subscriber] = (),
    ) -> None:
        """Give `view` the frames of those of its topics (by index) that are streamed.

        To be called once a live block, in offset order. `tagged`: dictionary-aware MQTT sessions get it, so what they
        would get standalone is what a stream has to beat; else what is stored. `subscribers`: those that take streams.
        """
        if not self._pace.allows(1, view.now_us):
            return
        runs: dict[int, list[int]] = {}
        for index, run in enumerate(view.block.meta.runs):
            if run.topic in topics and not view.expired(run):
                runs.setdefault(run.topic, []).append(index)
        for topic, of_topic in runs.items():
            if self._takes(view, topic, of_topic, subscribers):
                self._encode(view, topic, of_topic, encoder, tagged)

    def lost(self, subscriber: Subscriber, topic: bytes) -> None:
        """The subscriber says that it cannot read the topic's stream: it is out of step."""
        slot = self._streams.slot_of(topic)
        if slot is not None:
            subscriber.steps.pop(slot, None)

    def _takes(self, view: BlockView, topic: int, runs: Sequence[int], subscribers: Sequence[Subscriber]) -> bool:
        meta, now_us = view.block.meta, view.now_us
        name = meta.topics[topic]
        count = sum([meta.runs[index].count for index in runs])
        if name.startswith(DICTIONARY_PREFIX) or self._opted_out(name) or not self._pace.allows(count, now_us):
            return False
        if self._publishers is not None and not self._publishers.one(name, [publisher(meta, at) for at in runs]):
            return False

        def holds(dictionary: Dictionary, last: FrameBatch | None) -> bool:
            return most_hold(subscribers, dictionary, last)

        def read_zstd(last: FrameBatch | None) -> bool:
            return most_read_zstd(subscribers, last)

        return self._streams.takes(name, count, self._newest(name), holds, now_us, read_zstd)

    def _encode(self, view: BlockView, topic: int, runs: Sequence[int], encoder: Encoder, tagged: bool) -> None:
        payloads: list[bytes] = []
        for payload in view.raw_runs(self._recoder, runs):
            if payload is None:
                return  # it cannot be decoded: those of this topic that can go standalone
            payloads.append(payload)
        standalone: Sequence[bytes | None] = encoder.tagged(view) if tagged else view.stored()
        size = sum([len(each or b"") for each in view.of_runs(standalone, runs)])
        self._pace.charge(payloads)
        batch = self._streams.encode(view.block.meta.topics[topic], payloads, size, view.now_us)
        if batch.comparison is not None:
            encoder.savings.note(*batch.comparison)
        view.batches[topic] = batch
        self.records += len(payloads)
        at = 0
        for index in runs:
            end = at + view.block.meta.runs[index].count
            view.frames[index] = batch.frames[at:end]
            at = end


def most_hold(subscribers: Sequence[Subscriber], dictionary: Dictionary, last: FrameBatch | None) -> bool:
    """Whether most of those that took this batch (None: of all) have the dictionary, or get it now."""
    asked = have = 0
    for subscriber in subscribers:
        if subscriber.ready and (last is None or subscriber.steps.get(last.slot) == last.number):
            asked += 1
            have += subscriber.gets_dictionary(dictionary, last is not None and last.model is None)
    return 2 * have > asked


def most_read_zstd(subscribers: Sequence[Subscriber], last: FrameBatch | None) -> bool:
    """Whether most of those that took this batch (None: of all) read streams of zstd."""
    asked = read = 0
    for subscriber in subscribers:
        if subscriber.ready and (last is None or subscriber.steps.get(last.slot) == last.number):
            asked += 1
            read += subscriber.reads_zstd
    return 2 * read > asked


def reads(subscriber: Subscriber, batch: FrameBatch) -> bool | None:
    """Whether the subscriber can read a batch's frames; None: if the past comes along. What it misses is counted."""
    if batch.of_zstd and not subscriber.reads_zstd:
        return False
    if batch.follows(subscriber.steps):
        return batch.dictionary is None or subscriber.gets_dictionary(batch.dictionary)
    if batch.model is not None:
        batch.waited = batch.waited or subscriber.gets_dictionary(batch.model)
        return False
    if batch.of_zstd:
        batch.waited = True
        return False
    has_newest = batch.newest is not None and subscriber.has_dictionary(batch.newest.id)
    return None if batch.is_earned(subscriber.missed, has_newest) else False


def is_for_all(batch: FrameBatch) -> bool:
    """Whether whoever takes streams can read it."""
    return batch.is_key and batch.dictionary is None and not batch.of_zstd


def in_step(subscriber: Subscriber, view: BlockView, grants: Grants) -> tuple[list[int], list[int]]:
    """The topics that the subscriber wants and can read as frames, and those of them whose past has to come along."""
    streamed: list[int] = []
    joined: list[int] = []
    for index, batch in view.batches.items():
        if grants[index] is None:
            continue
        readable = reads(subscriber, batch)
        if readable is not False:
            streamed.append(index)
        if readable is None:
            joined.append(index)
    return streamed, joined


def took(subscriber: Subscriber, view: BlockView, streamed: Collection[int]) -> None:
    """The frames of these topics were sent to the subscriber, all of them."""
    for index in streamed:
        batch = view.batches[index]
        subscriber.steps[batch.slot] = batch.number


def deliver_streams(
    view: BlockView, encoder: Encoder, kind: Kind, grants: Grants, subscribers: Sequence[Subscriber]
) -> int:
    """Send a live block that has frames to subscribers of a kind that takes them; the number of publications sent.

    What `in_step` and `took` do is written out here: 0.2 us a subscriber instead of 0.7.
    """
    wanted = [
        (1 << index, batch.slot, batch.before, batch.number, is_for_all(batch), batch)
        for index, batch in view.batches.items()
        if grants[index] is not None
    ]
    needed = encoder.needed_aliases(kind, view, grants)
    variants: dict[tuple[int, int, int], EncodedBlock] = {}

    def made(masks: tuple[int, int, int]) -> EncodedBlock:
        streamed = [index for index in view.batches if masks[0] >> index & 1]
        joined = [index for index in streamed if masks[1] >> index & 1]
        variants[masks] = encoder.shared(kind, view, grants, streamed, joined=joined, aliases=masks[2])
        return variants[masks]

    sent = 0
    for subscriber in subscribers:
        mask = joining = aliases = 0
        if subscriber.ready:
            if needed:
                aliases = subscriber.alias_form(needed)
            steps = subscriber.steps
            for bit, slot, before, number, for_all, batch in wanted:
                if not for_all and (batch.is_key or steps.get(slot) != before):
                    readable = reads(subscriber, batch)
                    if readable is False:
                        continue
                    if readable is None:
                        joining |= bit
                mask |= bit
                steps[slot] = number
            if (mask, joining, aliases) not in variants and len(variants) >= VARIANTS_MAX:
                mask = joining = 0
                for _, slot, _, _, _, _ in wanted:
                    steps.pop(slot, None)
        encoded = variants.get((mask, joining, aliases)) or made((mask, joining, aliases))
        if not subscriber.ready:
            subscriber.offer(view, grants, encoded)
        elif encoded.data:
            subscriber.write_tagged(encoded)
        sent += encoded.records
    return sent
