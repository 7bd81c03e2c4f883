"""A server as a child process: how it is started, where it listens, which processes are it, how it is stopped.

Each runs in a session of its own on loopback with its files in a directory of its own, is told to die with the driver,
and is stopped by its process id.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from lexicast.cluster.errors import UnavailableError

START_TIMEOUT_S = 120.0
STOP_TIMEOUT_S = 20.0


@dataclass(frozen=True)
class Address:
    """Where a broker listens, and which protocol it speaks there; `cafile`: with TLS, whom to trust; `websocket`: over
    WebSocket."""

    host: str
    port: int
    protocol: str = "mqtt"
    cafile: str = ""
    websocket: bool = False


@dataclass
class Target:
    """A running broker. `pids` lists its processes by role; "brokers" are those that hold connections."""

    name: str
    address: Address
    process: subprocess.Popen[bytes]
    log: Path
    pids: dict[str, list[int]] = field(default_factory=dict)

    def private_kib(self, role: str | None = "brokers") -> int:
        """Anonymous resident memory (RssAnon) in KiB, summed over the processes of `role` (None: of all roles)."""
        chosen = [pid for name, pids in self.pids.items() if role in (None, name) for pid in pids]
        return sum(rss_anon_kib(pid) for pid in chosen)

    def cpu_s(self) -> float:
        """CPU time of all its processes so far, in seconds."""
        return sum(cpu_s(pid) for pids in self.pids.values() for pid in pids)

    def cpu_by_role(self) -> dict[str, float]:
        """The same of each role."""
        return {role: sum(map(cpu_s, pids)) for role, pids in self.pids.items()}

    def require_alive(self) -> None:
        """Raises `UnavailableError` with the end of its log when the broker has died."""
        if self.process.poll() is not None:
            raise UnavailableError(f"{self.name} ended with code {self.process.returncode}: {log_tail(self.log)}")

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
    """User and system time of one process in seconds, to the nanosecond; 0 when it is gone."""
    try:
        # The id of a process's CPU clock (clock_getcpuclockid(3)); /proc/PID/stat has steps of 10 ms.
        return time.clock_gettime(~pid << 3 | 2)
    except OSError:
        return 0.0


def log_tail(log: Path, lines_max: int = 5) -> str:
    """The last lines that a process wrote, joined into one for an error's message."""
    lines = log.read_text(errors="replace").strip().splitlines() if log.exists() else []
    return " | ".join(lines[-lines_max:]) or "its log is empty"


_LIBC = ctypes.CDLL(None)
_PR_SET_PDEATHSIG = 1


def _die_with_driver() -> None:
    """Runs in the child before exec: the kernel sends it SIGTERM when the driver dies, even by SIGKILL."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def spawn_child(
    command: Sequence[str], log: Path, environment: dict[str, str] | None = None
) -> subprocess.Popen[bytes]:
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


def from_ready_file(name: str, command: Sequence[str], directory: Path, ready: Path) -> Target:
    """Starts `command`, which writes where it listens (JSON) to `ready` when it serves; returns when it does.

    Raises `UnavailableError` with the end of its log when it dies or takes too long.
    """
    log = directory / f"{name}.log"
    # The child finds the package where this process found it, installed or not.
    child = spawn_child(command, log, {"PYTHONPATH": os.pathsep.join(sys.path)})
    target = Target(name, Address("127.0.0.1", 0), child, log)
    wait_until(target, ready.exists)
    told = json.loads(ready.read_text())
    target.address = Address(told.get("mqtt_host", "127.0.0.1"), int(told["mqtt_port"]))
    # A role that only one process has is written as one number.
    target.pids = {role: pids if isinstance(pids, list) else [pids] for role, pids in told["pids"].items()}
    return target


def wait_until(target: Target, condition: Callable[[], bool]) -> None:
    """Waits until `condition` holds; stops the target and raises `UnavailableError` when it dies or takes too long."""
    deadline = time.monotonic() + START_TIMEOUT_S
    try:
        while not condition():
            target.require_alive()
            if time.monotonic() > deadline:
                raise UnavailableError(
                    f"{target.name} does not serve after {START_TIMEOUT_S:.0f} s: {log_tail(target.log)}"
                )
            time.sleep(0.02)
    except BaseException:
        target.stop()
        raise
