"""What a group remembers of publications, so that one that comes again is known: producers' sequences, QoS 2 marks.

A publication of QoS 2 is known by its session and packet id until its publisher releases it (PUBREL), and uses the id
for something else. The session may have come to another broker by then, and the first one, which was cut off, may bring
later what it still has of it: so a mark has its session's generation, which grows with each connection, and of what
comes with an older one than the group has seen nothing is placed, nor released. (Its client sends it again over the
newer connection, or has done so; or it never will.)
"""

from __future__ import annotations

from collections import deque
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol

from .blocks import PUBLICATIONS, Block, Mark, Meta
from .errors import StaleEpochError

RUNS_REMEMBERED: Final = 64
PRODUCERS_CACHED_MAX: Final = 10_000


class Placed(NamedTuple):
    """`count` records stand at `offset`, `offset + 1`, ... of `epoch`."""

    count: int  # type: ignore[assignment]  # hides tuple.count, which nobody calls
    epoch: int
    offset: int


class RememberedRun(NamedTuple):
    """Where consecutive sequence numbers of a producer were placed first."""

    sequence: int
    count: int  # type: ignore[assignment]  # as above
    epoch: int
    offset: int


@dataclass(slots=True)
class Producer:
    """What a group remembers of one producer. Up to `forgotten` a sequence may have been placed long ago."""

    incarnation: int
    last: int
    runs: deque[RememberedRun] = field(default_factory=deque)
    forgotten: int = 0

    def note(self, run: RememberedRun, committed: int) -> None:
        """Remember where a run went. Older ones are forgotten only once committed: a repeat may not be acknowledged
        before its first copy is."""
        self.runs.append(run)
        self.last = max(self.last, run.sequence + run.count - 1)
        while len(self.runs) > RUNS_REMEMBERED and self.runs[0].offset < committed:
            gone = self.runs.popleft()
            self.forgotten = max(self.forgotten, gone.sequence + gone.count - 1)

    def find(self, sequence: int, count: int) -> dict[int, Placed]:
        """Those of `count` sequences from `sequence` on that were placed (0 = the first), and where; offset 0 of epoch
        0 when that is no longer remembered (it is committed then).

        A refused entry leaves a gap in its producer's sequences: it is not stored just because later ones are.
        """
        found = {i: Placed(1, 0, 0) for i in range(min(count, self.forgotten + 1 - sequence))}
        for run in self.runs:
            start = max(sequence, run.sequence)
            for at in range(start, min(sequence + count, run.sequence + run.count)):
                found[at - sequence] = Placed(1, run.epoch, run.offset + at - run.sequence)
        return found


class Memory(Protocol):
    """What the store remembers for the sequencer."""

    def producer(self, group: int, producer: bytes) -> Producer | None:
        """The producer's state, if it published to the group."""

    def mark(self, group: int, session_uid: bytes, packet_id: int) -> Placed | None:
        """Where an unreleased QoS 2 publication stands."""

    def generation(self, group: int, session_uid: bytes) -> int:
        """The newest generation of a session of which the group has a QoS 2 publication; 0: none is known."""


