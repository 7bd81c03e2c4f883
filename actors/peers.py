"""A coordinator's view of the brokers: what each is subscribed to, and how far each has been served.

A broker is to its coordinator what a session is to its broker: it is *live* (blocks go out as they may) or, in some
groups, *behind*: then it has a cursor there and is brought up from the store until it is live again. A broker gets
behind when its link is full, and when it comes back after a broken link. Nothing is queued for it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from lexicast.cluster.blocks import Block
from lexicast.cluster.messages import DELIVER
from lexicast.cluster.topics import TopicTrie, is_wildcard
from lexicast.storage.store import Store

from .link import Link

# Bytes that may wait on a broker's link before the broker is served from the store instead.
LINK_BACKLOG_BYTES_MAX = 32 * 1024 * 1024
TOPIC_ROUTES_MAX = 200_000


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

    def recorded(self) -> dict[bytes, int]:
        """What the log says that it is subscribed to, or will when this turn is committed: filter -> incarnation."""
        return dict.fromkeys(self.filters, self.incarnation)

    def offer(self, block: Block) -> None:
        """Send `block` at the end of this turn, unless the broker is behind in its group."""
        if block.group not in self.behind:
            self.outgoing.append(block)

    def flush(self) -> None:
        """Send what was offered in this turn, as one message; a full link puts the broker behind instead."""
        if not self.outgoing:
            return
        blocks, self.outgoing = self.outgoing, []
        if self.link.write_buffer_bytes() > LINK_BACKLOG_BYTES_MAX:
            for block in blocks:
                self.behind.setdefault(block.group, block.first)
            return
        self.send(blocks)

    def send(self, blocks: list[Block]) -> None:
        """Send blocks now."""
        self.delivered_records += sum([block.count for block in blocks])
        self.link.send((DELIVER, 0, [block.to_wire() for block in blocks]))


def recorded_filters(store: Store, broker: str, groups_of: Callable[[list[bytes]], list[int]]) -> dict[bytes, int]:
    """What the logs say that a broker is subscribed to: filter -> incarnation; -1 where not all of its groups do."""
    told: dict[bytes, dict[int, int]] = {}
    for group in groups_of([b"#"]):
        for record, _ in store.subscriptions(group):
            if record.broker == broker:
                told.setdefault(record.filter.encode(), {})[group] = record.incarnation
    found = {}
    for topic_filter, by_group in told.items():
        whole = len(by_group) == len(groups_of([topic_filter])) and len(set(by_group.values())) == 1
        found[topic_filter] = next(iter(by_group.values())) if whole else -1
    return found


class Routing:
    """Which brokers a block concerns: back-end subscriptions in a trie, matches cached for each topic."""

    def __init__(self) -> None:
        self.peers: dict[str, BrokerPeer] = {}
        self._trie: TopicTrie[str, None] = TopicTrie()
        self._routes: dict[bytes, frozenset[str]] = {}

    def insert(self, peer: BrokerPeer, topic_filter: bytes) -> bool:
        """Subscribe; False when it was."""
        if topic_filter in peer.filters:
            return False
        peer.filters.add(topic_filter)
        self._trie.insert(topic_filter, peer.name, None)
        self._changed(topic_filter)
        return True

    def remove(self, peer: BrokerPeer, topic_filter: bytes) -> bool:
        """Unsubscribe; False when it was not subscribed."""
        if topic_filter not in peer.filters:
            return False
        peer.filters.discard(topic_filter)
        self._trie.remove(topic_filter, peer.name)
        self._changed(topic_filter)
        return True

    def drop(self, peer: BrokerPeer) -> list[bytes]:
        """Forget a broker; its filters, so that their end can be recorded."""
        filters = sorted(peer.filters)
        for topic_filter in filters:
            self.remove(peer, topic_filter)
        if self.peers.get(peer.name) is peer:
            del self.peers[peer.name]
        return filters

    def brokers_of(self, topic: bytes) -> frozenset[str]:
        """Names of the brokers subscribed to `topic`."""
        names = self._routes.get(topic)
        if names is None:
            if len(self._routes) >= TOPIC_ROUTES_MAX:
                self._routes.clear()
            names = self._routes[topic] = frozenset([name for name, _ in self._trie.match(topic)])
        return names

    def _changed(self, topic_filter: bytes) -> None:
        if is_wildcard(topic_filter):
            self._routes.clear()
        else:
            self._routes.pop(topic_filter, None)

    def offer(self, block: Block) -> None:
        """Offer `block` to every broker that one of its topics concerns."""
        topics = block.meta.topics
        names = self.brokers_of(topics[0])
        if len(topics) > 1:
            names = names.union(*[self.brokers_of(topic) for topic in topics[1:]])
        for name in names:
            peer = self.peers.get(name)
            if peer is not None:
                peer.offer(block)

    def flush(self) -> None:
        """End of a turn: send."""
        for peer in self.peers.values():
            peer.flush()

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
