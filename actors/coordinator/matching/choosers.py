"""Brokers of which some filters choose: blocks that nothing else concerns wait for what matchers say of them.

Per broker and group order is kept by a queue. A block stands in it from when it may be delivered until matchers have
answered, or something of the group comes that the broker is to have in any case: then all that waits before it goes out
unvouched, in order. So who has no condition waits for nobody, and a slow matcher costs what it would have saved.

    no answer yet, a later block must go   the whole block
    answered, not vouched for              the whole block (what concerns the broker)
    answered                               the records that are wanted, if there are any; `last` stays the block's

How far a broker is said to have been served never passes what waits.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeVar

from lexicast.cluster.blocks import Block
from lexicast.cluster.clock import Clock
from lexicast.cluster.errors import PeerError
from lexicast.cluster.selection import select
from lexicast.cluster.topics.names import TopicTrie, is_wildcard

from .asked_blocks import AskedBlock, Matchers, WirePart

log = logging.getLogger(__name__)

# Blocks that were asked about and may not be delivered yet, and those that wait: beyond it nothing is asked, nor about
# a longer one. So at most 256 MiB wait.
BLOCKS_MAX: Final = 1_024
BLOCK_BYTES_MAX: Final = 256 * 1024
TOPICS_KEPT_MAX: Final = 200_000
# A broker with samples gets a whole block as often as this, whatever is chosen of it.
SAMPLED_S: Final = 0.05


class Peer(Protocol):
    """A broker's link, see `peers.BrokerPeer`."""

    name: str
    incarnation: int
    filters: set[bytes]
    gone: bool

    def offer(self, block: Block) -> None:
        """Send a block."""


P = TypeVar("P", bound=Peer)


P_co = TypeVar("P_co", bound=Peer, covariant=True)


class Routes(Protocol[P_co]):
    """Whom topics concern, see `peers.Routing`."""

    def matches(self, topic: bytes) -> Iterable[tuple[P_co, None]]:
        """A broker for each of its filters that matches."""
        ...

    def peers_of(self, topic: bytes) -> frozenset[P_co]:
        """The brokers."""
        ...


class WithheldBlock(NamedTuple):
    """A block that waits. `chosen`: of each of its topics whether the broker chooses of it (else it wants nothing)."""

    block: Block
    asked: AskedBlock
    chosen: list[bool]


@dataclass(eq=False, slots=True)
class Choosing:
    """One broker's choosing filters. `number`: up to which matchers have to know its conditions."""

    filters: set[bytes] = field(default_factory=set)
    number: int = 0
    samples: bool = False
    sampled_s: float = 0.0
    queues: dict[int, deque[WithheldBlock]] = field(default_factory=dict)


