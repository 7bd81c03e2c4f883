"""The data path over real links and stores."""

from __future__ import annotations

from pathlib import Path

from .harness import Cluster


async def test_a_publication_reaches_a_subscriber(tmp_path: Path) -> None:
    async with Cluster(tmp_path) as cluster:
        await cluster.start_coordinator()
        broker = await cluster.start_engine("broker-0")
        stream = await broker.subscribe(b"a/#")
        result = await broker.publish(b"a/b", [b"1", b"2"])
        got = await stream.take(2)
        assert [r.payload for r in got] == [b"1", b"2"]
        assert result == ((2, got[0].epoch, got[0].offset),)
