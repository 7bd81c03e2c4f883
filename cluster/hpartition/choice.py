"""Which candidate matches an event: the one that is done first (BlueDove's choice, which SREM keeps). Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from .cell_map import CellPlace


class MatcherChoice(NamedTuple):
    """Who is asked, and what that costs it: `work` comparisons more."""

    place: CellPlace
    matcher: str
    work: int


def least_work(
    candidates: Sequence[CellPlace],
    matchers: Mapping[bytes, Sequence[str]],
    queued: Mapping[str, int],
    work: Mapping[CellPlace, int],
) -> MatcherChoice | None:
    """The candidate with the least sum of what waits at the matcher and what the event adds, in comparisons of an event
    with a subscription; the first of equal ones. None: no candidate's cluster has a matcher.

    `matchers`: the living members of each top cluster, who all hold the same; `queued`: what waits at each; `work`:
    what an event adds at a place, its subscriptions and what a call costs beside them; 0 where that is not known.
    """
    offers = [
        MatcherChoice(place, matcher, work.get(place, 0))
        for place in candidates
        for matcher in matchers.get(place.cluster, ())
    ]
    return min(offers, key=lambda offer: queued.get(offer.matcher, 0) + offer.work, default=None)