class Choosers(Generic[P]):
    """See the module's docstring. False as long as no filter chooses."""

    def __init__(self, routing: Routes[P], clock: Clock) -> None:
        self._routing = routing
        self.matchers = Matchers(clock)
        self._clock = clock
        self._choosing: dict[P, Choosing] = {}
        self._trie: TopicTrie[P, None] = TopicTrie()
        # By topic the brokers all of whose filters for it choose.
        self._of_topic: dict[bytes, frozenset[P]] = {}
        self._asked: dict[tuple[int, int], AskedBlock] = {}
        self._waiting = 0
        # Also of brokers that have gone: what is counted never goes back.
        self._withheld_records = 0
        self._given_records = 0

    def __bool__(self) -> bool:
        return bool(self._choosing)

    # -- brokers say what chooses

    def choose(self, peer: P, begin: Iterable[bytes], end: Iterable[bytes], number: int, samples: bool) -> None:
        """Of a broker's filters these choose from now on, and those no more."""
        self.release(peer)
        choosing = self._choosing.get(peer)
        if choosing is None:
            choosing = self._choosing[peer] = Choosing()
        choosing.number = max(choosing.number, number)
        choosing.samples = samples
        for name in begin:
            if name in peer.filters and name not in choosing.filters:
                choosing.filters.add(name)
                self._trie.insert(name, peer, None)
                self.forget([name])
        self.removed(peer, end)

    def removed(self, peer: P, filters: Iterable[bytes]) -> None:
        """These choose no more, or are no filters of the broker any more."""
        choosing = self._choosing.get(peer)
        if choosing is None:
            return
        for name in filters:
            if name in choosing.filters:
                choosing.filters.remove(name)
                self._trie.remove(name, peer)
                self.forget([name])

    def gone(self, peer: P) -> None:
        """The broker's link is replaced: what waits for it is read by whoever comes."""
        choosing = self._choosing.get(peer)
        if choosing is not None:
            self._waiting -= sum(map(len, choosing.queues.values()))
            choosing.queues.clear()
            self.removed(peer, list(choosing.filters))
            del self._choosing[peer]
        if not self._choosing:
            self._asked.clear()  # nobody is offered anything here any more

    def forget(self, filters: Iterable[bytes]) -> None:
        """Filters have come or gone, whoever's."""
        for name in filters:
            if is_wildcard(name):
                self._of_topic.clear()
                return
            self._of_topic.pop(name, None)

    # -- blocks are sequenced, and go

    def ask(self, block: Block, parts: Iterable[WirePart]) -> None:
        """A block has been sequenced; `parts`: what its broker has told of it. What does not fit it is not asked."""
        if not len(self.matchers) or len(self._asked) + self._waiting >= BLOCKS_MAX:
            return
        if block.size_bytes > BLOCK_BYTES_MAX or not self._only(block):
            return
        try:
            asked = AskedBlock(block, parts)
        except PeerError as error:  # it costs what it would have saved: the block is placed already
            log.warning("group %d offset %d: %s", block.group, block.first, error)
            return
        self._asked[block.group, block.first] = asked
        self.matchers.ask(asked)

    def forget_asked(self, block: Block) -> None:
        """It will not be delivered."""
        self._asked.pop((block.group, block.first), None)

    def offer(self, block: Block, peers: frozenset[P]) -> frozenset[P]:
        """A block may be delivered, and concerns `peers`: those of them that are to have it now, whole."""
        asked = self._asked.pop((block.group, block.first), None)
        only = self._only(block)
        if asked is not None:
            for peer in only:
                if not peer.gone:
                    self._withhold(peer, block, asked)
            peers = peers - only
        for peer in peers:
            if peer in self._choosing:
                self.release(peer, block.group)
        return peers

    def _only(self, block: Block) -> frozenset[P]:
        """The brokers that want of the block what matchers say, and nothing else."""
        topics = block.meta.topics
        if len(topics) == 1:
            return self._of(topics[0])
        only, others = set[P](), set[P]()
        for topic in topics:
            of_topic = self._of(topic)
            only |= of_topic
            others |= self._routing.peers_of(topic) - of_topic
        return frozenset(only - others)

    def _of(self, topic: bytes) -> frozenset[P]:
        found = self._of_topic.get(topic)
        if found is None:
            if len(self._of_topic) >= TOPICS_KEPT_MAX:
                self._of_topic.clear()
            chosen: dict[P, int] = {}
            for peer, _ in self._trie.match(topic):
                chosen[peer] = chosen.get(peer, 0) + 1
            for peer, _ in self._routing.matches(topic) if chosen else ():
                if peer in chosen:
                    chosen[peer] -= 1
            # As many of its filters choose as there are.
            found = self._of_topic[topic] = frozenset([peer for peer, left in chosen.items() if not left])
        return found

    # -- what waits

    def _withhold(self, peer: P, block: Block, asked: AskedBlock) -> None:
        queue = self._choosing[peer].queues.setdefault(block.group, deque())
        queue.append(WithheldBlock(block, asked, [peer in self._of(topic) for topic in block.meta.topics]))
        self._waiting += 1
        if asked.open:
            asked.on_settled.append(lambda: self._settle(peer, block.group))
        else:
            self._settle(peer, block.group)

    def _settle(self, peer: P, group: int) -> None:
        """Give what has been answered, in order, up to what has not."""
        choosing = self._choosing.get(peer)
        queue = choosing.queues.get(group) if choosing is not None else None
        if choosing is None or queue is None:
            return
        while queue and not queue[0].asked.open:
            self._waiting -= 1
            self._give(peer, choosing, queue.popleft())
        if not queue:
            del choosing.queues[group]

    def release(self, peer: P, group: int | None = None) -> None:
        """Give what waits for a broker (in one group), answered or not."""
        choosing = self._choosing.get(peer)
        if choosing is None or not choosing.queues:
            return
        for number in list(choosing.queues) if group is None else [group]:
            queue = choosing.queues.pop(number, None)
            for waiting in queue or ():
                self._waiting -= 1
                self._give(peer, choosing, waiting)

    def _give(self, peer: P, choosing: Choosing, waiting: WithheldBlock) -> None:
        block, asked, of_topics = waiting
        if choosing.samples:
            now_s = self._clock.monotonic()
            if now_s - choosing.sampled_s >= SAMPLED_S:
                choosing.sampled_s = now_s
                peer.offer(block)
                return
        if asked.unwanted(peer.name, peer.incarnation, choosing.number):
            self._withheld_records += block.count
            return
        chosen = [of_topics[run.topic] for run in block.meta.runs for _ in range(run.count)]
        keep = asked.wanted(peer.name, peer.incarnation, choosing.number, chosen)
        given = sum(keep)
        self._given_records += given
        self._withheld_records += block.count - given
        part = select(block, keep) if given else None
        if part is not None:
            peer.offer(part)

    def first_waiting(self, peer: P, group: int) -> int | None:
        """The first offset of a group that waits for a broker."""
        choosing = self._choosing.get(peer)
        queue = choosing.queues.get(group) if choosing is not None else None
        return queue[0].block.first if queue else None

    def forget_groups(self, groups: Collection[int]) -> None:
        """These are not led here any more."""
        for key in [key for key in self._asked if key[0] in groups]:
            del self._asked[key]
        for choosing in self._choosing.values():
            for group in groups:
                self._waiting -= len(choosing.queues.pop(group, ()))

    def status(self) -> dict[str, Any]:
        """For `lexicast status`."""
        return {
            "filters": sum([len(choosing.filters) for choosing in self._choosing.values()]),
            "given_records": self._given_records,
            "withheld_records": self._withheld_records,
            "waiting_blocks": self._waiting,
            **self.matchers.status(),
        }
