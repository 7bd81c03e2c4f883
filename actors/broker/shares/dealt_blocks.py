"""What a broker's members are dealt: parts of blocks, of which what all members need is looked up once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import Any, TypeAlias

from lexicast.cluster.blocks import Block
from lexicast.cluster.errors import PeerError
from lexicast.cluster.selection import Picker

from ..encoding import BlockView

# A view of a block, now.
Viewing: TypeAlias = Callable[[Block], BlockView]
# A block that is here already in the place of one that has come, where they are the same.
Same: TypeAlias = Callable[[Block], Block]


class DealtBlock:
    """A block of which members are dealt records. `view`: as they get it, when the first one does; `picker`: its
    records one by one; `expires`: some of them do."""

    __slots__ = ("_picker", "_view", "_viewing", "block", "expires")

    def __init__(self, block: Block, viewing: Viewing) -> None:
        self.block = block
        self.expires = any([run.expiry_ms for run in block.meta.runs])
        self._viewing = viewing
        self._view: BlockView | None = None
        self._picker: Picker | None = None

    @property
    def view(self) -> BlockView:
        """The same for all members."""
        if self._view is None:
            self._view = self._viewing(self.block)
        return self._view

    @property
    def picker(self) -> Picker:
        """The same for all members."""
        if self._picker is None:
            self._picker = Picker(self.block)
        return self._picker


class DealtPart:
    """Records of a block that are one member's: their `numbers` in it, ascending."""

    __slots__ = ("dealt", "numbers")

    def __init__(self, dealt: DealtBlock, numbers: Sequence[int]) -> None:
        self.dealt = dealt
        self.numbers = numbers

    @property
    def group(self) -> int:
        """Its topic group."""
        return self.dealt.block.group

    @property
    def is_whole(self) -> bool:
        """Whether it is all of the block."""
        return len(self.numbers) == self.dealt.block.count

    def offsets(self) -> list[int]:
        """The offsets of its records."""
        offsets = self.dealt.picker.offsets
        return offsets if self.is_whole else [offsets[number] for number in self.numbers]

    def block(self) -> Block:
        """As a block of its own."""
        block = self.dealt.block
        if self.is_whole:
            return block
        picker = self.dealt.picker
        return picker.pick(self.numbers, block.meta.topics, [picker.runs[number].topic for number in self.numbers])

    def cut(self, count: int) -> tuple[DealtPart, DealtPart]:
        """The first `count` of its records, and the rest."""
        return DealtPart(self.dealt, self.numbers[:count]), DealtPart(self.dealt, self.numbers[count:])


def dealt_parts(rows: Iterable[Any], viewing: Viewing, same: Same) -> dict[str, list[DealtPart]]:
    """The rows of a DEAL by member, in order. Raises PeerError when they are none."""
    found: dict[str, list[DealtPart]] = {}
    for row in rows:
        if type(row) is not tuple or len(row) != 2 or type(row[1]) is not tuple:
            raise PeerError(f"not a block and its members: {row!r:.80}")
        wire, parts = row
        dealt = DealtBlock(same(Block.from_wire(wire)), viewing)
        for part in parts:
            name, numbers = _checked(part, dealt.block.count)
            found.setdefault(name, []).append(DealtPart(dealt, numbers))
    return found


def _checked(part: Any, count: int) -> tuple[str, Sequence[int]]:
    """(member, its records)."""
    if type(part) is tuple and len(part) == 2 and type(part[0]) is str:
        name, numbers = part
        if numbers is None:
            return name, range(count)
        if type(numbers) is tuple and numbers and {*map(type, numbers)} == {int}:
            ascending = all([before < number for before, number in pairwise(numbers)])
            if ascending and numbers[0] >= 0 and numbers[-1] < count:
                return name, numbers
    raise PeerError(f"not a member and its records of {count}: {part!r:.80}")
