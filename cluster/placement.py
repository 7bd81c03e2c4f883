"""Where copies of topic groups go, who succeeds a leader that is lost, and who leads when it is back. Pure (DESIGN.md
section 3).

Rendezvous hashing: each coordinator has a weight for each group, the heaviest are chosen. So a coordinator that comes
or goes changes the copies of its own groups and no others, and everybody who knows the coordinators comes to the same
choice. A copy beside its leader on one node would go with it: other nodes come first.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from .leadership import GroupState

# Copies where nothing is said and there are two nodes or more.
COPIES_AUTOMATIC = 2


class Site(NamedTuple):
    """Where a coordinator is: its node, the location of that (a rack, a zone; "": not said), and whether the node is
    being drained, so that it is to hold nothing any more."""

    node: str
    location: str = ""
    leaving: bool = False


def wanted_copies(copies: int, sites: Iterable[Site]) -> int:
    """Members that a group is to have, the leader included: `copies`, or, where that is 0, one, and two where the
    coordinators that stay are on more than one node."""
    if copies:
        return copies
    return COPIES_AUTOMATIC if len({site.node for site in sites if not site.leaving}) > 1 else 1


def followers(group: int, leader: str, sites: Mapping[str, Site], copies: int) -> tuple[str, ...]:
    """The coordinators that are to follow `group`.

    One a location first, then one a node, and none beside the leader before everywhere else has one. Nobody on a node
    that is leaving follows; a leader there is no copy that counts, so one more follows, which leads next.
    """
    stays = leader in sites and not sites[leader].leaving
    wanted = wanted_copies(copies, sites.values()) - (1 if stays or leader not in sites else 0)
    left = {name: site for name, site in sites.items() if name != leader and not site.leaving}
    by_weight = sorted(left, key=lambda name: _weight(group, name))
    beside = [sites[leader]] if stays else []
    locations, nodes = Counter([site.location for site in beside]), Counter([site.node for site in beside])
    chosen: list[str] = []
    while len(chosen) < wanted and by_weight:
        name = min(by_weight, key=lambda each: (locations[left[each].location], nodes[left[each].node]))
        by_weight.remove(name)
        locations[left[name].location] += 1
        nodes[left[name].node] += 1
        chosen.append(name)
    return tuple(chosen)


def _weight(group: int, name: str) -> bytes:
    return hashlib.blake2b(f"{group}\0{name}".encode(), digest_size=8).digest()


def successors(
    states: Mapping[int, GroupState], lost: str, alive: Collection[str], leaving: Collection[str] = ()
) -> dict[int, GroupState]:
    """New states of the groups that `lost` leads and that have another living member: led by the one that leads fewest,
    under a new epoch, without `lost` in the in-sync set. Who is `leaving` leads only where nobody else can."""
    load = Counter(state.leader for state in states.values())
    changed = {}
    for group, state in sorted(states.items()):
        left = tuple([name for name in state.in_sync if name != lost])
        able = [name for name in left if name in alive]
        if state.leader == lost and able:
            leader = min(able, key=lambda name: (name in leaving, load[name], _weight(group, name)))
            load[leader] += 1
            changed[group] = GroupState(state.epoch + 1, leader, left)
    return changed


def balanced(
    states: Mapping[int, GroupState], alive: Collection[str], most: int, leaving: Collection[str] = ()
) -> dict[int, GroupState]:
    """New states of at most `most` groups that one of `alive` leads and that another one, in sync, leads from now on
    since it leads two or more fewer, or since the leader is one of `leaving`: again and again until none is left. Each
    has a new epoch and its in-sync set: who led so far has all that is committed, and follows."""
    load = Counter(state.leader for state in states.values())
    changed: dict[int, GroupState] = {}
    for group, state in sorted(states.items(), key=lambda item: (item[1].leader not in leaving, -load[item[1].leader])):
        able = [name for name in state.in_sync if name in alive and name not in leaving]
        goes = state.leader in leaving
        if len(changed) == most or state.leader not in alive or not able:
            continue
        leader = min(able, key=lambda name: (load[name], _weight(group, name)))
        if goes or load[state.leader] - load[leader] > 1:
            load[state.leader] -= 1
            load[leader] += 1
            changed[group] = GroupState(state.epoch + 1, leader, state.in_sync)
    return changed
