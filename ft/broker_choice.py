"""Which broker a client tries next, and how soon, once it has none: a take-over from the clients' side. Pure.

The order is REAPS' (section III): the backups of the broker that the client had, the local one, then the remote one;
else any other, at random, so that the clients of a broker that nobody stands in for are spread over all that are left.
A broker that fails is put on a *blacklist* for a while (MigratoryData, section 5.2.3): the others come before it.

Two rules keep a client from being stuck, whatever the blacklist says:

    rounds     a broker is tried once in a round, and a round has every broker that is known; those on the blacklist
               come last in it, the one whose time ends first before the others; the broker that was lost comes behind
               all others in the first round. So with n brokers known, one that lives is tried within n attempts of a
               round, 2 n - 1 of any moment
    pauses     grow with each attempt and have an upper bound; so do times on the blacklist. Both are drawn at random
               from the upper half of what they may be: clients that lost a broker together do not come back together

A broker that answers leaves the blacklist. That it has failed is forgotten once its link has lasted STEADY_S: one that
takes clients and loses them at once is tried less and less often.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Sequence
from typing import Final, NamedTuple

# A process that is started again serves after a second or so; a machine takes a minute.
LISTED_FIRST_S: Final = 1.0
LISTED_MOST_S: Final = 60.0
PAUSE_FIRST_S: Final = 0.05
PAUSE_MOST_S: Final = 2.0
STEADY_S: Final = 5.0
# A machine without power does not even refuse: the first round does not wait long for one that is silent. Later ones
# do, since who serves may be slow while a whole fleet comes back.
PATIENCE_FIRST_S: Final = 1.5
PATIENCE_MOST_S: Final = 5.0
# 2 to the power of this is beyond any of the bounds above.
_DOUBLINGS_MAX: Final = 16


class _Listed(NamedTuple):
    failures: int
    until_s: float


class BrokerChoice:
    """See the module's docstring. `now_s`: of any clock that does not go back; `uniform(low, high)` draws a number."""

    def __init__(self, uniform: Callable[[float, float], float] = random.uniform) -> None:
        self._uniform = uniform
        self._listed: dict[str, _Listed] = {}
        self._lost = ""
        self._backups: tuple[str, ...] = ()
        self._tried: set[str] = set()
        self._attempts = 0
        self._answered_s = 0.0
        # Rounds that are over since a broker answered.
        self._rounds = 0

    # -- the next attempt

    def pause_s(self) -> float:
        """Seconds to wait before the next attempt: none before the first one since a link was steady."""
        doublings, self._attempts = self._attempts - 1, self._attempts + 1
        return 0.0 if doublings < 0 else self._drawn(PAUSE_FIRST_S, PAUSE_MOST_S, doublings)

    def patience_s(self) -> float:
        """Seconds that the attempt may take which `next` has named."""
        return _doubled(PATIENCE_FIRST_S, PATIENCE_MOST_S, self._rounds)

    def next(self, brokers: Collection[str], near: Collection[str], now_s: float) -> str:
        """The broker to try now, one of `brokers`, of which there is at least one; `near`: those on this machine."""
        for gone in self._listed.keys() - set(brokers):
            del self._listed[gone]
        left = [broker for broker in brokers if broker not in self._tried]
        if not left:
            self._tried.clear()
            self._rounds += 1
            left = list(brokers)
        ranks = {broker: rank for rank, broker in enumerate(self._backups)}

        def order(broker: str) -> tuple[bool, float, int, bool, float]:
            lost = broker == self._lost and not self._rounds
            rank = ranks.get(broker, len(ranks))
            return lost, self._listed_until(broker, now_s), rank, broker not in near, self._uniform(0.0, 1.0)

        chosen = min(left, key=order)
        self._tried.add(chosen)
        return chosen

    def _listed_until(self, broker: str, now_s: float) -> float:
        """When its time on the blacklist ends; -inf where it is not on it (any more)."""
        listed = self._listed.get(broker)
        return float("-inf") if listed is None or listed.until_s <= now_s else listed.until_s

    # -- what came of it

    def failed(self, broker: str, now_s: float) -> None:
        """It could not be reached, or has refused."""
        known = self._listed.get(broker)
        failures = 0 if known is None else known.failures
        until_s = now_s + self._drawn(LISTED_FIRST_S, LISTED_MOST_S, failures)
        self._listed[broker] = _Listed(failures + 1, until_s)

    def answered(self, broker: str, now_s: float) -> None:
        """A link to it is open."""
        if (known := self._listed.get(broker)) is not None:
            self._listed[broker] = _Listed(known.failures, now_s)
        self._tried.clear()
        self._answered_s = now_s
        self._rounds = 0

    def lost(self, broker: str, backups: Sequence[str], now_s: float) -> None:
        """The link to it has ended. `backups`: who stands in for it, the local one first, as far as that is known."""
        if now_s - self._answered_s >= STEADY_S:
            self._listed.pop(broker, None)
            self._attempts = 0
        self.failed(broker, now_s)
        self._lost, self._backups = broker, tuple(backups)

    def blacklist(self, now_s: float) -> list[str]:
        """Who is on it, the one whose time ends first before the others."""
        until = {broker: listed.until_s for broker, listed in self._listed.items() if listed.until_s > now_s}
        return sorted(until, key=until.__getitem__)

    def _drawn(self, first: float, most: float, doublings: int) -> float:
        full = _doubled(first, most, doublings)
        return self._uniform(full / 2, full)


def _doubled(first: float, most: float, doublings: int) -> float:
    return min(most, first * 2.0 ** min(doublings, _DOUBLINGS_MAX))
