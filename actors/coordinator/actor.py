"""The Ray actor around `CoordinatorServer`: opens the store, takes new epochs, listens, registers."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, TypeVar

import ray

from lexicast.cluster.clock import SystemClock
from lexicast.cluster.config.tables import ClusterConfig
from lexicast.cluster.errors import LexicastError, StoreError, StoreFormatError, StorePoisonedError
from lexicast.cluster.leadership import GroupState
from lexicast.cluster.membership import COORDINATOR, Coordination, Member
from lexicast.cluster.protocol.heartbeat import detecting_beats
from lexicast.compression.codecs import payload_bytes_max
from lexicast.storage.environment.identity import peek_identity
from lexicast.storage.environment.options import StoreOptions
from lexicast.storage.store import Store

from ..link.link import Link, LinkUser
from ..link.run_directory import run_directory
from ..link.sockets import dial_any, listen
from ..ray.handles import RayCoordination
from ..ray.serving import ServingActor
from .replication.reporting import report_before_serving
from .server import CoordinatorServer
from .shares.led_shares import USUAL_RULES, ShareRules

T = TypeVar("T")

# After a crash the old process may hold the store's lock for a moment.
OPEN_TRIES: Final = 40
OPEN_PAUSE_S: Final = 0.25
# How long the committer's thread may keep the event loop waiting; Python's 5 ms showed in the latency (QoS 1 at 1,000
# messages/s: p50 1.9 against 1.0 ms).
SWITCH_INTERVAL_S: Final = 0.0005


class CoordinatorActor(ServingActor):
    """One coordinator of this node."""

    def store_directory(self) -> Path:
        """Where its store lies."""
        return self.config.node.data_path() / self.name

    async def start(self) -> None:
        """Begin to serve."""
        sys.setswitchinterval(SWITCH_INTERVAL_S)
        self._coordination: Coordination = RayCoordination()
        options = StoreOptions(**self.config.storage.options())
        mqtt = self.config.mqtt
        shares = ShareRules(mqtt.share_strategy, mqtt.share_expiry_s)
        server = await open_coordinator(
            self.name, self.store_directory(), options, self._coordination, self.config.cluster, shares
        )
        self._listeners: list[Any] = []
        self._addresses: tuple[str, ...] = ()
        try:
            await self._listen(server)
        except BaseException:
            self._close_listeners()
            await server.stop()
            raise
        self._server = server

    async def _listen(self, server: CoordinatorServer) -> None:
        """Listen for brokers and tell the coordination server where. Raises LexicastError, OSError."""
        info = await self._coordination.cluster()
        run_dir, beats = run_directory(self.config), self.config.link.beats()
        for address in (f"unix:{run_dir}/{self.name}.sock", f"tcp:{self.config.node.host}:0"):
            listener, real = await listen(
                address, info.key, info.cluster_id, server.opened, {}, beats, self.config.security.links
            )
            self._listeners.append(listener)
            self._addresses += (real,)
        groups = tuple(sorted(server.sequencer.groups))
        node = self.config.node
        member = Member(self.name, 0, self._addresses, node.own_name(), os.getpid(), groups, node.location)
        await self._coordination.register(COORDINATOR, member)
        server.report(self._coordination, info, member)

    def _close_listeners(self) -> None:
        for listener in self._listeners:
            listener.close()

    def addresses(self) -> tuple[str, ...]:
        """Link addresses."""
        return self._addresses

    def report(self) -> dict[str, Any]:
        """For `lexicast status`."""
        return self._server.status()

    async def place(self) -> tuple[str, str, dict[int, int], int]:
        """For who reads its store: the folder, the id of the Ray node that it lies on, of each group that this
        coordinator leads the first offset that is not committed, and how long a payload may be, decompressed.

        Raises why it does not serve.
        """
        self.check_serving()
        node, longest = ray.get_runtime_context().get_node_id(), payload_bytes_max(self.config.mqtt.packet_bytes_max)
        return str(self.store_directory()), node, self._server.committed(), longest

    async def end(self) -> None:
        """Commit, close the store, leave."""
        self._close_listeners()
        await self._server.stop()
        with suppress(LexicastError):
            await self._coordination.leave(COORDINATOR, self.name)


async def open_coordinator(
    name: str,
    directory: Path,
    options: StoreOptions,
    coordination: Coordination,
    cluster: ClusterConfig,
    shares: ShareRules = USUAL_RULES,
) -> CoordinatorServer:
    """Open the store of coordinator `name`, take a new epoch of each of its groups, and lead them.

    Raises StoreError (damaged, another cluster's, in use), UnavailableError.
    """
    clock = SystemClock()
    found = await _retried(lambda: peek_identity(directory, options))
    known = None if found is None else found.cluster_id
    states: dict[int, GroupState] = {}
    if known is None:
        states = await coordination.open_groups(name, {}, None)
    info = await coordination.cluster(wait=known is None)
    identity = known or info.cluster_id
    # A coordination server that has lost its registry asks the stores.
    groups = found.groups if found is not None and not info.cluster_id else info.groups
    store = await _retried(
        lambda: Store.open(directory, cluster_id=identity, member=name, groups=groups, options=options, clock=clock)
    )
    try:
        if known is not None:
            await report_before_serving(coordination, name, known, store)
            info = await coordination.cluster()
            states = await coordination.open_groups(name, store.known_epochs(), known)
        beats = detecting_beats(cluster.detect_s)
        server = CoordinatorServer(name, store, clock, info.min_copies, beats, shares)

        async def dial(member: Member, user: LinkUser) -> Link:
            hello = ("coordinator", name, 1)
            return await dial_any(
                member.addresses, info.key, identity, hello, lambda link: user, beats, cluster.detect_s
            )

        # Also where there is to be one copy: while a group moves to another node there are two.
        server.share(coordination, cluster.copies, dial, cluster.slow_s)
        await server.start(states)
    except BaseException:
        store.close()
        raise
    return server


async def _retried(work: Callable[[], T]) -> T:
    """`work`, again for a while when the store is in use."""
    for _ in range(OPEN_TRIES):
        try:
            return work()
        except (StoreFormatError, StorePoisonedError):
            raise
        except StoreError:
            await asyncio.sleep(OPEN_PAUSE_S)
    return work()
