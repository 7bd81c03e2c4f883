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
  * A record that is not gone is in one piece, which `_Part.open` names; a piece's `open` counts those that are.
  * A member holds at most its window (of those that it brings along as it joins perhaps more).
  * `place(group)`: everything before `floor` is gone, and `floor` never passes what is open.
  * Of one topic nothing is dealt while an earlier record waits ("topic").

A member is *stalled* once its room has been used up for long: its topics go to others until it has something done. One
that *rests* gets nothing more, and leaves once it holds nothing.

A share that another coordinator has led may have members that hold records which only they know of, until they have
joined here (`hold`). Of QoS 1 these go to others if that is sooner. What may have been sent with QoS 2 is *unclaimed*
for a while: nobody is dealt it before `unclaimed_wait`.

Members come and go many at a time, a broker's all at once: what waits is looked through when the next is dealt, once.

Memory: `records_max` records, `bytes_max` bytes of what they were read with (and what was read at once beyond it), and
what `choices` remembers of topics.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from mypy_extensions import mypyc_attr

from .choices import TopicChoices
from .pieces import DealtMember, DealtPiece, MemberKey, Taken
from .places import SharePlace

TOPIC: Final = "topic"
FREE: Final = "free"

RECORDS_MAX: Final = 16_384
BYTES_MAX: Final = 16 * 1024 * 1024


class Deal(NamedTuple):
    """What goes to one member, in the order in which it is to be sent."""

    member: MemberKey
    pieces: list[DealtPiece]


class _Part:
    """A share in one topic group. Before `until` only those of `again` are not done yet. `open`: offset -> piece."""

    __slots__ = ("again", "open", "reached", "read", "unclaimed", "until")

    def __init__(self, place: SharePlace, unclaimed: int) -> None:
        self.read = place.floor
        # Behind the last record that concerned the share.
        self.reached = place.floor
        self.until = place.read
        # What is before this may be held already.
        self.unclaimed = unclaimed
        self.again = frozenset(place.open)
        self.open: dict[int, DealtPiece] = {}

    def put(self, taken: Taken, numbers: Sequence[int]) -> DealtPiece:
        """These are open, as one piece from now on."""
        piece = DealtPiece(taken, numbers)
        self.open.update(dict.fromkeys(piece.offsets, piece))
        return piece

    def live(self, piece: DealtPiece) -> Sequence[int]:
        """The numbers of a piece that are not gone, nor in another one by now."""
        if piece.open == len(piece.numbers):
            return piece.numbers
        offsets, known = piece.taken.offsets, self.open
        return [number for number in piece.numbers if known.get(offsets[number]) is piece]

    def split(self, piece: DealtPiece, numbers: Sequence[int]) -> DealtPiece:
        """Some of a piece become one of their own, which waits."""
        piece.open -= len(numbers)
        if piece.holder is not None:
            piece.holder.gave(piece, len(numbers))
        return self.put(piece.taken, numbers)

    def cut(self, offsets: Iterable[int], of: DealtMember) -> list[DealtPiece]:
        """What waits among these records, or is held by one member, in pieces of its own that nobody holds."""
        found: dict[DealtPiece, list[int]] = {}
        for offset in sorted(offsets):
            piece = self.open.get(offset)
            if piece is not None and (piece.holder is None or piece.holder is of):
                found.setdefault(piece, []).append(bisect_left(piece.taken.offsets, offset))
        return [self.split(piece, numbers) for piece, numbers in found.items()]


