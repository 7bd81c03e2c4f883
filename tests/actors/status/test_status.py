"""What `lexicast status` tells: one question to a broker, over its link; and what is so about who is missing."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import ray.exceptions

from lexicast.actors.broker import server as broker_module
from lexicast.actors.client.known_brokers import Endpoint
from lexicast.actors.coordinator import server as coordinator_module
from lexicast.actors.status.cluster_status import ClusterStatus
from lexicast.actors.status.meters import RATE_SAMPLES, Meter, Since, Trend
from lexicast.actors.status.over_link import ask_any_broker, ask_broker
from lexicast.actors.status.over_ray import fate_of
from lexicast.actors.status.report import (
    GONE,
    HANGS,
    MEND_IT,
    NODE_GONE,
    STARTS_AGAIN,
    TRIES_AGAIN,
    UNKNOWN,
    MissingError,
    gather,
)
from lexicast.cluster.errors import StoreFormatError, UnavailableError

from ...support.harness import Cluster, eventually
from ...support.mqtt_harness import Raw, close_clients


async def endpoints(cluster: Cluster) -> list[Endpoint]:
    members, info = await cluster.coordination.members(-1, 0), await cluster.coordination.cluster()
    return [Endpoint(m.name, m.addresses, info.cluster_id, info.key) for m in members.brokers.values()]


async def test_one_question_to_a_broker_tells_of_all_actors(tmp_path: Path) -> None:
    async with Cluster(tmp_path) as cluster:
        await cluster.start_coordinator()
        await cluster.start_broker("broker-0")
        told = await ask_any_broker(await endpoints(cluster), "cluster")
        assert not told["warnings"]
        assert told["coordinators"]["coordinator-0"]["store"]["topics"] >= 0
        assert told["coordination"]["cluster_id"]
        assert told["brokers"]["broker-0"]["clients"] == 0  # who asks is no client
        rates = {"stored_per_s", "published_per_s", "delivered_per_s", "received_bytes_per_s", "sent_bytes_per_s"}
        assert set(told["rates"]) == rates
        groups = [key for actor in (told["coordination"], *told["coordinators"].values()) for key in actor]
        assert groups.count("group_states") == 1
        assert not {"epochs", "offsets"} & set(groups)


async def test_a_missing_coordinator_is_told_with_what_becomes_of_it_and_since_when(tmp_path: Path) -> None:
    names = ("coordinator-0", "coordinator-1")

    async def ray(name: str, timeout_s: float) -> dict[str, Any]:
        raise MissingError("the node is gone", NODE_GONE)

    async with Cluster(tmp_path, coordinators=names) as cluster:
        for name in names:
            await cluster.start_coordinator(name)
        broker = await cluster.start_broker("broker-0", ray)
        await cluster.crash_coordinator("coordinator-1")
        await eventually(lambda: broker.engine.coordinators.pipelines["coordinator-1"].link is None)
        told = await ask_any_broker(await endpoints(cluster), "cluster")
        assert "error" not in told["coordinators"]["coordinator-0"]
        missing = told["coordinators"]["coordinator-1"]
        assert missing["fate"] == NODE_GONE
        assert 0 < missing["since_us"] < told["time"] * 1_000_000
        (warning,) = told["warnings"]
        assert warning.startswith("coordinator-1 has not served for ")
        assert "starts it nowhere else" in warning
        await cluster.start_coordinator("coordinator-1")


async def test_while_the_coordination_server_is_away_a_broker_tells_what_it_knows(tmp_path: Path) -> None:
    async with Cluster(tmp_path) as cluster:
        await cluster.start_coordinator()
        broker = await cluster.start_broker("broker-0")
        brokers = await endpoints(cluster)

        async def away() -> dict[str, Any]:
            raise UnavailableError("no answer")

        broker.coordination.overview = away  # type: ignore[method-assign]  # what it then says
        told = await ask_any_broker(brokers, "cluster")
        (warning,) = told["warnings"]
        assert warning == "coordination does not serve (no answer); data flows on, nothing can change places"
        assert "store" in told["coordinators"]["coordinator-0"]


async def test_another_broker_is_asked_where_one_is_gone(tmp_path: Path) -> None:
    async with Cluster(tmp_path) as cluster:
        await cluster.start_coordinator()
        await cluster.start_broker("broker-0")
        (good,) = await endpoints(cluster)
        bad = Endpoint("broker-9", ("unix:/nonexistent/socket",), good.cluster_id, good.key)
        assert (await ask_any_broker([bad, good], "cluster"))["brokers"]
        with pytest.raises(UnavailableError, match="broker-9"):
            await ask_any_broker([bad], "cluster")


async def test_clients_are_listed_and_publishers_and_refusals_counted(tmp_path: Path) -> None:
    async with Cluster(tmp_path) as cluster:
        await cluster.start_coordinator()
        broker = await cluster.start_broker("broker-0")
        clients = [await Raw.connect(broker.mqtt.port, f"device-{i}") for i in range(3)]
        await clients[0].publish("a/b", b"x", qos=1)
        (endpoint,) = await endpoints(cluster)
        listed = await ask_broker(endpoint, "clients", 2)
        assert len(listed) == 2
        listed = {client["id"]: client for client in await ask_broker(endpoint, "clients", 100)}
        assert set(listed) == {f"device-{i}" for i in range(3)}
        assert [listed[f"device-{i}"]["published_records"] for i in range(3)] == [1, 0, 0]
        told = (await ask_broker(endpoint, "cluster"))["brokers"]["broker-0"]["mqtt"]
        assert (told["publishers"], told["connections"], told["aware"]) == (1, 3, 0)
        await close_clients()


async def test_who_came_back_a_moment_ago_raises_no_warning_and_who_is_behind_for_long_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broker_module, "MEASURE_S", 0.01)
    monkeypatch.setattr(broker_module, "BEHIND_TICKS", 1)
    async with Cluster(tmp_path) as cluster:
        await cluster.start_coordinator()
        broker = await cluster.start_broker("broker-0")
        await Raw.connect(broker.mqtt.port, "slow")
        (connection,) = broker.mqtt.connections
        assert connection.served is not None
        connection.served.subscriber.lagging[0] = 0
        await eventually(lambda: bool(broker._behind._since))
        (endpoint,) = await endpoints(cluster)
        assert not (await ask_broker(endpoint, "cluster"))["warnings"]
        monkeypatch.setattr(broker_module, "BEHIND_TOLD_S", 0.0)
        (warning,) = (await ask_broker(endpoint, "cluster"))["warnings"]
        assert "1 sessions have been catching up" in warning
        connection.served.subscriber.lagging.clear()
        await close_clients()


async def test_refused_entries_are_counted_by_their_reason(tmp_path: Path) -> None:
    async with Cluster(tmp_path) as cluster:
        coordinator = await cluster.start_coordinator()
        await cluster.start_broker("broker-0")
        coordinator.server.store.room = lambda: False  # type: ignore[method-assign]  # what it then says
        assert isinstance(await (await cluster.start_engine("other")).publish(b"a", [b"x"]), str)
        assert coordinator.server.status()["refused"] == {"StoreFullError": 1}
        assert coordinator_module.BEHIND_TOLD_S == broker_module.BEHIND_TOLD_S


async def test_what_a_broken_actor_answers_is_no_failure_of_the_whole() -> None:
    said = {"members": {"coordinator": {}, "broker": {"b": {}}, "sampler": {"s": {}}}, "coordinators": ["c"]}

    async def each(kind: str, name: str) -> dict[str, Any]:
        if name == "c":
            raise MissingError("hangs", HANGS)
        if name == "b":
            raise UnavailableError("starting:\n  in a moment")
        return {"rates": {}}

    told = await gather(said, each)
    assert told["coordinators"]["c"] == {"error": "hangs", "fate": HANGS, "since_us": 0}
    assert told["brokers"]["b"] == {"error": "starting: in a moment", "fate": UNKNOWN, "since_us": 0}
    assert len(told["warnings"]) == 2


def made(name: str, message: str = "x") -> BaseException:
    error: BaseException = getattr(ray.exceptions, name).__new__(getattr(ray.exceptions, name))
    Exception.__init__(error, message)
    return error


def test_what_becomes_of_a_missing_actor_is_what_is_so() -> None:
    task_error: Any = ray.exceptions.RayTaskError
    assert fate_of(task_error("status", "", UnavailableError("not yet"))) == TRIES_AGAIN
    assert fate_of(task_error("status", "", StoreFormatError("not a store"))) == MEND_IT
    assert fate_of(TimeoutError()) == HANGS
    assert fate_of(made("ActorUnavailableError")) == STARTS_AGAIN
    assert fate_of(made("ActorUnschedulableError")) == NODE_GONE
    assert fate_of(ray.exceptions.ActorDiedError()) == GONE


def test_rates_are_those_of_the_last_seconds_and_never_negative() -> None:
    meter = Meter()
    assert meter.rates() == {}
    for second in range(20):
        meter.sample(float(second), {"n": 100 * second if second < 10 else 1_000})
        assert meter.rates()["n"] >= 0
    assert meter.rates()["n"] == 0
    meter.sample(20.0, {"n": 1_000 + 50 * RATE_SAMPLES})
    assert meter.rates()["n"] == 50
    meter.sample(21.0, {"n": 0})  # it has started again
    assert meter.rates()["n"] == 0


def test_a_store_that_grows_is_full_in_so_long() -> None:
    trend = Trend()
    assert trend.seconds_left(1_000) is None
    for second in range(0, 100, 10):
        assert trend.due(float(second))
        trend.sample(float(second), 10 * second)
        assert not trend.due(second + 5.0)
    assert trend.seconds_left(1_000) == 100.0
    trend.sample(100.0, 0)
    assert trend.seconds_left(1_000) is None


def test_since_forgets_what_is_over() -> None:
    since = Since()
    since.look(0.0, {"a", "b"})
    since.look(50.0, {"a", "c"})
    assert since.longer_than(40.0, 50.0) == ["a"]
    since.look(60.0, {"c"})
    since.look(70.0, {"a", "c"})
    assert since.longer_than(10.0, 70.0) == ["c"]


def test_status_loads_no_more_than_it_needs(tmp_path: Path) -> None:
    """Ray alone takes a second of CPU, each time somebody looks; what typer converts by Pydantic takes 0.2 s."""
    code = """
