"""Subscribers that return: each is given all that it missed at once, in all groups, out of the past at hand.

One that is covered (`at_hand`) is served and live in one turn: it costs by what it gets. What is lacking is fetched for
all that wait for something at that time, a round of them; whoever comes meanwhile and lacks more waits for the next,
and is looked at again when this one is over.
Where a past is too long to be at hand, or cannot be had now, the round goes on page by page (`readers`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from ...loop import turns as turns_of
from ...loop.turns import Turns
from .at_hand import AtHand
from .delivery import Deliveries, Wanted, given
from .pages import Page, Stand

if TYPE_CHECKING:
    from ..subscriber import Subscriber

log = logging.getLogger(__name__)

# Topics or filters that are looked at for one subscriber in one turn.
LOOKED_AT_MAX = 1_000
# For so many at once everything is fetched, for others will follow who have filters of their own.
MANY = 8
# How long nobody waits for a past that was too long to be at hand.
TOO_LONG_S = 30.0


class ReturningBroker(Protocol):
    """What is needed of the engine."""

    def version_of(self, subscriber: Subscriber) -> int:
        """By which version of the broker's interest all its filters were registered."""


class ReturningSubscribers:
    """See the module's docstring.

    `need(group, stand)`: have a page fetched; `give_up(subscriber)`: it goes on page by page. A round fetches at most
    `bytes_max`.
    """

    def __init__(
        self,
        broker: ReturningBroker,
        at_hand: AtHand,
        deliveries: Deliveries,
        need: Callable[[int, Stand], None],
        give_up: Callable[[Subscriber], None],
        bytes_max: int,
    ) -> None:
        self._broker = broker
        self._at_hand = at_hand
        self._deliveries = deliveries
        self._need = need
        self._give_up = give_up
        self._bytes_max = bytes_max
        # Those to be looked at, those of this round, and those of the next; between rounds also what these lack.
        self._due: dict[Subscriber, None] = {}
        self._round: set[Subscriber] = set()
        self._next: dict[Subscriber, None] = {}
        self._next_needs: dict[int, Stand] = {}
        # Those whose round is over: who lacks something still will not get it that way.
        self._tried: set[Subscriber] = set()
        # By group: the lowest place where somebody of this round stands who lacks something; from where on it was asked
        # for last; whether that came.
        self._needs: dict[int, Stand] = {}
        self._asked: dict[int, int] = {}
        self._came: set[int] = set()
        self._fetched_bytes = 0
        self._too_long_until_s = 0.0

    @property
    def waiting(self) -> set[Subscriber]:
        """Those that have not been served."""
        return {*self._due, *self._round, *self._next}

    @property
    def _everything(self) -> bool:
        """Whether this round has fetched all that there is."""
        return len(self._round) >= MANY

    @property
    def due(self) -> bool:
        """Whether `step` has something to do."""
        return bool(self._due)

    def add(self, subscriber: Subscriber) -> None:
        """It lags, and nothing is in its way."""
        if subscriber not in self._round and subscriber not in self._next:
            self._due[subscriber] = None

    def leave(self, subscriber: Subscriber) -> None:
        """It is gone, or wants something else."""
        self._due.pop(subscriber, None)
        self._next.pop(subscriber, None)
        self._round.discard(subscriber)
        self._tried.discard(subscriber)
        if not self._next:
            self._next_needs.clear()

    # -- served

    def step(self, turns: Turns) -> None:
        """Serve those that are due, as far as this turn goes; have fetched what they lack."""
        try:
            self._step(turns)
        finally:
            self._deliveries.end_turn()
        if self._next and not self._due and not self._round:
            self._begin()

    def _step(self, turns: Turns) -> None:
        at_hand = self._at_hand
        while self._due:
            subscriber = next(iter(self._due))
            del self._due[subscriber]
            if subscriber.closed or subscriber.blocked or not subscriber.lagging:
                continue
            at_hand.sync()
            version = self._broker.version_of(subscriber)
            tried = subscriber in self._tried
            self._tried.discard(subscriber)
            if at_hand.covers(subscriber, version):
                if not self._serve(subscriber, turns):
                    self._due[subscriber] = None
            elif tried or turns_of.now_s() < self._too_long_until_s:
                self._give_up(subscriber)
            else:
                self._next[subscriber] = None
                if not self._round:
                    self._note_needs(subscriber, version)
            if turns.over:
                break

    def _serve(self, subscriber: Subscriber, turns: Turns) -> bool:
        """All that it missed; False when it is to be gone on with, in a later turn."""
        at_hand = self._at_hand
        topics = at_hand.topics(subscriber, LOOKED_AT_MAX)
        if topics is None:
            self._give_up(subscriber)
            return True
        at_hand.discarded(subscriber)
        wanted = at_hand.wanted(subscriber, topics)
        subscriber.caught_up_but(wanted)
        subscriber.gather()
        try:
            return self._give(subscriber, wanted, turns)
        finally:
            subscriber.send_gathered()

    def _give(self, subscriber: Subscriber, wanted: dict[int, list[tuple[Page, Wanted]]], turns: Turns) -> bool:
        for group, pages in wanted.items():
            for page, of_page in pages:
                if not given(self._deliveries.in_turn(page), page, subscriber, of_page):
                    return True  # it comes again when nothing is in its way
                subscriber.lagging[group] = page.end
                if turns.over:
                    return False
            subscriber.caught_up(group)
        return True

    # -- waited for

    def _note_needs(self, subscriber: Subscriber, version: int) -> None:
        """What one of the next round lacks."""
        needs, past = self._next_needs, subscriber.past
        for group in self._at_hand.lacks(subscriber, version):
            offset = subscriber.lagging[group]
            stand = needs.get(group)
            if stand is None:
                stand = needs[group] = Stand(offset)
            elif offset < stand.offset:
                stand.offset = offset
            if version > stand.version:
                stand.version = version
            if group in past and past[group] > stand.past:
                stand.past = past[group]

    def _begin(self) -> None:
        """A round, of all that wait for the next one."""
        self._round, self._next = set(self._next), {}
        self._needs, self._next_needs = self._next_needs, {}
        self._fetched_bytes = 0
        for group, stand in list(self._needs.items()):
            if self._needs.get(group) is stand:
                self._lack(group, stand)
        if not self._needs:
            self._end()

    def _lack(self, group: int, stand: Stand) -> None:
        """Have the group's next page fetched, if one is lacking still."""
        stretch = self._at_hand.stretch(group)
        if stretch is None or stretch.start > stand.offset or stretch.version < stand.version:
            self._at_hand.drop(group)
            at = stand.offset
        elif stretch.live and stretch.fetched_to >= stand.past:
            del self._needs[group]
            return
        else:
            at = stretch.fetched_to
        if self._asked.get(group) == at and group in self._came:
            self._end()  # what came serves some of them only
            return
        self._asked[group] = at
        self._came.discard(group)
        asked = Stand(at)
        asked.everything = self._everything
        asked.members = self._round
        self._need(group, asked)

    def took(self, page: Page) -> None:
        """A page was fetched, for whomever."""
        if page.group in self._needs:
            self._fetched_bytes += page.size_bytes
            # One that somebody else had asked for before leaves out what this round wants, or lies elsewhere.
            if self._asked.get(page.group) == page.start and (page.whole or not self._everything):
                self._came.add(page.group)

    def go_on(self, group: int) -> None:
        """A page of the group has come, or should be asked for again."""
        stand = self._needs.get(group)
        if stand is None:
            return
        if not self._round:
            del self._needs[group]
        elif self._fetched_bytes > self._bytes_max:
            self._too_long_until_s = turns_of.now_s() + TOO_LONG_S
            self._end()
        else:
            self._at_hand.sync()
            self._lack(group, stand)
        if not self._needs:
            self._end()

    def failed(self, group: int) -> None:
        """Nothing of the group can be had now."""
        if group in self._needs:
            self._end()

    def _end(self) -> None:
        """All are looked at once more, one by one: who is covered is served, others of the round go page by page."""
        served, self._round = self._round, set()
        self._needs.clear()
        self._asked.clear()
        self._came.clear()
        self._tried |= served
        following, self._next = self._next, {}
        self._due.update(dict.fromkeys(served))
        self._due.update(following)
