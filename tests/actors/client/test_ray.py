"""The client's way through Ray: brokers found by the coordination server, data over links or over actor calls."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray

import lexicast
from lexicast.actors.ray.handles import COORDINATION, NAMESPACE
from lexicast.cluster.errors import UnavailableError
from lexicast.cluster.membership import ClusterInfo, Member, Members
from lexicast.testing import MemoryBroker


class FakeCoordination:
    """Knows one cluster and the brokers it was told of."""

    def __init__(self) -> None:
        self._info = ClusterInfo("", b"", 1, 1)
        self._brokers: dict[str, Member] = {}

    async def tell(self, info: ClusterInfo, brokers: dict[str, Member]) -> None:
        self._info, self._brokers = info, brokers

    async def cluster(self, wait: bool) -> ClusterInfo:
        return self._info

    async def members(self, known_version: int, wait_s: float) -> Members:
        return Members(1, {}, self._brokers, {})


class FakeBroker:
    """A MemoryBroker with the methods that a broker actor has for clients without a link."""

    def __init__(self) -> None:
        self._broker = MemoryBroker(4)
        self._sends = 0

    async def listen(self, address: str) -> tuple[str, str, bytes]:
        return await self._broker.listen(address), self._broker.cluster_id, self._broker.key

    async def client_open(self, name: str) -> str:
        return self._broker.calls.open(name)

    async def client_send(self, token: str, data: bytes) -> None:
        self._sends += 1
        await self._broker.calls.send(token, data)

    async def client_receive(self, token: str, wait_s: float) -> bytes:
        return await self._broker.calls.receive(token, wait_s)

    async def client_close(self, token: str) -> None:
        self._broker.calls.close(token)

    async def sends(self) -> int:
        return self._sends


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A local Ray with both actors; gives the broker's handle and the link address."""
    pickle: Any = ray.cloudpickle
    remote: Any = ray.remote
    pickle.register_pickle_by_value(sys.modules[__name__])  # workers cannot import tests
    ray.init(
        address="local",
        num_cpus=1,
        namespace=NAMESPACE,
        include_dashboard=False,
        log_to_driver=False,
        runtime_env={"env_vars": {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}},
    )
    try:
        options = {"num_cpus": 0, "max_concurrency": 100}
        broker = remote(FakeBroker).options(name="broker-0", **options).remote()
        coordination = remote(FakeCoordination).options(name=COORDINATION, **options).remote()
        link, cluster_id, key = ray.get(broker.listen.remote("tcp:127.0.0.1:0"))
        yield broker, link, ClusterInfo(cluster_id, key, 4, 1)
        del coordination  # an actor ends with its last handle
    finally:
        ray.shutdown()
        pickle.unregister_pickle_by_value(sys.modules[__name__])


def tell(info: ClusterInfo, addresses: tuple[str, ...]) -> None:
    member = Member("broker-0", 1, addresses, "node", 1)
    ray.get(ray.get_actor(COORDINATION, NAMESPACE).tell.remote(info, {member.name: member} if addresses else {}))


@pytest.mark.parametrize("over", ["link", "calls"])
async def test_publish_and_subscribe(cluster: Any, over: str, tmp_path: Path) -> None:
    broker, link, info = cluster
    tell(info, (link,) if over == "link" else (f"unix:{tmp_path}/nobody",))
    before = ray.get(broker.sends.remote())
    async with lexicast.connect("auto") as bus, bus.subscribe(f"{over}/#") as subscription:
        positions = await bus.publish_many([(f"{over}/1", b"%d" % i) for i in range(5_000)])
        got: list[lexicast.Message] = []
        while len(got) < 5_000:
            got += await subscription.next_batch()
        assert await bus.broker.sends.remote() >= before
    assert [m.position for m in got] == positions
    assert [m.payload for m in got] == [b"%d" % i for i in range(5_000)]
    sends = ray.get(broker.sends.remote()) - before
    assert 0 < sends < 100 if over == "calls" else sends == 0


async def test_cluster_without_brokers_is_a_clear_error(cluster: Any) -> None:
    tell(cluster[2], ())
    with pytest.raises(UnavailableError, match="no broker that serves"):
        async with lexicast.connect("auto"):
            pass
