"""The placing of a SUBSCRIBE, or of a session's return: with the coordinators, then in the fan-out, exactly.

What is known at the broker already is live from its heads on. What is new is live from the *cut*: read by each
coordinator as it takes the interest, and taken over while its answer is taken off the link.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager
from itertools import islice
from typing import Any, Protocol

from ..loop.turns import Turns
from .beginnings import Beginning, Beginnings
from .coordinators import Coordinators
from .encoding import Grant
from .filters import Filters, concerns_all
from .live_delivery import LiveDelivery
from .matching.choosing_filters import ChoosingFilters
from .subscriber import Subscriber

# Filters of one subscriber that are placed, put into the fan-out or ended in one step.
FILTERS_AT_ONCE = 100
# In an answer that many take: what was seen in it.
LOOKED_AT = "looked at"

# filter -> group -> the first offset that comes live.
Cuts = dict[bytes, dict[int, int]]


class PlacingBroker(Protocol):
    """The broker, as placing needs it."""

    beginnings: Beginnings
    filters: Filters
    coordinators: Coordinators
    live: LiveDelivery
    choosing: ChoosingFilters | None

    def release(self, subscriber: Subscriber, filters: Collection[bytes]) -> object:
        """The subscriber has these no more; see `Subscriptions.release`."""

    def insert(self, subscriber: Subscriber, wanted: Mapping[bytes, Grant], beginning: Beginning) -> None:
        """Put filters into the fan-out; see `Subscriptions.insert`."""

    def enter(self, subscriber: Subscriber, wanted: Mapping[bytes, Grant]) -> None:
        """Put filters of one that is held back into the fan-out."""

    def held_back(self, subscriber: Subscriber, begin: Mapping[int, int]) -> AbstractContextManager[None]:
        """While its filters enter; see `Subscriptions.held_back`."""
        ...

    def give_up(self, subscriber: Subscriber, filters: Collection[bytes]) -> None:
        """End subscriptions whose placing has failed; see `Subscriptions.give_up`."""


class Placing:
    """See the module's docstring. `start`: group -> offset to begin at; None: from now on."""

    def __init__(self, broker: PlacingBroker, subscriber: Subscriber, start: dict[int, int] | None) -> None:
        self._broker = broker
        self._subscriber = subscriber
        self._start = start
        # Filters that had no subscription of this subscriber; those of them that are in the fan-out.
        self._held: list[bytes] = []
        self._inserted: set[bytes] = set()
        # group -> where what retention has left begins, of those in which it took something.
        self.first_kept: dict[int, int] = {}
        # Of all groups answered for: the first cut; from where on it comes live, by the last one; and those where what
        # came before is still under way.
        self._cut: dict[int, int] = {}
        self._ends: dict[int, int] = {}
        self._behind: set[int] = set()
        # Whether these are others' too.
        self._shared = False

    async def run(self, wanted: Mapping[bytes, Grant]) -> Cuts:
        """Raises UnavailableError; nothing of it stays then."""
        try:
            return await (self._now(wanted) if self._start is None else self._from(wanted, self._start))
        except BaseException:
            self._broker.give_up(self._subscriber, [name for name in self._held if name in self._inserted])
            raise
        finally:
            # It failed, or the subscriber has left meanwhile.
            self._broker.release(self._subscriber, [name for name in self._held if name not in self._inserted])

    async def _hold(self, wanted: Mapping[bytes, Grant]) -> list[bytes]:
        """Those that the broker had none of. Nobody else is placing one of these by then."""
        filters, subscriptions = self._broker.filters, self._subscriber.subscriptions
        if not filters.is_settled(wanted):
            await filters.settled(wanted)
        if self._subscriber.closed:
            return []
        held = [name for name in wanted if name not in subscriptions]
        self._held += held
        fresh = filters.hold(held)
        if self._broker.choosing is not None:
            self._broker.choosing.held(self._subscriber, wanted, held)
        return fresh

    async def _in_parts(
        self, wanted: Mapping[bytes, Grant], place: Callable[[Mapping[bytes, Grant], list[bytes]], Awaitable[None]]
    ) -> bool:
        """Hold and place the filters, some at a time; False when the subscriber has left meanwhile. `place` gets a part
        and those of it that the broker had none of."""
        if len(wanted) <= FILTERS_AT_ONCE:
            return await self._part(wanted, place)
        turns = Turns()
        for part in _parts(wanted):
            if not await self._part(part, place):
                return False
            await turns.give_way()
        return True

    async def _part(
        self, part: Mapping[bytes, Grant], place: Callable[[Mapping[bytes, Grant], list[bytes]], Awaitable[None]]
    ) -> bool:
        fresh = await self._hold(part)
        if self._subscriber.closed:
            return False
        try:
            if self._broker.choosing is not None:
                await self._broker.choosing.prepare(self._subscriber, part)
            await place(part, fresh)
        finally:
            self._broker.filters.placed(fresh)
        return True

    # -- from now on

    async def _now(self, wanted: Mapping[bytes, Grant]) -> Cuts:
        cuts: Cuts = {}

        async def place(part: Mapping[bytes, Grant], fresh: list[bytes]) -> None:
            cuts.update(await self._part_now(part, fresh))

        return cuts if await self._in_parts(wanted, place) else {}

    async def _part_now(self, wanted: Mapping[bytes, Grant], fresh: list[bytes]) -> Cuts:
        broker, subscriber = self._broker, self._subscriber
        new = set(fresh)
        known = {name: grant for name, grant in wanted.items() if name not in new}
        first = not subscriber.subscriptions and not known
        cuts: Cuts = {}
        if known:
            heads = dict(broker.live.heads)
            self._insert(known, Beginning())
            cuts.update(dict.fromkeys(known, heads))
        if not fresh:
            return cuts
        # A new subscriber of several coordinators' groups would get, of those that have not answered yet, what others
        # here subscribed to, from before its cut: it begins when all have, and catches up from the cuts.
        together = first and len({p for name in fresh for p in broker.coordinators.pipelines_of(name)}) > 1
        self._cut = {}

        def take(part: list[bytes], answer: dict[str, Any]) -> None:
            behind = set(self._answered(answer))
            if not together:
                # Where it is behind a new subscriber begins at its cut, not with what is still to come before it.
                begin = {group: answer["cut"][group] for group in behind} if first else {}
                self._insert({name: wanted[name] for name in part}, Beginning(begin, {}, behind))

        await broker.filters.place(fresh, False, take)
        if together:
            self._insert({name: wanted[name] for name in fresh}, Beginning(self._cut, {}, self._behind))
        cuts.update(dict.fromkeys(fresh, self._cut))
        return cuts

    def _answered(self, answer: dict[str, Any]) -> list[int]:
        """Take a coordinator's cuts; the groups of which blocks before the cut are still to come, or have come and wait
        for a dictionary."""
        if self._shared:
            self._shared = False
            self._cut, self._ends = self._cut.copy(), self._ends.copy()
            self._behind, self.first_kept = self._behind.copy(), self.first_kept.copy()
        live, cut = self._broker.live, answer["cut"]
        late = set(answer["behind"])
        behind = [group for group in cut if group in late or group in live.waiting]
        self.first_kept.update(answer["first"])
        self._behind.update(behind)
        for group, offset in cut.items():
            self._cut.setdefault(group, offset)
            if group not in self._behind:
                live.reached(group, offset)
            # What is still to come may have been chosen before the filters were known, all of it before this cut.
            end = offset if group in self._behind else answer["ends"][group]
            self._ends[group] = max(end, self._ends.get(group, 0))
        return behind

    def _insert(self, wanted: Mapping[bytes, Grant], beginning: Beginning) -> None:
        if not self._subscriber.closed:
            self._broker.insert(self._subscriber, wanted, beginning)
            self._inserted.update(wanted)

    async def _insert_all(self, wanted: Mapping[bytes, Grant], beginning: Beginning) -> None:
        """As many as there are, in steps; in the turn of the last one it begins."""
        if len(wanted) <= FILTERS_AT_ONCE:
            self._insert(wanted, beginning)
            return
        turns = Turns()
        with self._broker.held_back(self._subscriber, beginning.begin):
            for part in _parts(wanted):
                await turns.give_way()
                if self._subscriber.closed:
                    return
                self._broker.enter(self._subscriber, part)
                self._inserted.update(part)
        self._insert({}, beginning)

    # -- from an earlier cursor on

    def _answered_to_many(self, answer: dict[str, Any]) -> None:
        """Take a coordinator's cuts, which others take too: what they say is looked at once."""
        if self._cut or self._behind:
            self._answered(answer)
            return
        known = answer.get(LOOKED_AT)
        if known is None:
            self._answered(answer)
            answer[LOOKED_AT] = self._cut, self._ends, self._behind, self.first_kept
        else:
            self._cut, self._ends, self._behind, self.first_kept = known
        self._shared = True

    async def _from(self, wanted: Mapping[bytes, Grant], start: dict[int, int]) -> Cuts:
        broker = self._broker

        def take(part: list[bytes], answer: dict[str, Any]) -> None:
            self._answered_to_many(answer)

        # Whether others have placed what came last: later than these cuts, perhaps; until then it came to nobody here.
        late = False

        async def place(part: Mapping[bytes, Grant], fresh: list[bytes]) -> None:
            nonlocal late
            late = not fresh and bool(self._cut)
            if not late:
                await broker.filters.place(fresh, True, take)

        if not await self._in_parts(wanted, place):
            return {}
        if late:
            await broker.filters.place([], True, take)
        cuts, ends, behind = self._cut, self._ends, self._behind
        everywhere, at_once = concerns_all(wanted), len(wanted) <= FILTERS_AT_ONCE
        if everywhere and at_once and not (behind or self._subscriber.lagging):
            begin = broker.beginnings.missed(start, cuts, ends)
        else:
            begin = {}
            for group in cuts if everywhere else broker.coordinators.groups_of_all(wanted):
                at, cut = start.get(group), cuts.get(group)
                if cut is None:
                    continue
                if at is None or (at >= ends[group] and group not in behind):
                    at = max(cut, at or 0)  # nothing was published since
                begin[group] = at
        await self._insert_all(wanted, Beginning(begin, ends, behind))
        for group, first in self.first_kept.items():
            if self._subscriber.lagging.get(group, first) < first:
                self._subscriber.discarded(group, first)
        return dict.fromkeys(wanted, self._cut)


def _parts(wanted: Mapping[bytes, Grant]) -> Iterator[Mapping[bytes, Grant]]:
    if len(wanted) <= FILTERS_AT_ONCE:
        yield wanted
        return
    items = iter(wanted.items())
    while part := dict(islice(items, FILTERS_AT_ONCE)):
        yield part
