"""The sockets of a matcher, where others of its overlay reach it: open before its registration, which tells where."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from lexicast.cluster.membership import ClusterInfo
from lexicast.cluster.protocol.heartbeat import Beats

from ..link.link import Link, LinkUser
from ..link.sockets import listen

Admits = Callable[[Link], LinkUser | None]


class MatcherSockets:
    """See the module's docstring. `addresses`: where they listen. Whoever comes before `admit` is turned away."""

    def __init__(self, name: str, cluster: ClusterInfo, beats: Beats, links: str = "auto") -> None:
        """`links`: which are encrypted, see `encrypts_links`."""
        self.addresses: tuple[str, ...] = ()
        self._name = name
        self._cluster = cluster
        self._beats = beats
        self._links = links
        self._admits: Admits = lambda link: None
        self._servers: list[asyncio.AbstractServer] = []

    async def open(self, run_dir: Path, host: str) -> None:
        """Listen on a Unix socket in `run_dir` and on TCP. Raises OSError."""
        cluster, greeting = self._cluster, {"matcher": self._name}
        for address in (f"unix:{run_dir}/{self._name}.sock", f"tcp:{host}:0"):
            server, real = await listen(
                address, cluster.key, cluster.cluster_id, self._opened, greeting, self._beats, self._links
            )
            self._servers.append(server)
            self.addresses += (real,)

    def admit(self, admits: Admits) -> None:
        """`admits` is asked about each link from now on."""
        self._admits = admits

    def _opened(self, link: Link) -> LinkUser | None:
        return self._admits(link)

    def close(self) -> None:
        """Listen no more."""
        for server in self._servers:
            server.close()
