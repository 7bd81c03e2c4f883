"""Machines that are namespaces: each has a network address, a host name, processes and a disk of its own, and an sshd.

The operator's machine has the switch that the others are plugged into. Nothing is visible from outside: no interface,
no address, no file but those below one folder. A machine is its first process, which is killed when its parent ends,
so nothing outlives the process that made the network, however that ends.

All of a machine's processes run as the user `lexicast`, who is root by another name and has a home of his own there.
"""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from ipaddress import ip_address
from pathlib import Path
from typing import Final

from lexicast.cluster.errors import UnavailableError

PROGRAMS: Final = {
    **dict.fromkeys(("sshd", "ssh", "ssh-keygen"), "openssh-server"),
    "rsync": "rsync",
    "ip": "iproute2",
    **dict.fromkeys(("unshare", "nsenter", "setpriv", "mount"), "util-linux"),
    **dict.fromkeys(("mosquitto_pub", "mosquitto_sub"), "mosquitto-clients"),
}
USER: Final = "lexicast"
PREFIX_BITS: Final = 24
START_S: Final = 90.0
PAUSE_S: Final = 0.02
NEW: Final = ("--mount", "--uts", "--ipc", "--net", "--pid")
FIRST_PROCESS: Final = (
    *("setpriv", "--pdeathsig", "KILL"),
    *("unshare", *NEW, "--mount-proc", "--fork", "--kill-child", "--"),
)
SYSTEM_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# Where the programs under test are found, which a login shell does not know by itself.
HANDED_ON: Final = ("PYTHONPATH", "LEXICAST_PURE")

PROGRAM_FOLDERS: Final = sorted(
    {
        Path(folder).resolve()
        for folder in (sys.prefix, sys.base_prefix, *os.environ.get("PYTHONPATH", "").split(os.pathsep))
        if folder
    }
)

# The first process of a machine. What lies below /tmp and is needed there is bound into the machine's own /tmp.
BOOT: Final = """
set -eu
hostname "$NAME"
for path in $NEEDED; do
    mkdir -p "$DISK$path"
    mount --bind "$path" "$DISK$path"
done
mount --rbind "$DISK/tmp" /tmp
mount -t tmpfs -o size=8g,mode=1777 shm /dev/shm
mount -t tmpfs -o mode=755 run /run
mkdir -p /run/sshd
mount --bind "$BASE/passwd.$NAME" /etc/passwd
ip link set lo up
"""
WORKER: Final = """
until ip link set eth0 up 2> /dev/null; do sleep 0.02; done
ip address add "$ADDRESS" dev eth0
exec "$(command -v sshd)" -D -e -f "$BASE/sshd_config"
"""
OPERATOR: Final = """
ip link add br0 address "$CARD" type bridge
ip address add "$ADDRESS" dev br0
ip link set br0 up
touch "$BASE/ready"
exec sleep infinity
"""
# Port 22: Ray has no option for another one. All else is the defaults, but that nothing of this machine's is read.
SSHD: Final = """
HostKey {base}/host_key
PidFile none
UsePAM no
AuthorizedKeysFile .ssh/authorized_keys
StrictModes no
PrintMotd no
"""


def lacking() -> str:
    """Why machines cannot be made here; "" where they can."""
    if os.geteuid() != 0:
        return "namespaces with networks of their own need root"
    path = f"{os.environ['PATH']}:{SYSTEM_PATH}"
    packages = {package for program, package in PROGRAMS.items() if not shutil.which(program, path=path)}
    if packages:
        return f"not installed: {' '.join(sorted(packages))}"
    tried = "mount -t tmpfs none /mnt && ip link add br0 type bridge && ip link add left type veth peer name right"
    made = subprocess.run(
        ["unshare", *NEW, "--fork", "--mount-proc", "sh", "-c", tried],
        capture_output=True,
        text=True,
        env={**os.environ, "PATH": path},
        check=False,
    )
    return "" if made.returncode == 0 else f"no namespaces with networks of their own here: {made.stderr.strip()}"


