"""One share of the groups that a coordinator leads: what is published is taken while it is live, read while it is not.

A share is to its coordinator what a broker is (`peers`): live in a group, it takes each block as it is offered; where
as much is open as may be, or nobody is there, it is behind from there on, and is read from the log once there is room.
A block is kept as long as something of it is open; where most of it is not the share's, cut to what is. It goes to a
broker once, with who of its members has which record (`DealtRow`): a turn brings blocks of few records a topic group,
and what they cost is not multiplied by the members.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from lexicast.cluster.blocks import QOS_MASK, Block
from lexicast.cluster.selection import Picker, offsets_of, select_topics
from lexicast.cluster.shares.dealing import Share
from lexicast.cluster.shares.pieces import DealtPiece, MemberKey, Taken
from lexicast.cluster.shares.places import SharePlace

from ...link.link import Link
from ..peers import DELIVER_BYTES_MAX

if TYPE_CHECKING:
    from collections.abc import Callable

# A member that has had no room for so long, while something waits, is passed over.
STALLED_S: Final = 30.0


class LedShare:
    """See the module's docstring. `name` and `filter` as in `$share/NAME/FILTER`; `takers(topic)`: those that want a
    topic, which all shares of a coordinator remember together."""

    def __init__(self, name: str, filter: bytes, share: Share, takers: Callable[[bytes], tuple[LedShare, ...]]) -> None:
        self.name = name
        self.filter = filter
        self.share = share
        # group -> where what was offered was not taken; it is read from the log from there on.
        self.behind: dict[int, int] = {}
        self.links: dict[MemberKey, Link] = {}
        # Members that are sent with QoS 2 what was published so.
        self.exact: set[MemberKey] = set()
        # Held by whoever begins in a group: that is durable before others are told.
        self.beginning = asyncio.Lock()
        # When each group was saved last (monotonic), and as what, what was saved longest ago first. A group that is not
        # among them has no durable place yet, and nobody was told to be placed there.
        self.saved: dict[int, tuple[float, SharePlace]] = {}
        self._takers = takers
        # Since when a member has had no room (monotonic).
        self._no_room_s: dict[MemberKey, float] = {}

    def wants(self, topic: bytes) -> bool:
        """Whether a topic is one of its."""
        return self in self._takers(topic)

    def begin(self, group: int, place: SharePlace, delivered: int, led_before: bool = False) -> None:
        """Lead it in a group, where live delivery stands at `delivered`. `led_before`: it had members elsewhere, which
        may hold what they will tell of when they join."""
        self.share.begin(group, place, delivered if led_before else 0)
        if place.floor < delivered:
            self.behind[group] = place.floor

    def end(self, group: int) -> None:
        """Lead it there no more."""
        self.share.end(group)
        self.behind.pop(group, None)
        self.saved.pop(group, None)

    def offered(self, block: Block) -> bool:
        """A block that may be delivered; whether something of it is taken."""
        group = block.group
        if group not in self.share.groups or group in self.behind:
            return False
        if self.share.full or not self.share.served:
            self.behind[group] = max(block.first, self.share.read(group))
            return False
        self.take(block)
        return True

    def take(self, block: Block) -> None:
        """Have what it wants of a block dealt."""
        self.share.take(block.group, self._taken(block), block.last + 1)

    def _taken(self, block: Block) -> Taken | None:
        topics = block.meta.topics
        flags = [self.wants(topic) for topic in topics]
        if not all(flags):
            wanted = sum([run.count for run in block.meta.runs if flags[run.topic]])
            if 2 * wanted < block.count:
                part = select_topics(block, self.wants)
                return None if part is None else _taken_of(part, [run.count for run in part.meta.runs], None)
            counts = [run.count if flags[run.topic] else 0 for run in block.meta.runs]
            return _taken_of(block, counts, _records(block, flags))
        return _taken_of(block, [run.count for run in block.meta.runs], None)

    def is_saved(self, group: int, at_s: float, place: SharePlace) -> None:
        """`place` is durable in a group since `at_s`."""
        if group in self.share.groups:
            self.saved.pop(group, None)
            self.saved[group] = at_s, place
            self.share.settled(group, place)

    @property
    def unsaved_groups(self) -> int:
        """In how many groups it has moved since it was saved, or was not saved yet."""
        saved, share = self.saved, self.share
        return sum([group not in saved or share.has_moved(group, saved[group][1]) for group in share.groups])

    def due(self, before_s: float, renewed_s: float) -> list[tuple[float, int]]:
        """(when it was saved, group) where it was saved last before `before_s` and has moved since, or before
        `renewed_s`, which is earlier. Looks at nothing where nothing has moved."""
        found = []
        for group in list(self.share.moved):
            at_s, place = self.saved.get(group, (before_s, None))
            if place is not None and at_s < before_s:
                self.share.settled(group, place)
                if group in self.share.moved:
                    found.append((at_s, group))
        for group, (at_s, _) in self.saved.items():
            if at_s >= renewed_s:
                break
            if group not in self.share.moved:
                found.append((at_s, group))
        return found

    def place(self, group: int, delivered: int) -> SharePlace:
        """Where it stands in a group; what was delivered there and is not its is behind it."""
        if group not in self.behind:
            self.share.take(group, None, delivered)
        return self.share.place(group)

    def stall(self, now_s: float) -> bool:
        """Pass over who has had no room for long; whether that is somebody."""
        since, self._no_room_s = self._no_room_s, {}
        stalled = False
        for key, member in self.share.members.items():
            if member.queue and member.room <= 0 and not member.stalled:
                at = self._no_room_s[key] = since.get(key, now_s)
                if now_s - at >= STALLED_S:
                    self.share.stall(key)
                    stalled = True
        return stalled

    def in_doubt(self, key: MemberKey) -> dict[int, list[int]]:
        """What a member whose link has ended may go on with, and nobody else is to get then: QoS 2. By group."""
        found: dict[int, list[int]] = {}
        member = self.share.members.get(key) if key in self.exact else None
        for piece in member.held if member is not None else ():
            exact = set(piece.taken.exact)
            some = [piece.taken.offsets[number] for number in piece.numbers if number in exact]
            if some:
                found.setdefault(piece.taken.group, []).extend(some)
        return found

    def leave(self, key: MemberKey, kept: Mapping[int, Collection[int]] | None = None) -> None:
        """See `Share.leave`."""
        self.share.leave(key, kept)
        if key not in self.share.members:
            self._forget(key)

    def forget_gone(self) -> None:
        """Those who rested and have had their last done."""
        if len(self.links) > len(self.share.members):
            for key in self.links.keys() - self.share.members.keys():
                self._forget(key)

    def _forget(self, key: MemberKey) -> None:
        self.links.pop(key, None)
        self.exact.discard(key)

    def has_moved(self, key: MemberKey) -> None:
        """A member has had something done."""
        self._no_room_s.pop(key, None)

    def deal(self) -> dict[Link, list[DealtRow]]:
        """What there is room for, by the brokers' links, each in the order in which it was taken."""
        found: dict[Link, dict[Taken, DealtRow]] = {}
        for member, pieces in self.share.deal():
            link = self.links.get(member)
            if link is not None:
                rows = found.setdefault(link, {})
                for piece in pieces:
                    row = rows.get(piece.taken)
                    if row is None:
                        row = rows[piece.taken] = DealtRow(piece.taken, [])
                    row.parts.append((member[1], piece))
        return {link: sorted(rows.values(), key=_order) for link, rows in found.items()}


