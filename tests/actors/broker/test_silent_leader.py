"""A leader that has fallen silent: what it was asked is asked of its successor."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from lexicast.actors.mqtt.releases import forget_ids
from lexicast.cluster.membership import COORDINATOR

from ...support.harness import Cluster, eventually

BOTH = ("coordinator-0", "coordinator-1")


class Unplugged:
    """A transport of a node that has no power any more."""

    def __init__(self, transport: Any) -> None:
        self._transport = transport

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        """Nobody gets it."""


async def test_what_was_asked_of_a_leader_that_has_fallen_silent_is_asked_of_its_successor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node without power closes nothing, and a link is borne with for 10 s: QoS 2 publishers waited for its end, and
    clients whose sessions lived there."""
    async with Cluster(tmp_path, coordinators=BOTH, copies=2) as cluster:
        await asyncio.gather(*[cluster.start_coordinator(name) for name in BOTH])

        def groups() -> dict[int, list[Any]]:
            found: dict[int, list[Any]] = cluster.coordination.status()["group_states"]
            return found

        await eventually(lambda: {len(members) for _, _, members in groups().values()} == {2}, "two copies of each")
        broker = await cluster.start_engine("broker-0")
        led = [group for group, (_, leader, _) in groups().items() if leader == BOTH[0]]
        for peer in cluster.coordinators[BOTH[0]].server.led.routing.peers.values():
            monkeypatch.setattr(peer.link, "_transport", Unplugged(peer.link._transport))
        asking = asyncio.ensure_future(forget_ids(broker.engine, b"u" * 16, 1, {led[0]: [1]}))
        await asyncio.sleep(0.2)
        assert not asking.done()
        members = await cluster.coordination.members(-1, 0.0)
        cluster.coordination.lost(COORDINATOR, BOTH[0], members.coordinators[BOTH[0]].incarnation)
        async with asyncio.timeout(4.0):
            await asking
