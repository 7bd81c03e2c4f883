"""S1 and S2 (Algorithm 3, lines 16 to 22), against sets."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from lexicast.ft.backup_subscriptions import OWN, BackupSubscriptions, SubscriptionChange

SUBSCRIPTIONS = st.frozensets(st.integers(0, 6))
BROKERS = st.sampled_from("abc")
HOLDERS = st.sampled_from([OWN, *"abc"])
States = dict[str, frozenset[int]]


def s1(new: frozenset[int], own: frozenset[int], stored: States) -> frozenset[int]:
    """Line 20, with the union of line 22 over what is stored."""
    return new - (own | frozenset().union(*stored.values()))


def s2(broker: str, new: frozenset[int], own: frozenset[int], stored: States) -> frozenset[int]:
    """Line 21, from the left."""
    others = frozenset[int]().union(*[each for name, each in stored.items() if name != broker])
    return ((stored.get(broker, frozenset()) - new) - others) - own


@given(SUBSCRIPTIONS, st.dictionaries(BROKERS, SUBSCRIPTIONS), BROKERS, SUBSCRIPTIONS)
def test_what_arrives_makes_s1_and_s2(own: frozenset[int], stored: States, broker: str, new: frozenset[int]) -> None:
    held = BackupSubscriptions[int]()
    held.arrived(OWN, own)
    for name, subscriptions in stored.items():
        held.arrived(name, subscriptions)
    assert held.arrived(broker, new) == (s1(new, own, stored), s2(broker, new, own, stored))


@given(SUBSCRIPTIONS, BROKERS, SUBSCRIPTIONS)
def test_the_same_state_again_changes_nothing(own: frozenset[int], broker: str, state: frozenset[int]) -> None:
    held = BackupSubscriptions[int]()
    held.arrived(OWN, own)
    held.arrived(broker, state)
    assert held.arrived(broker, state) == (frozenset(), frozenset())


class Told(RuleBasedStateMachine):
    """What the back end is told adds up to what somebody needs, whatever happens."""

    def __init__(self) -> None:
        super().__init__()
        self.held = BackupSubscriptions[int]()
        self.states: States = {}
        self.told: set[int] = set()

    def tell(self, change: SubscriptionChange[int]) -> None:
        """Nothing twice, and nothing withdrawn that was not there."""
        assert not change.subscribe & self.told
        self.told |= change.subscribe
        assert change.withdraw <= self.told
        self.told -= change.withdraw

    @rule(holder=HOLDERS, subscriptions=SUBSCRIPTIONS)
    def arrives(self, holder: str, subscriptions: frozenset[int]) -> None:
        self.states[holder] = subscriptions
        self.tell(self.held.arrived(holder, subscriptions))

    @rule(holder=HOLDERS, came=SUBSCRIPTIONS, went=SUBSCRIPTIONS)
    def changes(self, holder: str, came: frozenset[int], went: frozenset[int]) -> None:
        """What came again, or went without having been there, is nothing new."""
        self.states[holder] = self.states.get(holder, frozenset()) | came - went
        self.states[holder] -= went
        self.tell(self.held.changed(holder, came - went, went))

    @rule(holder=HOLDERS)
    def is_released(self, holder: str) -> None:
        self.states.pop(holder, None)
        self.tell(self.held.released(holder))

    @invariant()
    def all_that_is_needed_is_subscribed(self) -> None:
        assert self.told == frozenset[int]().union(*self.states.values()) == set(self.held.subscribed)
        assert set(self.held.holders) == set(self.states)


TestTold: Any = Told.TestCase
