"""What brokers are subscribed to is recorded in the filter's group once, however it comes to be known there."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lexicast.actors.broker.encoding import LINK, Grant, Kind
from lexicast.actors.broker.subscriber import Subscriber
from lexicast.actors.coordinator.led_groups import LedGroups
from lexicast.cluster.records import ControlRecord, Subscribed, Unsubscribed

from ...support.harness import GROUPS, Cluster, EngineNode, eventually

NAMES = ("coordinator-0", "coordinator-1")
FILTERS = [b"device/%d/commands" % number for number in range(30)]


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> list[ControlRecord]:
    """The control records that coordinators write."""
    found: list[ControlRecord] = []
    append = LedGroups.append_control

    def noted(self: LedGroups, group: int, record: ControlRecord, done: Callable[[Exception | None], None]) -> None:
        found.append(record)
        append(self, group, record, done)

    monkeypatch.setattr(LedGroups, "append_control", noted)
    return found


class Silent(Subscriber):
    """A subscriber that gets nothing."""

    def write(self, data: bytes) -> None:
        """Nothing comes."""


async def returned(broker: EngineNode, names: list[bytes]) -> Any:
    """A session that returns to these filters."""
    subscriber = Silent(broker.engine.subscriptions, Kind(LINK))
    start = dict.fromkeys(range(GROUPS), 0)
    await broker.engine.subscriptions.subscribe(subscriber, dict.fromkeys(names, Grant(1)), start=start)
    return subscriber


async def test_a_session_that_returns_has_each_exact_filter_recorded_once(
    tmp_path: Path, recorded: list[ControlRecord]
) -> None:
    async with Cluster(tmp_path, coordinators=NAMES) as cluster:
        for name in NAMES:
            await cluster.start_coordinator(name)
        broker = await cluster.start_engine("broker-0")
        subscriber = await returned(broker, FILTERS)
        told = [record.filter.encode() for record in recorded if isinstance(record, Subscribed)]
        assert sorted(told) == sorted(FILTERS)
        interests = [each.server._interest for each in cluster.coordinators.values()]
        await eventually(lambda: not any(each._recording for each in interests), "the records' commit")

        # One that ends and comes again is recorded again.
        recorded.clear()
        broker.engine.subscriptions.leave(subscriber)
        await returned(broker, FILTERS[:3])
        kinds = [type(record) for record in recorded]
        assert (kinds.count(Unsubscribed), kinds.count(Subscribed)) == (len(FILTERS), 3)
