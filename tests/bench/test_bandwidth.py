"""The drivers `bandwidth` and `stream_cpu`, small, over a cluster in this process: what they move, count and refuse."""

from __future__ import annotations

import asyncio
import gzip
import json
import os
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lexicast.actors.client.client import Client
from lexicast.actors.client.known_brokers import Endpoint
from lexicast.actors.sampling.server import SamplingServer
from lexicast.bench.bandwidth import driver as bandwidth
from lexicast.bench.bandwidth.cells import Moved, Setting
from lexicast.bench.bandwidth.driver import middle, speedup
from lexicast.bench.peers import targets
from lexicast.bench.peers.session_opening import SessionSpec, close_all, open_sessions
from lexicast.bench.stage.proxy import Proxy
from lexicast.bench.stage.servers import Address
from lexicast.bench.stream_cpu import driver as stream_cpu
from lexicast.bench.stream_cpu.driver import AwareMqtt, streams_us
from lexicast.cluster.clock import SystemClock

from ..support.mqtt_harness import Served, served


async def start_sampling(there: Served) -> Callable[[], Any]:
    """A sampling broker in the cluster's loop; what stops it."""
    coordination = there.cluster.coordination

    async def resolve() -> list[Endpoint]:
        members, info = await coordination.members(-1, 0), await coordination.cluster()
        return [Endpoint(m.name, m.addresses, info.cluster_id, info.key) for m in members.brokers.values()]

    client = await Client(resolve, client_id="sampling-0", compress=False).open()
    task = asyncio.create_task(SamplingServer(client, there.cluster.config.compression, SystemClock()).run())

    async def stop() -> None:
        task.cancel()
        await asyncio.wait([task])
        await client.close()

    return stop


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    """What the drivers take for a started lexicast."""
    with served() as there:
        stop = there.run(start_sampling(there))

        @contextmanager
        def running(names: Sequence[str], missing: Any) -> Iterator[dict[str, Any]]:
            assert list(names) == ["lexicast"]
            address, pids = Address("127.0.0.1", there.port), {"brokers": [os.getpid()]}
            yield {"lexicast": SimpleNamespace(address=address, pids=pids, require_alive=lambda: None)}

        monkeypatch.setattr(targets, "running", running)
        yield there
        there.run(stop())


def test_bandwidth_moves_everything_with_each_method_and_draws_it(cluster: Served, tmp_path: Path) -> None:
    options = ["--messages", "300", "--mbit", "4", "--clients", "2", "--rounds", "2"]
    options += ["--picture", str(tmp_path / "times.png")]
    report = tmp_path / "report.json"
    assert bandwidth.main([*options, "--json", str(report)]) == 0
    told = json.loads(report.read_text())
    assert set(told["samples"]) == {f"flights 4 2 {method}" for method in ("nothing", "deflate", "predict")}
    assert all(len(rounds) == 2 for rounds in told["samples"].values())
    moved = {name.split()[-1]: rounds[0]["subscriber_bytes"] for name, rounds in told["samples"].items()}
    assert moved["deflate"] < moved["nothing"]
    assert moved["predict"] < moved["nothing"]
    assert told["figures"]["speedup_4mbit_2"] > 0
    assert told["figures"]["speedup_1mbit"] is told["figures"]["speedup_vs_deflate"] is None
    assert (tmp_path / "times.png").read_bytes().startswith(b"\x89PNG")


def test_bandwidth_takes_a_folder_of_corpora(tmp_path: Path) -> None:
    with gzip.open(tmp_path / "events.jsonl.gz", "wb") as file:
        file.write(b'{"n": 1}\n{"n": 2}\n\n{"n": 3}\n')
    options = bandwidth.parse(["--data", str(tmp_path), "--corpora", "events", "--messages", "5"])
    (found,) = bandwidth.corpora(options, tmp_path)
    assert (found.name, found.messages, found.mean_bytes) == ("events", 3, 8.0)
    assert found.file.read_bytes() == b'{"n": 1}\n{"n": 2}\n{"n": 3}\n'


def test_bandwidth_says_what_is_wrong_with_data(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = bandwidth.parse(["--data", str(tmp_path)])
    with pytest.raises(Exception, match=r"no such \*\.gz file"):
        bandwidth.corpora(options, tmp_path)
    (tmp_path / "github_events.gz").write_bytes(b"not gzip")
    with pytest.raises(Exception, match=r"cannot read github_events\.gz"):
        bandwidth.corpora(options, tmp_path)


def test_speedup_is_the_median_of_the_rounds_ratios_of_times_in_a_cell() -> None:
    cell = Setting("flights", 1, 5, "predict")
    times = {"predict": (2.0, 1.0, 4.0), "nothing": (7.0, 6.0, 4.0)}
    outcomes = {cell._replace(method=m): [Moved(s, 1, 1) for s in seconds] for m, seconds in times.items()}
    assert speedup(outcomes, cell) == 3.5
    assert middle(outcomes[cell]).seconds == 2.0
    assert speedup(outcomes, cell, "deflate") is None


async def test_a_links_queue_holds_back_no_more_than_it_is_given() -> None:
    """What is sent into a link that nobody drains stops at its queue and the kernel's share of it."""
    received, over = asyncio.Event(), asyncio.Event()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        received.set()
        await over.wait()
        writer.close()

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with Proxy("127.0.0.1", port, bytes_per_s=1_000, queue_bytes_max=64 * 1024) as proxy:
        sender = socket.create_connection(("127.0.0.1", proxy.port))
        sender.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 16 * 1024)
        sender.setblocking(False)
        await received.wait()
        sent = stalled = 0
        while stalled < 200:
            try:
                sent += sender.send(bytes(65_536))
                stalled = 0
            except BlockingIOError:
                stalled += 1
                await asyncio.sleep(0.001)
        assert 64 * 1024 <= sent < 1024 * 1024
        sender.close()
        over.set()
    server.close()
    await server.wait_closed()


def test_stream_cpu_delivers_to_all_and_decodes(cluster: Served, tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    options = ["--subscribers", "5", "--messages", "60", "--streams", "20", "--rounds", "1", "--json", str(report)]
    assert stream_cpu.main(options) == 0
    told = json.loads(report.read_text())
    assert told["samples"]["aiohttp WebSockets"]["bytes"][0] < told["samples"]["one zlib stream each"]["bytes"][0] + 60
    assert told["samples"]["lexicast, plain publisher"]["bytes"][0] < 150
    assert set(told["figures"]) == {
        "cpu_vs_stream_500",
        "cpu_vs_stream_500_aware_publisher",
        "cpu_vs_stream_500_topic_stream",
        "cpu_vs_stream_500_topic_stream_aware_publisher",
        "bytes_topic_stream",
        "bytes_topic_stream_aware_publisher",
        "cpu_vs_websocket_500",
    }


def test_aware_sockets_are_dictionary_aware(cluster: Served) -> None:
    sockets = open_sessions(Address("127.0.0.1", cluster.port), AwareMqtt(), [SessionSpec("aware", "a/b")])
    (connection,) = cluster.broker().mqtt.connections
    assert connection.served is not None
    assert connection.served.subscriber.kind.aware
    close_all(sockets, b"\xe0\0")


def test_streams_keep_their_context() -> None:
    message = b'{"some": "message", "that": "comes", "again": true}'
    _, first = streams_us([message], 2)
    _, many = streams_us([message] * 20, 2)
    assert many <= first < len(message)
