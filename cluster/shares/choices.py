"""Whose a topic of a share is: the member whose hash with the topic is the highest. Pure.

Rendezvous hashing (Thaler and Ravishankar 1998): a member that comes or goes moves only the topics that it gets or had.
So what was chosen is good for more than until the next one comes: a topic is held against those that have come since,
and against all only when its member has gone. That all topics are chosen anew among thousands of members, each time
that one of these comes, would take its coordinator seconds. A weight is two multiplications, of many members at once.

Memory: CHOICES_MAX topics.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from .pieces import DealtMember

# Topics of which it is remembered whose they are.
CHOICES_MAX: Final = 65_536
# Up to so many members are quicker looked at one by one.
FEW: Final = 6

_FIRST: Final = 0xBF58476D1CE4E5B9
_SECOND: Final = 0x94D049BB133111EB
_MASK: Final = (1 << 64) - 1


class _Choice(NamedTuple):
    """Whose topics are, as it was found when members had come or gone so many times; the same for all of his."""

    member: DealtMember
    changes: int


class TopicChoices:
    """See the module's docstring. `members`: those whose topics may be, in the order in which they came."""

    def __init__(self) -> None:
        self.members: list[DealtMember] = []
        self._chosen: dict[bytes, _Choice] = {}
        # How many times somebody has come or gone; with which of these each member came, ascending.
        self._changes = 0
        self._came: list[int] = []
        self._index: dict[DealtMember, int] = {}
        self._seeds: npt.NDArray[np.uint64] = np.zeros(0, np.uint64)
        # This change's, of each member that has been chosen.
        self._current: dict[DealtMember, _Choice] = {}

    def among(self, members: Sequence[DealtMember]) -> None:
        """Topics are these members' from now on, and nobody else's."""
        wanted, known = set(members), self._index
        if wanted == known.keys():
            return
        self._changes += 1
        stay = [index for index, member in enumerate(self.members) if member in wanted]
        come = [member for member in members if member not in known]
        self.members = [self.members[index] for index in stay] + come
        self._came = [self._came[index] for index in stay] + [self._changes] * len(come)
        self._index = {member: index for index, member in enumerate(self.members)}
        self._seeds = np.array([member.seed for member in self.members], np.uint64)
        self._current.clear()

    def choose(self, topic: bytes) -> DealtMember:
        """Whose a topic is; there are members."""
        choice = self._chosen.get(topic)
        if choice is not None and choice.changes == self._changes:
            return choice.member
        if choice is None and len(self._chosen) >= CHOICES_MAX:
            self._chosen.clear()
        member = self._found(topic, choice)
        current = self._current.get(member)
        if current is None:
            current = self._current[member] = _Choice(member, self._changes)
        self._chosen[topic] = current
        return member

    def _found(self, topic: bytes, before: _Choice | None) -> DealtMember:
        index = self._index.get(before.member) if before is not None else None
        first = bisect_right(self._came, before.changes) if before is not None and index is not None else 0
        if index is not None and first == len(self.members):
            return self.members[index]
        number = int.from_bytes(hashlib.blake2b(topic, digest_size=8).digest())
        best, weight = self._best(first, number)
        if index is not None and _weight(self.members[index].seed, number) >= weight:
            return self.members[index]
        return self.members[best]

    def _best(self, first: int, topic: int) -> tuple[int, int]:
        """Which of the members from `first` on has the highest weight, and that."""
        if len(self.members) - first <= FEW:
            weights = [_weight(member.seed, topic) for member in self.members[first:]]
            weight = max(weights)
            return first + weights.index(weight), weight
        many = _weights(self._seeds[first:], topic)
        best = int(many.argmax())
        return first + best, int(many[best])


def _weight(seed: int, topic: int) -> int:
    """What SplitMix64 (Steele, Lea and Flood 2014) makes of both, modulo 2**64."""
    mixed = seed ^ topic
    mixed = (mixed ^ (mixed >> 30)) * _FIRST & _MASK
    mixed = (mixed ^ (mixed >> 27)) * _SECOND & _MASK
    return mixed ^ (mixed >> 31)


def _weights(seeds: npt.NDArray[np.uint64], topic: int) -> npt.NDArray[np.uint64]:
    """The same of many."""
    mixed = seeds ^ np.uint64(topic)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(_FIRST)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(_SECOND)
    return mixed ^ (mixed >> np.uint64(31))
