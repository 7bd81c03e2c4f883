"""The brokers that are measured: how lexicast, its peers and the toy are started, each with its best settings.

The peers get the settings that let them do their best at these loads (no persistence, no queue limit that drops, no
limit on connections); the reasons stand at the settings.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from lexicast.cluster.errors import LexicastError, UsageError

from ..stage.clusters import start_lexicast
from ..stage.ports import free_port
from ..stage.servers import Address, Target, from_ready_file, spawn_child, wait_until

NAMES = ("lexicast", "mosquitto", "nats", "toy")


class TargetMissingError(LexicastError):
    """A peer is not installed on this machine."""


_VERSIONS = {"mosquitto": ["mosquitto", "-h"], "nats": ["nats-server", "--version"]}


def version(name: str) -> str | None:
    """The first line in which a peer names its version; None for our own targets and for a missing peer."""
    if name not in _VERSIONS:
        return None
    command = _VERSIONS[name]
    with contextlib.suppress(TargetMissingError):
        told = subprocess.run([program_of(command[0], command[0]), *command[1:]], capture_output=True, text=True)
        return told.stdout.strip().splitlines()[0]
    return None


def program_of(name: str, package: str) -> str:
    """Where a peer's program is. Raises TargetMissingError."""
    # Debian keeps daemons in /usr/sbin, which is not on every user's PATH.
    found = shutil.which(name, path=os.environ.get("PATH", "") + os.pathsep + "/usr/sbin")
    if found is None:
        raise TargetMissingError(f"{name} not found: apt-get install {package}")
    return found


def has_websockets() -> bool:
    """Whether this machine's Mosquitto was built with libwebsockets, as Debian's is. Raises TargetMissingError."""
    return b"Opening websockets listen socket" in Path(program_of("mosquitto", "mosquitto")).read_bytes()


def start_mosquitto(directory: Path, latency: bool, listens: str = "") -> Target:
    """Mosquitto in `directory`; `listens`: more lines of its configuration, of its listener.

    Raises TargetMissingError, UnavailableError.
    """
    executable, port = program_of("mosquitto", "mosquitto"), free_port()
    config = directory / "mosquitto.conf"
    config.write_text(
        f"listener {port} 127.0.0.1\n{listens}"
        "allow_anonymous true\n"
        "persistence false\n"
        "max_connections -1\n"
        # 0 is "no limit" for all three: with the defaults it drops QoS 0 at 1,000 queued messages and keeps 20 QoS 1
        # messages in flight, a fiftieth of the window that the QoS 1 load allows.
        "max_queued_messages 0\n"
        "max_queued_bytes 0\n"
        "max_inflight_messages 0\n"
        # Measured: TCP_NODELAY costs it 5 to 20% of its deliveries/s and is what keeps a single message from waiting.
        f"set_tcp_nodelay {str(latency).lower()}\n"
        "log_type error\n"
    )
    config.chmod(0o644)  # started as root, it reads its file as the user mosquitto
    process = spawn_child([executable, "-c", str(config)], directory / "mosquitto.log")
    target = Target("mosquitto", Address("127.0.0.1", port), process, directory / "mosquitto.log")
    return _when_it_listens(target)


def _start_nats(directory: Path, latency: bool) -> Target:
    executable, port = program_of("nats-server", "nats-server"), free_port()
    config = directory / "nats.conf"
    config.write_text(
        f"host: 127.0.0.1\nport: {port}\n"
        "max_connections: 65536\n"
        # By default a client that is 64 MB or 10 s behind is disconnected; pings would break the fixed lengths.
        'max_pending: 1GB\nwrite_deadline: "60s"\nping_interval: "1h"\n'
    )
    process = spawn_child([executable, "-c", str(config)], directory / "nats.log")
    target = Target("nats", Address("127.0.0.1", port, "nats"), process, directory / "nats.log")
    return _when_it_listens(target)


def _when_it_listens(target: Target) -> Target:
    target.pids = {"brokers": [target.process.pid]}

    def listens() -> bool:
        with contextlib.suppress(OSError), socket.create_connection((target.address.host, target.address.port), 1.0):
            return True
        return False

    wait_until(target, listens)
    return target


def _start_toy(directory: Path, latency: bool) -> Target:
    ready = directory / "toy.json"
    command = [sys.executable, "-m", "lexicast.bench.peers.toy", "--ready-file", str(ready)]
    return from_ready_file("toy", command, directory, ready)


def _lexicast_by_websocket(directory: Path, latency: bool) -> Target:
    port = free_port()
    target = start_lexicast(directory, f"[mqtt]\nws_port = {port}\n")
    target.address = Address("127.0.0.1", port, websocket=True)
    return target


def _mosquitto_by_websocket(directory: Path, latency: bool) -> Target:
    """By TCP where it has no WebSocket: it has less to do then than it would have."""
    if not has_websockets():
        return start_mosquitto(directory, latency)
    port = free_port()  # beside one for TCP: without that it does not start (2.0.11)
    target = start_mosquitto(directory, latency, f"listener {port} 127.0.0.1\nprotocol websockets\n")
    target.address = replace(target.address, port=port, websocket=True)
    return _when_it_listens(target)


_BY_WEBSOCKET: dict[str, Callable[[Path, bool], Target]] = {
    "lexicast": _lexicast_by_websocket,
    "mosquitto": _mosquitto_by_websocket,
}
_STARTERS: dict[str, Callable[[Path, bool], Target]] = {
    "lexicast": lambda directory, latency: start_lexicast(directory),
    "mosquitto": start_mosquitto,
    "nats": _start_nats,
    "toy": _start_toy,
}


@contextlib.contextmanager
def running(
    names: Sequence[str],
    missing: Callable[[str, str], None],
    *,
    latency: bool = False,
    websocket: bool = False,
    config: str = "",
) -> Iterator[dict[str, Target]]:
    """Starts the named targets and stops them at the end, whatever happens.

    `latency` asks for the settings with the least latency where those with the most deliveries/s differ; `websocket`:
    they are loaded over WebSocket, Mosquitto over TCP where it has none; `config` is lexicast's by TCP (TOML).
    A peer that is not installed is reported to `missing(name, what to do)` and left out. Raises `UsageError` for a
    name that is none of them, `UnavailableError` when a target does not start.
    """
    by_tcp = _STARTERS | {"lexicast": lambda directory, latency: start_lexicast(directory, config)}
    starters = _BY_WEBSOCKET if websocket else by_tcp
    for name in names:
        if name not in starters:
            raise UsageError(f"unknown target {name!r}; choose from {', '.join(starters)}")
    with contextlib.ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="lexicast-bench-")))
        directory.chmod(0o755)
        targets: dict[str, Target] = {}
        for name in names:
            (directory / name).mkdir()
            try:
                targets[name] = starters[name](directory / name, latency)
            except TargetMissingError as error:
                missing(name, str(error))
                continue
            stack.callback(targets[name].stop)
        yield targets
