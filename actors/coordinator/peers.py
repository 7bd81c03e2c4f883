"""A coordinator's view of the brokers: what each is subscribed to, and how far each has been served.

A broker is to its coordinator what a session is to its broker: it is *live* (blocks go out as they may) or, in some
groups, *behind*: then it has a cursor there and is brought up from the store until it is live again. A broker gets
behind when its link is full, and when it comes back after a broken link. Nothing is queued for it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from lexicast.cluster.blocks import Block
from lexicast.cluster.clock import Clock
from lexicast.cluster.protocol.messages import DELIVER
from lexicast.cluster.topics.names import TopicTrie, is_wildcard

from ..link.link import Link
from .matching.choosers import Choosers

# Bytes that may wait on a broker's link before the broker is served from the store instead.
LINK_BACKLOG_BYTES_MAX = 32 * 1024 * 1024
# Bytes from which on what is delivered is a message of its own: a broker takes a message in one turn.
DELIVER_BYTES_MAX: Final = 1024 * 1024
TOPIC_ROUTES_MAX: Final = 200_000


@dataclass(eq=False, slots=True)
class BrokerPeer:
    """One broker's link and state."""

    name: str
    incarnation: int
    link: Link
    filters: set[bytes] = field(default_factory=set)
    behind: dict[int, int] = field(default_factory=dict)
    heads: dict[int, int] = field(default_factory=dict)
    outgoing: list[Block] = field(default_factory=list)
    delivered_records: int = 0
    # Until it has registered what it wants it is behind everywhere, so nothing goes out.
    registering: bool = True
    # Groups that began to be served while its link stood, until it has asked to be served in them too: it is behind
    # there, is not brought up, and what it publishes is taken for sent to whoever led them before.
    announced: set[int] = field(default_factory=set)
    # How far it said it had been served when its link began.
    came_with: dict[int, int] = field(default_factory=dict)
    # Another link or incarnation has taken its place; what it wanted leaves the trie bit by bit.
    gone: bool = False

    def offer(self, block: Block) -> None:
        """Send `block` at the end of this turn, unless the broker is behind in its group."""
        if block.group not in self.behind:
            self.outgoing.append(block)

    def gather_offered(self) -> None:
        """Gather what was offered in this turn (`Link.gather`), as one message, or several where that is much: a commit
        that others have waited for sets free all that did. Where the link is full the broker is behind with the rest.
        """
        blocks, self.outgoing = self.outgoing, []
        at = 0
        while at < len(blocks):
            if self.link.write_buffer_bytes() > LINK_BACKLOG_BYTES_MAX:
                for block in blocks[at:]:
                    self.behind.setdefault(block.group, block.first)
                return
            end, size = at, 0
            while end < len(blocks) and size < DELIVER_BYTES_MAX:
                size += blocks[end].size_bytes
                end += 1
            self.gather(blocks[at:end])
            at = end

    def forget_groups(self, groups: Collection[int]) -> None:
        """These are not led here any more."""
        for group in groups:
            self.behind.pop(group, None)
            self.heads.pop(group, None)
            self.announced.discard(group)
        self.outgoing = [block for block in self.outgoing if block.group not in groups]

    def flush(self) -> None:
        """Send what was offered in this turn, with what else was gathered in the link."""
        self.gather_offered()
        self.link.flush()

    def send(self, blocks: list[Block]) -> None:
        """Send blocks now."""
        self.gather(blocks)
        self.link.flush()

    def gather(self, blocks: list[Block]) -> None:
        """Send blocks by `Link.flush`, which the caller is to call."""
        self.delivered_records += sum([block.count for block in blocks])
        self.link.gather((DELIVER, 0, [block.to_wire() for block in blocks]))


