"""Watching the nodes of a Ray that was joined: what comes gets its share of actors, what goes is told.

Only the `lexicast up` that serves does this: without it actors run on where they are, and none is started elsewhere.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Final

from lexicast.cluster.errors import LexicastError
from lexicast.cluster.security.addresses import is_loopback

from .cluster_actors import ClusterActors
from .ray_connection import ConnectedRay
from .ray_nodes import RayNodes, nodes_now

LOOK_S: Final = 1.0
# What could not be started on a node is tried again after this long.
AGAIN_S: Final = 10.0
# A node whose name another one has is taken for another node after this long; Ray notices within 10 s who is gone.
SAME_S: Final = 20.0


class NodeWatch:
    """See the module's docstring."""

    def __init__(self, ray: ConnectedRay, actors: ClusterActors, progress: Callable[[str], None]) -> None:
        self._actors = actors
        self._progress = progress
        self._nodes = ray.nodes
        self._config = ray.config
        # Nodes that were given their share: by id, their names.
        self._served = dict(ray.nodes.names)
        self._leaving: set[str] = set()
        self._known: set[str] = set(ray.nodes.names.values())
        self._not_before_s: dict[str, float] = {}
        # One change at a time.
        self._lock = asyncio.Lock()

    async def watch(self) -> None:
        """Look again and again. Runs until cancelled. Raises UnavailableError when Ray cannot be asked any more."""
        loop, nameless_s = asyncio.get_running_loop(), 0.0
        while True:
            await asyncio.sleep(LOOK_S)
            if not self._nodes.nameless:
                nameless_s = loop.time()
            patient = loop.time() - nameless_s < SAME_S
            await self._look(await asyncio.to_thread(nodes_now, self._nodes, patient))

    async def _look(self, nodes: RayNodes) -> None:
        now_s = asyncio.get_running_loop().time()
        self._nodes = nodes
        async with self._lock:
            for node_id, name in list(self._served.items()):
                if node_id not in nodes.names:
                    del self._served[node_id]
                    self._progress(f"{name} is away: others go on with what it had, where they have it too")
                    await self._tried(name, self._actors.node_went(nodes, name))
            for node_id, name in nodes.names.items():
                if node_id in self._served or now_s < self._not_before_s.get(node_id, 0.0):
                    continue
                if not self._reaches():
                    self._served[node_id] = name
                    self._progress(
                        f"{name} has joined Ray, and gets no actors: this cluster listens on {self._config.node.host}, "
                        "where nobody else reaches it (start it with --nodes 2, or with node.host = '0.0.0.0')"
                    )
                elif await self._tried(name, self._actors.node_came(nodes, name)):
                    self._served[node_id] = name
                    self._known.add(name)
                    self._progress(f"{name} serves")
                else:
                    self._not_before_s[node_id] = now_s + AGAIN_S

    def _reaches(self) -> bool:
        """Whether what runs already can be reached from other nodes."""
        return len(self._served) > 1 or not is_loopback(self._config.node.host) or self._all_here()

    def _all_here(self) -> bool:
        """Whether all nodes are one machine, as in tests."""
        return all(is_loopback(host) for host in self._nodes.hosts.values())

    async def follow(self, said: Mapping[str, Any]) -> None:
        """What the coordination server says of nodes has changed: `said` is its status."""
        leaving = {name for name, node in said["nodes"].items() if node["leaving"]}
        async with self._lock:
            for name in sorted(leaving - self._leaving):
                self._progress(f"{name} is being drained: others take over what it has")
                await self._tried(name, self._actors.node_went(self._nodes, name))
            self._leaving = leaving
            for name in sorted(self._known.difference(said["nodes"])):
                self._known.discard(name)
                self._progress(f"{name} is removed")
                await self._tried(name, self._actors.node_removed(name))

    async def _tried(self, name: str, work: Any) -> bool:
        try:
            await work
        except LexicastError as error:
            self._progress(f"{name}: {error}")
            return False
        return True
