"""A corpus over links that decide for themselves (TAPD): so many publishers in turn, one subscriber that gets it all.

The same cores as in the product: `compression.link_dictionaries` decides on each link, `compression.link_history` is
what a publisher sends without a dictionary, and a subscriber without one gets DEFLATE; PREDICT makes the dictionaries
as if there were one link of each kind (thesis section 6.3). Publishers take turns, so all are in the same state: no
spread of traffic over the fleet helps. Every tag, every dictionary and every binding counts, on each link.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from lexicast.compression.accounting import reduction_percent
from lexicast.compression.codecs import Codec, Deflate
from lexicast.compression.dictionary import Dictionary
from lexicast.compression.link_dictionaries import (
    BYTES_STREAM,
    NONE,
    FamilySavings,
    LinkDictionaries,
    LinkTotals,
    threshold_of,
)
from lexicast.compression.link_history import HistoryWriter
from lexicast.compression.streams.topic_streams import FrameBatch, TopicStreams

from .offline_runs import BINDING_BYTES, FAMILY, MESSAGE_US

_TAG_BYTES = 1


@dataclass
class LinkRun:
    """What the links of one corpus carried. Bytes with dictionaries, tags and bindings."""

    publishers: int
    raw_bytes: int = 0
    publisher_bytes: int = 0
    subscriber_bytes: int = 0
    dictionary_bytes: int = 0
    """Of the subscriber's, those of dictionaries."""

    totals: LinkTotals = field(default_factory=LinkTotals)
    """Of the publishers' links."""

    def reduction(self) -> float:
        """BR of publishers' links and the subscriber's together (equation 6.2.2)."""
        return reduction_percent(2 * self.raw_bytes, self.publisher_bytes + self.subscriber_bytes)

    def subscriber_reduction(self) -> float:
        """BR of the subscriber's link alone."""
        return reduction_percent(self.raw_bytes, self.subscriber_bytes)


class MeasuredCorpus:
    """A corpus, its dictionaries as PREDICT announced them, and how long each message is in every form, made once."""

    def __init__(self, messages: Sequence[bytes], dictionaries: Sequence[tuple[int, Dictionary]]) -> None:
        """`dictionaries`: each with the number of messages before the first that could be sent with it."""
        self.messages = messages
        self.dictionaries = {made.id: made for _, made in dictionaries}
        self._codecs: dict[int, Codec] = {made.id: made.build() for _, made in dictionaries}
        self.packed_bytes = {made.id: len(made.pack()) for _, made in dictionaries}
        self.newest = [NONE] * len(messages)
        for at, made in dictionaries:
            self.newest[at:] = [made.id] * (len(messages) - at)
        plain = Deflate()
        self.deflated = [_TAG_BYTES + len(plain.encode(message)[1]) for message in messages]
        self._with_newest = [0] * len(messages)

    def with_dictionary(self, at: int, dictionary: int) -> int:
        """Bytes of message `at`, with the tag."""
        if dictionary != self.newest[at]:
            return _TAG_BYTES + len(self._codecs[dictionary].encode(self.messages[at])[1])
        size = self._with_newest[at]
        if not size:
            size = self._with_newest[at] = _TAG_BYTES + len(self._codecs[dictionary].encode(self.messages[at])[1])
        return size


def link_run(corpus: MeasuredCorpus, publishers: int, *, streams: bool = False) -> LinkRun:
    """All messages of the corpus, each over its publisher's link and the subscriber's, which takes topic streams if
    `streams`: all are of one topic."""
    run = LinkRun(publishers, sum(map(len, corpus.messages)))
    fleet = _Publishers(corpus, publishers)
    subscriber = _StreamSubscriber(corpus) if streams else _Subscriber(corpus)
    for at in range(len(corpus.messages)):
        run.publisher_bytes += fleet.send(at)
        run.subscriber_bytes += subscriber.send(at)
    for link in fleet.links:
        run.totals = run.totals.plus(link.account())
    run.publisher_bytes += run.totals.paid_bytes
    run.dictionary_bytes = subscriber.link.paid_bytes
    run.subscriber_bytes += run.dictionary_bytes
    return run


class _Publishers:
    def __init__(self, corpus: MeasuredCorpus, count: int) -> None:
        self._corpus = corpus
        self._savings = FamilySavings()
        self.links = [LinkDictionaries(threshold_of(f"publisher {number}")) for number in range(count)]
        self._past = [HistoryWriter() for _ in range(count)]

    def send(self, at: int) -> int:
        """Bytes on the publisher's link; afterwards the broker may send it a dictionary."""
        corpus, savings = self._corpus, self._savings
        number = at % len(self.links)
        link, newest = self.links[number], corpus.newest[at]
        held = link.held(FAMILY)
        if held == NONE:
            message = corpus.messages[at]
            frame = self._past[number].frame(message)
            sent = _TAG_BYTES + len(message if frame is None else frame)
            link.unclaimed_bytes += sent
        else:
            sent = corpus.with_dictionary(at, held)
            link.saved_bytes += savings.saved_bytes(held, sent)
        if newest not in (NONE, held):
            if savings.wants(newest, held):
                savings.note(newest, held, 1, sent, corpus.with_dictionary(at, newest))
            link.carried_outdated(FAMILY, sent)
            _give(link, newest, corpus.packed_bytes[newest], savings.share(newest, held))
        return sent


