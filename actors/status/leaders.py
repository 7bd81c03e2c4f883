"""The coordinators that lead topic groups, as the cluster's status tells of them, in numbers. Pure."""

from __future__ import annotations

from typing import Any, NamedTuple


class LeaderReport(NamedTuple):
    """One leader: how many topic groups it leads, the lowest and highest epoch among them, the fewest and most copies
    that one of them has in sync, and what the slowest follower of one of them lacks (None: there are no followers)."""

    groups: int
    epoch_min: int
    epoch_max: int
    copies_min: int
    copies_max: int
    behind_records: int | None


def leader_reports(now: dict[str, Any]) -> dict[str, LeaderReport]:
    """`now`: see `report.gather`; by the leaders' names, "" for groups that nobody leads."""
    led: dict[str, list[tuple[int, int]]] = {}
    for epoch, leader, in_sync in now["coordination"]["group_states"].values():
        led.setdefault(leader, []).append((epoch, len(in_sync)))
    return {leader: _report(states, now["coordinators"].get(leader, {})) for leader, states in sorted(led.items())}


def _report(states: list[tuple[int, int]], said: dict[str, Any]) -> LeaderReport:
    epochs, copies = [epoch for epoch, _ in states], [count for _, count in states]
    followers = (said.get("copies") or {}).get("followers", {})
    behind = max([int(of["lag"]) for of in followers.values()], default=None)
    return LeaderReport(len(states), min(epochs), max(epochs), min(copies), max(copies), behind)
