"""Machines of their own on this one, in namespaces (network, PID, mount, UTS), joined by a router that cuts them off.

Their first process is an init that does nothing but reap; all else is started into them. The router is the network
namespace of the driver itself, which therefore has to be started in one of its own (`enter`): nothing of the machine's
own network is touched, and everything here is gone when its processes are, however they end. That needs root, and
`unshare`, `nsenter` and `ip`.

What is cut is dropped without a word (a rule that leads into a black hole), as by a switch that has lost power: what a
machine sends by a rule of the router, what is sent to it by a rule of its own.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from lexicast.cluster.errors import UnavailableError

INSIDE: Final = "LEXICAST_DRILLS_INSIDE"
# As a machine sees it: its own, so that what runs on one finds no socket of another.
TEMPORARY: Final = Path("/tmp")
PROGRAMS: Final = ("unshare", "nsenter", "ip")
NETWORK: Final = "10.77"
COMMAND_S: Final = 120.0
# Addresses of the own machine are looked up behind the rules that cut, so that these hold for them as well.
CUT_RANK: Final = "10"
LOCAL_RANK: Final = "20"
# Reaps whatever its machine leaves behind: a shell waits for any child.
INIT: Final = ("sh", "-c", "hostname $0; while :; do sleep 1; done")

_LIBC: Final = ctypes.CDLL(None)
_PR_SET_PDEATHSIG: Final = 1


def lacking() -> str:
    """Why no machines can be made here; "" where they can."""
    if os.geteuid() != 0:
        return "namespaces need root"
    if Path(sys.executable).absolute().is_relative_to(TEMPORARY):
        return f"each machine has a {TEMPORARY} of its own, and {sys.executable} lies below it: use another folder"
    missing = [program for program in PROGRAMS if _found(program) is None]
    return f"not installed: {', '.join(missing)} (scripts/debian ip=iproute2)" if missing else ""


def enter(module: str, arguments: Sequence[str]) -> None:
    """Become the same driver in a network and mount namespace of its own; returns when this is it already."""
    if os.environ.get(INSIDE) == str(os.getpid()):
        return
    os.environ[INSIDE] = str(os.getpid())
    os.environ["PYTHONPATH"] = os.pathsep.join(p for p in sys.path if p)
    command = ["unshare", "--net", "--mount", sys.executable, "-m", module, *arguments]
    os.execv(str(_found("unshare")), command)


def _found(program: str) -> str | None:
    return shutil.which(program, path=os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"]))


def _die_with_driver() -> None:
    """Between fork and exec: whatever becomes of the driver, its machines end."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def shell(*command: str, check: bool = True) -> str:
    """The output of a command of the system. Raises UnavailableError."""
    found = subprocess.run(
        [_found(command[0]) or command[0], *command[1:]], capture_output=True, text=True, timeout=COMMAND_S, check=False
    )
    if check and found.returncode:
        raise UnavailableError(f"{' '.join(command)}: {(found.stderr or found.stdout).strip()[-500:]}")
    return found.stdout


def open_router() -> None:
    """Make this process's network namespace the router. Raises UnavailableError."""
    shell("ip", "link", "set", "lo", "up")
    Path("/proc/sys/net/ipv4/ip_forward").write_text("1")
    _rank_local(shell)


def _rank_local(run: object) -> None:
    assert callable(run)
    run("ip", "rule", "add", "pref", LOCAL_RANK, "lookup", "local")
    run("ip", "rule", "del", "pref", "0")


