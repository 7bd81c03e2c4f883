"""What everybody is to have: the newest version of one value, spread along prefixes. Pure.

Who has something new gives it to one contact of each sibling cluster at each level, and to all of its top cluster; who
gets it at level l does the same for the levels from l on. So each member gets it once, after m + 1 hops at most, by
N - 1 messages, and nobody sends more than (b - 1) m and its top cluster.

That is as good as views are: where one lacks a child, or a message is lost, a part does not get it. So members say
which version they have whenever they say anything (`cluster.skipcloud.wire`), and who has a newer one gives it
(`lacks`).
"""

from __future__ import annotations

from typing import NamedTuple

from .identifiers import CloudMember
from .node import SkipCloudNode


class SpreadLetter(NamedTuple):
    """The value is to go to a member, which passes it on from `level` on."""

    to: CloudMember
    level: int


class Spreading:
    """The value that this member has: `version` -1, there is none yet."""

    def __init__(self, node: SkipCloudNode) -> None:
        self.version = -1
        self.value = b""
        self._node = node

    def told(self, version: int, value: bytes, level: int = 0) -> list[SpreadLetter] | None:
        """It has been told here, or comes from elsewhere at `level`: who gets it next; None: it is not news."""
        if version <= self.version:
            return None
        self.version, self.value = version, value
        node, letters = self._node, list[SpreadLetter]()
        for at in range(level, node.shape.levels):
            letters += [SpreadLetter(member, at + 1) for member in node.of_siblings(at)]
        if level <= node.shape.levels:
            letters += [SpreadLetter(member, node.shape.levels + 1) for member in sorted(node.cluster())]
        return letters

    def lacks(self, version: int) -> bool:
        """Whether a member that has this version is to be given the value."""
        return version < self.version
