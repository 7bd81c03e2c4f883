"""`lexicast top` beside a cluster that serves: in a terminal, over a pipe, once; what it tells is what others tell."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from lexicast.actors.cli.top.figures import TopFigures
from lexicast.actors.client.address import KEY_FILE, RUN_FILE
from lexicast.actors.client.known_brokers import Endpoint
from lexicast.actors.mqtt.codec import encode_packet
from lexicast.actors.mqtt.codec.packets import V5, Publish
from lexicast.actors.status.over_link import ask_any_broker

from ...support.console import asking, console
from ...support.harness import Cluster
from ...support.mqtt_harness import Raw, Served, close_clients, served

ROOT = Path(__file__).resolve().parents[3]
ENVIRONMENT = {
    **{
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("LEXICAST_", "RAY_", "COLUMNS", "LINES"))
    },
    "PYTHONPATH": str(ROOT / "src"),
    "TERM": "xterm-256color",
}
WAIT_S = 120.0
ESCAPES = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")
HOME = "\x1b[H"
ALTERNATE, BACK = "\x1b[?1049h", "\x1b[?1049l"


# -- what it tells


async def endpoints(cluster: Cluster) -> list[Endpoint]:
    members, info = await cluster.coordination.members(-1, 0), await cluster.coordination.cluster()
    return [Endpoint(m.name, m.addresses, info.cluster_id, info.key) for m in members.brokers.values()]


@asynccontextmanager
async def top_of(cluster: Cluster) -> AsyncIterator[TopFigures]:
    async def resolve() -> list[Endpoint]:
        return await endpoints(cluster)

    async def snapshot() -> dict[str, Any]:
        found: dict[str, Any] = await ask_any_broker(await endpoints(cluster), "cluster")
        return found

    async with TopFigures(resolve, snapshot) as figures:
        yield figures


async def test_it_tells_what_the_console_tells_and_the_busiest_topics(tmp_path: Path) -> None:
    async with Cluster(tmp_path) as cluster:
        await cluster.start_coordinator()
        brokers = [await cluster.start_broker(f"broker-{number}") for number in range(2)]
        client, reader = [await Raw.connect(broker.mqtt.port) for broker in brokers]
        await reader.subscribe("busy/#")
        async with top_of(cluster) as figures, console(cluster) as server, asking(server) as ask:
            busiest = list[str]()
            async with asyncio.timeout(WAIT_S):
                while busiest != ["busy/a", "busy/b"]:  # it is a sample, which begins in its time
                    for topic in ("busy/a", "busy/b", "busy/a"):
                        await client.publish(topic, b"x" * 100, qos=1)
                    busiest = [row["name"] for row in (await figures.now())["topics"] or ()]
            connection = next(iter(brokers[1].mqtt.connections))
            assert connection.served is not None
            lagging = connection.served.subscriber.lagging
            group, head = max(brokers[1].engine.live.heads.items(), key=lambda each: each[1])
            lagging[group] = head - 2
            async with asyncio.timeout(WAIT_S):
                while True:
                    now = json.loads(json.dumps(await figures.now()))  # as `--json` has it
                    told, behind = await ask.get("/api/v1/status"), await ask.get("/api/v1/lagging")
                    if what_stays(now) == what_stays(told) and now["lagging"] == behind["rows"]:
                        break  # what a console tells may be a second old
            lagging.clear()
        assert now["leaders"][0]["groups"] == 4
        assert [(row["broker"], row["behind_records"]) for row in now["lagging"]] == [("broker-1", 2)]
        assert now["missing"] == behind["missing"] == []
        assert set(now) == set(told) - {"node"} | {"families", "topics", "lagging", "missing"}
        await close_clients()


def what_stays(now: dict[str, Any]) -> dict[str, Any]:
    """What is so while nothing happens."""
    actors = {each["name"]: (each["state"], each.get("connections"), each.get("topics")) for each in now["actors"]}
    return {**{key: now[key] for key in ("cluster", "leaders", "nodes", "warnings")}, "actors": actors}


async def test_bytes_are_counted_as_they_cross_connections(tmp_path: Path) -> None:
    async with Cluster(tmp_path) as cluster:
        await cluster.start_coordinator()
        broker = await cluster.start_broker("broker-0")
        client, reader = await Raw.connect(broker.mqtt.port), await Raw.connect(broker.mqtt.port)
        await reader.subscribe("a/b")
        before = broker.status()
        packet = encode_packet(Publish(b"a/b", b"x" * 1_000), V5)
        client.send(packet)
        assert (await reader.messages(1))[0].payload == b"x" * 1_000
        after = broker.status()
        assert after["received_bytes"] - before["received_bytes"] == len(packet)
        assert after["sent_bytes"] - before["sent_bytes"] == len(packet)
        await close_clients()


async def test_a_broker_that_does_not_answer_is_told_and_nobody_waits_for_it(tmp_path: Path) -> None:
    async with Cluster(tmp_path) as cluster:
        await cluster.start_coordinator()
        await cluster.start_broker("broker-0")

        async def resolve() -> list[Endpoint]:
            found = await endpoints(cluster)
            return [*found, Endpoint("broker-9", ("unix:/nonexistent/socket",), found[0].cluster_id, found[0].key)]

        async def snapshot() -> dict[str, Any]:
            found: dict[str, Any] = await ask_any_broker(await resolve(), "cluster")
            return found

        async with TopFigures(resolve, snapshot) as figures:
            assert (await figures.now())["missing"] == ["broker-9"]


# -- how it is shown


@pytest.fixture(scope="module")
def running() -> Iterator[Served]:
    with served(2) as found:
        yield found


@pytest.fixture(scope="module")
def folder(running: Served, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As `lexicast up` leaves one."""
    found = tmp_path_factory.mktemp("data")
    listed = running.run(endpoints(running.cluster))
    brokers = {each.name: each.addresses for each in listed}
    run = {"ray_address": "127.0.0.1:1", "cluster_id": listed[0].cluster_id, "brokers": brokers}
    (found / RUN_FILE).write_text(json.dumps(run))
    (found / KEY_FILE).write_bytes(listed[0].key)
    return found


