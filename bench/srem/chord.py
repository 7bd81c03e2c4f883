"""A small Chord (Stoica et al. 2003), to count what it sends: fingers, stabilisation, recursive lookups. In one thread.

Each period every node does what the paper's figure 7 has it do (section 4.4): `stabilize`, `notify`, `fix_fingers` (one
finger), `check_predecessor`. Counted as messages: a question and its answer are two, a notification one, a finger's
lookup one a hop and one for the answer, none where the node knows it. Identifiers are spread by chance over 2^32.
Nothing is delayed or lost, and nodes join before anything is counted: the fewest messages that Chord can do with.
"""

from __future__ import annotations

import random
from bisect import bisect_left
from typing import Final, NamedTuple

BITS: Final = 32
_RING: Final = 2**BITS


def _between(identifier: int, after: int, until: int) -> bool:
    """Whether it lies in (after, until] of the ring; all of it where both are the same."""
    return 0 < (identifier - after) % _RING <= ((until - after) % _RING or _RING)


class ChordLookup(NamedTuple):
    """Who is responsible, and after how many hops somebody was reached who knew that; 0: whoever asked."""

    node: int
    hops: int


class ChordNode:
    """A node by its identifier; `fingers[i]`: who it believes to succeed identifier + 2^i."""

    def __init__(self, identifier: int) -> None:
        self.identifier = identifier
        self.predecessor: int | None = None
        self.fingers = [identifier] * BITS
        self.next_finger = 0

    @property
    def successor(self) -> int:
        """The first finger."""
        return self.fingers[0]

    def closest_preceding(self, identifier: int) -> int:
        """The finger nearest before `identifier` (figure 5)."""
        for finger in reversed(self.fingers):
            if finger != self.identifier and _between(finger, self.identifier, identifier) and finger != identifier:
                return finger
        return self.successor


class ChordRing:
    """All nodes. `messages`: of their maintenance so far."""

    def __init__(self, nodes: int, seed: int) -> None:
        """They join one after the other, and stabilise until all fingers are right."""
        dice = random.Random(seed)
        identifiers = dice.sample(range(_RING), nodes)
        self.messages = 0
        self.nodes = {identifiers[0]: ChordNode(identifiers[0])}
        for identifier in identifiers[1:]:
            node = ChordNode(identifier)
            node.fingers[0] = self.lookup(dice.choice(sorted(self.nodes)), identifier).node
            self.nodes[identifier] = node
            self.period()
        while not self.settled():
            self.period()

    def period(self) -> None:
        """One period of maintenance at every node."""
        for node in self.nodes.values():
            self._stabilize(node)
            self._fix_finger(node)
            # check_predecessor: a question, an answer.
            self.messages += 2

    def settled(self) -> bool:
        """Whether every finger is the one that it should be."""
        ring = sorted(self.nodes)
        return all(
            finger == ring[bisect_left(ring, (node.identifier + 2**place) % _RING) % len(ring)]
            for node in self.nodes.values()
            for place, finger in enumerate(node.fingers)
        )

    def lookup(self, source: int, identifier: int) -> ChordLookup:
        """Who succeeds `identifier`, asked by `source`, each hop passing it on (recursive lookup)."""
        at, hops = self.nodes[source], 0
        if at.predecessor is not None and _between(identifier, at.predecessor, source):
            return ChordLookup(source, 0)
        while not _between(identifier, at.identifier, at.successor):
            at, hops = self.nodes[at.closest_preceding(identifier)], hops + 1
        return ChordLookup(at.successor, hops)

    def routed_hops(self, source: int, identifier: int) -> int:
        """How many hops a message takes to who succeeds `identifier`."""
        found = self.lookup(source, identifier)
        return found.hops + (found.node != source)

    def _stabilize(self, node: ChordNode) -> None:
        successor = self.nodes[node.successor]
        self.messages += 2
        between = successor.predecessor
        if between is not None and between not in (successor.identifier, node.identifier):
            node.fingers[0] = between if _between(between, node.identifier, node.successor) else node.successor
        self.messages += 1
        self._notify(self.nodes[node.successor], node.identifier)

    def _notify(self, node: ChordNode, identifier: int) -> None:
        nearer = node.predecessor is None or _between(identifier, node.predecessor, node.identifier)
        if nearer and identifier != node.identifier:
            node.predecessor = identifier

    def _fix_finger(self, node: ChordNode) -> None:
        found = self.lookup(node.identifier, (node.identifier + 2**node.next_finger) % _RING)
        node.fingers[node.next_finger] = found.node
        # The hops, and the answer; none where the node knows it itself.
        self.messages += found.hops + (found.hops > 0)
        node.next_finger = (node.next_finger + 1) % BITS
