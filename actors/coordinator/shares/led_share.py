"""One share of the groups that a coordinator leads: what is published is taken while it is live, read while it is not.

A share is to its coordinator what a broker is (`peers`): live in a group, it takes each block as it is offered; where
as much is open as may be, or nobody is there, it is behind from there on, and is read from the log once there is room.
A block is kept as long as something of it is open, cut to what the share wants of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from lexicast.cluster.blocks import Block
from lexicast.cluster.selection import Picker, for_readers, select_topics
from lexicast.cluster.shares.dealing import Deal, DealtRecord, MemberKey, Share
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

    def begin(self, group: int, place: SharePlace, delivered: int) -> None:
        """Lead it in a group, where live delivery stands at `delivered`."""
        self.share.begin(group, place)
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
        part = select_topics(block, self.wants)
        if part is None:
            self.share.take(block.group, (), block.last + 1)
            return
        self.share.take(block.group, _records(Picker(for_readers(part)), part), block.last + 1)

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
            self.share.take(group, (), delivered)
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

    def has_moved(self, key: MemberKey) -> None:
        """A member has had something done."""
        self._no_room_s.pop(key, None)

    def deal(self, send: Callable[[Link, MemberKey, list[Block]], None]) -> None:
        """Send what there is room for."""
        for deal in self.share.deal():
            link = self.links.get(deal.member)
            if link is not None:
                send(link, deal.member, _blocks(deal))


def _records(picker: Picker, block: Block) -> list[DealtRecord]:
    topics, runs, offsets = block.meta.topics, picker.runs, picker.offsets
    sizes = memoryview(block.lengths).cast("I")
    group = block.group
    return [
        DealtRecord(group, offset, topics[run.topic], size, picker, index)
        for index, (offset, run, size) in enumerate(zip(offsets, runs, sizes, strict=True))
    ]


def _blocks(deal: Deal) -> list[Block]:
    """A deal as blocks: a part of each that its records are from."""
    found: list[Block] = []
    picker: Picker | None = None
    records: list[int] = []
    for record in deal.records:
        source = record.source
        assert isinstance(source, Picker)
        if source is not picker and picker is not None:
            found.append(_part(picker, records))
            records = []
        picker = source
        records.append(record.index)
    if picker is not None:
        found.append(_part(picker, records))
    return found


def in_messages(blocks: Sequence[Block]) -> Iterator[list[Block]]:
    """Blocks as many at a time as make a message."""
    some: list[Block] = []
    size = 0
    for block in blocks:
        if some and size + block.size_bytes > DELIVER_BYTES_MAX:
            yield some
            some, size = [], 0
        some.append(block)
        size += block.size_bytes
    if some:
        yield some


def _part(picker: Picker, records: list[int]) -> Block:
    """Some records of a block, as a block that ends with the last of them."""
    block = picker.block
    if len(records) == len(picker.offsets):
        return block
    part = picker.pick(records, block.meta.topics, [picker.runs[record].topic for record in records])
    part.last = picker.offsets[records[-1]]
    return part
