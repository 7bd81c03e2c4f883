"""The matcher's server, where what comes is not what it should be."""

from __future__ import annotations

from typing import Any

import pytest

from lexicast.actors.matcher.served_links import CoordinatorLink
from lexicast.actors.matcher.server import MatcherServer
from lexicast.cluster.errors import PeerError
from lexicast.cluster.membership import ClusterInfo
from lexicast.cluster.protocol.messages import ASK, PUBLISH, VERDICT


class FakeLink:
    """A coordinator's link: what it is answered."""

    name = "coordinator-0"
    closed = False

    def __init__(self) -> None:
        self.sent: list[tuple[Any, ...]] = []

    def send(self, message: tuple[Any, ...]) -> None:
        """An answer."""
        self.sent.append(message)


@pytest.mark.parametrize("rows", [b"", b"\xc1", b"\x93\x90\x90\x91\x91\x05"])
async def test_rows_that_are_none_are_vouched_for_by_nobody(rows: bytes) -> None:
    """A broker has made them: who asks keeps its link."""
    server = MatcherServer("matcher-0", 1, ClusterInfo("cluster", b"k" * 32, 4, 1))
    link: Any = FakeLink()
    user = CoordinatorLink(server)
    user.on_message(link, (ASK, 7, 0, 0, rows))
    assert link.sent == [(VERDICT, 7, {})]
    with pytest.raises(PeerError):
        user.on_message(link, (PUBLISH, 1, ()))
    await server.stop()


async def test_what_a_broker_told_is_forgotten_bit_by_bit() -> None:
    server = MatcherServer("matcher-0", 1, ClusterInfo("cluster", b"k" * 32, 4, 1))
    conditions = server.conditions
    for incarnation in (1, 2):
        conditions.begin("broker", incarnation)
        conditions.told("broker", 0, 9, [(True, b"f/#", f"delay > {number}") for number in range(50)])
    assert len(conditions.table) == 50
    steps = 1
    while conditions.step(10):
        steps += 1
    assert steps == 5
    assert len(conditions.table) == 50, "the newer link's stay"
    conditions.forget("broker")
    while conditions.step(10):
        pass
    assert len(conditions.table) == 0
    assert conditions.all_names() == {}
    await server.stop()
