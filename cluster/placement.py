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

from .leadership import GroupState

# Copies where nothing is said and there are two nodes or more.
COPIES_AUTOMATIC = 2


def wanted_copies(copies: int, nodes: Iterable[str]) -> int:
    """Members that a group is to have, the leader included: `copies`, or, where that is 0, one, and two where the
    coordinators are on more than one node."""
    if copies:
        return copies
    return COPIES_AUTOMATIC if len(set(nodes)) > 1 else 1


def followers(group: int, leader: str, nodes: Mapping[str, str], copies: int) -> tuple[str, ...]:
    """The coordinators that are to follow `group`; `nodes`: coordinator -> the node that it is on.

    One a node first, and none on the leader's node before every other node has one.
    """
    wanted = wanted_copies(copies, nodes.values()) - 1
    by_weight = sorted((name for name in nodes if name != leader), key=lambda name: _weight(group, name))
    used = Counter([nodes[leader]] if leader in nodes else [])
    chosen: list[str] = []
    while len(chosen) < wanted and by_weight:
        fewest = min(used[nodes[name]] for name in by_weight)
        name = next(name for name in by_weight if used[nodes[name]] == fewest)
        by_weight.remove(name)
        used[nodes[name]] += 1
        chosen.append(name)
    return tuple(chosen)


def _weight(group: int, name: str) -> bytes:
    return hashlib.blake2b(f"{group}\0{name}".encode(), digest_size=8).digest()


def successors(states: Mapping[int, GroupState], lost: str, alive: Collection[str]) -> dict[int, GroupState]:
    """New states of the groups that `lost` leads and that have another living member: led by the one that leads fewest,
    under a new epoch, without `lost` in the in-sync set."""
    load = Counter(state.leader for state in states.values())
    changed = {}
    for group, state in sorted(states.items()):
        left = tuple([name for name in state.in_sync if name != lost])
        able = [name for name in left if name in alive]
        if state.leader == lost and able:
            leader = min(able, key=lambda name: (load[name], _weight(group, name)))
            load[leader] += 1
            changed[group] = GroupState(state.epoch + 1, leader, left)
    return changed


def balanced(states: Mapping[int, GroupState], alive: Collection[str], most: int) -> dict[int, GroupState]:
    """New states of at most `most` groups that one of `alive` leads and that another one, in sync, leads from now on
    since it leads two or more fewer: again and again until none is left. Each has a new epoch and its in-sync set: who
    led so far has all that is committed, and follows."""
    load = Counter(state.leader for state in states.values())
    changed: dict[int, GroupState] = {}
    for group, state in sorted(states.items(), key=lambda item: -load[item[1].leader]):
        able = [name for name in state.in_sync if name in alive]
        if len(changed) == most or state.leader not in able:
            continue
        leader = min(able, key=lambda name: (load[name], _weight(group, name)))
        if load[state.leader] - load[leader] > 1:
            load[state.leader] -= 1
            load[leader] += 1
            changed[group] = GroupState(state.epoch + 1, leader, state.in_sync)
    return changed