class Routing:
    """Which brokers a block concerns: back-end subscriptions in a trie, matches cached for each topic.

    `ends`: group -> the first offset after its last delivered publication, of the groups that had one since the start.
    """

    def __init__(self, clock: Clock) -> None:
        self.peers: dict[str, BrokerPeer] = {}
        # Brokers that want of some topics only what matchers say.
        self.choosers: Choosers[BrokerPeer] = Choosers(self, clock)
        self.ends: dict[int, int] = {}
        # Who looks at each block that may be delivered, for shared subscriptions.
        self.taker: Callable[[Block], None] | None = None
        self._trie: TopicTrie[BrokerPeer, None] = TopicTrie()
        self._routes: dict[bytes, frozenset[BrokerPeer]] = {}
        self._same: dict[frozenset[BrokerPeer], frozenset[BrokerPeer]] = {}

    def insert(self, peer: BrokerPeer, filters: Iterable[bytes]) -> list[bytes]:
        """Subscribe; those that it did not have yet."""
        fresh = [topic_filter for topic_filter in dict.fromkeys(filters) if topic_filter not in peer.filters]
        for topic_filter in fresh:
            self._trie.insert(topic_filter, peer, None)
        peer.filters.update(fresh)
        self._changed(fresh)
        return fresh

    def remove(self, peer: BrokerPeer, filters: Iterable[bytes]) -> list[bytes]:
        """Unsubscribe; those that it had."""
        ended = [topic_filter for topic_filter in dict.fromkeys(filters) if topic_filter in peer.filters]
        if self.choosers:
            self.choosers.removed(peer, ended)
        for topic_filter in ended:
            self._trie.remove(topic_filter, peer)
        peer.filters.difference_update(ended)
        self._changed(ended)
        return ended

    def replace(self, peer: BrokerPeer) -> BrokerPeer | None:
        """`peer` serves its broker from now on. The one before, of which `remove` is still to be asked."""
        before = self.peers.get(peer.name)
        self.peers[peer.name] = peer
        if before is not None:
            before.gone = True
            self.choosers.gone(before)
            before.outgoing.clear()
        return before

    def matches(self, topic: bytes) -> Iterable[tuple[BrokerPeer, None]]:
        """A broker for each of its filters that matches `topic`."""
        return self._trie.match(topic)

    def peers_of(self, topic: bytes) -> frozenset[BrokerPeer]:
        """The brokers subscribed to `topic`."""
        found = self._routes.get(topic)
        if found is None:
            if len(self._routes) >= TOPIC_ROUTES_MAX:
                self._forget()
            made = frozenset([peer for peer, _ in self._trie.match(topic)])
            # One object for all topics that go to the same brokers, of which there are few.
            found = self._routes[topic] = self._same.setdefault(made, made)
        return found

    def _changed(self, filters: Sequence[bytes]) -> None:
        if self.choosers:
            self.choosers.forget(filters)
        if any(map(is_wildcard, filters)):
            self._forget()
        else:
            for topic_filter in filters:
                self._routes.pop(topic_filter, None)

    def _forget(self) -> None:
        self._routes.clear()
        self._same.clear()

    def offer(self, block: Block) -> None:
        """Offer `block`, which may be delivered now, to every broker that one of its topics concerns."""
        self.ends[block.group] = block.last + 1
        if self.taker is not None:
            self.taker(block)
        topics = block.meta.topics
        peers = self.peers_of(topics[0])
        if len(topics) > 1:
            different = set(map(self.peers_of, topics))
            if len(different) > 1:
                peers = peers.union(*different)
        if self.choosers:
            peers = self.choosers.offer(block, peers)
        for peer in peers:
            if not peer.gone:
                peer.offer(block)

    def gather(self) -> None:
        """What was offered is gathered in the links, to be sent by `flush`."""
        for peer in self.peers.values():
            peer.gather_offered()

    def flush(self) -> None:
        """End of a turn: send, with what else was gathered in the links."""
        for peer in self.peers.values():
            peer.flush()
        self.choosers.matchers.flush()

    def status(self) -> dict[str, Any]:
        """For `lexicast status`."""
        return {
            name: {
                "filters": len(peer.filters),
                "groups_behind": len(peer.behind),
                "delivered_records": peer.delivered_records,
            }
            for name, peer in self.peers.items()
        }
