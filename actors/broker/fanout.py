"""Fan-out: which subscribers of this broker get a block, grouped so that each distinct encoding is made once.

For a topic, the matching subscriptions are looked up once and put together a subscriber (`Fan`); fans with the same
content are one object. For a block, the fans of its topics give a `Plan`, cached: per kind of session and grants the
list of subscribers that share the bytes, and those that need packet ids of their own.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from lexicast.cluster.topics.names import TopicTrie, is_wildcard

from ..mqtt.codec.topic_aliases import NO_ALIASES
from .encoding import LINK, BlockView, EncodedBlock, Encoder, Grant, Grants, Kind
from .granted_filters import join_grants
from .security.rights import Rights
from .streaming import Streamer, deliver_streams
from .subscriber import Subscriber, needs_ids

PLANS_MAX: Final = 4_096
# Fans that no topic has any more, kept before they are swept out.
SAME_SPARE: Final = 64


class Shared(NamedTuple):
    """Subscribers that get the same bytes."""

    kind: Kind
    grants: Grants
    subscribers: tuple[Subscriber, ...]


class Plan(NamedTuple):
    """Who gets a block. `own`: subscribers that need packet ids, or take a part of it, with their grants.

    `streamers`: those that take topic streams, and `streamed`: the topics of the block (by index) that they want.
    `opens`: some get its payloads decompressed.
    """

    shared: tuple[Shared, ...]
    own: tuple[tuple[Subscriber, Grants], ...]
    streamers: tuple[Subscriber, ...] = ()
    streamed: frozenset[int] = frozenset()
    opens: bool = False


Fan = tuple[tuple[Subscriber, Grant], ...]


class Fanout:
    """All front-end subscriptions of a broker. `streamer`: makes topic streams; `rights`: who may not read a topic is
    not in its fan."""

    def __init__(self, topics_max: int, streamer: Streamer | None = None, rights: Rights | None = None) -> None:
        self._streamer = streamer
        self._rights = rights
        self._trie: TopicTrie[Subscriber, Grant] = TopicTrie()
        self._fans: dict[bytes, Fan] = {}
        self._same: dict[Fan, Fan] = {}
        # With the fans that the key names by identity: while a plan is kept, no other object can have it.
        self._plans: dict[tuple[int, ...], tuple[Plan, list[Fan]]] = {}
        self._topics_max = topics_max

    def insert(self, wanted: Mapping[bytes, Grant], subscriber: Subscriber) -> None:
        """Subscribe, or replace the grants."""
        for topic_filter, grant in wanted.items():
            self._trie.insert(topic_filter, subscriber, grant)
        self._changed(wanted)

    def remove(self, filters: Iterable[bytes], subscriber: Subscriber) -> None:
        """Unsubscribe."""
        self._changed([topic_filter for topic_filter in filters if self._trie.remove(topic_filter, subscriber)])

    def _changed(self, filters: Collection[bytes]) -> None:
        if not filters:
            return
        self._plans.clear()
        if any(map(is_wildcard, filters)):
            self._fans.clear()
            self._same.clear()
            return
        for topic_filter in filters:
            self._fans.pop(topic_filter, None)
        if len(self._same) > 2 * len(self._fans) + SAME_SPARE:
            self._same = {fan: fan for fan in self._fans.values()}

    def forget(self) -> None:
        """The rules have changed: look everything up again."""
        self._fans.clear()
        self._same.clear()
        self._plans.clear()

    def fan(self, topic: bytes) -> Fan:
        """The subscribers of a topic with their grants."""
        fan = self._fans.get(topic)
        if fan is None:
            grants: dict[Subscriber, list[Grant]] = {}
            for subscriber, grant in self._trie.match(topic):
                grants.setdefault(subscriber, []).append(grant)
            if self._rights is not None and self._rights.restricted:
                grants = {s: found for s, found in grants.items() if s.rights is None or s.rights.may_read(topic)}
            made = tuple([(s, joined) for s, found in grants.items() if (joined := join_grants(found)) is not None])
            if len(self._fans) >= self._topics_max:
                self.forget()
            fan = self._fans[topic] = self._same.setdefault(made, made)
        return fan

    def plan(self, topics: tuple[bytes, ...], highest_qos: int) -> Plan:
        """The plan for a block of these topics."""
        known_fans = self._fans
        fans = [known_fans.get(topic) or self.fan(topic) for topic in topics]
        key = (highest_qos > 0, *map(id, fans))
        known = self._plans.get(key)
        if known is None:
            if len(self._plans) >= PLANS_MAX:
                self._plans.clear()
            known = self._plans[key] = (make_plan(fans, highest_qos), fans)
        return known[0]

    def deliver(self, view: BlockView, encoder: Encoder) -> int:
        """Send a live block to its subscribers; the number of publications sent."""
        plan = self.plan(view.block.meta.topics, view.highest_qos)
        sent = 0
        if plan.streamed and self._streamer is not None and any(s.ready for s in plan.streamers):
            tagged = any(_is_tagged(s.kind) for s in plan.streamers)
            self._streamer.stream(view, encoder, plan.streamed, tagged, plan.streamers)
        for kind, grants, subscribers in plan.shared:
            if kind.streams and view.batches:
                sent += deliver_streams(view, encoder, kind, grants, subscribers)
                continue
            if len(subscribers) == 1 and not subscribers[0].ready and subscribers[0].drops and not view.is_rest:
                continue  # a slow subscriber that misses this one: nothing to encode
            if kind.topic_aliases and (needed := encoder.needed_aliases(kind, view, grants)):
                sent += deliver_aliased(view, encoder, kind, grants, subscribers, needed)
                continue
            encoded = encoder.shared(kind, view, grants)
            data = encoded.data
            if not data:
                continue
            sent += encoded.records * len(subscribers)
            if kind.aware:
                for subscriber in subscribers:
                    if subscriber.ready:
                        subscriber.write_tagged(encoded)
                    else:
                        subscriber.offer(view, grants, encoded)
            else:
                for subscriber in subscribers:
                    if subscriber.ready:
                        subscriber.write(data)
                    else:
                        subscriber.offer(view, grants, encoded)
        for subscriber, grants in plan.own:
            subscriber.offer(view, grants, None)
            if not subscriber.samples:
                sent += view.block.count
        return sent


def deliver_aliased(
    view: BlockView, encoder: Encoder, kind: Kind, grants: Grants, subscribers: Sequence[Subscriber], needed: int
) -> int:
    """Send a live block to subscribers of a kind with topic aliases, of which it has `needed` (bits): whoever lacks one
    gets it with the topics, the others without. The number of publications sent."""
    forms: dict[int, EncodedBlock] = {}
    sent = 0
    for subscriber in subscribers:
        aliases = subscriber.alias_form(needed) if subscriber.ready else NO_ALIASES
        encoded = forms.get(aliases)
        if encoded is None:
            encoded = forms[aliases] = encoder.shared(kind, view, grants, aliases=aliases)
        if not subscriber.ready:
            subscriber.offer(view, grants, encoded)
        elif encoded.data:
            subscriber.write_tagged(encoded)
        sent += encoded.records
    return sent


def _is_tagged(kind: Kind) -> bool:
    return kind.aware and kind.version != LINK


def make_plan(fans: list[Fan], highest_qos: int) -> Plan:
    """Group the subscribers of a block's topics by what they get."""
    wanted: dict[Subscriber, list[Grant | None]] = {}
    for index, fan in enumerate(fans):
        for subscriber, grant in fan:
            grants = wanted.get(subscriber)
            if grants is None:
                grants = wanted[subscriber] = [None] * len(fans)
            grants[index] = grant
    shared: dict[tuple[Kind, Grants], list[Subscriber]] = {}
    own: list[tuple[Subscriber, Grants]] = []
    for subscriber, listed in wanted.items():
        grants_of = tuple(listed)
        if subscriber.samples or needs_ids(highest_qos, grants_of):
            own.append((subscriber, grants_of))
        else:
            # What differs only in the QoS granted is sent alike.
            alike = tuple([None if grant is None else grant._replace(qos=0) for grant in grants_of])
            shared.setdefault((subscriber.kind, alike), []).append(subscriber)
    streamers = tuple([subscriber for subscriber in wanted if subscriber.kind.streams])
    streamed = {index for s in streamers for index, grant in enumerate(wanted[s]) if grant is not None}
    groups = tuple([Shared(kind, grants, tuple(subs)) for (kind, grants), subs in shared.items()])
    opens = any([subscriber.kind.is_plain for subscriber in wanted])
    return Plan(groups, tuple(own), streamers, frozenset(streamed), opens)
