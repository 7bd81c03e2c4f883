"""The membership of a cluster: what it is, who serves in it, and the coordination server as all of them see it.

Servers take a `Coordination`. Under Ray it is a `RayCoordination` (`lexicast.actors.ray.handles`), in tests a
`LocalCoordination` (`lexicast.actors.coordination.server`) in the same process. What goes over these calls is control;
publications travel on links (`lexicast.actors.link.link`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from .leadership import GroupState
from .placement import Site
from .recovery import GroupReport
from .security.files import SecurityFiles

COORDINATOR: Final = "coordinator"
BROKER: Final = "broker"
SAMPLER: Final = "sampler"
MATCHER: Final = "matcher"
BRIDGE: Final = "bridge"
CONSOLE: Final = "console"
KINDS: Final = (COORDINATOR, BROKER, SAMPLER, MATCHER, BRIDGE, CONSOLE)


@dataclass(frozen=True, slots=True)
class ClusterInfo:
    """What never changes in a cluster's life. `key` authenticates its links; never print it."""

    cluster_id: str
    key: bytes = field(repr=False)
    groups: int
    min_copies: int


@dataclass(frozen=True, slots=True)
class Member:
    """One actor that serves. `addresses`: its link addresses ("unix:PATH", "tcp:HOST:PORT"), nearest first.

    `incarnation` is given by `register` (what the caller puts there is ignored); `groups`: what a coordinator leads;
    `location`: that of its node, see `placement.Site`.
    """

    name: str
    incarnation: int
    addresses: tuple[str, ...]
    node: str
    pid: int
    groups: tuple[int, ...] = ()
    location: str = ""


@dataclass(frozen=True, slots=True)
class Members:
    """Everybody who serves, by name, and who leads which group. `version` grows with each change, never goes back.

    `leaving`: nodes that are being drained: what is there serves on until others have taken it over.
    """

    version: int
    coordinators: dict[str, Member]
    brokers: dict[str, Member]
    samplers: dict[str, Member]
    groups: dict[int, GroupState] = field(default_factory=dict)
    leaving: frozenset[str] = frozenset()
    # Of each broker those that stand in for it, the nearer one first; see `actors.coordination.backups`.
    backups: dict[str, tuple[str, ...]] = field(default_factory=dict)
    matchers: dict[str, Member] = field(default_factory=dict)
    # Where content subscriptions lie, as `hpartition.live_map.LiveMap.to_plain`.
    cells: tuple[Any, ...] | None = None
    # The version of the files of security; 0: the coordination server does not know any.
    security: int = 0
    bridges: dict[str, Member] = field(default_factory=dict)
    consoles: dict[str, Member] = field(default_factory=dict)

    def sites(self) -> dict[str, Site]:
        """Where the coordinators are."""
        return {n: Site(m.node, m.location, m.node in self.leaving) for n, m in self.coordinators.items()}


@dataclass(frozen=True, slots=True)
class CoordinatorReport:
    """What a coordinator knows, for a coordination server that does not (any more): which cluster its store belongs to,
    how many groups that has, and of each group of which its store knows something what that is.

    `key`, `member`: the key of the cluster's links, and how it is reached; a coordinator that does not serve yet has
    neither (b"", None)."""

    cluster_id: str
    groups: int
    reports: dict[int, GroupReport]
    key: bytes = field(default=b"", repr=False)
    member: Member | None = None


