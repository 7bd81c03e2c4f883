"""TAPD link by link: whatever a link carries and whenever it ends, what it pays for dictionaries is bounded."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lexicast.compression.link_dictionaries import (
    FAMILIES_A_LINK_MAX,
    NONE,
    FamilySavings,
    LinkAccount,
    LinkDictionaries,
    LinkTotals,
    threshold_of,
)

FAMILY = b"cars/+/speed"
FIRST, SECOND = 7, 8
PACKED = 1_000
MESSAGE = 100

sizes = st.lists(st.integers(1, 400), max_size=200)
thresholds = st.floats(1, 2)


class Link:
    """A link whose dictionaries save exactly `share` of each message."""

    def __init__(self, threshold: float, share: float) -> None:
        self.dictionaries = LinkDictionaries(threshold)
        self.share = share
        self.without = 0.0
        self.sent = 0.0

    def send(self, size: int, newest: int = FIRST) -> None:
        link = self.dictionaries
        self.without += size
        held = link.held(FAMILY)
        if held == NONE:
            link.unclaimed_bytes += size
            self.sent += size
        else:
            self.sent += size * (1 - self.share)
            link.saved_bytes += int(size * self.share)
            link.carried_outdated(FAMILY, int(size * (1 - self.share)))
        if link.is_due(FAMILY, newest, PACKED, self.share):
            link.take(FAMILY, newest, PACKED, self.share)
            self.sent += PACKED


class TestRent:
    @given(sizes, thresholds, st.floats(0.01, 0.95))
    def test_never_further_below_than_the_share_by_the_threshold(
        self, messages: list[int], threshold: float, share: float
    ) -> None:
        link = Link(threshold, share)
        for size in messages:
            link.send(size)
            assert link.sent - link.without <= link.without * share / threshold + 1e-6

    @given(sizes, st.floats(0.01, 0.95))
    def test_with_threshold_1_at_most_twice_the_optimum(self, messages: list[int], share: float) -> None:
        link = Link(1, share)
        for size in messages:
            link.send(size)
        optimum = min(link.without, PACKED + link.without * (1 - share))
        # the message that reaches the threshold was sent without
        assert link.sent <= 2 * optimum + 400

    def test_it_comes_when_as_much_would_have_been_saved_as_it_costs(self) -> None:
        link = Link(1, 0.5)
        for _ in range(19):
            link.send(MESSAGE)
        assert link.dictionaries.held(FAMILY) == NONE
        link.send(MESSAGE)
        assert link.dictionaries.held(FAMILY) == FIRST
        assert link.dictionaries.account() == LinkAccount(1, PACKED, 0)

    def test_each_byte_earns_one_dictionary(self) -> None:
        link = LinkDictionaries()
        link.unclaimed_bytes = 3_000
        assert link.is_due(b"a", FIRST, PACKED, 0.5)
        link.take(b"a", FIRST, PACKED, 0.5)
        assert not link.is_due(b"b", SECOND, PACKED, 0.5)
        link.unclaimed_bytes += 1_000
        assert link.is_due(b"b", SECOND, PACKED, 0.5)

    def test_what_saves_nothing_or_is_unknown_is_never_due(self) -> None:
        link = LinkDictionaries()
        link.unclaimed_bytes = 10**9
        assert not link.is_due(FAMILY, FIRST, PACKED, 0.0)
        assert not link.is_due(FAMILY, FIRST, PACKED, -0.5)


class TestProlonging:
    def test_an_older_one_stays_until_a_newer_one_pays(self) -> None:
        link = LinkDictionaries()
        link.found(FAMILY, FIRST)
        link.saved_bytes = 10 * PACKED
        link.carried_outdated(FAMILY, 9_999)
        assert not link.is_due(FAMILY, SECOND, PACKED, 0.1)
        link.carried_outdated(FAMILY, 1)
        assert link.is_due(FAMILY, SECOND, PACKED, 0.1)
        link.take(FAMILY, SECOND, PACKED, 0.1)
        assert (link.held(FAMILY), link.paid_bytes) == (SECOND, PACKED)
        assert not link.is_due(FAMILY, SECOND, PACKED, 0.1)

    def test_not_before_the_link_has_saved_what_it_costs(self) -> None:
        link = LinkDictionaries()
        link.found(FAMILY, FIRST)
        link.carried_outdated(FAMILY, 10**6)
        link.saved_bytes = PACKED - 1
        assert not link.is_due(FAMILY, SECOND, PACKED, 0.1)
        link.saved_bytes += 1
        assert link.is_due(FAMILY, SECOND, PACKED, 0.1)

    @given(st.lists(st.tuples(st.integers(1, 400), st.integers(1, 5)), max_size=200), thresholds)
    def test_a_newer_one_never_takes_a_link_below(self, messages: list[tuple[int, int]], threshold: float) -> None:
        link = LinkDictionaries(threshold)
        for size, newest in messages:
            before = link.held(FAMILY)
            if before == NONE:
                link.unclaimed_bytes += size
            else:
                link.saved_bytes += size
                link.carried_outdated(FAMILY, size)
            if link.is_due(FAMILY, newest, PACKED, 0.5):
                link.take(FAMILY, newest, PACKED, 0.5)
                assert before == NONE or link.account().gained_bytes >= 0


class TestFleet:
    def test_thresholds_are_spread_and_stay(self) -> None:
        thresholds = [threshold_of(f"device-{number}") for number in range(1_000)]
        assert thresholds[3] == threshold_of("device-3")
        assert all(1 <= threshold < 2 for threshold in thresholds)
        tenths = {int(10 * threshold) for threshold in thresholds}
        assert tenths == set(range(10, 20))

    @given(st.integers(1, 120), st.floats(0.1, 0.9))
    def test_a_fleet_is_at_most_27_percent_of_the_share_below(self, messages: int, share: float) -> None:
        fleet = [Link(1 + (number + 0.5) / 50, share) for number in range(50)]
        for link in fleet:
            for _ in range(messages):
                link.send(MESSAGE)
        sent, without = sum(link.sent for link in fleet), sum(link.without for link in fleet)
        # and what the message that reaches a threshold costs
        assert sent - without <= without * share * (2 - 3**0.5) + len(fleet) * MESSAGE * share

    def test_totals_are_sums_and_the_worst(self) -> None:
        totals = LinkTotals()
        for account in (LinkAccount(), LinkAccount(2, 900, 4_000), LinkAccount(1, 500, 100)):
            totals = totals.plus(account)
        assert totals == LinkTotals(3, 2, 3, 1_400, 4_100, -400)


class TestLimits:
    def test_families_beyond_the_limit_are_forgotten(self) -> None:
        link = LinkDictionaries()
        for number in range(FAMILIES_A_LINK_MAX + 1):
            link.found(b"family %d" % number, FIRST)
        assert link.held(b"family 0") == NONE
        assert link.held(b"family 1") == FIRST

    def test_a_threshold_below_1_is_refused(self) -> None:
        with pytest.raises(ValueError, match="at least 1"):
            LinkDictionaries(0.5)


class TestShares:
    def test_not_known_before_some_messages(self) -> None:
        savings = FamilySavings()
        savings.note(FIRST, NONE, 3, 300, 100)
        assert savings.share(FIRST, NONE) == 0
        savings.note(FIRST, NONE, 1, 100, 20)
        assert savings.share(FIRST, NONE) == pytest.approx(0.7)
        assert savings.share(SECOND, FIRST) == 0

    def test_what_is_measured_thins_out(self) -> None:
        savings = FamilySavings()
        measured = sum(savings.wants(FIRST, NONE) for _ in range(3_200))
        assert 100 <= measured <= 120

    def test_it_follows_the_stream(self) -> None:
        savings = FamilySavings()
        for _ in range(2_000):
            savings.note(FIRST, NONE, 1, 100, 20)
        for _ in range(2_000):
            savings.note(FIRST, NONE, 1, 100, 60)
        assert savings.share(FIRST, NONE) == pytest.approx(0.4, abs=0.01)

    def test_saved_bytes_are_what_it_would_have_been_less_what_it_was(self) -> None:
        savings = FamilySavings()
        savings.note(FIRST, NONE, 10, 1_000, 250)
        assert savings.saved_bytes(FIRST, 25) == 75
        assert savings.saved_bytes(SECOND, 25) == 0
