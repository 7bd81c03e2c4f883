"""A coordinator that is watched: it says that it lives as often as who watches wants to hear it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

from lexicast.actors.coordinator.server import CoordinatorServer
from lexicast.actors.link.link import Link
from lexicast.cluster.protocol.heartbeat import Beats, detecting_beats

from ...support.harness import Cluster


class WatchingLink:
    """A link of the coordination server, as far as its opening goes."""

    role = "coordination"

    def __init__(self) -> None:
        self.beats: list[Beats] = []

    def keep_time(self, beats: Beats) -> None:
        self.beats.append(beats)


async def test_a_coordinator_without_copies_beats_in_time_too(tmp_path: Path) -> None:
    async with Cluster(tmp_path) as cluster:
        started = await cluster.start_coordinator()
        beats, link = detecting_beats(0.5), WatchingLink()
        server = CoordinatorServer("alone", started.server.store, cluster.clock, beats=beats)
        user: Any = server.opened(cast(Link, link))
        assert link.beats == [beats]
        user.on_close(link, None)