class DealtRow(NamedTuple):
    """What a broker is dealt of one block: the names of its members, and the piece of each."""

    taken: Taken
    parts: list[tuple[str, DealtPiece]]

    def to_wire(self) -> tuple[tuple[Any, ...], list[tuple[str, Sequence[int] | None]]]:
        """The block, and the numbers in it of each member's records; None: all of them."""
        source = self.taken.source
        assert isinstance(source, _Source)
        block, numbers = source.block, [source.numbers(piece.numbers) for _, piece in self.parts]
        count = sum(map(len, numbers))
        if count == block.count and len(numbers) == 1:
            return block.to_wire(), [(self.parts[0][0], None)]
        if 2 * count < block.count:
            block, numbers = source.part(numbers)
        return block.to_wire(), [(name, [*some]) for (name, _), some in zip(self.parts, numbers, strict=True)]


class _Source:
    """Where the bytes of a Taken are: a block, and the numbers of its records there (None: the same)."""

    __slots__ = ("_picker", "_records", "block")

    def __init__(self, block: Block, records: Sequence[int] | None) -> None:
        self.block = block
        self._records = records
        self._picker: Picker | None = None

    def numbers(self, numbers: Sequence[int]) -> Sequence[int]:
        records = self._records
        return numbers if records is None else [records[number] for number in numbers]

    def part(self, numbers: Sequence[Sequence[int]]) -> tuple[Block, list[Sequence[int]]]:
        """A block of these records alone, and their numbers there."""
        if self._picker is None:
            self._picker = Picker(self.block)
        picker, wanted = self._picker, sorted([number for some in numbers for number in some])
        part = picker.pick(wanted, self.block.meta.topics, [picker.runs[number].topic for number in wanted])
        at = {number: index for index, number in enumerate(wanted)}
        return part, [[at[number] for number in some] for some in numbers]


def _taken_of(block: Block, counts: Sequence[int], records: Sequence[int] | None) -> Taken:
    """`counts`: how many records of each run are wanted; `records`: their numbers, where that is not all of them."""
    names, runs = block.meta.topics, block.meta.runs
    offsets = offsets_of(block)
    if records is not None:
        offsets = [offsets[number] for number in records]
    topics: list[bytes] = []
    if len(names) == 1:
        topics.append(names[0])
    else:
        for run, count in zip(runs, counts, strict=True):
            topics += [names[run.topic]] * count
    exact = _exact(block, counts) if block.highest_qos == 2 else ()
    return Taken(block.group, offsets, topics, block.size_bytes, _Source(block, records), exact)


def _exact(block: Block, counts: Sequence[int]) -> list[int]:
    """The numbers, among those that are wanted, of what is of QoS 2."""
    found: list[int] = []
    at = 0
    for run, count in zip(block.meta.runs, counts, strict=True):
        if run.flags & QOS_MASK == 2:
            found += range(at, at + count)
        at += count
    return found


def _records(block: Block, flags: Sequence[bool]) -> list[int]:
    """The numbers of the records of which the topic is wanted."""
    found: list[int] = []
    at = 0
    for run in block.meta.runs:
        if flags[run.topic]:
            found += range(at, at + run.count)
        at += run.count
    return found


def _order(row: DealtRow) -> int:
    return row.taken.order


def in_messages(rows: Sequence[DealtRow]) -> Iterator[list[DealtRow]]:
    """As many at a time as make a message."""
    some: list[DealtRow] = []
    size = 0
    for row in rows:
        if some and size + row.taken.size_bytes > DELIVER_BYTES_MAX:
            yield some
            some, size = [], 0
        some.append(row)
        size += row.taken.size_bytes
    if some:
        yield some
