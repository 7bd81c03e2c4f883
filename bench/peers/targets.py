"""The brokers that are measured: how each is started, where it listens, which processes are it, how it is stopped.

Every target runs as its own process group on loopback with its files in a directory of its own, is told to die with
the driver, and is stopped by its process id. The peers get the settings that let them do their best at these loads
(no persistence, no queue limit that drops, no limit on connections); the reasons stand at the settings.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from lexicast.cluster.errors import LexicastError, UnavailableError, UsageError

from .opening import Address
from .wire import Mqtt, Nats, Wire

START_TIMEOUT_S = 120.0
STOP_TIMEOUT_S = 20.0
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
        told = subprocess.run([_executable(command[0], command[0]), *command[1:]], capture_output=True, text=True)
        return told.stdout.strip().splitlines()[0]
    return None


@dataclass
class Target:
    """A running broker. `pids` lists its processes by role; "brokers" are those that hold connections."""

    name: str
    address: Address
    process: subprocess.Popen[bytes]
    log: Path
    pids: dict[str, list[int]] = field(default_factory=dict)

    def wire(self, mqtt_version: int = 4) -> Wire:
        """The protocol to load it with."""
        return Nats() if self.address.protocol == "nats" else Mqtt(mqtt_version)

    def private_kib(self, role: str | None = "brokers") -> int:
        """Anonymous resident memory (RssAnon) in KiB, summed over the processes of `role` (None: of all roles)."""
        chosen = [pid for name, pids in self.pids.items() if role in (None, name) for pid in pids]
        return sum(rss_anon_kib(pid) for pid in chosen)

    def cpu_s(self) -> float:
        """CPU time of all its processes so far, in seconds."""
        return sum(cpu_s(pid) for pids in self.pids.values() for pid in pids)

    def require_alive(self) -> None:
        """Raises `UnavailableError` with the end of its log when the broker has died."""
        if self.process.poll() is not None:
            raise UnavailableError(f"{self.name} ended with code {self.process.returncode}: {_tail(self.log)}")

    def stop(self) -> None:
        """SIGINT, then SIGKILL after `STOP_TIMEOUT_S`; returns when it and every process it started are gone."""
        started: list[psutil.Process] = []
        if self.process.poll() is None:
            started = psutil.Process(self.process.pid).children(recursive=True)
            self.process.send_signal(signal.SIGINT)
        try:
            self.process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        # One that ends well has stopped its own; what a killed one leaves would load every later measurement.
        for left in psutil.wait_procs(started, timeout=2.0)[1]:
            with contextlib.suppress(psutil.NoSuchProcess):
                left.kill()


def rss_anon_kib(pid: int) -> int:
    """RssAnon of one process in KiB, from /proc; raises `UnavailableError` when it is gone."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError as error:
        raise UnavailableError(f"cannot read the memory of process {pid}: {error.strerror}") from error
    return next((int(line.split()[1]) for line in lines if line.startswith("RssAnon:")), 0)


def cpu_s(pid: int) -> float:
    """User and system time of one process in seconds, from /proc; 0 when it is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _tail(log: Path) -> str:
    lines = log.read_text(errors="replace").strip().splitlines() if log.exists() else []
    return " | ".join(lines[-5:]) or "its log is empty"


def free_port() -> int:
    """A port of loopback that is free now: for peers that cannot pick one and tell us."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
    return int(port)


_LIBC = ctypes.CDLL(None)
_PR_SET_PDEATHSIG = 1


