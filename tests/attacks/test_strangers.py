"""A stranger's process on the machine of `lexicast up`, as another user: without a secret it reaches nothing.

The ports are those that docs/security.md tells of, and no others.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from http.client import UNAUTHORIZED, HTTPConnection, HTTPException
from importlib import import_module
from ipaddress import ip_address
from pathlib import Path
from typing import Any, NamedTuple

import msgpack
import psutil
import pytest

from lexicast.actors.mqtt.codec import encode_packet
from lexicast.actors.mqtt.codec.packets import V5, Connect
from lexicast.bench.stage.ports import free_port
from lexicast.cluster.protocol.messages import CHALLENGE, HELLO, NONCE_BYTES, OFFER

from ..support.up import OWN_ENVIRONMENT, lexicast_up

NOBODY = 65_534
STRANGER_TIMEOUT_S = 20.0
PAGE = Path(__file__).resolve().parents[2] / "docs/security.md"
CONFIG = """
[mqtt]
allow_anonymous = "never"
ws_port = {ws_port}
[node]
matchers = 1
[http]
port = {http_port}
"""
AGENT = "Ray: the node's agent"
AGENT_PORT = 52_365
# A program by its command line -> as docs/security.md calls it.
PROGRAMS = (
    (r"gcs_server", "Ray: the control server"),
    (r"raylet/raylet|/raylet ", "Ray: the node's manager"),
    (r"^ray::RuntimeEnvAgent", "Ray: the agent of environments"),
    (r"^ray::DashboardAgent", AGENT),
    (r"^ray::", "Ray: each actor"),
    (r"lexicast\.actors\.cli", "Ray: `lexicast up` itself"),
)
LINKED = r"ray::(Broker|Coordinator|Matcher)Actor"
OUR_PORTS = {
    "mqtt": "MQTT",
    "ws": "MQTT over WebSocket",
    "link": "links: each broker, coordinator and matcher",
    "http": "HTTP: the console, where `http.port` is set",
}


class Door(NamedTuple):
    """Something that listens: whose it is, and where ("127.0.0.1", "every address")."""

    program: str
    host: str
    port: int

    @property
    def where(self) -> str:
        """As the page says it."""
        address = ip_address(self.host)
        return "every address" if address.is_unspecified else "this machine" if address.is_loopback else "the node's"


class Running(NamedTuple):
    """A cluster that runs, its processes and what they listen at."""

    folder: Path
    run: dict[str, Any]
    processes: list[psutil.Process]
    doors: list[Door]


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """`lexicast up` of a user with a home of his own, with Ray's tokens, and nobody let in without a login."""
    folder = tmp_path_factory.mktemp("up")
    folder.chmod(0o755)
    (folder / "home").mkdir(mode=0o755)
    environment = {key: value for key, value in OWN_ENVIRONMENT.items() if not key.startswith("RAY_AUTH")}
    environment |= {"HOME": str(folder / "home"), "RAY_USAGE_STATS_ENABLED": "0"}
    config = CONFIG.format(ws_port=free_port(), http_port=free_port())
    before = os.umask(0o022)
    try:
        with lexicast_up(folder, "--mqtt-port", "0", config=config, environment=environment, end=signal.SIGINT) as run:
            processes = below(folder)
            yield Running(folder, run, processes, list(doors(processes, run)))
    finally:
        os.umask(before)


def below(folder: Path) -> list[psutil.Process]:
    """`lexicast up` on this folder and all that it has started."""
    for process in psutil.process_iter(["cmdline"]):
        command = process.info["cmdline"] or []
        if "lexicast.actors.cli" in command and str(folder / "data") in command:
            return [process, *process.children(recursive=True)]
    raise AssertionError("`lexicast up` does not run")


def doors(processes: list[psutil.Process], run: dict[str, Any]) -> Iterator[Door]:
    """All that listens for TCP or takes UDP."""
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            command = " ".join(process.cmdline())
            for connection in process.net_connections("inet"):
                if connection.status not in (psutil.CONN_LISTEN, psutil.CONN_NONE):
                    continue
                host, port = connection.laddr.ip, connection.laddr.port
                if port == run["mqtt_port"]:
                    yield Door(OUR_PORTS["mqtt"], host, port)
                elif port == run["mqtt_ws_port"]:
                    yield Door(OUR_PORTS["ws"], host, port)
                elif re.search(rf":{port}/$", run["pages"][0]):
                    yield Door(OUR_PORTS["http"], host, port)
                elif not ip_address(host).is_unspecified and re.match(LINKED, command):
                    yield Door(OUR_PORTS["link"], host, port)
                else:
                    yield Door(program_of(command), host, port)