class UnreleasedMarks:
    """The QoS 2 marks of blocks that are not applied yet: where they stand, and their sessions' newest generations. The
    store knows those of others. Also which marks, of its too, are being released: the record of that is placed, and not
    applied."""

    __slots__ = ("_generations", "_placed", "_releasing")

    def __init__(self) -> None:
        self._placed: dict[tuple[bytes, int], Placed] = {}
        self._generations: dict[bytes, int] = {}
        # The connection's generation, and the first offset that is not concerned.
        self._releasing: dict[tuple[bytes, int], tuple[int, int]] = {}

    def __len__(self) -> int:
        """Marks, sessions and packet ids that are being released."""
        return len(self._placed) + len(self._generations) + len(self._releasing)

    def get(self, session_uid: bytes, packet_id: int) -> Placed | None:
        """Where an unreleased publication stands."""
        return self._placed.get((session_uid, packet_id))

    def generation(self, session_uid: bytes) -> int:
        """The newest generation of a session; 0: none is known here."""
        return self._generations.get(session_uid, 0)

    def note(self, meta: Meta, epoch: int, offset: int) -> None:
        """Remember a block whose first record stands at `offset`."""
        for mark in meta.marks:
            self._placed[mark.session_uid, mark.packet_id] = Placed(1, epoch, offset + mark.index)
            self._see(mark.session_uid, mark.generation)

    def _see(self, session_uid: bytes, generation: int) -> None:
        if generation > self.generation(session_uid):
            self._generations[session_uid] = generation

    def settled(self, block: Block) -> None:
        """The store knows what a block has."""
        if not self._placed and not self._generations:
            return
        for mark in block.meta.marks:
            key = (mark.session_uid, mark.packet_id)
            placed = self._placed.get(key)
            if placed is not None and placed.offset <= block.last:
                del self._placed[key]
            if self.generation(mark.session_uid) <= mark.generation:
                self._generations.pop(mark.session_uid, None)

    def withdrawn(self, block: Block, left: Iterable[Block]) -> None:
        """A block could not be stored; those of `left` may be."""
        if not block.meta.marks:
            return
        for mark in block.meta.marks:
            self._placed.pop((mark.session_uid, mark.packet_id), None)
        self._generations.clear()
        for each in left:
            if each.kind == PUBLICATIONS:
                for mark in each.meta.marks:
                    self._see(mark.session_uid, mark.generation)

    def begin_release(self, session_uid: bytes, generation: int, packet_ids: Sequence[int], below: int) -> None:
        """The publisher releases what stands below this offset under these."""
        for packet_id in packet_ids:
            self._releasing[session_uid, packet_id] = (generation, below)

    def end_release(self, session_uid: bytes, packet_ids: Sequence[int], below: int, forgotten: bool) -> None:
        """What was begun with the same offset is done, or has failed."""
        for packet_id in packet_ids:
            key = (session_uid, packet_id)
            if self._releasing.get(key, (0, -1))[1] == below:
                del self._releasing[key]
            placed = self._placed.get(key)
            if forgotten and placed is not None and placed.offset < below:
                del self._placed[key]

    def is_released(self, mark: Mark, placed: Placed) -> bool:
        """Whether what bears the mark of what stands there is something else: its connection, or an older one, has
        released that. A client that goes as it has sent its PUBREL, and comes back, may not wait for PUBCOMP; none
        sends a PUBLISH again that it has released [MQTT-4.3.3-6]. (What an older connection had left is no news.)"""
        generation, below = self._releasing.get((mark.session_uid, mark.packet_id), (0, 0))
        return placed.offset < below and mark.generation >= generation