class SshMachine:
    """One machine, which can be switched on and off; its disk stays."""

    def __init__(self, base: Path, name: str, address: str, role: str) -> None:
        """`address`: in the network's `PREFIX_BITS`; `role`: what its first process does after `BOOT`."""
        self.name = name
        self.address = address
        # The same whenever it is on: what others remember of it (ARP) would lead nowhere for half a minute.
        self.card = "02:00:" + ":".join(f"{number:02x}" for number in ip_address(address).packed)
        self.home = base / name / "home"
        self._base = base
        self._disk = base / name / "disk"
        self._role = role
        self._process: subprocess.Popen[bytes] | None = None
        self.pid = 0
        self.home.mkdir(parents=True, mode=0o700)
        (self._disk / "tmp").mkdir(parents=True)
        (self._disk / "tmp").chmod(0o1777)
        lines = Path("/etc/passwd").read_text(encoding="utf-8")
        (base / f"passwd.{name}").write_text(f"{USER}:*:0:0::{self.home}:/bin/bash\n{lines}", encoding="utf-8")
        exports = {"PATH": f"{Path(sys.executable).parent}:{SYSTEM_PATH}"}
        exports |= {key: os.environ[key] for key in HANDED_ON if key in os.environ}
        profile = "".join([f"export {key}={shlex.quote(value)}\n" for key, value in exports.items()])
        for file in (".profile", ".bashrc"):  # of login shells, and of `ssh MACHINE COMMAND`
            (self.home / file).write_text(profile, encoding="utf-8")

    def switch_on(self) -> None:
        """Start its first process; what it does is `role`. Main thread: it ends with the thread that started it."""
        bound = sorted([str(path) for path in (self._base, *PROGRAM_FOLDERS) if Path("/tmp") in path.parents])
        environment = {
            "PATH": SYSTEM_PATH,
            "NAME": self.name,
            "ADDRESS": f"{self.address}/{PREFIX_BITS}",
            "CARD": self.card,
            "BASE": str(self._base),
            "DISK": str(self._disk),
            "NEEDED": " ".join(bound),
        }
        with (self._base / self.name / "console.txt").open("ab") as console:
            self._process = subprocess.Popen(
                [*FIRST_PROCESS, "bash", "-c", BOOT + self._role],
                stdin=subprocess.DEVNULL,
                stdout=console,
                stderr=console,
                env=environment,
                start_new_session=True,
            )
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children")
        wait_until(lambda: self._runs() and bool(children.read_text()), f"{self.name} starts")
        self.pid = int(children.read_text())

    def _runs(self) -> bool:
        if self._process is None or self._process.poll() is not None:
            raise UnavailableError(f"{self.name} does not start: {self.console()}")
        return True

    def console(self) -> str:
        """What its first process said."""
        return (self._base / self.name / "console.txt").read_text(errors="replace")[-2_000:]

    def switch_off(self) -> None:
        """As by the plug: every process on it is killed at once."""
        if self._process is not None:
            if self._process.poll() is None and self.pid:
                os.kill(self.pid, signal.SIGKILL)
                with suppress(subprocess.TimeoutExpired):  # it waits until all of them are gone
                    self._process.wait(START_S)
            self._process.kill()
            self._process.wait()
        self._process, self.pid = None, 0

    def command(self, line: str, folder: str = "") -> list[str]:
        """The command that runs a line of shell there, in `folder` (its home)."""
        enter = ["nsenter", "--target", str(self.pid), "--mount", "--uts", "--ipc", "--net", "--pid"]
        clean = ["env", "-i", f"HOME={self.home}", f"USER={USER}", "TERM=dumb", "LANG=C.UTF-8", f"PATH={SYSTEM_PATH}"]
        begin = f"cd {shlex.quote(folder or str(self.home))} && "
        return [*enter, *clean, "bash", "--login", "-c", begin + line]

    def run(self, line: str, timeout_s: float = START_S) -> str:
        """What a line of shell says there. Raises UnavailableError where it fails."""
        done = subprocess.run(
            self.command(line), stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=timeout_s, check=False
        )
        if done.returncode:
            raise UnavailableError(f"{self.name}: {line} ended with {done.returncode}: {done.stderr[-500:]}")
        return done.stdout.strip()


class MachineRoom:
    """An operator's machine, and others on its switch."""

    def __init__(self, base: Path, operator: str, machines: dict[str, str]) -> None:
        """`operator`: the address of the operator's; `machines`: name -> address."""
        self._base = base
        self.operator = SshMachine(base, "operator", operator, OPERATOR)
        self.machines = {name: SshMachine(base, name, address, WORKER) for name, address in machines.items()}
        key = self.operator.home / ".ssh" / "id_ed25519"
        key.parent.mkdir(mode=0o700)
        for file in (key, base / "host_key"):
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(file)], check=True)
        for machine in self.machines.values():
            keys = machine.home / ".ssh" / "authorized_keys"
            keys.parent.mkdir(mode=0o700)
            shutil.copyfile(key.with_suffix(".pub"), keys)
        (base / "sshd_config").write_text(SSHD.format(base=base), encoding="utf-8")
        (key.parent / "config").write_text("StrictHostKeyChecking no\nUserKnownHostsFile /dev/null\nLogLevel ERROR\n")

    def switch_on(self, names: Sequence[str] = ()) -> None:
        """The operator's machine, unless it runs, and these others. Raises UnavailableError."""
        if not self.operator.pid:
            self.operator.switch_on()
            wait_until((self._base / "ready").exists, f"the operator's machine starts: {self.operator.console()}")
        for name in names:
            machine = self.machines[name]
            machine.switch_on()
            switch = ["nsenter", "--target", str(self.operator.pid), "--net", "ip", "link"]
            cable = ["master", "br0", "up", "type", "veth", "peer", "name", "eth0", "address", machine.card]
            cable += ["netns", str(machine.pid)]
            # Of the last time it was on: the kernel takes it away some time after the namespace's end.
            subprocess.run([*switch, "del", name], capture_output=True, check=False)
            subprocess.run([*switch, "add", "name", name, *cable], check=True)
        for name in names:
            self._wait_for_sshd(self.machines[name])

    def _wait_for_sshd(self, machine: SshMachine) -> None:
        probe = self.operator.command(f"timeout 2 bash -c 'exec 3<> /dev/tcp/{machine.address}/22'")
        wait_until(
            lambda: not subprocess.run(probe, capture_output=True, check=False).returncode,
            f"{machine.name} has an sshd",
        )

    def switch_off(self) -> None:
        """All of them."""
        for machine in (*self.machines.values(), self.operator):
            machine.switch_off()


@contextmanager
def network(base: Path, operator: str, machines: dict[str, str]) -> Iterator[MachineRoom]:
    """A network whose machines are off; all ends at the end."""
    made = MachineRoom(base, operator, machines)
    try:
        yield made
    finally:
        made.switch_off()


def wait_until(holds: Callable[[], bool], what: str, seconds: float = START_S) -> None:
    """Raises UnavailableError where it does not come true."""
    until = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > until:
            raise UnavailableError(f"waited {seconds:.0f} s in vain: {what}")
        time.sleep(PAUSE_S)
