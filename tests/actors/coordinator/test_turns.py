"""What a coordinator's turn brings a broker is one write: what is delivered, and the answers."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from lexicast.actors.broker.pipelines.entries import GroupEntryBuilder
from lexicast.actors.coordinator.peers import BrokerPeer
from lexicast.cluster.protocol.messages import ACK, DELIVER, HEADS, TAKEN

from ...support.harness import Cluster, eventually


class FakeLink:
    """Keeps the kinds of the messages of each write."""

    name = "broker-0"

    def __init__(self) -> None:
        self.writes: list[list[int]] = []
        self._gathered: list[int] = []

    def gather(self, message: tuple[Any, ...]) -> None:
        if message[0] != HEADS:  # once a second
            self._gathered.append(message[0])

    def send(self, message: tuple[Any, ...]) -> None:
        self.gather(message)
        self.flush()

    def flush(self) -> None:
        if self._gathered:
            self.writes.append(self._gathered)
        self._gathered = []

    def write_buffer_bytes(self) -> int:
        return 0


def entry(sequence: int, qos: int) -> Any:
    builder = GroupEntryBuilder(0)
    builder.add(b"t", qos, [b"payload"], "me")
    return builder.seal(b"producer", 1, sequence).wire


@pytest.mark.parametrize(
    ("qos", "writes"),
    [
        # Delivered, and answered, before it is durable.
        (0, [[DELIVER, ACK, ACK]]),
        # The broker may send more at once; the rest follows the commit.
        (1, [[TAKEN, TAKEN], [DELIVER, ACK, ACK]]),
    ],
)
async def test_a_turn_is_one_write_a_broker(tmp_path: Path, qos: int, writes: list[list[int]]) -> None:
    async with Cluster(tmp_path) as cluster:
        coordinator = await cluster.start_coordinator()
        led = coordinator.server.led
        link = FakeLink()
        peer = BrokerPeer("fake", 1, cast(Any, link))
        led.routing.replace(peer)
        led.routing.insert(peer, [b"t"])
        for number in (1, 2):
            led.publish(cast(Any, link), number, [entry(number, qos)])
        assert not link.writes
        await eventually(lambda: len(link.writes) >= len(writes))
        assert link.writes == writes
        del led.routing.peers["fake"]
