"""Topic streams on live links: which topics of a live block go as frames, and which subscribers get them.

A stream (`compression.topic_stream`) is made once for all subscribers of this broker that take streams. Whoever is in
step with a topic's stream, or joins because its batch begins with a key frame, gets frames; everybody else gets the
standalone payloads: at most VARIANTS_MAX ways to put a block together, each made once. Only live blocks have frames:
what is caught up with, retained, sent again or has a window in time is standalone, and a subscriber that got it so is
out of step by the numbers alone, until the next key frame.

Frames cost the broker 5 to 30 us a message (decompressing what is stored, compressing it again), whoever gets them. So
`compression.stream_records_per_s` bounds how many are made: a token bucket, from which a block that is larger than what
is there takes nothing. Slow topics, those of narrow links, always fit in; a flood goes standalone.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Final

from lexicast.cluster.blocks import Meta
from lexicast.cluster.security.authors import publisher_of
from lexicast.cluster.topics.names import DICTIONARY_PREFIX
from lexicast.compression.topic_stream import TopicStreams
from lexicast.compression.wire import Recoder

from .dictionaries.keeper import IsOptedOut, NewestDictionary
from .encoding import BlockView, EncodedBlock, Encoder, Grants, Kind
from .topic_publishers import TopicPublishers

if TYPE_CHECKING:
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

    def stream(self, view: BlockView, encoder: Encoder, topics: Collection[int], tagged: bool) -> None:
        """Give `view` the frames of those of its topics (by index) that are streamed.

        To be called once a live block, in offset order. `tagged`: dictionary-aware MQTT sessions get it, so what they
        would get standalone is what a stream has to beat; else what is stored.
        """
        if not self._pace.allows(1, view.now_us):
            return
        runs: dict[int, list[int]] = {}
        for index, run in enumerate(view.block.meta.runs):
            if run.topic in topics and not view.expired(run):
                runs.setdefault(run.topic, []).append(index)
        for topic, of_topic in runs.items():
            if self._takes(view, topic, of_topic):
                self._encode(view, topic, of_topic, encoder.tagged if tagged else BlockView.stored)

    def _takes(self, view: BlockView, topic: int, runs: Sequence[int]) -> bool:
        meta, now_us = view.block.meta, view.now_us
        name = meta.topics[topic]
        count = sum([meta.runs[index].count for index in runs])
        if name.startswith(DICTIONARY_PREFIX) or self._opted_out(name) or not self._pace.allows(count, now_us):
            return False
        if self._publishers is not None and not self._publishers.one(name, [publisher(meta, at) for at in runs]):
            return False
        return self._streams.takes(name, count, self._newest(name), now_us)

    def _encode(
        self,
        view: BlockView,
        topic: int,
        runs: Sequence[int],
        standalone: Callable[[BlockView], Sequence[bytes | None]],
    ) -> None:
        payloads: list[bytes] = []
        for payload in view.raw_runs(self._recoder, runs):
            if payload is None:
                return  # it cannot be decoded: those of this topic that can go standalone
            payloads.append(payload)
        size = sum([len(each or b"") for each in view.of_runs(standalone(view), runs)])
        self._pace.charge(payloads)
        batch = self._streams.encode(view.block.meta.topics[topic], payloads, size, view.now_us)
        view.batches[topic] = batch
        self.records += len(payloads)
        at = 0
        for index in runs:
            end = at + view.block.meta.runs[index].count
            view.frames[index] = batch.frames[at:end]
            at = end


def in_step(subscriber: Subscriber, view: BlockView, grants: Grants) -> list[int]:
    """The topics that the subscriber wants and can read as frames."""
    steps = subscriber.steps
    return [
        index
        for index, batch in view.batches.items()
        if grants[index] is not None
        and batch.follows(steps)
        and (batch.dictionary is None or subscriber.gets_dictionary(batch.dictionary))
    ]


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
        (1 << index, batch.slot, batch.before, batch.number, batch.is_key, batch.dictionary)
        for index, batch in view.batches.items()
        if grants[index] is not None
    ]
    variants: dict[int, EncodedBlock] = {}

    def made(mask: int) -> EncodedBlock:
        streamed = [index for index in view.batches if mask >> index & 1]
        variants[mask] = encoder.shared(kind, view, grants, streamed)
        return variants[mask]

    sent = 0
    for subscriber in subscribers:
        mask = 0
        if subscriber.ready:
            steps = subscriber.steps
            for bit, slot, before, number, is_key, dictionary in wanted:
                if (is_key or steps.get(slot) == before) and (
                    dictionary is None or subscriber.gets_dictionary(dictionary)
                ):
                    mask |= bit
                    steps[slot] = number
            if mask not in variants and len(variants) >= VARIANTS_MAX:
                mask = 0
                for _, slot, _, _, _, _ in wanted:
                    steps.pop(slot, None)
        encoded = variants.get(mask) or made(mask)
        if not subscriber.ready:
            subscriber.offer(view, grants, encoded)
        elif encoded.data:
            subscriber.write_tagged(encoded)
        sent += encoded.records
    return sent