class Machine:
    """One of them. `folder` holds what lasts when it loses power: its disk."""

    def __init__(self, number: int, folder: Path) -> None:
        self.number = number
        self.name = f"machine-{number}"
        self.host = f"{NETWORK}.{number}.2"
        self.folder = folder
        self.disk = folder / "disk"
        self._link = f"lexi{number}"
        self._process: subprocess.Popen[bytes] | None = None
        self._init = 0

    # -- life

    def start(self, mounts: Sequence[tuple[Path, Path]]) -> None:
        """Give it power. `mounts`: (what of this machine's files, where it sees them). Raises UnavailableError."""
        self.disk.mkdir(parents=True, exist_ok=True)
        command = [str(_found("unshare")), "-n", "-p", "-m", "-u", "--fork", "--kill-child"]
        command += ["--mount-proc", *INIT, self.name]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            preexec_fn=_die_with_driver,
        )
        self._init = self._wait_init()
        shell("ip", "link", "add", self._link, "type", "veth", "peer", "name", "eth0", "netns", str(self._init))
        shell("ip", "address", "add", f"{NETWORK}.{self.number}.1/24", "dev", self._link)
        shell("ip", "link", "set", self._link, "up")
        for text in ("link set lo up", f"address add {self.host}/24 dev eth0", "link set eth0 up"):
            self.run("ip", *text.split())
        self.run("ip", "route", "add", "default", "via", f"{NETWORK}.{self.number}.1")
        _rank_local(self.run)
        for source, seen in mounts:
            for folder in (source, seen):
                folder.mkdir(parents=True, exist_ok=True)
            self.run("mount", "--rbind", str(source), str(seen))

    def _wait_init(self) -> int:
        assert self._process is not None
        until = time.monotonic() + COMMAND_S
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children")
        while time.monotonic() < until and self._process.poll() is None:
            for pid in children.read_text().split():
                # Until it is the shell its /proc is not mounted yet.
                with suppress(OSError):
                    if Path(f"/proc/{pid}/comm").read_text().strip() == INIT[0]:
                        return int(pid)
            time.sleep(0.01)
        raise UnavailableError(f"{self.name} does not start: unshare ended with {self._process.poll()}")

    def kill(self) -> None:
        """End all of its processes at once, by their init; its kernel still says goodbye for them."""
        if self._process is None:
            return
        with suppress(ProcessLookupError):
            os.kill(self._init, signal.SIGKILL)
        self._process.wait(COMMAND_S)
        self._process = None
        # The namespace's end takes its side of the link away, later on.
        shell("ip", "link", "del", self._link, check=False)
        self.mend()

    @property
    def runs(self) -> bool:
        """Whether it has power."""
        return self._process is not None and self._process.poll() is None

    # -- what runs in it

    def inside(self, *command: str) -> list[str]:
        """The command line that runs this one in it."""
        return [str(_found("nsenter")), "-t", str(self._init), "-n", "-p", "-m", "-u", *command]

    def run(self, *command: str) -> str:
        """The output of a command of the system in it. Raises UnavailableError."""
        return shell(*self.inside(_found(command[0]) or command[0], *command[1:]))

    def start_process(self, command: Sequence[str], log: Path, environment: dict[str, str]) -> subprocess.Popen[bytes]:
        """Start a command in it; its output goes to `log`."""
        return self._started(self.inside(*command), log, environment)

    def start_beside(self, command: Sequence[str], log: Path) -> subprocess.Popen[bytes]:
        """Start a command that shares its network alone: what befalls the machine's processes does not befall it."""
        return self._started([str(_found("nsenter")), "-t", str(self._init), "-n", *command], log, {})

    @staticmethod
    def _started(command: Sequence[str], log: Path, environment: dict[str, str]) -> subprocess.Popen[bytes]:
        with log.open("ab") as output:
            return subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=_die_with_driver,
                env={**os.environ, **environment},
            )

    def processes(self) -> dict[int, int]:
        """Its processes but the init: {number in it: number here}."""
        own = Path(f"/proc/{self._init}/ns/pid").readlink()
        found = {}
        for folder in Path("/proc").iterdir():
            if folder.name.isdigit() and int(folder.name) != self._init:
                with suppress(OSError):
                    if (folder / "ns" / "pid").readlink() == own:
                        lines = (folder / "status").read_text().splitlines()
                        numbers = next(line.split() for line in lines if line.startswith("NSpid:"))
                        found[int(numbers[-1])] = int(folder.name)
        return found

    def named(self, name: str) -> list[int]:
        """Its processes of that name, as they are numbered here."""
        found = []
        for pid in self.processes().values():
            with suppress(OSError):
                if Path(f"/proc/{pid}/comm").read_text().startswith(name):
                    found.append(pid)
        return found

    def signal_all(self, number: int) -> None:
        """All of its processes get the signal."""
        for pid in self.processes().values():
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    # -- its link

    def cut(self, *, incoming: bool, outgoing: bool) -> None:
        """Drop what is sent to it, by it, from now on."""
        if outgoing:
            shell("ip", "rule", "add", "pref", CUT_RANK, "iif", self._link, "blackhole")
        if incoming:
            self.run("ip", "rule", "add", "pref", CUT_RANK, "iif", "eth0", "blackhole")

    def mend(self) -> None:
        """Drop nothing any more."""
        shell("ip", "rule", "del", "pref", CUT_RANK, "iif", self._link, check=False)
        if self.runs:
            shell(*self.inside(str(_found("ip")), "rule", "del", "pref", CUT_RANK), check=False)