class _Subscriber:
    def __init__(self, corpus: MeasuredCorpus) -> None:
        self._corpus = corpus
        self._savings = FamilySavings()
        self.link = LinkDictionaries(threshold_of("subscriber"))

    def send(self, at: int) -> int:
        """Bytes on the subscriber's link; a dictionary that is due comes before the message."""
        corpus, link, savings = self._corpus, self.link, self._savings
        newest, held = corpus.newest[at], link.held(FAMILY)
        if newest not in (NONE, held):
            without = corpus.deflated[at] if held == NONE else corpus.with_dictionary(at, held)
            savings.note(newest, held, 1, without, corpus.with_dictionary(at, newest))
            # what is about to be sent counts
            about_to_be = without if held == NONE else 0
            link.unclaimed_bytes += about_to_be
            if not _give(link, newest, corpus.packed_bytes[newest], savings.share(newest, held)):
                link.carried_outdated(FAMILY, without)
            link.unclaimed_bytes = max(0, link.unclaimed_bytes - about_to_be)
        held = link.held(FAMILY)
        if held == NONE:
            sent = corpus.deflated[at]
            link.unclaimed_bytes += sent
        else:
            sent = corpus.with_dictionary(at, held)
            link.saved_bytes += savings.saved_bytes(held, sent)
        return sent


class _StreamSubscriber(_Subscriber):
    """What a broker does (`actors.broker.streaming`), for the one link that follows the topic's stream."""

    def __init__(self, corpus: MeasuredCorpus) -> None:
        super().__init__(corpus)
        self._streams = TopicStreams()
        self._steps: dict[int, int] = {}
        self._missed: dict[int, int] = {}

    def send(self, at: int) -> int:
        """Bytes on the subscriber's link."""
        corpus = self._corpus
        newest = corpus.newest[at]
        dictionary = corpus.dictionaries.get(newest)
        if not self._streams.takes(FAMILY, 1, dictionary, self._holds, at * MESSAGE_US, _reads_zstd):
            return super().send(at)
        standalone = corpus.deflated[at] if dictionary is None else corpus.with_dictionary(at, newest)
        batch = self._streams.encode(FAMILY, [corpus.messages[at]], standalone, at * MESSAGE_US)
        if batch.comparison is not None:
            self._savings.note(*batch.comparison)
        sent = self._frame_bytes(batch)
        if sent is None:
            return super().send(at)
        self._steps[batch.slot] = batch.number
        link = self.link
        if batch.model is None:
            link.unclaimed_bytes += sent
        else:
            link.saved_bytes += self._savings.saved_bytes(batch.model.id, sent)
            if newest != batch.model.id:
                link.carried_outdated(FAMILY, sent)
        return sent

    def _holds(self, dictionary: Dictionary, last: FrameBatch | None) -> bool:
        link, of_bytes = self.link, last is not None and last.model is None
        held = link.held(FAMILY)
        if held != dictionary.id:
            share = self._savings.share(dictionary.id, BYTES_STREAM if of_bytes else held)
            _give(link, dictionary.id, self._corpus.packed_bytes[dictionary.id], share, of_bytes)
        return link.held(FAMILY) == dictionary.id

    def _frame_bytes(self, batch: FrameBatch) -> int | None:
        """None: it cannot read the frame."""
        if batch.follows(self._steps):
            if batch.dictionary is None or self._holds(batch.dictionary, None):
                return len(batch.frames[0])
        elif batch.model is not None:
            batch.waited = batch.waited or self._holds(batch.model, None)
        elif batch.of_zstd:
            batch.waited = True
        elif batch.is_earned(self._missed, batch.newest is not None and self.link.held(FAMILY) == batch.newest.id):
            return len(batch.with_past()[0])
        return None


def _reads_zstd(last: FrameBatch | None) -> bool:
    return True


def _give(link: LinkDictionaries, newest: int, packed_bytes: int, share: float, of_unclaimed: bool = False) -> bool:
    cost = packed_bytes + BINDING_BYTES
    if not link.is_due(FAMILY, newest, cost, share, of_unclaimed):
        return False
    link.take(FAMILY, newest, cost, share, of_unclaimed)
    return True
