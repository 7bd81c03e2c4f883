"""The drivers' stage: servers as child processes, parts that talk, links that are counted."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from pathlib import Path

import psutil
import pytest

from lexicast.bench.stage import servers
from lexicast.bench.stage.links import Links
from lexicast.bench.stage.parts import Part, Stage, run_part
from lexicast.bench.stage.servers import Address, Target
from lexicast.cluster.errors import PeerError, UnavailableError

# -- servers


def test_target_that_dies_is_told_with_the_end_of_its_log(tmp_path: Path) -> None:
    log = tmp_path / "log"
    process = servers.spawn_child([sys.executable, "-c", "raise SystemExit('port is taken')"], log)
    process.wait(20)
    target = Target("peer", Address("127.0.0.1", 1), process, log)
    with pytest.raises(UnavailableError, match="peer ended with code 1: port is taken"):
        target.require_alive()
    target.stop()  # of a dead one: no error


def test_ready_file_tells_port_and_processes(tmp_path: Path) -> None:
    told = {"mqtt_host": "127.0.0.2", "mqtt_port": 1234, "pids": {"brokers": [11, 12], "coordination": 13}}
    ready, partial = tmp_path / "ready.json", tmp_path / "partial"
    partial.write_text(json.dumps(told))
    program = f"import os, signal; os.rename({str(partial)!r}, {str(ready)!r}); signal.pause()"
    target = servers.from_ready_file("peer", [sys.executable, "-c", program], tmp_path, ready)
    target.stop()
    assert target.address == Address("127.0.0.2", 1234)
    assert target.pids == {"brokers": [11, 12], "coordination": [13]}


def test_stop_leaves_no_process_of_a_target_that_ignores_sigint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(servers, "STOP_TIMEOUT_S", 0.2)
    child = "import signal, subprocess; signal.signal(2, signal.SIG_IGN); signal.signal(15, signal.SIG_IGN); "
    parent = child + "subprocess.Popen(['sleep', '600']); print('up', flush=True); signal.pause()"
    log = tmp_path / "log"
    process = servers.spawn_child([sys.executable, "-c", parent], log)
    target = Target("peer", Address("127.0.0.1", 1), process, log)
    servers.wait_until(target, lambda: "up" in log.read_text())
    (started,) = psutil.Process(process.pid).children()
    target.stop()
    assert process.returncode == -signal.SIGKILL
    assert psutil.wait_procs([started], timeout=60)[1] == []


def test_memory_of_this_process_is_read() -> None:
    assert servers.rss_anon_kib(os.getpid()) > 1_000
    assert servers.cpu_s(os.getpid()) > 0
    assert servers.cpu_s(2**22 + 1) == 0
    with pytest.raises(UnavailableError, match="cannot read the memory"):
        servers.rss_anon_kib(2**22 + 1)


# -- parts and links


def test_what_goes_wrong_in_a_part_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    async def work(error: Exception | None) -> None:
        if error is not None:
            raise error

    assert run_part(work(None)) == 0
    assert run_part(work(UnavailableError("it is away"))) == 1
    assert capsys.readouterr() == ("", "error: it is away\n")


async def test_a_part_that_dies_says_why(tmp_path: Path) -> None:
    part = Part("it", "lexicast.bench.demo.clients", ["publish"], tmp_path / "it.log")
    await part.start()
    try:
        with pytest.raises(PeerError, match=r"it ended with code 2: .*required: --name"):
            await part.wait_for("ready")
    finally:
        await part.stop()


async def test_a_part_ends_when_its_driver_has_gone(tmp_path: Path) -> None:
    part = Part("links", "lexicast.bench.stage.links", ["one=127.0.0.1:9"], tmp_path / "links.log")
    await part.start()
    assert list(await part.wait_for("ports")) == ["one"]
    await part.stop()
    with pytest.raises(PeerError, match="ended with code 3"):
        part.require_alive()


async def test_a_stage_stops_its_parts_and_keeps_their_logs(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        part = stage.part("it", "lexicast.bench.stage.links", ["one=127.0.0.1:9"])
        await part.start()
        await part.wait_for("ports")
    with pytest.raises(PeerError, match="ended with code 3"):
        part.require_alive()
    assert (tmp_path / "it.log").exists()


async def test_links_tell_what_each_has_carried_both_ways(tmp_path: Path) -> None:
    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(await reader.readexactly(1_000))
        writer.close()

    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with Stage(tmp_path) as stage:
        links = await Links.open(stage, {"used": address, "idle": address}, bytes_per_s=100_000.0)
        reader, writer = await asyncio.open_connection("127.0.0.1", links.ports["used"])
        writer.write(bytes(1_000))
        assert await reader.readexactly(1_000) == bytes(1_000)
        writer.close()
        assert await links.sample() == {"used": 2_000, "idle": 0}
        assert links.carried.now("used") == 2_000
    server.close()
    await server.wait_closed()