# More than 25 methods: groups, members and records are one account.
@mypyc_attr(allow_interpreted_subclasses=True)  # by the simulator's breaks
class Share:
    """See the module's docstring."""

    def __init__(self, strategy: str = TOPIC, records_max: int = RECORDS_MAX, bytes_max: int = BYTES_MAX) -> None:
        self.strategy = strategy
        self.members: dict[MemberKey, DealtMember] = {}
        self._records_max = records_max
        self._bytes_max = bytes_max
        self._parts: dict[int, _Part] = {}
        self._choices = TopicChoices()
        # Members have come or gone since `_choose_anew`: what waits is for whoever it was.
        self._changed = False
        # What no member waits for in particular: all of it with "free", else what comes while nobody is there.
        self._common: deque[DealtPiece] = deque()
        # Records that a member has brought along and that are still to be read here; `_NOBODY`: by now they are done.
        self._expected: dict[tuple[int, int], DealtMember] = {}
        self._unclaimed = DealtMember(("", ""), 0)
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

    def begin(self, group: int, place: SharePlace, unclaimed: int = 0) -> None:
        """Have a cursor in a group; members that are yet to join may hold something before `unclaimed`."""
        self._parts[group] = _Part(place, unclaimed)

    def end(self, group: int) -> None:
        """Have none there any more: its records are another one's matter."""
        part = self._parts.pop(group, None)
        for piece in set(part.open.values()) if part is not None else ():
            self._closed(piece, piece.open)
        self._expected = {key: member for key, member in self._expected.items() if key[0] != group}
        self.moved.discard(group)
        for queue in (self._common, *[member.queue for member in self.members.values()]):
            left = [piece for piece in queue if piece.open]
            queue.clear()
            queue.extend(left)

    def place(self, group: int) -> SharePlace:
        """Where it stands."""
        part = self._parts[group]
        offsets = sorted(part.open)
        if part.again:
            offsets += [offset for offset in sorted(part.again) if offset >= part.read]
        read = max(part.read, part.until)
        return SharePlace(offsets[0] if offsets else read, read, tuple(offsets))

    def read(self, group: int) -> int:
        """From where on it is to be read."""
        return self._parts[group].read

    def whereabouts(self, group: int, offset: int) -> MemberKey | str:
        """Of a record that is the share's: who holds it, or "unread", "waiting" or "done"."""
        part = self._parts[group]
        piece = part.open.get(offset)
        if piece is None:
            behind = offset < part.read or (offset < part.until and offset not in part.again)
            return "done" if behind else "unread"
        holder = piece.holder
        return "waiting" if holder is None or holder is self._unclaimed else holder.key

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
        return any(not member.resting for member in self.members.values())

    def take(self, group: int, taken: Taken | None, read: int) -> None:
        """Of a group everything before `read` has been looked at, and `taken` of it concerns the share."""
        part = self._parts[group]
        numbers = _fresh(part, taken) if taken is not None else ()
        if taken is not None and numbers:
            self.moved.add(group)
            part.reached = taken.offsets[numbers[-1]] + 1
            self._orders += 1
            taken.order = self._orders
            if self._expected:
                numbers = self._brought_along(part, taken, numbers)
            if taken.exact and taken.offsets[0] < part.unclaimed:
                numbers = self._set_aside(part, taken, numbers)
            if numbers:
                self._opened(taken, len(numbers))
                self._wait(part, taken, numbers)
        part.read = max(part.read, read)
        if part.read >= part.until and part.again:
            part.again = frozenset()
            self.moved.add(group)  # retention may have taken some of them

    def _brought_along(self, part: _Part, taken: Taken, numbers: Sequence[int]) -> list[int]:
        """What is expected is held by who has brought it along, or is gone; the others' numbers."""
        waiting: list[int] = []
        held: dict[DealtMember, list[int]] = {}
        for number in numbers:
            holder = self._expected.pop((taken.group, taken.offsets[number]), None)
            if holder is None:
                waiting.append(number)
            elif holder is not _NOBODY:
                held.setdefault(holder, []).append(number)
        for member, some in held.items():
            self._opened(taken, len(some))
            member.hold(part.put(taken, some))
        return waiting

    def _set_aside(self, part: _Part, taken: Taken, numbers: Sequence[int]) -> list[int]:
        """What may be held already is nobody's yet; the others' numbers."""
        exact = {number for number in taken.exact if taken.offsets[number] < part.unclaimed}
        aside = [number for number in numbers if number in exact]
        if aside:
            self._opened(taken, len(aside))
            self._unclaimed.hold(part.put(taken, aside))
        return [number for number in numbers if number not in exact]

    def unclaimed_wait(self, groups: Collection[int]) -> None:
        """Whoever holds what is unclaimed in these has had the time to say so: it is dealt as all else."""
        for group in groups:
            if group in self._parts:
                self._parts[group].unclaimed = 0
        for piece in [piece for piece in self._unclaimed.held if piece.taken.group in groups]:
            self._unclaimed.release(piece)
            self._common.append(piece)
        self._changed = True

    def _opened(self, taken: Taken, count: int) -> None:
        if not taken.open:
            self._open_bytes += taken.size_bytes
        taken.open += count
        self._open_records += count

    def _closed(self, piece: DealtPiece, count: int) -> None:
        """So many of a piece are gone."""
        taken, holder = piece.taken, piece.holder
        piece.open -= count
        taken.open -= count
        self._open_records -= count
        if not taken.open:
            self._open_bytes -= taken.size_bytes
        if holder is not None:
            holder.gave(piece, count)

    def done(self, key: MemberKey, group: int, offsets: Iterable[int]) -> None:
        """A member has done with these. What it does not hold any more is done too, unless another one holds it."""
        member, part = self.members.get(key), self._parts.get(group)
        if member is None:
            return
        done: dict[DealtPiece, int] = {}
        for offset in offsets:
            piece = part.open.get(offset) if part is not None else None
            if piece is None:
                if self._expected.get((group, offset)) is member:
                    self._expected[group, offset] = _NOBODY
            elif part is not None and (piece.holder is member or piece.holder in (None, self._unclaimed)):
                del part.open[offset]
                done[piece] = done.get(piece, 0) + 1
        for piece, count in done.items():
            self._closed(piece, count)
        if done:
            self.moved.add(group)
        self._moved(member)

    def _moved(self, member: DealtMember) -> None:
        if member.stalled:
            member.stalled = False
            self._changed = True
        if member.resting and not member.held:
            self._remove(member)

    # -- members

    def join(self, key: MemberKey, window: int) -> None:
        """A member comes (back)."""
        if key in self.members:
            self.leave(key)
        self.members[key] = DealtMember(key, window)
        self._changed = True

    def hold(self, key: MemberKey, held: Mapping[int, Collection[int]]) -> None:
        """A member that has come back has these records (by group) of before, and is still to have them done; those
        aside that others hold by now. What it had said of groups that have no cursor here yet is out of date."""
        member = self.members[key]
        parts = self._parts
        self._forget_expected(member, [at for at in member.expects if at[0] not in parts])
        for group, offsets in held.items():
            part = parts.get(group)
            for offset in offsets:
                if part is None or (offset not in part.open and offset >= part.read):
                    self._expected[group, offset] = member
                    member.expects.append((group, offset))
            for piece in part.cut(offsets, self._unclaimed) if part is not None else ():
                member.hold(piece)

    def leave(self, key: MemberKey, kept: Mapping[int, Collection[int]] | None = None) -> None:
        """A member goes: what it holds waits again. `kept`: but for these, which it still has done; then it rests."""
        member = self.members.get(key)
        if member is None:
            return
        keeps = [
            piece
            for group, offsets in (kept or {}).items()
            if group in self._parts
            for piece in self._parts[group].cut(offsets, member)
        ]
        for piece in list(member.held):
            member.release(piece)
            self._common.append(piece)
        for piece in keeps:
            member.hold(piece)
        member.resting = True
        self._changed = True
        if not member.held:
            self._remove(member)

    def _remove(self, member: DealtMember) -> None:
        del self.members[member.key]
        self._forget_expected(member, member.expects)
        self._common.extend(member.queue)
        member.queue.clear()  # whose topics were may be remembered for long
        self._changed = True

    def _forget_expected(self, member: DealtMember, places: Collection[tuple[int, int]]) -> None:
        """A member has these no more."""
        expected = self._expected
        for at in places:
            if expected.get(at) is member:
                del expected[at]
        member.expects = [at for at in member.expects if expected.get(at) is member]

    def stall(self, key: MemberKey) -> None:
        """A member has had no room for long: its topics go to others until it has something done."""
        member = self.members.get(key)
        if member is not None and not member.stalled and self.strategy == TOPIC:
            member.stalled = True
            self._changed = True

    # -- dealing

    def deal(self) -> list[Deal]:
        """What goes to whom now; from here on they hold it."""
        if self._changed:
            self._choose_anew()
        return self._deal_freely() if self.strategy == FREE else self._deal_by_topic()

    def _deal_by_topic(self) -> list[Deal]:
        deals = []
        for member in self.members.values():
            if member.queue and (room := member.room) > 0 and (pieces := self._draw(member, member.queue, room)):
                deals.append(Deal(member.key, pieces))
        return deals

    def _deal_freely(self) -> list[Deal]:
        drawn: dict[MemberKey, list[DealtPiece]] = {}
        while self._common:
            free = sorted([m for m in self.members.values() if m.room > 0], key=_fewest_held)
            if not free:
                break
            part = -(-_waiting(self._common, sum([member.room for member in free])) // len(free))
            for member in free:
                if pieces := self._draw(member, self._common, min(part, member.room)):
                    drawn.setdefault(member.key, []).extend(pieces)
        return [Deal(key, pieces) for key, pieces in drawn.items()]

    def _draw(self, member: DealtMember, queue: deque[DealtPiece], count: int) -> list[DealtPiece]:
        drawn: list[DealtPiece] = []
        while queue and (count > 0 or not queue[0].open):
            piece = queue.popleft()
            if not piece.open:
                continue
            part = self._parts[piece.taken.group]
            numbers = piece.numbers = part.live(piece)
            if len(numbers) > count:
                queue.appendleft(piece)
                first = part.split(piece, numbers[:count])
                piece.numbers = numbers[count:]
                piece = first
            count -= piece.open
            member.hold(piece)
            drawn.append(piece)
        return drawn

    def _wait(self, part: _Part, taken: Taken, numbers: Sequence[int]) -> None:
        """Records wait, each for whoever it is."""
        able, topics, choose = self._choices.members, taken.topics, self._choices.choose
        if self.strategy == FREE or self._changed or not able:
            self._common.append(part.put(taken, numbers))
        elif len(able) == 1:
            able[0].queue.append(part.put(taken, numbers))
        elif len(topics) == 1:
            choose(topics[0]).queue.append(part.put(taken, numbers))
        else:
            chosen: dict[DealtMember, list[int]] = {}
            for number in numbers:
                chosen.setdefault(choose(topics[number]), []).append(number)
            for member, some in chosen.items():
                member.queue.append(part.put(taken, some))

    def _choose_anew(self) -> None:
        """Members have come or gone: what waits, waits for whoever it is now, in the order in which it was taken."""
        self._changed = False
        able = [member for member in self.members.values() if not member.resting]
        self._choices.among([member for member in able if not member.stalled] or able)
        waiting: dict[Taken, list[int]] = {}
        for queue in (self._common, *[member.queue for member in self.members.values()]):
            for piece in queue:
                if piece.open:
                    waiting.setdefault(piece.taken, []).extend(self._parts[piece.taken.group].live(piece))
            queue.clear()
        for taken in sorted(waiting, key=_order):
            self._wait(self._parts[taken.group], taken, sorted(waiting[taken]))


_NOBODY: Final = DealtMember(("", ""), 0)


def _fresh(part: _Part, taken: Taken) -> Sequence[int]:
    """The numbers of what is not behind the cursor."""
    offsets, at = taken.offsets, max(part.read, part.until)
    if offsets[0] >= at:
        return range(len(offsets))
    read, again = part.read, part.again
    return [n for n, offset in enumerate(offsets) if offset >= at or (offset >= read and offset in again)]


def _waiting(queue: Iterable[DealtPiece], most: int) -> int:
    """How many records wait, as far as that is of interest."""
    count = 0
    for piece in queue:
        count += piece.open
        if count >= most:
            return most
    return count


def _order(taken: Taken) -> int:
    return taken.order


def _fewest_held(member: DealtMember) -> int:
    return member.held_records