class GroupRepeats:
    """What one group that is led here remembers. `applied`: the first offset from which the store's tables do not
    follow yet."""

    __slots__ = ("_memory", "_number", "_producers", "applied", "marks")

    def __init__(self, number: int, memory: Memory, applied: int) -> None:
        self._number = number
        self._memory = memory
        self._producers: dict[bytes, Producer] = {}
        self.marks = UnreleasedMarks()
        self.applied = applied

    def may_hold(self, meta: Meta) -> bool:
        """Whether an entry may hold a repeat. Raises StaleEpochError when a producer has a newer incarnation."""
        found = bool(meta.marks)
        for producer, incarnation, sequence, _ in meta.producers:
            known = self._producer(producer)
            if known is None:
                continue
            if incarnation < known.incarnation:
                raise StaleEpochError(
                    f"group {self._number}: a producer's incarnation {incarnation} was replaced by {known.incarnation}"
                )
            found = found or (incarnation == known.incarnation and sequence <= known.last)
        return found

    def find(self, meta: Meta) -> dict[int, Placed]:
        """Record index -> where it stands already; offset 0 of epoch 0 where it is not to be placed, although nobody
        knows where it stands."""
        found: dict[int, Placed] = {}
        index = 0
        for producer, incarnation, sequence, count in meta.producers:
            known = self._producer(producer)
            if known is not None and incarnation == known.incarnation and sequence <= known.last:
                found.update({index + i: at for i, at in known.find(sequence, count).items()})
            index += count
        over: dict[tuple[bytes, int], bool] = {}
        for mark in meta.marks:
            if mark.index in found:
                continue
            placed = self._placed(mark.session_uid, mark.packet_id)
            if placed is not None and self.marks.is_released(mark, placed):
                placed = None
            if placed is None:
                connection = (mark.session_uid, mark.generation)
                if connection not in over:
                    over[connection] = self._is_over(mark.session_uid, mark.generation)
                placed = Placed(1, 0, 0) if over[connection] else None
            if placed is not None:
                found[mark.index] = placed
        return found

    def _placed(self, session_uid: bytes, packet_id: int) -> Placed | None:
        return self.marks.get(session_uid, packet_id) or self._memory.mark(self._number, session_uid, packet_id)

    def _is_over(self, session_uid: bytes, generation: int) -> bool:
        """Whether the group has placed something of a newer connection of the session."""
        if not generation:
            return False
        known = self.marks.generation(session_uid) or self._memory.generation(self._number, session_uid)
        return generation < known

    def remembers(self, session_uid: bytes, generation: int, packet_ids: Sequence[int]) -> bool:
        """Whether a connection of this generation may release one of these ids: the group remembers one, and nothing
        of a newer connection, which has released them itself, and may use the ids for others."""
        if self._is_over(session_uid, generation):
            return False
        return any([self._placed(session_uid, packet_id) for packet_id in packet_ids])

    def _producer(self, producer: bytes) -> Producer | None:
        known = self._producers.get(producer)
        if known is None:
            known = self._memory.producer(self._number, producer)
            if known is not None:
                self._remember(producer, known)
        return known

    def _remember(self, producer: bytes, known: Producer) -> None:
        if len(self._producers) >= PRODUCERS_CACHED_MAX:
            # Only a producer whose every record is applied may be forgotten here: the store then knows it.
            # The others are bounded (`sequencer`, rule 3).
            settled = (p for p, s in self._producers.items() if all(r.offset < self.applied for r in s.runs))
            found = next(settled, None)
            if found is not None:
                del self._producers[found]
        self._producers[producer] = known

    def note(self, meta: Meta, epoch: int, offset: int, committed: int) -> None:
        """Remember an entry whose first record stands at `offset`; `committed`: see `Producer.note`."""
        at = offset
        for producer, incarnation, sequence, count in meta.producers:
            known = self._producer(producer)
            if known is None or known.incarnation != incarnation:
                known = Producer(incarnation, 0)
                self._remember(producer, known)
            known.note(RememberedRun(sequence, count, epoch, at), committed)
            at += count
        if meta.marks:
            self.marks.note(meta, epoch, offset)

    def withdrawn(self, block: Block, left: Iterable[Block]) -> None:
        """A block could not be stored; those of `left` may be."""
        for run in block.meta.producers:
            known = self._producers.get(run.producer)
            if known is not None:
                # Only these: other blocks of the producer may be on their way to the store.
                known.runs = deque([r for r in known.runs if not block.first <= r.offset <= block.last])
        self.marks.withdrawn(block, left)


def mark_twins(meta: Meta, repeats: Container[int]) -> dict[int, int]:
    """Index of a QoS 2 record -> index of the first with the same mark: a client sent it again before it was placed.
    `repeats`: those that are not placed; what bears the id of one may be something else."""
    first: dict[tuple[bytes, int], int] = {}
    twins: dict[int, int] = {}
    for mark in meta.marks:
        if mark.index in repeats:
            continue
        index = first.setdefault((mark.session_uid, mark.packet_id), mark.index)
        if index != mark.index:
            twins[mark.index] = index
    return twins
