"""A share: who of its members gets which publication, and how far it has got in each topic group. Pure.

Theory of operation. A share is one cursor a topic group. What is read from the cursor on is *open* until a member has
it done (acknowledged, discarded, expired):

    take()  ->  waiting  -- deal(), to a member that has room -->  held  -- done() -->  gone
                   ^                                                 |
                   +------- its member leaves, or gives it back -----+

Who gets it, by the share's strategy:

    topic   the member whose hash with the topic is the highest (rendezvous): so all of a topic goes to one member, in
            order, while members stay; one that comes or goes moves only the topics that it gets or had. What its member
            has no room for waits, and what follows it on its topic behind it.
    free    whoever has room, in the order in which publications came

Invariants:
  * A record is waiting, held by one member, or gone; nothing leaves but by `done`, or with its group.
  * A member holds at most its window (of those that it brings along as it joins perhaps more).
  * `place(group)`: everything before `floor` is gone, and `floor` never passes what is open.
  * Of one topic nothing is dealt while an earlier record waits ("topic").

A member is *stalled* once its room has been used up for long: its topics go to others until it has something done. One
that *rests* gets nothing more, and leaves once it holds nothing.

Memory: `records_max` records, `bytes_max` bytes of theirs (and what was read at once beyond it), CHOICES_MAX topics.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Collection, Iterable, Mapping
from heapq import heapify, heappop, heappush
from typing import Final, NamedTuple, TypeAlias

from .places import SharePlace

TOPIC: Final = "topic"
FREE: Final = "free"

RECORDS_MAX: Final = 16_384
BYTES_MAX: Final = 16 * 1024 * 1024
# Topics of which it is remembered whose they are.
CHOICES_MAX: Final = 65_536

# Broker and the member's name there.
MemberKey: TypeAlias = tuple[str, str]


class DealtRecord:
    """One publication of a share. `source` and `index`: where its bytes are, which is the caller's matter."""

    __slots__ = ("group", "holder", "index", "offset", "order", "size_bytes", "source", "topic")

    def __init__(
        self, group: int, offset: int, topic: bytes, size_bytes: int = 0, source: object = None, index: int = 0
    ) -> None:
        self.group = group
        self.offset = offset
        self.topic = topic
        self.size_bytes = size_bytes
        self.source = source
        self.index = index
        # When it was taken: what comes back goes before what came later.
        self.order = 0
        self.holder: DealtMember | None = None


class DealtMember:
    """One member: how many records it takes, which it holds, and which wait for it alone."""

    __slots__ = ("held", "key", "queue", "resting", "seed", "stalled", "window")

    def __init__(self, key: MemberKey, window: int) -> None:
        self.key = key
        self.window = window
        self.held: dict[DealtRecord, None] = {}
        self.queue: list[tuple[int, DealtRecord]] = []
        self.resting = False
        self.stalled = False
        self.seed = hashlib.blake2b("\0".join(key).encode(), digest_size=32).digest()

    @property
    def room(self) -> int:
        """How many more records it takes."""
        return 0 if self.resting else self.window - len(self.held)


class Deal(NamedTuple):
    """Records for one member, in the order in which they are to be sent."""

    member: MemberKey
    records: list[DealtRecord]


class _Part:
    """A share in one topic group. Before `until` only those of `again` are not done yet."""

    __slots__ = ("again", "open", "reached", "read", "until")

    def __init__(self, place: SharePlace) -> None:
        self.read = place.floor
        # Behind the last record that concerned the share.
        self.reached = place.floor
        self.until = place.read
        self.again = frozenset(place.open)
        self.open: OrderedDict[int, DealtRecord] = OrderedDict()


