"""What tests of bridges begin with: the cluster on this side."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from lexicast.actors.broker.server import BrokerServer

from ...support.harness import Cluster
from ...support.mqtt_harness import close_clients


@pytest.fixture
async def here(tmp_path: Path) -> AsyncIterator[tuple[Cluster, BrokerServer]]:
    async with Cluster(tmp_path / "here") as cluster:
        await cluster.start_coordinator()
        yield cluster, await cluster.start_broker("broker-0")
        await close_clients()