import sys
from lexicast.actors.cli.main import main
try:
    main()
finally:
    print({"ray", "numpy", "zstandard", "lmdb", "pydantic"} & set(sys.modules))
"""
    command = [sys.executable, "-c", code, "status", "--data-dir", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip()) == (1, "set()")
    assert "no cluster runs on" in done.stderr


async def test_a_hanging_actor_holds_the_answer_up_no_longer_than_its_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lexicast.actors.status.cluster_status.ASK_TIMEOUT_S", 0.1)
    async with Cluster(tmp_path) as cluster:
        coordinator = await cluster.start_coordinator()
        await cluster.start_broker("broker-0")
        coordinator.server.requests.at_once["status"] = lambda peer: asyncio.get_running_loop().create_future()
        coordinator.server.requests.later["status"] = lambda peer: asyncio.get_running_loop().create_future()
        del coordinator.server.requests.at_once["status"]
        told = await ask_any_broker(await endpoints(cluster), "cluster")
        assert "has not answered status" in told["coordinators"]["coordinator-0"]["error"]


async def test_what_the_coordination_server_was_waited_for_comes_off_the_actors_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One after the other both limits were longer than whoever had asked waited: where more was away than one of them
    the page said nothing at all."""
    monkeypatch.setattr("lexicast.actors.status.cluster_status.ASK_TIMEOUT_S", 0.3)
    monkeypatch.setattr("lexicast.actors.status.cluster_status.SNAPSHOT_S", 0.4)
    asked: list[float] = []

    async def ask_actor(name: str, timeout_s: float) -> dict[str, Any]:
        asked.append(timeout_s)
        raise MissingError("nobody is there", "")

    coordination = SimpleNamespace(overview=lambda: asyncio.get_running_loop().create_future())
    line, info = SimpleNamespace(link=None, lost_us=1), SimpleNamespace(cluster_id="c", groups=1)
    status = ClusterStatus("b", dict, cast(Any, info), cast(Any, coordination), {"c": cast(Any, line)}, ask_actor)
    told = await status.snapshot()
    assert "error" in told["coordination"]
    assert told["coordinators"]["c"]["error"] == "nobody is there"
    assert 0 < asked[0] <= 0.11
