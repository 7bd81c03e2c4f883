"""The coordination server: who is in the cluster, who leads which group, under which epoch (DESIGN.md sections 2, 3).

Theory of operation. The server is one asyncio task set over one `Registry`; every change is decided by a pure core
(`cluster.leadership`), made durable, and only then answered. While the server is down data flows on; what waits is
change.

    unfounded   a registry without a past. It has a key and the coordinators' names, no cluster id. `open_groups`
                waits until every coordinator has called and none has a store, or until one reports that it has: then
                the registry was lost, and the cluster is taken from what the stores know
    founded     cluster id, groups and epochs are durable. Coordinators open on their own. A group whose row is lost
                is led by nobody, or by who leads it, until it is certain who has everything (`recovering`)

Members belong to a *run* (one `lexicast up`): a restart of the server keeps them, since they serve on; a new run
starts without them, since their addresses are gone. Incarnations outlive both.

Registry keys: cluster, run, version, group/NNNNN, incarnation/KIND/NAME, member/KIND/NAME, and those of `nodes` and
`security_keeping`.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from lexicast.cluster.errors import StaleEpochError, StoreFormatError, UnavailableError, UsageError
from lexicast.cluster.leadership import GroupState, Leadership, assign
from lexicast.cluster.membership import BROKER, COORDINATOR, KINDS, MATCHER, ClusterInfo, Member, Members
from lexicast.cluster.placement import Site, balanced, successors, wanted_copies
from lexicast.cluster.recovery import UNKNOWN
from lexicast.ft.interest_sample import read_sample
from lexicast.storage.registry import Registry

from .backups import BACKUPS_KEY, BrokerBackups
from .content_cells import ContentCells
from .nodes import Nodes
from .recovering import KEY_BYTES, Recovery
from .registry_recovery import RegistryRecovery
from .rows import group_key, group_rows, member_of, state_of
from .security_keeping import SecurityKeeping

log = logging.getLogger(__name__)

# Below the data folder of the node that it runs on.
REGISTRY_FOLDER: Final = "coordination"
MEMBERS_MAX: Final = 10_000
POLL_S_MAX: Final = 60.0
# How long callers wait for all coordinators of a cluster that is founded; shorter than a call's own limit.
FOUND_WAIT_S: Final = 40.0


# More than 25 methods: eight are those of `Coordination`, one decision each.
class CoordinationServer(RegistryRecovery, SecurityKeeping):
    """The server without Ray; implements `membership.Coordination`. Owns `registry` from here on."""

    def __init__(
        self,
        registry: Registry,
        groups: int,
        coordinators: Sequence[str],
        min_copies: int = 1,
        run: str = "",
        copies: int = 1,
        found_wait_s: float = FOUND_WAIT_S,
        key: bytes = b"",
        recovery: Recovery | None = None,
    ) -> None:
        """`groups` and `coordinators` count only for a new cluster; an old one keeps what it was created with.
        `copies`: members that each group is to have, see `placement.wanted_copies`; `key`: the one that the links of
        this cluster have already, where that is known.

        Raises UsageError (numbers out of range), StoreError.
        """
        self._registry = registry
        self._min_copies = max(1, min_copies)
        self._copies = copies
        self._found_wait_s = found_wait_s
        # Coordinators without a store, of a cluster that is not founded.
        self._claims: set[str] = set()
        self.recovery = recovery or Recovery(self._min_copies)
        self._key = key or secrets.token_bytes(KEY_BYTES)
        self._founded = asyncio.Event()
        self._changed = asyncio.Event()
        self._members: dict[str, dict[str, Member]] = {kind: {} for kind in KINDS}
        self._nodes = Nodes(registry)
        self._backups = BrokerBackups(registry)
        self._cells = ContentCells()
        self._version = 0
        self._leadership = Leadership({})
        # The states as the registry has them: what is decided, and not made durable, is taken back to these.
        self._durable: dict[int, GroupState] = {}
        # Coordinators that cannot be reached.
        self._lost: set[str] = set()
        self._started_us = time.time_ns() // 1_000
        self._load(groups, sorted(set(coordinators)), run)
        self._load_security()

    # -- start

    def _load(self, groups: int, coordinators: list[str], run: str) -> None:
        cluster = self._registry.get("cluster")
        if cluster is None:
            assign(groups, coordinators)
            cluster = {"id": "", "key": self._key, "groups": groups, "coordinators": coordinators}
            self._registry.commit({"cluster": cluster})
        self._cluster: dict[str, Any] = cluster
        self._version = self._registry.get("version") or 0
        if cluster["id"]:
            self._durable = self._load_groups(cluster)
            self._leadership = Leadership(self._durable)
            self._founded.set()
        self.recovery.empty.update(self._registry.get("empty") or ())
        self._load_members(run)

    def _load_groups(self, cluster: Mapping[str, Any]) -> dict[int, GroupState]:
        """The stored states; who leads a group whose row is lost, its copies have to say."""
        rows = self._registry.items("group/")
        found = {group: rows.get(group_key(group)) for group in range(cluster["groups"])}
        self.recovery.begin([group for group, row in found.items() if row is None])
        return {group: UNKNOWN if row is None else state_of(row) for group, row in found.items()}

    def _load_members(self, run: str) -> None:
        rows = self._registry.items("member/")
        if self._registry.get("run") == run:
            for key, row in rows.items():
                _, kind, name = key.split("/", 2)
                if kind in self._members:  # else a bit of the key has flipped
                    self._members[kind][name] = member_of(name, row)
        else:
            # What was being drained is there again when the cluster is started anew, or it gets no members.
            leaving = {f"leaving/{node}": None for node in self._nodes.leaving}
            self._commit_version({"run": run, **dict.fromkeys(rows), **leaving})
            self._nodes.took(leaving)

    def _commit_version(self, changes: Mapping[str, Any]) -> None:
        """Commit a change of membership and wake who waits for one."""
        self._registry.commit({**changes, "version": self._version + 1})
        self._version += 1
        self._changed.set()
        self._changed = asyncio.Event()

    # -- Coordination

    async def cluster(self, wait: bool = True) -> ClusterInfo:
        if wait:
            await self._wait_founded()
        cluster = self._cluster
        return ClusterInfo(cluster["id"], cluster["key"], cluster["groups"], self._min_copies)

    async def open_groups(self, member: str, known: dict[int, int], cluster_id: str | None) -> dict[int, GroupState]:
        if member not in self._cluster["coordinators"] and member not in self.recovery.reporters:
            names = ", ".join(self._cluster["coordinators"])
            raise UsageError(f"{member} is no coordinator of this cluster, which was created with {names}")
        if not self._founded.is_set():
            if not cluster_id:
                self._claim(member)
            await self._wait_founded()
        self._check_store(member, known, cluster_id)
        if self.recovery.unknown and not cluster_id:
            self._note_empty({member})
        changed = self._leadership.open(member, known)
        self._commit_groups(changed)
        return changed

    async def register(self, kind: str, member: Member) -> int:
        self._check_member(kind, member)
        key = f"{kind}/{member.name}"
        incarnation = self._next_incarnation(f"incarnation/{key}")
        row = [incarnation, member.addresses, member.node, member.pid, member.groups, member.location]
        home = self._nodes.registered(kind, member)
        self._commit_version({f"incarnation/{key}": incarnation, f"member/{key}": row, **home})
        self._nodes.took(home)
        self._members[kind][member.name] = member_of(member.name, row)
        if kind == COORDINATOR:
            self._lost.discard(member.name)
            self._succeed()
        return incarnation

    def _next_incarnation(self, key: str) -> int:
        """One more than the last; where that is lost, a number beyond any that was counted up to."""
        if self._registry.is_damaged(key):
            return time.time_ns() // 1_000
        last: int = self._registry.get(key) or self._cluster.get("recovered_us", 0)
        return last + 1

    async def leave(self, kind: str, name: str) -> None:
        if self._members.get(kind, {}).get(name) is not None:
            self._commit_version({f"member/{kind}/{name}": None})
            del self._members[kind][name]

    async def members(self, known_version: int, wait_s: float) -> Members:
        if known_version == self._version and wait_s > 0:
            try:
                async with asyncio.timeout(min(wait_s, POLL_S_MAX)):
                    await self._changed.wait()
            except TimeoutError:
                pass  # nothing changed: the caller sees the same version
        coordinators, brokers, samplers, matchers, bridges, consoles = (dict(self._members[kind]) for kind in KINDS)
        states, leaving = self._leadership.states(), self._nodes.leaving
        backups, cells = self._backups.by_broker(), self._cells.map
        security = self.security_files.version
        return Members(
            self._version,
            coordinators,
            brokers,
            samplers,
            states,
            leaving,
            backups,
            matchers,
            cells,
            security,
            bridges,
            consoles,
        )

    async def change_group(self, group: int, expected: GroupState, new: GroupState) -> bool:
        await self._wait_founded()
        changed = self._leadership.change(group, state_of(expected), state_of(new))
        if changed:
            self._commit_groups({group: state_of(new)})
        return changed

    async def change_groups(self, changes: dict[int, tuple[GroupState, GroupState]]) -> dict[int, GroupState]:
        await self._wait_founded()
        made = {}
        for group, (expected, new) in changes.items():
            try:
                if self._leadership.change(group, state_of(expected), state_of(new)):
                    made[group] = state_of(new)
            except (StaleEpochError, UsageError) as error:
                log.warning("a change that is none: %s", error)
        self._commit_groups(made)
        return {group: self._leadership[group] for group in changes if group not in self.recovery.unknown}

    def _commit_groups(self, states: Mapping[int, GroupState]) -> None:
        if not states:
            return
        try:
            self._commit_version(group_rows(states))
        except BaseException:
            # What is not durable must not be told: after a restart somebody else would get the same epoch.
            self._leadership = Leadership(self._durable)
            raise
        self._durable.update(states)

    # -- who is lost

    def lost(self, kind: str, name: str, incarnation: int) -> dict[int, GroupState]:
        """A member's process is gone, or cannot be reached: who else has its groups leads them from now on.

        Of a suspicion that is out of date (`incarnation` is not the one that serves) nothing comes; one that proves
        wrong costs the move and nothing else: whoever was suspected finds its epochs replaced. Returns what changed.
        """
        if not self._serves(kind, name, incarnation):
            return {}
        if name not in self._lost:
            log.warning("%s is lost", name)
            self._lost.add(name)
        return self._succeed()

    def found(self, kind: str, name: str, incarnation: int) -> None:
        """A member can be reached (again): it may succeed others."""
        if self._serves(kind, name, incarnation) and name in self._lost:
            log.warning("%s is found again", name)
            self._lost.discard(name)
            self._succeed()

    def absent(self, name: str) -> None:
        """A coordinator of this cluster has not come for so long that its groups are not to wait for it."""
        if name in self._cluster["coordinators"] and name not in self._members[COORDINATOR] and name not in self._lost:
            log.warning("%s has not come", name)
            self._lost.add(name)
            self._succeed()

    def coordinators(self) -> tuple[str, ...]:
        """The names of all coordinators of the cluster, whether they serve or not."""
        return tuple(self._cluster["coordinators"])

    def alive(self) -> list[str]:
        """The coordinators that serve and can be reached."""
        return [name for name in self._members[COORDINATOR] if name not in self._lost]

    def balance(self, most: int) -> dict[int, GroupState]:
        """Have at most `most` groups led by coordinators that lead fewer than others; see `placement.balanced`."""
        changed = balanced(self._leadership.states(), self.alive(), most, self._nodes.on_leaving(COORDINATOR))
        for group, state in changed.items():
            self._leadership.change(group, self._leadership[group], state)
        self._commit_groups(changed)
        return changed

    # -- brokers that stand in for each other, and their subscribers' conditions

    async def broker_lives(self, broker: str, sample: tuple[Any, ...] | None) -> bool:
        """See `OperatedCoordination`."""
        return self._backups.told(broker, None if sample is None else read_sample(sample), time.monotonic())

    def assign_backups(self) -> None:
        """A few brokers get other backups, where they must or that pays."""
        assigned = self._backups.turn(self._members[BROKER], self._nodes.leaving, time.monotonic())
        if assigned is not None:
            self._commit_version({BACKUPS_KEY: {name: list(backups) for name, backups in assigned.items()}})
            self._backups.in_force = assigned

    async def cells_report(self, broker: str, report: tuple[Any, ...]) -> None:
        """See `OperatedCoordination`."""
        self._cells.told(broker, report, time.monotonic())

    def plan_cells(self) -> None:
        """A step of the cells' plan."""
        if self._cells.turn(self._members[BROKER], self._members[MATCHER], time.monotonic()):
            self._commit_version({})

    # -- nodes that come and go

    async def add_coordinators(self, nodes: dict[str, str]) -> None:
        """These coordinators belong to the cluster from now on, each to its node; those that do already, to another
        one. Raises UsageError, UnavailableError."""
        await self._wait_founded()
        for name in nodes:
            self._check_member(COORDINATOR, Member(name, 0, (), "", 0))
        homes = self._nodes.added(nodes, self.coordinators())
        names = sorted({*self.coordinators(), *nodes})
        self._change_coordinators(names, homes)

    async def drain_node(self, node: str, leaving: bool) -> None:
        """See `OperatedCoordination`; so is the next one."""
        rows = self._nodes.drained(node, leaving)
        self._commit_version(rows)
        self._nodes.took(rows)

    async def remove_node(self, node: str) -> None:
        if self.recovery.unknown:
            raise UsageError(
                f"who leads {len(self.recovery.unknown):,} topic groups is not known, and {node} may have what nobody "
                "else has: see `lexicast recover`"
            )
        rows = self._nodes.removed(node, self._leadership.states(), self.alive())
        gone = [(kind, name) for kind in KINDS for name, home in self._nodes.homes(kind).items() if home == node]
        members = {f"member/{kind}/{name}": None for kind, name in gone if name in self._members[kind]}
        names = [name for name in self.coordinators() if (COORDINATOR, name) not in gone]
        self._change_coordinators(names, {**rows, **members})
        for kind, name in gone:
            self._members[kind].pop(name, None)
            self._lost.discard(name)

    def _change_coordinators(self, names: list[str], rows: Mapping[str, Any]) -> None:
        cluster = {**self._cluster, "coordinators": names}
        self._commit_version({"cluster": cluster, **rows})
        self._cluster = cluster
        self._nodes.took(rows)

    def is_leaving(self) -> bool:
        """Whether a node is being drained that still leads something."""
        going = set(self._nodes.on_leaving(COORDINATOR))
        return any(state.leader in going for state in self._leadership.states().values())

    def _serves(self, kind: str, name: str, incarnation: int) -> bool:
        known = self._members.get(kind, {}).get(name)
        return kind == COORDINATOR and known is not None and known.incarnation == incarnation

    def _succeed(self) -> dict[int, GroupState]:
        """Whatever lost members lead goes to living ones that have it."""
        changed: dict[int, GroupState] = {}
        for name in sorted(self._lost):
            found = successors(self._leadership.states(), name, self.alive(), self._nodes.on_leaving(COORDINATOR))
            for group, state in found.items():
                self._leadership.change(group, self._leadership[group], state)
            changed |= found
        self._commit_groups(changed)
        return changed

    # -- for operators

    async def overview(self) -> dict[str, Any]:
        """See `Coordination`."""
        return self.status()

    def status(self) -> dict[str, Any]:
        """Plain values for `lexicast status`; the key is not among them."""
        members = {
            kind: {
                name: {"incarnation": m.incarnation, "addresses": list(m.addresses), "node": m.node, "pid": m.pid}
                for name, m in named.items()
            }
            for kind, named in self._members.items()
        }
        groups = {g: [s.epoch, s.leader, list(s.in_sync)] for g, s in sorted(self._leadership.states().items())}
        return {
            "pid": os.getpid(),
            "cluster_id": self._cluster["id"],
            "coordinators": list(self._cluster["coordinators"]),
            "nodes": self._nodes.status(self._leadership.states(), self._members),
            "backups": self._backups.status(),
            "cells": self._cells.status(),
            "homes": {kind: self._nodes.homes(kind) for kind in KINDS},
            "groups": self._cluster["groups"],
            "group_states": groups,
            "members": members,
            "lost": sorted(self._lost),
            "copies": wanted_copies(self._copies, self._sites().values()),
            "version": self._version,
            "started_us": self._started_us,
            "unknown": {group: list(missing) for group, missing in sorted(self.recovery.unknown.items())},
            "security": self.security_status(),
            "damage": self._registry.damage.status(),
        }

    def _sites(self) -> dict[str, Site]:
        serving = self._members[COORDINATOR].items()
        return {name: Site(m.node, m.location, m.node in self._nodes.leaving) for name, m in serving}

    def close(self) -> None:
        """Close the registry: every later call raises."""
        self._registry.close()

    # -- founding

    async def _wait_founded(self) -> None:
        try:
            async with asyncio.timeout(self._found_wait_s):
                await self._founded.wait()
        except TimeoutError:
            missing = ", ".join(sorted({*self._cluster["coordinators"]} - self._claims - {*self.recovery.reporters}))
            raise UnavailableError(
                f"the cluster waits for {missing or 'a store'} to open its groups (a new coordination server "
                "asks every store first what it knows; if one is lost for good, stop and run `lexicast recover`)"
            ) from None

    def _claim(self, member: str) -> None:
        """A coordinator without a store; found the cluster when none has one."""
        self._claims.add(member)
        if self._claims == {*self._cluster["coordinators"]}:
            self._found()
        else:
            self.adopt()

    def _found(self, cluster_id: str = "") -> None:
        cluster = {**self._cluster, "id": cluster_id or uuid.uuid4().hex}
        leadership = Leadership.found(cluster["groups"], cluster["coordinators"])
        self._registry.commit({"cluster": cluster, **group_rows(leadership.states())})
        self._cluster, self._leadership, self._durable = cluster, leadership, leadership.states()
        self._founded.set()

    def _check_store(self, member: str, known: dict[int, int], cluster_id: str | None) -> None:
        ours = self._cluster["id"]
        if cluster_id and cluster_id != ours:
            raise StoreFormatError(f"the store of {member} belongs to cluster {cluster_id}, this is {ours}")
        served = f"incarnation/{COORDINATOR}/{member}"
        if not cluster_id and (self._registry.get(served) or self._registry.is_damaged(served)):
            raise StoreFormatError(
                f"the store of {member} is empty, but it has served this cluster before: put its store back, or move "
                "the coordination server's folder away as well to start without what it held"
            )
        unknown = [group for group in known if not 0 <= group < self._cluster["groups"]]
        if unknown:
            raise StoreFormatError(
                f"the store of {member} has topic group {max(unknown)}, this cluster has {self._cluster['groups']} "
                "(cluster.groups): give it the number that it was created with"
            )

    def _check_member(self, kind: str, member: Member) -> None:
        if kind not in self._members:
            raise UsageError(f"there is no kind of member {kind!r}: it is one of {', '.join(KINDS)}")
        if not member.name or "/" in member.name or len(member.name) > 200:
            raise UsageError(f"{member.name!r} is no name for a member: 1 to 200 characters without '/'")
        named = self._members[kind]
        if member.name not in named and len(named) >= MEMBERS_MAX:
            raise UsageError(f"the cluster has {MEMBERS_MAX} {kind}s already, the limit")


class LocalCoordination(CoordinationServer):
    """A coordination server in this process, for tests and for one-process clusters; `Coordination` as it stands.

    With one coordinator by default, and founded at once, so that `cluster()` never waits.
    """

    def __init__(
        self,
        folder: Path,
        groups: int = 8,
        coordinators: Sequence[str] = ("coordinator-0",),
        min_copies: int = 1,
        run: str = "",
    ) -> None:
        super().__init__(Registry(folder), groups, coordinators, min_copies, run)
        if not self._founded.is_set():
            self._found()

    def __enter__(self) -> LocalCoordination:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