def program_of(command: str) -> str:
    """As the page calls it."""
    return next((title for pattern, title in PROGRAMS if re.search(pattern, command)), command[:60])


def as_stranger(work: Callable[[], dict[str, str]]) -> dict[str, str]:
    """What `work` gives in a process of another user, which has nothing of this one's but its code."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.close(reading)
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            signal.alarm(int(STRANGER_TIMEOUT_S))
            os.write(writing, json.dumps(work()).encode())
        except Exception as error:
            os.write(writing, json.dumps({"it failed": repr(error)}).encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        said = pipe.read()
    os.waitpid(child, 0)
    assert said, "the stranger's process has died"
    found: dict[str, str] = json.loads(said)
    return found


only_root = pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")


# -- ports


def test_the_page_tells_of_every_port(running: Running) -> None:
    told = set(
        re.findall(r"(?m)^\| ([^|]+) \| (?:[^|]+) \| (every address|this machine|the node's) \|", PAGE.read_text())
    )
    found = {(door.program, door.where) for door in running.doors}
    # One of its agent's ports is the same for every Ray, and another one on this machine may have it.
    has_it = AGENT_PORT in [door.port for door in running.doors if door.program == AGENT]
    elsewhere = set() if has_it else {(AGENT, "this machine"), (AGENT, "the node's")}
    assert found | elsewhere == told


def test_ours_listen_where_they_are_configured(running: Running) -> None:
    ours = [door for door in running.doors if door.program in OUR_PORTS.values()]
    assert {door.program for door in ours} == set(OUR_PORTS.values())
    assert {door.host for door in ours} == {"127.0.0.1"}


def test_rays_ports_want_a_token(running: Running) -> None:
    """Each of them that speaks gRPC, asked for something without one."""
    grpc: Any = import_module("grpc")  # Ray's; it has no types
    answers = {}
    for door in running.doors:
        if door.program.startswith("Ray:"):
            with grpc.insecure_channel(f"127.0.0.1:{door.port}", options=[("grpc.enable_http_proxy", 0)]) as channel:
                ask = channel.unary_unary("/ray.rpc.NodeInfoGcsService/CheckAlive", bytes, bytes)
                try:
                    ask(b"", timeout=5.0)
                    answers[door] = "it answers"
                except grpc.RpcError as error:
                    answers[door] = error.code().name
    assert "it answers" not in answers.values()
    assert {door.program for door, code in answers.items() if code == "UNAUTHENTICATED"} >= {PROGRAMS[0][1]}


def test_rays_agents_want_a_token(running: Running) -> None:
    """Those that speak HTTP: whoever gives one a job, or an environment to make, has code run."""
    agents = [door for door in running.doors if "agent" in door.program and ip_address(door.host).version == 4]
    answers = {}
    for door in agents:
        for path in ("/api/job_agent/jobs/", "/get_or_create_runtime_env"):
            host = "127.0.0.1" if ip_address(door.host).is_unspecified else door.host
            connection = HTTPConnection(host, door.port, timeout=5)
            with closing(connection), suppress(OSError, HTTPException):
                connection.request("POST", path, b"{}")
                answers[door, path] = connection.getresponse().status
    assert UNAUTHORIZED in answers.values()
    assert not [door for door, status in answers.items() if status < 400]


# -- another user


@only_root
def test_another_user_reads_none_of_its_files(running: Running) -> None:
    """Neither data, key and token nor what it writes into folders that are everybody's."""
    home, data = running.folder / "home", running.folder / "data"
    token = home / ".ray" / "auth_token"
    assert token.exists()
    own = [data, *data.rglob("*"), token, *run_folder(running).rglob("*"), *rays_files(running)]

    def look() -> dict[str, str]:
        read = {}
        for path in own:
            with suppress(OSError):
                read[str(path)] = str(len(list(path.iterdir())) if path.is_dir() else len(path.read_bytes()))
        return read

    assert as_stranger(look) == {}


