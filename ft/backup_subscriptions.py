"""What a broker subscribes to for itself and for those whose local backup it is (REAPS, Algorithm 3, lines 12 to 22).

A subscription is held while somebody needs it: the broker's own subscribers, or a broker that it backs up. What arrives
of broker j makes these two sets (D: the subscriptions of a state; i: this broker; stored: what came before):

    S1 = D_j \\ (D_i | stored of all, j's own old one included)              to subscribe to
    S2 = stored_j \\ D_j \\ (stored of all others) \\ D_i                      to withdraw

Lines 17 to 22 as printed say this only if read with care. (1) The differences of line 21 count from the left; from the
right S2 would withdraw what others need. (2) The union of line 22 is written over D_j, the states themselves; it has to
be what is *stored*, before line 19 stores the new one: with the new D_j in it, S1 is always empty. (3) In line 21
"p # j" is p != j.

Lacking in the paper, and here: what is withdrawn when a broker is backed up no more (`released`), and when this
broker's own last subscriber of something goes (line 13 has only the way in): nothing that others need. Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Set
from typing import Final, Generic, NamedTuple, TypeVar

Subscription = TypeVar("Subscription", bound=Hashable)

OWN: Final = ""
"""The holder that stands for the broker's own subscribers: D_i."""


class SubscriptionChange(NamedTuple, Generic[Subscription]):
    """What is to be done at the back end: S1 and S2."""

    subscribe: Set[Subscription]
    withdraw: Set[Subscription]


class BackupSubscriptions(Generic[Subscription]):
    """The subscriptions of one broker with those whose local backup it is. Whoever needs some is a *holder*: a broker,
    by its name, or OWN.

    Invariant: what it has told to subscribe to and not to withdraw since is what all holders need, together.
    """

    def __init__(self) -> None:
        self._held: dict[str, set[Subscription]] = {}
        # How many holders need each.
        self._needed = Counter[Subscription]()

    @property
    def holders(self) -> Collection[str]:
        """Those of whom there is a state."""
        return self._held.keys()

    @property
    def subscribed(self) -> Set[Subscription]:
        """Everything that it is subscribed to."""
        return self._needed.keys()

    def arrived(self, holder: str, subscriptions: Iterable[Subscription]) -> SubscriptionChange[Subscription]:
        """The whole state of a holder (lines 16 to 19)."""
        new, old = set(subscriptions), self._held.get(holder, set())
        return self.changed(holder, new - old, old - new)

    def changed(
        self, holder: str, came: Iterable[Subscription] = (), went: Iterable[Subscription] = ()
    ) -> SubscriptionChange[Subscription]:
        """The same where only what has changed is told: it costs that, and not the state."""
        held = self._held.setdefault(holder, set())
        came = [each for each in set(came) if each not in held]
        went = [each for each in set(went) if each in held]
        subscribe = frozenset([each for each in came if each not in self._needed])
        held.update(came)
        held.difference_update(went)
        self._needed.update(came)
        self._needed.subtract(went)
        withdraw = frozenset([each for each in went if not self._needed[each]])
        for each in withdraw:
            del self._needed[each]
        return SubscriptionChange(subscribe, withdraw)

    def released(self, holder: str) -> SubscriptionChange[Subscription]:
        """This is not the local backup of `holder` any more."""
        change = self.arrived(holder, ())
        del self._held[holder]
        return change
