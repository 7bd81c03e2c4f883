"""The link sockets of a broker: open from before its registration on, since that tells their addresses to everybody.

Who comes before the broker serves is turned away, and comes again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lexicast.cluster.config.tables import Config
from lexicast.cluster.membership import ClusterInfo

from ..link.link import Link, LinkUser
from ..link.sockets import listen

Opened = Callable[[Link], LinkUser | None]


class LinkSockets:
    """See the module's docstring. `addresses`: where they listen; `greeting`: what a client is told first."""

    def __init__(self, name: str, cluster: ClusterInfo, config: Config) -> None:
        self.addresses: tuple[str, ...] = ()
        self.greeting: dict[str, Any] = {
            "groups": cluster.groups,
            "broker": name,
            "cluster_id": cluster.cluster_id,
            "payload_bytes_max": config.mqtt.packet_bytes_max,
            "optout": list(config.compression.optout),
            "unpacks": config.compression.enabled,
        }
        self._name = name
        self._cluster = cluster
        self._config = config
        self._admit: Opened = lambda link: None
        self._servers: list[asyncio.AbstractServer] = []

    async def open(self, run_dir: Path) -> None:
        """Listen on a Unix socket in `run_dir` and on TCP. Raises OSError."""
        cluster, beats = self._cluster, self._config.link.beats()
        for address in (f"unix:{run_dir}/{self._name}.sock", f"tcp:{self._config.node.host}:0"):
            server, real = await listen(
                address,
                cluster.key,
                cluster.cluster_id,
                self._opened,
                self.greeting,
                beats,
                self._config.security.links,
            )
            self._servers.append(server)
            self.addresses += (real,)

    def admit(self, opened: Opened) -> None:
        """The broker serves: `opened` is asked about each link from now on."""
        self._admit = opened

    def _opened(self, link: Link) -> LinkUser | None:
        return self._admit(link)

    def close(self) -> None:
        """Listen no more; links that stand are their users'."""
        for server in self._servers:
            server.close()