class Coordination(Protocol):
    """The coordination server as its callers see it.

    Every method may raise UnavailableError (the server does not answer in time). An answer is durable.
    The order of a start: a coordinator opens its store, calls `open_groups`, then `cluster()`, writes the cluster id
    into a new store, listens, and calls `register`; brokers and samplers call `cluster()`, listen, and `register`.
    """

    async def cluster(self, wait: bool = True) -> ClusterInfo:
        """Who this cluster is. A new (or lost and replaced) server does not know its id before every coordinator
        has called `open_groups`, since one of their stores may know it: this waits for that, or, with `wait` False,
        returns at once with an empty `cluster_id` (groups and key are right)."""
        ...

    async def open_groups(self, member: str, known: dict[int, int], cluster_id: str | None) -> dict[int, GroupState]:
        """Coordinator `member` opens the groups that it leads by now. Returns their states, under new epochs.

        `known`: the last epoch of each group in the member's store; `cluster_id`: what its store says, None when the
        store is new; who has one reports first. The epoch is max(stored, known) + 1, durable before the reply. On a
        server without a past this waits until all coordinators have called, or one has reported what its store knows.

        Raises StoreFormatError when the store belongs to another cluster, or is empty although this member has
        served (its store was lost).
        """
        ...

    async def report_wanted(self, wait_s: float) -> bool:
        """Whether coordinators are to `report`; when not, that is told after `wait_s` seconds."""
        ...

    async def report(self, member: str, report: CoordinatorReport) -> bool:
        """What coordinator `member` knows; a member that serves is registered by it. Whether something is still open:
        then it is to report again, in a second.

        Raises StoreFormatError: its store belongs to another cluster.
        """
        ...

    async def register(self, kind: str, member: Member) -> int:
        """`member` serves, as one of KINDS. Returns its new incarnation, monotone for the name."""
        ...

    async def leave(self, kind: str, name: str) -> None:
        """The member has stopped. Its incarnation is remembered."""
        ...

    async def members(self, known_version: int, wait_s: float) -> Members:
        """The members: at once if the version is not `known_version`, else after a change or `wait_s` seconds."""
        ...

    async def overview(self) -> dict[str, Any]:
        """What `CoordinationServer.status` says; asked once, whoever asks has a limit of its own."""
        ...

    async def change_groups(self, changes: dict[int, tuple[GroupState, GroupState]]) -> dict[int, GroupState]:
        """Many compare-and-sets, (expected, new) by group, made durable together. Returns the states that hold now: a
        change that came too late, or that is none, has left the state as it was."""
        ...

    async def change_group(self, group: int, expected: GroupState, new: GroupState) -> bool:
        """Compare-and-set of a group's (epoch, leader, in-sync set); see `cluster.leadership`. True: `new` holds."""
        ...


class OperatedCoordination(Coordination, Protocol):
    """The coordination server as brokers see it, who also pass on what operators ask for."""

    async def broker_lives(self, broker: str, sample: tuple[Any, ...] | None) -> bool:
        """`broker` lives; `sample`: what its subscribers want (`ft.interest_sample`), None: that is as it was. False:
        nothing is known of it. Raises PeerError."""
        ...

    async def cells_report(self, broker: str, report: tuple[Any, ...]) -> None:
        """What `broker` tells of conditions (`hpartition.cell_report`). Raises PeerError."""
        ...

    async def drain_node(self, node: str, leaving: bool) -> None:
        """Have others take over what is on `node`, or (`leaving` False) have it serve again. Raises UsageError."""
        ...

    async def remove_node(self, node: str) -> None:
        """Forget `node` and its members. Raises UsageError while it has what others lack."""
        ...

    async def security(self) -> SecurityFiles:
        """The files of security."""
        ...

    async def give_security(self, files: Mapping[str, bytes], starting: bool = False) -> tuple[int, list[str]]:
        """These are the files of security from now on; returns their version, and what has changed. `starting`: the
        cluster starts with them, else there have to be as many as there were. Raises ConfigError, and leaves what is
        there; UsageError."""
        ...

    async def restore_security(self, files: SecurityFiles) -> bool:
        """A broker has these files; taken (True) when no newer ones are known. Raises ConfigError."""
        ...

    async def refuse_security(self, why: str) -> None:
        """The newest files are not taken: operators are told."""
        ...

    async def give_up_missing(self) -> dict[str, Any]:
        """Nobody waits any more for coordinators that have not reported, and what they alone may have is given up.
        Returns what `overview` says then."""
        ...
