"""Members and groups' states as rows of the registry, and as they come over a link."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lexicast.cluster.leadership import GroupState
from lexicast.cluster.membership import Member


def member_of(name: str, row: Sequence[Any]) -> Member:
    """A member as its row has it."""
    incarnation, addresses, node, pid, groups, *location = row
    return Member(name, incarnation, tuple(addresses), node, pid, tuple(groups), *location)


def state_of(state: Sequence[Any]) -> GroupState:
    """A state as its row has it, or as it came over a link."""
    epoch, leader, in_sync = state
    return GroupState(epoch, leader, tuple(in_sync))


def group_rows(states: Mapping[int, GroupState]) -> dict[str, Any]:
    """The rows of states."""
    return {group_key(group): list(state) for group, state in states.items()}


def group_key(group: int) -> str:
    """The key of a group's row."""
    return f"group/{group:05d}"
