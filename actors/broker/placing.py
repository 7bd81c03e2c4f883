"""The placing of a SUBSCRIBE, or of a session's return: with the coordinators, then in the fan-out, exactly.

What is known at the broker already is live from its heads on. What is new is live from the *cut*: read by each
coordinator as it takes the interest, and taken over while its answer is taken off the link.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, Protocol

from .coordinators import Coordinators
from .encoding import Grant
from .filters import Filters, concerns_all
from .live_delivery import LiveDelivery
from .subscriber import Subscriber

# In an answer that many take: what was seen in it.
LOOKED_AT = "looked at"

# filter -> group -> the first offset that comes live.
Cuts = dict[bytes, dict[int, int]]


class PlacingBroker(Protocol):
    """The broker, as placing needs it."""

    filters: Filters
    coordinators: Coordinators
    live: LiveDelivery

    def insert(
        self,
        subscriber: Subscriber,
        wanted: Mapping[bytes, Grant],
        begin: Mapping[int, int],
        past: Mapping[int, int],
        behind: Collection[int],
    ) -> None:
        """Put filters into the fan-out; see `Subscriptions.insert`."""

    def unsubscribe(self, subscriber: Subscriber, topic_filter: bytes) -> bool:
        """End a subscription; False when there was none."""
        ...


class Placing:
    """See the module's docstring. `held`: filters that had no subscription of this subscriber; `fresh`: those that the
    broker had none of."""

    def __init__(
        self,
        broker: PlacingBroker,
        subscriber: Subscriber,
        wanted: Mapping[bytes, Grant],
        fresh: list[bytes],
        start: dict[int, int] | None,
    ) -> None:
        self._broker = broker
        self._subscriber = subscriber
        self._wanted = wanted
        self._fresh = fresh
        self._start = start
        self.held = [name for name in wanted if name not in subscriber.subscriptions]
        self.inserted: set[bytes] = set()
        # group -> where what retention has left begins, of those in which it took something.
        self.first_kept: dict[int, int] = {}
        # Of all groups answered for: the first cut, where what was published before it ends, whether what came before
        # is still under way.
        self._cut: dict[int, int] = {}
        self._ends: dict[int, int] = {}
        self._behind: set[int] = set()

    async def run(self) -> Cuts:
        """Raises UnavailableError."""
        return await (self._now() if self._start is None else self._from(self._start))

    def undo(self) -> None:
        """It failed: nothing of it stays."""
        subscriber, broker = self._subscriber, self._broker
        for name in self.held:
            if name in self.inserted:
                broker.unsubscribe(subscriber, name)
            elif not subscriber.closed:
                broker.filters.release([name])

    # -- from now on

    async def _now(self) -> Cuts:
        broker, subscriber = self._broker, self._subscriber
        fresh = set(self._fresh)
        known = {name: grant for name, grant in self._wanted.items() if name not in fresh}
        first = not subscriber.subscriptions and not known
        cuts: Cuts = {}
        if known:
            heads = dict(broker.live.heads)
            self._insert(known, {}, {}, ())
            cuts.update(dict.fromkeys(known, heads))
        if not fresh:
            return cuts
        # A new subscriber of several coordinators' groups would get, of those that have not answered yet, what others
        # here subscribed to, from before its cut: it begins when all have, and catches up from the cuts.
        together = first and len({p for name in fresh for p in broker.coordinators.pipelines_of(name)}) > 1

        def take(part: list[bytes], answer: dict[str, Any]) -> None:
            behind = self._answered(answer)
            if not together:
                # Where it is behind a new subscriber begins at its cut, not with what is still to come before it.
                begin = {group: answer["cut"][group] for group in behind} if first else {}
                self._insert({name: self._wanted[name] for name in part}, begin, {}, behind)

        await broker.filters.place(self._fresh, False, take)
        if together:
            self._insert({name: self._wanted[name] for name in fresh}, self._cut, {}, self._behind)
        cuts.update(dict.fromkeys(fresh, self._cut))
        return cuts

    def _answered(self, answer: dict[str, Any]) -> list[int]:
        """Take a coordinator's cuts; the groups of which blocks before the cut are still to come, or have come and wait
        for a dictionary."""
        live, cut = self._broker.live, answer["cut"]
        late = set(answer["behind"])
        behind = [group for group in cut if group in late or group in live.waiting]
        self.first_kept.update(answer["first"])
        self._behind.update(behind)
        for group, offset in cut.items():
            self._cut.setdefault(group, offset)
            if group not in self._behind:
                live.reached(group, offset)
            self._ends[group] = max(answer["ends"][group], self._ends.get(group, 0))
        return behind

    def _insert(
        self, wanted: Mapping[bytes, Grant], begin: Mapping[int, int], past: Mapping[int, int], behind: Iterable[int]
    ) -> None:
        if not self._subscriber.closed:
            self._broker.insert(self._subscriber, wanted, begin, past, set(behind))
            self.inserted.update(wanted)

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
            # Each is the taker's own, should another coordinator's answer follow.
            self._cut, self._ends, self._behind, self.first_kept = (
                known[0].copy(),
                known[1].copy(),
                known[2].copy(),
                known[3].copy(),
            )

    async def _from(self, start: dict[int, int]) -> Cuts:
        broker = self._broker

        def take(part: list[bytes], answer: dict[str, Any]) -> None:
            self._answered_to_many(answer)

        await broker.filters.place(self._fresh, True, take)
        cuts, ends, behind = self._cut, self._ends, self._behind
        if concerns_all(self._wanted) and not (behind or self._subscriber.lagging):
            begin = self._missed(start)
        else:
            begin = {}
            groups = cuts if concerns_all(self._wanted) else broker.coordinators.groups_of_all(self._wanted)
            for group in groups:
                at, cut = start.get(group), cuts.get(group)
                if cut is None:
                    continue
                if at is None or (at >= ends[group] and group not in behind):
                    at = max(cut, at or 0)  # nothing was published since
                begin[group] = at
        past = {**ends, **{group: cuts[group] for group in behind}} if behind else ends
        self._insert(self._wanted, begin, past, behind)
        for group, first in self.first_kept.items():
            if self._subscriber.lagging.get(group, first) < first:
                self._subscriber.discarded(group, first)
        return dict.fromkeys(self._wanted, self._cut)

    def _missed(self, start: dict[int, int]) -> dict[int, int]:
        """Where a new subscriber to all groups begins in those in which it is not live at once. (A hundred groups are
        looked at for each session that returns: this is the short way.)"""
        ends, heads = self._ends, self._broker.live.heads
        begin = {group: at for group, at in start.items() if at < ends.get(group, 0)}
        for group, cut in self._cut.items():
            if group not in begin:
                at = max(cut, start.get(group, 0))
                if heads.get(group) != at:
                    begin[group] = at
        return begin
