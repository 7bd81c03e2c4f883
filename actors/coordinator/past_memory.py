"""The memory of what was read of the past a moment ago: many subscribers come back to one place, and ask one by one.

A step of reading is remembered by where it began: the blocks that it found, whatever they are, as they were stored, and
where it ended. The log changes only at its end, and where publications expire: a step that found one that will is not
to be put here. What retention has discarded may be served REMEMBERED_S longer.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final, NamedTuple

from lexicast.cluster.blocks import BLOCK_MEMORY_BYTES, Block

REMEMBERED_BYTES_MAX: Final = 8 * 1024 * 1024
REMEMBERED_S: Final = 5.0


class ReadStep(NamedTuple):
    """`blocks` from some place on, to `next`; what they take in memory, and when they were read."""

    blocks: list[Block]
    next: int
    memory_bytes: int
    read_s: float


class PastMemory:
    """Bounded by bytes and by age; the oldest goes first."""

    def __init__(self, bytes_max: int = REMEMBERED_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._steps: OrderedDict[tuple[int, int], ReadStep] = OrderedDict()
        self._bytes = 0

    def get(self, group: int, offset: int, bytes_max: int, now_s: float) -> ReadStep | None:
        """The step that began at `offset`, if it found no more than `bytes_max` bytes."""
        self._forget(now_s)
        step = self._steps.get((group, offset))
        if step is None or sum([block.size_bytes for block in step.blocks]) > bytes_max:
            return None
        return step

    def put(self, group: int, offset: int, blocks: list[Block], next_offset: int, now_s: float) -> None:
        """A step was read."""
        # Their metas are not unpacked here, and by nobody who gets them from here.
        size = sum([BLOCK_MEMORY_BYTES + block.size_bytes for block in blocks])
        known = self._steps.pop((group, offset), None)
        self._bytes += size - (0 if known is None else known.memory_bytes)
        self._steps[group, offset] = ReadStep(blocks, next_offset, size, now_s)
        self._forget(now_s)

    def _forget(self, now_s: float) -> None:
        while self._steps:
            oldest = next(iter(self._steps))
            step = self._steps[oldest]
            if self._bytes <= self._bytes_max and now_s - step.read_s < REMEMBERED_S:
                return
            del self._steps[oldest]
            self._bytes -= step.memory_bytes