# More than 25 methods: groups, members and records are one account.
class Share:
    """See the module's docstring."""

    def __init__(self, strategy: str = TOPIC, records_max: int = RECORDS_MAX, bytes_max: int = BYTES_MAX) -> None:
        self.strategy = strategy
        self.members: dict[MemberKey, DealtMember] = {}
        self._records_max = records_max
        self._bytes_max = bytes_max
        self._parts: dict[int, _Part] = {}
        self._choices: dict[bytes, DealtMember] = {}
        # What no member waits for in particular: all of it with "free", else what comes while nobody is there.
        self._common: list[tuple[int, DealtRecord]] = []
        # Records that a member has brought along and that are still to be read here; `_NOBODY`: by now they are done.
        self._expected: dict[tuple[int, int], DealtMember] = {}
        # Groups in which something came or was done since `settled`.
        self.moved: set[int] = set()
        self._orders = 0
        self._open_records = 0
        self._open_bytes = 0

    # -- groups

    @property
    def groups(self) -> Collection[int]:
        """The groups that it has a cursor in."""
        return self._parts.keys()

    def begin(self, group: int, place: SharePlace) -> None:
        """Have a cursor in a group."""
        self._parts[group] = _Part(place)

    def end(self, group: int) -> None:
        """Have none there any more: its records are another one's matter."""
        part = self._parts.pop(group, None)
        for record in list(part.open.values()) if part is not None else ():
            self._forget(record)
        self._expected = {key: member for key, member in self._expected.items() if key[0] != group}
        self.moved.discard(group)
        self._clean()

    def place(self, group: int) -> SharePlace:
        """Where it stands."""
        part = self._parts[group]
        again = [offset for offset in sorted(part.again) if offset >= part.read]
        offsets = (*part.open, *again)
        read = max(part.read, part.until)
        return SharePlace(offsets[0] if offsets else read, read, offsets)

    def read(self, group: int) -> int:
        """From where on it is to be read."""
        return self._parts[group].read

    def has_moved(self, group: int, place: SharePlace) -> bool:
        """Whether something of the share has come, or was done, since it stood at `place`. What else was written to the
        group is no reason to write where the share stands: that is written to the group itself."""
        if group not in self.moved:
            return False
        return self._parts[group].reached > place.read or self.place(group).open != place.open

    def settled(self, group: int, place: SharePlace) -> None:
        """`place` is written: where nothing has come or was done since, it is not looked at until something does."""
        if group in self._parts and not self.has_moved(group, place):
            self.moved.discard(group)

    # -- records

    @property
    def open_records(self) -> int:
        """How many are open."""
        return self._open_records

    @property
    def full(self) -> bool:
        """Whether as much is open as may be: nothing more is to be taken."""
        return self._open_records >= self._records_max or self._open_bytes >= self._bytes_max

    @property
    def plenty(self) -> bool:
        """Whether there is room for half of that."""
        return self._open_records <= self._records_max // 2 and self._open_bytes <= self._bytes_max // 2

    @property
    def served(self) -> bool:
        """Whether somebody is there who gets something."""
        return any([not member.resting for member in self.members.values()])

    def take(self, group: int, records: Iterable[DealtRecord], read: int) -> None:
        """Of a group everything before `read` has been looked at, and these concern the share."""
        part = self._parts[group]
        for record in records:
            offset = record.offset
            if offset < part.read or (offset < part.until and offset not in part.again):
                continue
            self.moved.add(group)
            part.reached = offset + 1
            holder = self._expected.pop((group, offset), None) if self._expected else None
            if holder is _NOBODY:
                continue
            self._orders += 1
            record.order = self._orders
            part.open[offset] = record
            self._open_records += 1
            self._open_bytes += record.size_bytes
            if holder is None:
                self._wait(record)
            else:
                record.holder = holder
                holder.held[record] = None
        part.read = max(part.read, read)
        if part.read >= part.until and part.again:
            part.again = frozenset()
            self.moved.add(group)  # retention may have taken some of them

    def done(self, key: MemberKey, group: int, offsets: Iterable[int]) -> None:
        """A member has done with these. What it does not hold any more is done too, unless another one holds it."""
        member, part = self.members.get(key), self._parts.get(group)
        if member is None:
            return
        for offset in offsets:
            record = part.open.get(offset) if part is not None else None
            if record is None:
                if self._expected.get((group, offset)) is member:
                    self._expected[group, offset] = _NOBODY
            elif part is not None and record.holder in (None, member):
                del part.open[offset]
                self.moved.add(group)
                self._forget(record)
        self._moved(member)

    def _moved(self, member: DealtMember) -> None:
        if member.stalled:
            member.stalled = False
            self._choose_anew()
        if member.resting and not member.held:
            self._remove(member)

    def _forget(self, record: DealtRecord) -> None:
        """It is gone; where it waits it is passed over."""
        self._open_records -= 1
        self._open_bytes -= record.size_bytes
        if record.holder is not None:
            record.holder.held.pop(record, None)
        record.holder = _NOBODY

    def _clean(self) -> None:
        """Take what is gone out of what waits."""
        for queue in (self._common, *[member.queue for member in self.members.values()]):
            queue[:] = [entry for entry in queue if entry[1].holder is None]
            heapify(queue)

    # -- members

    def join(self, key: MemberKey, window: int) -> None:
        """A member comes (back)."""
        if key in self.members:
            self.leave(key)
        self.members[key] = DealtMember(key, window)
        self._choose_anew()

    def hold(self, key: MemberKey, held: Mapping[int, Iterable[int]]) -> None:
        """A member that has come back has these records (by group) of before, and is still to have them done; those
        aside that others hold by now. What it had said of groups that have no cursor here yet is out of date."""
        member = self.members[key]
        parts = self._parts
        self._expected = {at: who for at, who in self._expected.items() if who is not member or at[0] in parts}
        for group, offsets in held.items():
            part = self._parts.get(group)
            for offset in offsets:
                record = part.open.get(offset) if part is not None else None
                if record is not None and record.holder is None:
                    record.holder = member
                    member.held[record] = None
                elif record is None and (part is None or offset >= part.read):
                    self._expected[group, offset] = member

    def leave(self, key: MemberKey, kept: Mapping[int, Iterable[int]] | None = None) -> None:
        """A member goes: what it holds waits again. `kept`: but for these, which it still has done; then it rests."""
        member = self.members.get(key)
        if member is None:
            return
        keeps = {(group, offset) for group, offsets in (kept or {}).items() for offset in offsets}
        back = [record for record in member.held if (record.group, record.offset) not in keeps]
        for record in back:
            del member.held[record]
            record.holder = None
            heappush(self._common, (record.order, record))
        member.resting = True
        if member.held:
            self._choose_anew()
        else:
            self._remove(member)

    def _remove(self, member: DealtMember) -> None:
        del self.members[member.key]
        if self._expected:
            self._expected = {at: holder for at, holder in self._expected.items() if holder is not member}
        self._common += member.queue
        self._choose_anew()

    def stall(self, key: MemberKey) -> None:
        """A member has had no room for long: its topics go to others until it has something done."""
        member = self.members.get(key)
        if member is not None and not member.stalled and self.strategy == TOPIC:
            member.stalled = True
            self._choose_anew()

    # -- dealing

    def deal(self) -> list[Deal]:
        """What goes to whom now; from here on they hold it."""
        return self._deal_freely() if self.strategy == FREE else self._deal_by_topic()

    def _deal_by_topic(self) -> list[Deal]:
        deals = []
        for member in self.members.values():
            if member.queue and (room := member.room) > 0 and (records := self._draw(member, member.queue, room)):
                deals.append(Deal(member.key, records))
        return deals

    def _deal_freely(self) -> list[Deal]:
        drawn: dict[MemberKey, list[DealtRecord]] = {}
        while self._common:
            free = sorted([m for m in self.members.values() if m.room > 0], key=_fewest_held)
            if not free:
                break
            part = -(-len(self._common) // len(free))
            for member in free:
                if records := self._draw(member, self._common, min(part, member.room)):
                    drawn.setdefault(member.key, []).extend(records)
        return [Deal(key, records) for key, records in drawn.items()]

    @staticmethod
    def _draw(member: DealtMember, queue: list[tuple[int, DealtRecord]], count: int) -> list[DealtRecord]:
        drawn: list[DealtRecord] = []
        while queue and len(drawn) < count:
            record = heappop(queue)[1]
            if record.holder is None:
                record.holder = member
                member.held[record] = None
                drawn.append(record)
        return drawn

    def _wait(self, record: DealtRecord) -> None:
        member = self._choice(record.topic) if self.strategy == TOPIC else None
        heappush(self._common if member is None else member.queue, (record.order, record))

    def _choice(self, topic: bytes) -> DealtMember | None:
        """Whose a topic is."""
        found = self._choices.get(topic)
        if found is not None or not self.members:
            return found
        able = [m for m in self.members.values() if not m.resting]
        able = [m for m in able if not m.stalled] or able
        if not able:
            return None
        if len(self._choices) >= CHOICES_MAX:
            self._choices.clear()
        found = self._choices[topic] = able[0] if len(able) == 1 else max(able, key=lambda m: _weight(m.seed, topic))
        return found

    def _choose_anew(self) -> None:
        """Members have come or gone: what waits, waits for whoever it is now."""
        self._choices.clear()
        if self.strategy == FREE:
            heapify(self._common)
            return
        waiting = [*self._common, *[entry for member in self.members.values() for entry in member.queue]]
        self._common = []
        for member in self.members.values():
            member.queue = []
        for _, record in sorted([entry for entry in waiting if entry[1].holder is None], key=_order):
            self._wait(record)


_NOBODY: Final = DealtMember(("", ""), 0)


def _order(entry: tuple[int, DealtRecord]) -> int:
    return entry[0]


def _fewest_held(member: DealtMember) -> int:
    return len(member.held)


def _weight(seed: bytes, topic: bytes) -> bytes:
    """Rendezvous hashing (Thaler and Ravishankar 1998): the highest weight has the topic."""
    return hashlib.blake2b(topic, digest_size=8, key=seed).digest()
