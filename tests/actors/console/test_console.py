"""A console over HTTP beside a whole cluster: what it tells of it, and that it tells the truth."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import aiomqtt
import pytest
from prometheus_client.parser import text_string_to_metric_families

from lexicast.actors.broker.pipelines.entries import PublishBatch, SealedEntry
from lexicast.actors.console import broker_lines, topic_requests
from lexicast.actors.console.answers import LIMIT_MAX
from lexicast.actors.console.broker_lines import ANSWER_TIMEOUT_S, BrokerLines
from lexicast.actors.console.cluster_view import HEALTH_FRESH_S
from lexicast.actors.console.metric_rows import METRICS
from lexicast.actors.console.readiness import UNANSWERED_S
from lexicast.cluster.errors import UnavailableError
from lexicast.cluster.protocol.heartbeat import Beats

from ...support.console import Asking, asking, console
from ...support.harness import Cluster, eventually


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with Cluster(tmp_path) as running:
        await running.start_coordinator()
        await running.start_broker("broker-0")
        yield running


@pytest.fixture
async def ask(cluster: Cluster) -> AsyncIterator[Asking]:
    async with console(cluster) as server, asking(server) as someone:
        yield someone


async def ready_within(ask: Asking, ready: bool, seconds: float = 20.0) -> dict[str, Any]:
    """What is said once it is so."""
    async with asyncio.timeout(seconds):
        while True:
            async with ask.session.get(ask.base + "/health/ready") as answer:
                said: dict[str, Any] = await answer.json()
                assert answer.status == (200 if said["ready"] else 503)
                if said["ready"] is ready:
                    return said
            await asyncio.sleep(0.05)


async def test_the_status_says_what_is_there(ask: Asking) -> None:
    now = await ask.get("/api/v1/status")
    assert now["cluster"]["groups"] == 4
    assert now["cluster"]["coordination"] is True
    assert {(each["name"], each["state"]) for each in now["actors"]} >= {
        ("broker-0", "serves"),
        ("coordinator-0", "serves"),
    }
    assert now["node"]["ready"] is True
    groups = await ask.get("/api/v1/groups?limit=3")
    assert [row["group"] for row in groups["rows"]] == [0, 1, 2]
    rest = await ask.get(f"/api/v1/groups?after={groups['next']}")
    assert [row["leader"] for row in rest["rows"]] == ["coordinator-0"]
    assert rest["next"] is None


async def test_what_is_published_is_in_the_tree_the_past_and_the_metrics(ask: Asking) -> None:
    for topic in ("a/b", "a/b/c", "a-b", "$x", "a/d"):
        await ask.post("/api/v1/publish", {"topic": topic, "payload": topic}, status=400 if topic == "$x" else 200)
    top = await ask.get("/api/v1/topics")
    assert [(row["name"], row["has_topics_below"]) for row in top["rows"]] == [("a-b", False), ("a/", True)]
    below = await ask.get("/api/v1/topics?under=a/&limit=2")
    assert [(row["name"], row["has_topics_below"]) for row in below["rows"]] == [("a/b", False), ("a/b/", True)]
    rest = await ask.get("/api/v1/topics", params={"under": "a/", "after": below["next"]})
    assert [row["name"] for row in rest["rows"]] == ["a/d"]
    assert rest["next"] is None
    past = await ask.get("/api/v1/history?filter=a/%23&since=beginning")
    assert sorted(row["payload"] for row in past["rows"]) == ["a/b", "a/b/c", "a/d"]
    assert past["complete"] is True
    families = {each.name: each for each in text_string_to_metric_families(await ask.text("/metrics"))}
    stored = families["lexicast_messages_stored"].samples[0]
    assert (stored.labels, stored.value) == ({"actor": "coordinator-0"}, 4.0)
    count = [each.value for each in families["lexicast_commit_seconds"].samples if each.name.endswith("_count")]
    assert count[0] >= 1
    assert families["lexicast_up"].samples[0].value == 1.0


async def test_metrics_have_the_names_that_prometheus_wants(ask: Asking) -> None:
    found = {each.name for each in text_string_to_metric_families(await ask.text("/metrics"))}
    assert found <= {row.name.removesuffix("_total") for row in METRICS}
    for row in METRICS:
        assert row.name.endswith("_total") is (row.kind == "counter"), row.name
        assert row.label not in ("topic", "client")


async def test_a_subscription_gets_what_comes(ask: Asking) -> None:
    async with ask.session.get(ask.base + "/api/v1/stream?filter=s/%23") as answer:
        assert answer.content_type == "text/event-stream"
        await answer.content.readuntil(b"it begins here\n\n")
        await ask.post("/api/v1/publish", {"topic": "s/1", "payload": "x"})
        async with asyncio.timeout(20):
            event = json.loads((await answer.content.readuntil(b"}\n\n")).removeprefix(b"data: "))
    assert [each["payload"] for each in event["messages"]] == ["x"]
    async with ask.session.get(ask.base + "/api/v1/stream?filter=s/%23&where=delay>3") as answer:
        await answer.content.readuntil(b"it begins here\n\n")
        for delay in (1, 5):
            await ask.post("/api/v1/publish", {"topic": "s/1", "payload": json.dumps({"delay": delay})})
        async with asyncio.timeout(20):
            event = json.loads((await answer.content.readuntil(b"}\n\n")).removeprefix(b"data: "))
    assert [each["payload"] for each in event["messages"]] == ['{"delay": 5}']


async def test_ready_follows_the_truth(cluster: Cluster, ask: Asking) -> None:
    said = await ready_within(ask, True)
    assert said["checks"] == {"broker": True, "clients": True, "groups": True, "coordination": True}
    await cluster.crash_coordinator()
    said = await ready_within(ask, False)
    assert said["reasons"] == ["broker-0: 4 topic groups wait for coordinator-0"]
    assert (await ask.get("/health/live"))["live"] is True
    await cluster.start_coordinator()
    await ready_within(ask, True)
    await cluster.stop_broker("broker-0")
    said = await ready_within(ask, False)
    assert said["reasons"] == ["no broker of this node serves"]
    await cluster.start_broker("broker-0")
    await ready_within(ask, True)
    events = [event["text"] for event in (await ask.get("/api/v1/events"))["rows"]]
    assert "broker-0 has left" in events
    assert "broker-0 serves, on node" in events


@pytest.mark.cve("CVE-2015-8786")
async def test_what_is_wrong_with_a_question_is_said(ask: Asking) -> None:
    for path, said in (
        ("/api/v1/groups?limit=0", "limit='0': give a number from 1 to 1,000"),
        ("/api/v1/groups?limit=1001", "limit='1001': give a number from 1 to 1,000"),
        ("/api/v1/groups?limit=" + "9" * 5_000, "give a number from 1 to 1,000"),
        ("/api/v1/history", "0 filters: give 1 to 16, as in ?filter=flights/%23"),
        ("/api/v1/history?filter=a%23", "'#'"),
        ("/api/v1/topics?under=a", 'it ends with "/"'),
        ("/api/v1/stream?filter=a&where=a%20>", "column 4"),
        ("/api/v1/family?name=no", "nothing was learned of a family 'no' yet"),
    ):
        assert said in (await ask.get(path, status=400))["error"], path
    assert "error" in await ask.get("/api/v1/none", status=404)
    async with ask.session.post(ask.base + "/api/v1/publish", data=b"{}") as answer:
        assert "Content-Type" in (await answer.json())["error"]


async def test_clients_and_filters_come_in_pages(cluster: Cluster, ask: Asking) -> None:
    broker: Any = cluster.nodes["broker-0"]
    clients = [aiomqtt.Client("127.0.0.1", broker.mqtt.port, identifier=f"c{i}") for i in range(5)]
    for client in clients:
        await client.__aenter__()
        await client.subscribe(f"of/{client.identifier}")
    page = await ask.get("/api/v1/sessions?limit=3")
    assert [row["id"] for row in page["rows"]] == ["c0", "c1", "c2"]
    page = await ask.get(f"/api/v1/sessions?limit=3&after={page['next']}")
    assert ([row["id"] for row in page["rows"]], page["next"]) == (["c3", "c4"], None)
    page = await ask.get("/api/v1/sessions?search=4")
    assert [row["id"] for row in page["rows"]] == ["c4"]
    filters = await ask.get("/api/v1/subscriptions")
    assert {"of/c1": 1}.items() <= {row["filter"]: row["subscribers"] for row in filters["rows"]}.items()
    assert (await ask.post("/api/v1/sessions/disconnect?id=c4"))["disconnected"] is True
    assert (await ask.post("/api/v1/sessions/disconnect?id=c9"))["disconnected"] is False
    with pytest.raises(aiomqtt.MqttError):
        await asyncio.wait_for(anext(aiter(clients[4].messages)), 20)
    for client in clients[:4]:
        await client.__aexit__(None, None, None)


async def test_a_full_page_says_that_there_is_more(cluster: Cluster, ask: Asking) -> None:
    broker: Any = cluster.nodes["broker-0"]
    async with aiomqtt.Client("127.0.0.1", broker.mqtt.port) as client:
        await client.subscribe([(f"f/{number:04}", 0) for number in range(LIMIT_MAX + 1)])
        page = await ask.get(f"/api/v1/subscriptions?limit={LIMIT_MAX}")
        rest = await ask.get(f"/api/v1/subscriptions?limit={LIMIT_MAX}&after={page['next']}")
    assert len(page["rows"]) == LIMIT_MAX
    assert f"f/{LIMIT_MAX:04}" in [row["filter"] for row in rest["rows"]]


async def test_few_histories_are_read_at_once(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic_requests, "HISTORY_S", 0.2)
    monkeypatch.setattr(topic_requests, "HISTORIES_MAX", 1)
    async with console(cluster) as server, asking(server) as ask:
        await ask.post("/api/v1/publish", {"topic": "a", "payload": "x"})
        path = "/api/v1/history?filter=a&since=beginning"
        async with server._topics._histories:
            assert await ask.get(path) == {"rows": [], "next": None, "complete": False}
        monkeypatch.setattr(topic_requests, "HISTORY_S", 20.0)
        assert len((await ask.get(path))["rows"]) == 1


class Hung:
    """A link of a broker that says nothing."""

    closed = False

    def __init__(self) -> None:
        self.methods: list[str] = []

    @property
    def asked(self) -> int:
        return len(self.methods)

    def request(self, method: str, *_: Any, **__: Any) -> asyncio.Future[Any]:
        self.methods.append(method)
        return asyncio.get_running_loop().create_future()

    def close(self) -> None:
        """Nothing is open."""


async def test_a_broker_that_hangs_is_waited_for_once(cluster: Cluster) -> None:
    await cluster.start_broker("broker-1")
    async with console(cluster) as server, asking(server) as ask:
        lines, hung = server.view.lines, Hung()
        await eventually(lambda: len(lines.members.brokers) == 2)
        lines._links["broker-0"] = cast(Any, hung)
        with pytest.raises(UnavailableError, match="broker-0 has not answered"):
            await lines.ask("broker-0", "health", timeout_s=0.05)
        asked = hung.asked  # the console asks by itself as well
        for _ in range(3):
            await lines.ask_nearest("health")
        assert hung.asked == asked
        said = await ask.post("/api/v1/sessions/disconnect?id=nobody", status=503)
        assert "broker-0" in said["error"]
        lines._links.pop("broker-0")
        await lines.ask("broker-0", "health")
        assert not lines._silent
        with pytest.raises(UnavailableError, match="does not serve"):
            await lines.ask("no-broker", "health")
        assert lines._dialling.keys() <= {"broker-0", "broker-1"}


async def test_while_a_broker_hangs_another_one_answers(cluster: Cluster) -> None:
    """The page of a node whose broker had stopped was without an answer for longer than the broker was waited for."""
    await cluster.start_broker("broker-1")
    async with console(cluster) as server:
        lines, hung = server.view.lines, Hung()
        await eventually(lambda: len(lines.members.brokers) == 2)
        lines._links["broker-0"] = cast(Any, hung)
        async with asyncio.timeout(ANSWER_TIMEOUT_S - 0.5):
            await lines.ask_nearest("health")
        await lines.ask_nearest("health")
        assert hung.methods.count("health") == 1


async def test_who_answers_as_soon_as_another_one_is_not_taken_for_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = BrokerLines("node-0", cast(Any, None))
    lines.members = cast(Any, SimpleNamespace(brokers=dict.fromkeys(("a", "b", "c"), SimpleNamespace(node=""))))
    at_once, asked = asyncio.Event(), list[str]()

    async def ask(broker: str, method: str) -> str:
        asked.append(broker)
        if broker == "c":
            at_once.set()
        await (at_once.wait() if broker != "a" else asyncio.Event().wait())
        return broker

    monkeypatch.setattr(broker_lines, "NEXT_S", 0.01)
    monkeypatch.setattr(lines, "ask", ask)
    assert await lines.ask_nearest("health") in ("b", "c")
    assert asked == ["a", "b", "c"]
    assert lines._silent == {"a"}


async def test_a_node_that_hears_nothing_of_a_leader_or_has_no_answers_is_not_ready(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node that was cut off said for 10 s that it was ready: so long a link is borne with."""
    broker: Any = cluster.nodes["broker-0"]
    async with console(cluster) as server, asking(server) as ask:
        assert (await ask.get("/health/ready"))["ready"] is True
        (pipeline,) = broker.engine.coordinators.pipelines.values()
        with monkeypatch.context() as silent:
            silent.setattr(pipeline.link, "_beats", Beats(0.0, 10.0))
            await asyncio.sleep(2 * HEALTH_FRESH_S)
            told = await ask.get("/health/ready", status=503)
            assert any("wait for coordinator-0" in reason for reason in told["reasons"])
        stuck = SealedEntry((0, b"", b"", b""), [], (), 0)
        pipeline._batches[0] = PublishBatch(0, [stuck], asyncio.get_running_loop().time() - UNANSWERED_S)
        await asyncio.sleep(2 * HEALTH_FRESH_S)
        told = await ask.get("/health/ready", status=503)
        assert any("has not been answered" in reason for reason in told["reasons"])
        del pipeline._batches[0]
        await asyncio.sleep(2 * HEALTH_FRESH_S)
        assert (await ask.get("/health/ready"))["reasons"] == []


async def test_who_does_not_read_a_stream_is_cut_off(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic_requests, "STALLED_S", 0.2)
    async with console(cluster) as server, asking(server) as ask:
        with socket.socket() as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
            sock.connect(("127.0.0.1", server.http.port))
            sock.sendall(b"GET /api/v1/stream?filter=s&where=n%3D1 HTTP/1.1\r\nHost: localhost\r\n\r\n")
            body = {"topic": "s", "payload": json.dumps({"n": 1, "text": "x" * 16_000})}
            await eventually(lambda: server.http.status()["connections"] == 1)
            async with asyncio.timeout(60):
                await ask.post("/api/v1/publish", body)
                while server.http.status()["connections"] == 2:
                    await ask.post("/api/v1/publish", body)
        assert (await ask.get("/api/v1/me"))["operator"] is True
