"""The nodes of a cluster: where each member belongs, which are being drained, what may be removed.

A node is known by its name (the machine's, or its label in Ray), which outlives every process on it; so a store is
found again where it lies. What is *leaving* serves on until others have what it has: its coordinators are to hold no
copies any more, its brokers send their clients elsewhere.

Registry keys: home/KIND/NAME, leaving/NODE.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from lexicast.cluster.errors import UsageError
from lexicast.cluster.leadership import COORDINATORS_MAX, GroupState
from lexicast.cluster.membership import COORDINATOR, KINDS, Member
from lexicast.storage.registry import Registry


class Nodes:
    """See the module's docstring. What changes is returned as rows to be made durable, and taken by `took`."""

    def __init__(self, registry: Registry) -> None:
        self._homes: dict[str, dict[str, str]] = {kind: {} for kind in KINDS}
        self.leaving: frozenset[str] = frozenset()
        self.took({**registry.items("home/"), **registry.items("leaving/")})

    def took(self, rows: Mapping[str, Any]) -> None:
        """These rows are durable."""
        for key, value in rows.items():
            what, _, rest = key.partition("/")
            if what == "leaving":
                self.leaving = self.leaving | {rest} if value else self.leaving - {rest}
                continue
            kind, _, name = rest.partition("/")
            if what != "home" or kind not in self._homes:  # another's row, or a bit of the key has flipped
                continue
            if isinstance(value, str):
                self._homes[kind][name] = value
            else:
                self._homes[kind].pop(name, None)

    # -- what there is

    def homes(self, kind: str) -> dict[str, str]:
        """The node of each member of a kind, also of those that do not serve now."""
        return dict(self._homes[kind])

    def names(self) -> set[str]:
        """All nodes that some member belongs to."""
        return {node for homes in self._homes.values() for node in homes.values()}

    def on_leaving(self, kind: str) -> list[str]:
        """The members of a kind that are on a node that is being drained."""
        return [name for name, node in self._homes[kind].items() if node in self.leaving]

    # -- what changes

    def registered(self, kind: str, member: Member) -> dict[str, str]:
        """A member serves on its node."""
        return {f"home/{kind}/{member.name}": member.node}

    def added(self, coordinators: Mapping[str, str], known: Iterable[str]) -> dict[str, str]:
        """More coordinators, each with its node. Raises UsageError."""
        fresh = set(coordinators).difference(known)
        if len(set(known)) + len(fresh) > COORDINATORS_MAX:
            raise UsageError(f"a cluster has at most {COORDINATORS_MAX} coordinators")
        return {f"home/{COORDINATOR}/{name}": node for name, node in coordinators.items()}

    def drained(self, node: str, leaving: bool) -> dict[str, bool | None]:
        """`node` is being drained, or no more. Raises UsageError: there is no such node, or no other one."""
        self._check(node)
        left = set(self._homes[COORDINATOR].values()) - self.leaving - {node}
        if leaving and not left:
            raise UsageError(f"{node} is the last node that is not being drained: what it has can go nowhere")
        return {f"leaving/{node}": True if leaving else None}

    def removed(self, node: str, states: Mapping[int, GroupState], alive: Iterable[str]) -> dict[str, None]:
        """The rows of `node` and its members, to be forgotten.

        Raises UsageError while something is there that would be missed.
        """
        self._check(node)
        gone = {name for name, home in self._homes[COORDINATOR].items() if home == node}
        held = [group for group, state in states.items() if gone.intersection(state.in_sync)]
        if held and gone.intersection(alive):
            raise UsageError(
                f"{node} still has {len(held):,} copies of topic groups: `lexicast node drain {node}` has others take "
                "them over first"
            )
        if held:
            raise UsageError(
                f"{node} is away and has what {len(held):,} topic groups have nowhere else: bring it back, then "
                f"`lexicast node drain {node}` (or, where its disk is lost, `lexicast recover`)"
            )
        rows = {f"home/{kind}/{n}": None for kind in KINDS for n, home in self._homes[kind].items() if home == node}
        return {**rows, f"leaving/{node}": None}

    def _check(self, node: str) -> None:
        if node not in self.names():
            raise UsageError(f"there is no node {node!r}: `lexicast node list` shows {', '.join(sorted(self.names()))}")

    # -- for operators

    def status(self, states: Mapping[int, GroupState], serving: Mapping[str, Mapping[str, Member]]) -> dict[str, Any]:
        """Of each node what is on it: members by kind, those that serve, how many groups it leads and has copies of."""
        led = Counter(state.leader for state in states.values())
        copies = Counter(name for state in states.values() for name in state.in_sync)
        found = {}
        for node in sorted(self.names()):
            members = {kind: sorted(n for n, home in self._homes[kind].items() if home == node) for kind in KINDS}
            found[node] = {
                "leaving": node in self.leaving,
                "location": next((m.location for of in serving.values() for m in of.values() if m.node == node), ""),
                **{f"{kind}s": names for kind, names in members.items()},
                "serving": sorted(n for kind, names in members.items() for n in names if n in serving[kind]),
                "leads": sum(led[name] for name in members[COORDINATOR]),
                "copies": sum(copies[name] for name in members[COORDINATOR]),
            }
        return found
