"""The blocks that were delivered to a broker most recently: who only paused is brought up from them at once."""

from __future__ import annotations

from collections import deque
from itertools import islice
from typing import Final

from lexicast.cluster.blocks import Block

# So many of a group are looked at for one that is dealt: live, it is the last one or one of a few before it; of a share
# that is behind it is most likely none of these.
SAME_OF: Final = 32


class BlockCache:
    """The blocks delivered most recently, of all groups together at most `bytes_max` of memory.

    `moved`: groups whose end has moved since somebody emptied it.
    """

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        # With the bytes of each, which are counted once.
        self._order: deque[tuple[Block, int]] = deque()
        self._blocks: dict[int, deque[Block]] = {}
        self._complete_from: dict[int, int] = {}
        self._complete_to: dict[int, int] = {}
        self.moved: set[int] = set()

    def add(self, block: Block, head_before: int) -> None:
        """A block was delivered; until now the group's head was `head_before`."""
        self._complete_from.setdefault(block.group, head_before)
        self._complete_to[block.group] = block.last + 1
        self.moved.add(block.group)
        self._blocks.setdefault(block.group, deque()).append(block)
        memory_bytes = block.memory_bytes
        self._order.append((block, memory_bytes))
        self._bytes += memory_bytes
        while self._bytes > self._bytes_max:
            oldest, memory_bytes = self._order.popleft()
            self._blocks[oldest.group].popleft()
            self._complete_from[oldest.group] = oldest.last + 1
            self._bytes -= memory_bytes

    def reached(self, group: int, head: int) -> None:
        """Everything of the group before `head` that concerns this broker has been delivered."""
        self._complete_from.setdefault(group, head)
        self._complete_to[group] = max(head, self._complete_to.get(group, head))
        self.moved.add(group)

    def end(self, group: int) -> int:
        """Up to where `since` is complete."""
        return self._complete_to.get(group, 0)

    def same(self, block: Block) -> Block:
        """The block that came lately and says the same, whose columns are unpacked; else `block`."""
        for each in islice(reversed(self._blocks.get(block.group, ())), SAME_OF):
            if each.first == block.first:
                return each if each.to_wire() == block.to_wire() else block
            if each.last < block.first:
                break
        return block

    def since(self, group: int, offset: int) -> list[Block] | None:
        """All blocks delivered that hold something at or after `offset`.

        None when older ones are gone, and when none was delivered up to there: a subscriber that was brought up from
        the store may be ahead of a broker that is itself being brought up, and would get again what still comes.
        """
        if not self._complete_from.get(group, 1 << 63) <= offset <= self._complete_to.get(group, -1):
            return None
        found: list[Block] = []
        for block in reversed(self._blocks.get(group, ())):
            if block.last < offset:
                break
            found.append(block)
        found.reverse()
        return found
