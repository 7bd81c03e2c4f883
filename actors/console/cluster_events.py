"""What has happened in a cluster, as its membership and its warnings show it: failovers, who came and went. Pure.

Kept in memory, EVENTS_MAX of them, since this console began to look.
"""

from __future__ import annotations

import re
from collections import Counter, deque
from collections.abc import Iterable, Mapping
from typing import Any, Final

from lexicast.cluster.membership import Member, Members

EVENTS_MAX: Final = 500
_NUMBER: Final = re.compile(r"\d[\d,.]*")


class ClusterEvents:
    """See the module's docstring. `taken_over`: by coordinator, topic groups that it has led after another one."""

    def __init__(self) -> None:
        self._events: deque[dict[str, Any]] = deque(maxlen=EVENTS_MAX)
        self._next = 1
        self._members: Members | None = None
        self._warnings: set[str] = set()
        self.taken_over: Counter[str] = Counter()

    def follow(self, members: Members, now_s: float) -> None:
        """These serve now, and lead."""
        before, self._members = self._members, members
        if before is None:
            return
        for old, new in (
            (before.coordinators, members.coordinators),
            (before.brokers, members.brokers),
            (before.samplers, members.samplers),
            (before.matchers, members.matchers),
            (before.bridges, members.bridges),
        ):
            self._came_and_went(old, new, now_s)
        self._leaders(before, members, now_s)
        for node in sorted(members.leaving - before.leaving):
            self._note("node", f"{node} is being drained", now_s)
        for node in sorted(before.leaving - members.leaving):
            self._note("node", f"{node} is drained no more", now_s)

    def _came_and_went(self, old: Mapping[str, Member], new: Mapping[str, Member], now_s: float) -> None:
        for name, member in new.items():
            if name not in old:
                self._note("member", f"{name} serves, on {member.node}", now_s)
            elif member.incarnation != old[name].incarnation:
                self._note("member", f"{name} has started again", now_s)
        for name in old.keys() - new.keys():
            self._note("member", f"{name} has left", now_s)

    def _leaders(self, before: Members, now: Members, now_s: float) -> None:
        moved: Counter[tuple[str, str]] = Counter()
        for group, state in now.groups.items():
            old = before.groups.get(group)
            if old is not None and old.leader != state.leader:
                moved[old.leader, state.leader] += 1
        for (old_leader, leader), count in sorted(moved.items()):
            groups = f"{count:,} topic {'group' if count == 1 else 'groups'}"
            if not leader:
                self._note("failover", f"nobody is known to lead {groups} of {old_leader}", now_s)
            elif old_leader:
                self.taken_over[leader] += count
                self._note("failover", f"{leader} leads {groups} that {old_leader} led", now_s)
            else:
                self._note("failover", f"{leader} leads {groups} of which nobody was known to", now_s)

    def warned(self, warnings: Iterable[str], now_s: float) -> None:
        """What is wrong now, without the numbers in it, which change all the time."""
        now = {_without_numbers(each): each for each in warnings}
        for key in now.keys() - self._warnings:
            self._note("warning", now[key], now_s)
        for key in self._warnings - now.keys():
            self._note("over", f"no more: {key}", now_s)
        self._warnings = set(now)

    def _note(self, kind: str, text: str, now_s: float) -> None:
        self._events.append({"number": self._next, "time": now_s, "kind": kind, "text": text})
        self._next += 1

    def page(self, after: int, count: int) -> list[dict[str, Any]]:
        """The newest `count` of those beyond the number `after`, the newest first."""
        return [event for event in reversed(self._events) if event["number"] > after][:count]


def _without_numbers(text: str) -> str:
    return _NUMBER.sub("#", text)