def _die_with_driver() -> None:
    """Runs in the child before exec: the kernel sends it SIGTERM when the driver dies, even by SIGKILL."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def spawn(command: Sequence[str], log: Path, environment: dict[str, str] | None = None) -> subprocess.Popen[bytes]:
    """Starts `command` in its own session (a Ctrl-C at the terminal reaches the driver alone), output to `log`."""
    with log.open("wb") as output:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=_die_with_driver,
            env={**os.environ, **(environment or {})},
        )


def _executable(name: str, package: str) -> str:
    # Debian keeps daemons in /usr/sbin, which is not on every user's PATH.
    found = shutil.which(name, path=os.environ.get("PATH", "") + os.pathsep + "/usr/sbin")
    if found is None:
        raise TargetMissingError(f"{name} not found: apt-get install {package}")
    return found


def _start_mosquitto(directory: Path, latency: bool) -> Target:
    executable, port = _executable("mosquitto", "mosquitto"), free_port()
    config = directory / "mosquitto.conf"
    config.write_text(
        f"listener {port} 127.0.0.1\n"
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
    process = spawn([executable, "-c", str(config)], directory / "mosquitto.log")
    target = Target("mosquitto", Address("127.0.0.1", port), process, directory / "mosquitto.log")
    return _when_it_listens(target)


def _start_nats(directory: Path, latency: bool) -> Target:
    executable, port = _executable("nats-server", "nats-server"), free_port()
    config = directory / "nats.conf"
    config.write_text(
        f"host: 127.0.0.1\nport: {port}\n"
        "max_connections: 65536\n"
        # By default a client that is 64 MB or 10 s behind is disconnected; pings would break the fixed lengths.
        'max_pending: 1GB\nwrite_deadline: "60s"\nping_interval: "1h"\n'
    )
    process = spawn([executable, "-c", str(config)], directory / "nats.log")
    target = Target("nats", Address("127.0.0.1", port, "nats"), process, directory / "nats.log")
    return _when_it_listens(target)


def _when_it_listens(target: Target) -> Target:
    target.pids = {"brokers": [target.process.pid]}

    def listens() -> bool:
        with contextlib.suppress(OSError), socket.create_connection((target.address.host, target.address.port), 1.0):
            return True
        return False

    _wait_until(target, listens)
    return target


def _start_toy(directory: Path, latency: bool) -> Target:
    ready = directory / "toy.json"
    command = [sys.executable, "-m", "lexicast.bench.peers.toy", "--ready-file", str(ready)]
    return from_ready_file("toy", command, directory, ready)


def _start_lexicast(directory: Path, latency: bool) -> Target:
    """lexicast through its own command line, as an operator starts it; defaults but for the port and the directory."""
    ready = directory / "lexicast.json"
    command = [sys.executable, "-m", "lexicast.actors.cli", "up", "--data-dir", str(directory / "data")]
    command += ["--mqtt-port", "0", "--ready-file", str(ready)]
    return from_ready_file("lexicast", command, directory, ready)


def from_ready_file(name: str, command: Sequence[str], directory: Path, ready: Path) -> Target:
    """Starts `command`, which writes where it listens (JSON) to `ready` when it serves; returns when it does.

    Raises `UnavailableError` with the end of its log when it dies or takes too long.
    """
    log = directory / f"{name}.log"
    # The child finds the package where this process found it, installed or not.
    target = Target(name, Address("127.0.0.1", 0), spawn(command, log, {"PYTHONPATH": os.pathsep.join(sys.path)}), log)
    _wait_until(target, ready.exists)
    told = json.loads(ready.read_text())
    target.address = Address(told.get("mqtt_host", "127.0.0.1"), int(told["mqtt_port"]))
    # A role that only one process has is written as one number.
    target.pids = {role: pids if isinstance(pids, list) else [pids] for role, pids in told["pids"].items()}
    return target


def _wait_until(target: Target, condition: Callable[[], bool]) -> None:
    """Waits until `condition` holds; stops the target and raises `UnavailableError` when it dies or takes too long."""
    deadline = time.monotonic() + START_TIMEOUT_S
    try:
        while not condition():
            target.require_alive()
            if time.monotonic() > deadline:
                raise UnavailableError(
                    f"{target.name} does not serve after {START_TIMEOUT_S:.0f} s: {_tail(target.log)}"
                )
            time.sleep(0.02)
    except BaseException:
        target.stop()
        raise


_STARTERS: dict[str, Callable[[Path, bool], Target]] = {
    "lexicast": _start_lexicast,
    "mosquitto": _start_mosquitto,
    "nats": _start_nats,
    "toy": _start_toy,
}


@contextlib.contextmanager
def running(
    names: Sequence[str], missing: Callable[[str, str], None], *, latency: bool = False
) -> Iterator[dict[str, Target]]:
    """Starts the named targets and stops them at the end, whatever happens.

    `latency` asks for the settings with the least latency where those with the most deliveries/s differ.
    A peer that is not installed is reported to `missing(name, what to do)` and left out. Raises `UsageError` for a
    name that is none of `NAMES`, `UnavailableError` when a target does not start.
    """
    for name in names:
        if name not in _STARTERS:
            raise UsageError(f"unknown target {name!r}; choose from {', '.join(NAMES)}")
    with contextlib.ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="lexicast-bench-")))
        directory.chmod(0o755)
        targets: dict[str, Target] = {}
        for name in names:
            (directory / name).mkdir()
            try:
                targets[name] = _STARTERS[name](directory / name, latency)
            except TargetMissingError as error:
                missing(name, str(error))
                continue
            stack.callback(targets[name].stop)
        yield targets