def command(folder: Path, *arguments: str) -> list[str]:
    return [sys.executable, "-m", "lexicast.actors.cli", "top", "--data-dir", str(folder), *arguments]


class Terminal(NamedTuple):
    """A terminal of 80 by 24, and what runs in it."""

    file: int
    process: subprocess.Popen[bytes]
    before: list[Any]
    seen: list[str]

    def until(self, text: str) -> str:
        """What is shown once it holds `text`: the last whole picture."""
        until_s = time.monotonic() + WAIT_S
        while text not in self.picture():
            assert time.monotonic() < until_s, (text, "".join(self.seen)[-4_000:])
            self.read()
        return self.picture()

    def read(self) -> bool:
        """Take what comes; whether there is more."""
        try:
            data = os.read(self.file, 65_536)
        except OSError:  # nobody holds the other end any more
            return False
        self.seen.append(data.decode())
        return bool(data)

    def picture(self) -> str:
        whole = "".join(self.seen).split(HOME)
        return ESCAPES.sub("", whole[-1])

    def ended(self) -> int:
        """The exit code, once the terminal is as it was."""
        while self.read():
            pass
        code = self.process.wait(WAIT_S)
        assert "".join(self.seen).count(ALTERNATE) == "".join(self.seen).count(BACK) == 1
        assert "Traceback" not in "".join(self.seen)
        return code


@contextmanager
def terminal(arguments: list[str], **environment: str) -> Iterator[Terminal]:
    own, its = pty.openpty()
    fcntl.ioctl(own, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    before = termios.tcgetattr(its)

    def takes_it() -> None:
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)  # so that Ctrl-C reaches it

    process = subprocess.Popen(
        arguments,
        stdin=its,
        stdout=its,
        stderr=its,
        env=ENVIRONMENT | environment,
        start_new_session=True,
        preexec_fn=takes_it,
    )
    os.close(its)
    try:
        yield Terminal(own, process, before, [])
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
        os.close(own)


def test_in_a_terminal_keys_sort_and_end_it(folder: Path) -> None:
    with terminal(command(folder, "-i", "0.5")) as shown:
        picture = shown.until("q quit").splitlines()
        assert len(picture) == 24
        assert picture[0].startswith("lexicast ")
        assert "[m messages]" in picture[-1]
        os.write(shown.file, b"b")
        assert "broker-0" in shown.until("[b bytes]")
        os.write(shown.file, b"\x1b[A2")  # an arrow is nobody's key
        shown.until("[b bytes]")
        fcntl.ioctl(shown.file, termios.TIOCSWINSZ, struct.pack("HHHH", 12, 60, 0, 0))
        os.kill(shown.process.pid, signal.SIGWINCH)
        until_s = time.monotonic() + WAIT_S
        while len(shown.picture().splitlines()) != 12:
            assert time.monotonic() < until_s, shown.picture()
            shown.read()
        os.write(shown.file, b"q")
        assert shown.ended() == 0


def test_ctrl_c_ends_it_and_leaves_the_terminal_as_it_was(folder: Path) -> None:
    with terminal(command(folder, "-i", "60"), NO_COLOR="1") as shown:
        shown.until("q quit")
        assert not re.search(r"\x1b\[[0-9;]*(3[0-7]|4[0-7]|38|48)[0-9;]*m", "".join(shown.seen)), "no colours"
        assert termios.tcgetattr(shown.file) != shown.before
        os.write(shown.file, b"\x03")
        assert shown.ended() == 130


def test_once_it_is_text_or_json(folder: Path, running: Served) -> None:
    stop = asyncio.Event()

    async def publish() -> None:
        client = await Raw.connect(running.port)
        while not stop.is_set():
            await client.publish("once/\x1b[31m", b"x", qos=1)
        await close_clients()

    publishing = asyncio.run_coroutine_threadsafe(publish(), running._loop)
    try:
        outputs = [
            subprocess.run(
                command(folder, *arguments), capture_output=True, text=True, timeout=WAIT_S, env=ENVIRONMENT, check=True
            )
            for arguments in (("--once",), ("--json",))
        ]
    finally:
        running._loop.call_soon_threadsafe(stop.set)
        publishing.result(WAIT_S)
    text, told = outputs[0].stdout, json.loads(outputs[1].stdout)
    assert outputs[0].stderr == outputs[1].stderr == ""
    assert "\x1b" not in text
    assert "once/\\x1b[31m" in text
    assert all(len(line) <= 80 for line in text.splitlines())
    assert [row["name"] for row in told["topics"]] == ["once/\x1b[31m"]
    assert told["rates"]["received_bytes_per_s"] > 0


def test_over_a_pipe_it_goes_on_until_nobody_reads(folder: Path) -> None:
    process = subprocess.Popen(
        command(folder, "-i", "0.5"),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=ENVIRONMENT,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    heads = 0
    for line in process.stdout:
        assert "\x1b" not in line
        heads += line.startswith("lexicast ")
        if heads == 2:
            break
    process.stdout.close()
    code, told = process.wait(WAIT_S), process.stderr.read()
    process.stderr.close()
    assert (code, told) == (0, "")