@only_root
def test_another_user_puts_nothing_into_its_folders(running: Running) -> None:
    """Whoever replaces a socket of Ray's is taken for Ray."""
    sockets = set(map(Path, unix_sockets(running)))
    folders = {path.parent for path in (*sockets, *rays_files(running))}
    folders |= {folder.parent for folder in folders} | {running.folder / "data", running.folder / "home" / ".ray"}
    folders -= {Path("/tmp"), Path("/dev/shm"), Path("/dev"), Path("/"), running.folder}
    assert any(folder.name == "sockets" for folder in folders)

    def put() -> dict[str, str]:
        made = {}
        for folder in folders:
            with suppress(OSError):
                (folder / "stranger").write_text("x")
                made[str(folder)] = "written"
        return made

    assert as_stranger(put) == {}


@only_root
def test_another_user_opens_none_of_its_sockets(running: Running) -> None:
    sockets = unix_sockets(running)
    assert any("lexicast" in path for path in sockets)

    def dial() -> dict[str, str]:
        opened = {}
        for path in sockets:
            with suppress(OSError), socket.socket(socket.AF_UNIX) as sock:
                sock.settimeout(2)
                sock.connect(path)
                opened[path] = "opened"
        return opened

    assert as_stranger(dial) == {}


@only_root
def test_another_user_gets_nothing_from_its_ports(running: Running) -> None:
    """Links tell a challenge and hang up, MQTT and the console let nobody in who has not logged in."""
    hello = msgpack.packb((HELLO, b"n" * NONCE_BYTES, "client", "stranger", 1, {}, b"p" * 32))
    said = {
        OUR_PORTS["link"]: hello,
        OUR_PORTS["mqtt"]: encode_packet(Connect(V5, "stranger", True), V5),
        OUR_PORTS["http"]: b"GET /api/v1/status HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
    }
    ours = [door for door in running.doors if door.program in said]

    def knock() -> dict[str, str]:
        answers = {}
        for door in ours:
            with socket.create_connection((door.host, door.port), 5) as sock:
                sock.settimeout(5)
                sock.sendall(said[door.program])
                heard = b""
                with suppress(OSError):
                    while more := sock.recv(65_536):
                        heard += more
                answers[f"{door.program} {door.port}"] = heard.hex()
        return answers

    answers = as_stranger(knock)
    assert len(answers) == len(ours)
    for door, heard in answers.items():
        if door.startswith(OUR_PORTS["mqtt"]):
            assert heard[:2] == "20"
            assert int(heard[6:8], 16) == 0x87
        elif door.startswith(OUR_PORTS["http"]):
            assert bytes.fromhex(heard).startswith(b"HTTP/1.1 401 ")
        else:
            unpacker = msgpack.Unpacker()
            unpacker.feed(bytes.fromhex(heard))
            assert [message[0] for message in unpacker] == [CHALLENGE, OFFER]  # and no WELCOME


def test_no_secret_stands_in_a_command_line(running: Running) -> None:
    """Everybody may read those."""
    token = (running.folder / "home" / ".ray" / "auth_token").read_text().strip()
    secrets = {token, *re.findall(r"[0-9a-f]{64}", (running.folder / "data" / "run.json").read_text())}
    for process in running.processes:
        with suppress(psutil.NoSuchProcess):
            command = " ".join(process.cmdline())
            assert not any(secret in command for secret in secrets), program_of(command)


def unix_sockets(running: Running) -> list[str]:
    """The paths of its sockets."""
    found = {str(c.laddr) for process in running.processes for c in process.net_connections("unix")}
    return sorted(path for path in found if path.startswith("/"))


def run_folder(running: Running) -> Path:
    """Where the link sockets are."""
    found = re.findall(r"unix:([^\"]+)/[^/\"]+\.sock", json.dumps(running.run))
    assert found
    return Path(found[0])


def rays_files(running: Running) -> list[Path]:
    """What Ray's processes have open below /tmp and /dev/shm, and their folders' logs."""
    opened = set()
    for process in running.processes:
        with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            opened |= {Path(file.path) for file in process.open_files() if file.path.startswith(("/tmp/", "/dev/shm/"))}
    return sorted(path for path in opened if path.exists() and not path.is_relative_to(running.folder / "up.log"))


assert sys.platform == "linux", "ports and users are looked at as Linux has them"
