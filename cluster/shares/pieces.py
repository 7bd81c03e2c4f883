"""What is dealt: publications that were read at once, in pieces that wait or are held together. Pure.

Where a thousand publications come in a block they are one piece, or one a member: what each of them costs by itself is
a row in a dictionary, from its offset to its piece.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Sequence
from typing import TypeAlias

# Broker and the member's name there.
MemberKey: TypeAlias = tuple[str, str]


class Taken:
    """Publications of a group that were read at once, a number each: their `offsets`, ascending, and their `topics`
    (or the one that all are of). `source`: where their bytes are, which is the caller's matter; `size_bytes` of it are
    kept until the last of them is done. `exact`: the numbers of those that may be sent with QoS 2."""

    __slots__ = ("exact", "group", "offsets", "open", "order", "size_bytes", "source", "topics")

    def __init__(
        self,
        group: int,
        offsets: Sequence[int],
        topics: Sequence[bytes],
        size_bytes: int = 0,
        source: object = None,
        exact: Sequence[int] = (),
    ) -> None:
        self.group = group
        self.offsets = offsets
        self.topics = topics
        self.size_bytes = size_bytes
        self.source = source
        self.exact = exact
        # When it was taken: what comes back goes before what came later.
        self.order = 0
        # How many are not done.
        self.open = 0


class DealtPiece:
    """Those of the `numbers` of a Taken, ascending, that are not done, `open` of them: one member has them, or (no
    `holder`) they wait."""

    __slots__ = ("holder", "numbers", "open", "taken")

    def __init__(self, taken: Taken, numbers: Sequence[int]) -> None:
        self.taken = taken
        self.numbers = numbers
        self.open = len(numbers)
        self.holder: DealtMember | None = None

    @property
    def offsets(self) -> list[int]:
        """The offsets of its numbers."""
        offsets = self.taken.offsets
        return [offsets[number] for number in self.numbers]


class DealtMember:
    """One member: how many records it takes, what it holds, and what waits for it alone. `expects`: (group, offset) of
    what it has brought along and that was still to be read; some of that is by now."""

    __slots__ = ("expects", "held", "held_records", "key", "queue", "resting", "seed", "stalled", "window")

    def __init__(self, key: MemberKey, window: int) -> None:
        self.key = key
        self.window = window
        self.held: dict[DealtPiece, None] = {}
        self.held_records = 0
        self.queue: deque[DealtPiece] = deque()
        self.resting = False
        self.stalled = False
        self.expects: list[tuple[int, int]] = []
        self.seed = int.from_bytes(hashlib.blake2b("\0".join(key).encode(), digest_size=8).digest())

    @property
    def room(self) -> int:
        """How many more records it takes."""
        return 0 if self.resting else self.window - self.held_records

    def hold(self, piece: DealtPiece) -> None:
        """A piece is its to have done."""
        piece.holder = self
        self.held[piece] = None
        self.held_records += piece.open

    def gave(self, piece: DealtPiece, count: int) -> None:
        """So many of a piece that it holds are its no more."""
        self.held_records -= count
        if not piece.open:
            del self.held[piece]

    def release(self, piece: DealtPiece) -> None:
        """It has a piece no more."""
        piece.holder = None
        del self.held[piece]
        self.held_records -= piece.open
