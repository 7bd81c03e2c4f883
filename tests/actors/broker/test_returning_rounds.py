"""A round of subscribers that return: what is fetched for all of them, and which page ends it for whom."""

from __future__ import annotations

from typing import Any, cast

from lexicast.actors.broker.catching_up.delivery import Deliveries
from lexicast.actors.broker.catching_up.pages import Page, Stand
from lexicast.actors.broker.catching_up.returning import MANY, ReturningSubscribers
from lexicast.actors.broker.encoding import Grant, Kind
from lexicast.actors.broker.subscriber import Subscriber
from lexicast.actors.loop.turns import Turns

from .test_at_hand import Log

PUBLISHED = 4


class Round:
    """MANY subscribers to nothing that is there, who stand at the beginning of one group."""

    def __init__(self) -> None:
        self.log = Log(1 << 20, 1 << 20)
        for _ in range(PUBLISHED):
            self.log.publish(0, 0, False)
        self.asked: list[tuple[int, int, bool]] = []
        self.given_up: list[Subscriber] = []
        self.returning = ReturningSubscribers(
            cast(Any, self),
            self.log.at_hand,
            Deliveries(cast(Any, self), 1 << 20),
            self._need,
            self.given_up.append,
            1 << 20,
        )
        self.members = [self.member() for _ in range(MANY)]

    def version_of(self, subscriber: Subscriber) -> int:
        """See `ReturningBroker`."""
        return 5

    def _need(self, group: int, stand: Stand) -> None:
        self.asked.append((group, stand.offset, stand.everything))

    def member(self, offset: int = 0) -> Subscriber:
        """One more that returns."""
        member = Subscriber(cast(Any, None), Kind(4))
        member.set_filters({b"elsewhere": Grant(1)})
        member.lagging[0] = offset
        member.past[0] = PUBLISHED
        self.returning.add(member)
        return member

    def step(self) -> None:
        """All turns that are to be had."""
        while self.returning.due:
            self.returning.step(Turns())

    def page(self, start: int, end: int, whole: bool) -> None:
        """A page comes; one that is not whole was made for the filters of somebody else."""
        filters = None if whole else frozenset([b"own/#"])
        page = Page(0, start, end, self.log.blocks[0][start:end], whole=whole, version=5, filters=filters)
        self.log.pages.add(page)
        self.log.at_hand.add(page)
        self.returning.took(page)
        self.returning.go_on(0)

    @property
    def live(self) -> bool:
        """Whether all have got what they missed."""
        return not any([member.lagging for member in self.members])


def test_a_page_that_somebody_else_had_asked_for_ends_no_round() -> None:
    some = Round()
    some.step()
    assert some.asked == [(0, 0, True)]
    some.page(0, PUBLISHED, whole=False)
    some.page(2, PUBLISHED, whole=True)
    some.step()
    assert not some.given_up
    assert some.asked[-1] == (0, 0, True)
    some.page(0, PUBLISHED, whole=True)
    some.step()
    assert some.live
    assert not some.given_up


def test_who_stands_lowest_decides_where_a_round_begins() -> None:
    some = Round()
    for member in some.members:
        member.lagging[0] = 3
    some.members[5].lagging[0] = 1
    some.step()
    assert some.asked == [(0, 1, True)]


def test_who_lacks_something_during_a_round_is_looked_at_when_it_is_over() -> None:
    some = Round()
    some.step()
    some.members.append(some.member(2))
    some.step()
    assert len(some.asked) == 1
    some.page(0, PUBLISHED, whole=True)
    some.step()
    assert some.live
    assert len(some.asked) == 1


def test_who_is_gone_before_its_round_begins_has_nothing_fetched() -> None:
    some = Round()
    some.step()
    for member in some.members:
        some.returning.leave(member)
    some.page(0, PUBLISHED, whole=True)
    gone = some.member(0)
    some.returning.leave(gone)
    some.members = [some.member(3) for _ in range(MANY)]
    some.log.at_hand.drop(0)
    some.step()
    assert some.asked[-1] == (0, 3, True)


def test_when_nothing_can_be_had_all_go_on_page_by_page() -> None:
    some = Round()
    some.step()
    some.returning.failed(0)
    some.step()
    assert set(some.given_up) == set(some.members)
