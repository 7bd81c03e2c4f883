"""The cluster that is drilled: a Ray of some nodes, each on a machine of its own (`machines`), with `lexicast up`.

The first machine is the head: Ray's control process and the coordination server are there, and `lexicast up`. Every
machine has a broker and a coordinator, and each topic group two copies. Files that last lie below one folder: what is a
machine's disk, and what is Ray's. Nodes are labelled with their locations, where they have any. Each has so many
matchers as are asked for.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from lexicast.actors.client.address import read_run
from lexicast.actors.client.known_brokers import Endpoint
from lexicast.actors.status.over_link import ask_any_broker
from lexicast.cluster.errors import LexicastError, UnavailableError

from ..stage.servers import log_tail
from .disks import OwnDisk
from .machines import TEMPORARY, Machine
from .overview import Overview
from .truth.probing import HTTP_PORT, Probers

START_S: Final = 120.0
HEAL_S: Final = 150.0
LOCATION_LABEL: Final = "lexicast-location"
RAY_LOG: Final = "ray.log"
RAY_PORT: Final = 6379
MQTT_PORT: Final = 1883
DATA: Final = TEMPORARY / "data"
# A node that is silent is dead for Ray after some 9 s (its default is a minute, `ray_cluster.yaml` says 3): longer than
# any pause or cut here, whose victims are to come back as what they were.
RAY_ENVIRONMENT: Final = {
    "RAY_AUTH_MODE": "disabled",  # nobody else reaches this network
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_worker_niceness": "0",
    "RAY_health_check_initial_delay_ms": "1000",
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_timeout_ms": "1000",
    "RAY_health_check_failure_threshold": "8",
}
CONFIG: Final = """
[cluster]
copies = 2
[mqtt]
allow_anonymous = "always"
[security]
insecure = true
[node]
matchers = {matchers}
"""
CONSOLES: Final = """
[http]
port = {port}
"""
# Of a few matchers: most do not know each other, so that what is for them goes over others.
OVERLAY: Final = """
[content]
overlay_beyond = 0
overlay_base = 2
overlay_levels = 2
overlay_contacts = 1
"""


class DrilledCluster:
    """See the module's docstring."""

    def __init__(
        self,
        folder: Path,
        nodes: int,
        locations: Sequence[str] = (),
        matchers: int = 0,
        overlay: bool = False,
        probed: bool = False,
    ) -> None:
        """`locations`: of each node; where they are given no machine has a disk of its own. `matchers`: a node;
        `overlay`: they form one; `probed`: nodes have consoles, which probers ask."""
        self.folder = folder
        self._matchers = matchers
        self._config = CONFIG.format(matchers=matchers) + (OVERLAY if overlay else "")
        self._config += CONSOLES.format(port=HTTP_PORT) if probed else ""
        self.probers = Probers(MQTT_PORT) if probed else None
        self._locations = locations
        self.own_disk: OwnDisk | None = None
        self.machines = [Machine(number, folder / f"m{number}") for number in range(nodes)]
        self._up: subprocess.Popen[bytes] | None = None
        self.key = b""
        self.restarts = 0

    # -- life

    def start(self) -> None:
        """Returns when everything serves. Raises UnavailableError."""
        if not self._locations:
            self.own_disk = OwnDisk(self.machines[-1])
        self.power_on(self.head)
        joining = self.machines[1:]
        for machine in joining:
            self._give_power(machine)
        # All at once, but in one thread: a child dies with the thread that made it.
        for machine, process in [(machine, self._begin_ray(machine)) for machine in joining]:
            self._wait_ray(machine, process)
        self.start_up()

    def power_on(self, machine: Machine) -> None:
        """Give a machine power, and start its Ray. Raises UnavailableError."""
        self._give_power(machine)
        self.start_ray(machine)

    def _give_power(self, machine: Machine) -> None:
        temporary = machine.folder / "tmp"
        shutil.rmtree(temporary, ignore_errors=True)
        machine.start([(machine.disk, temporary / DATA.name), (temporary, TEMPORARY)])
        if self.probers is not None:
            self.probers.begin(machine)

    def start_ray(self, machine: Machine) -> None:
        """Start Ray there, as head or to join the head. Raises UnavailableError."""
        self._wait_ray(machine, self._begin_ray(machine))

    def _begin_ray(self, machine: Machine) -> subprocess.Popen[bytes]:
        which = ["--head", f"--port={RAY_PORT}", "--include-dashboard=false"]
        if machine is not self.head:
            which = [f"--address={self.head.host}:{RAY_PORT}"]
        if self._locations:
            which.append(f"--labels={LOCATION_LABEL}={self._locations[machine.number]}")
        common = ["--num-cpus=1", f"--node-ip-address={machine.host}", "--object-store-memory=100000000"]
        command = [str(Path(sys.executable).with_name("ray")), "start", "--disable-usage-stats", *which, *common]
        return machine.start_process(command, machine.folder / RAY_LOG, RAY_ENVIRONMENT)

    @staticmethod
    def _wait_ray(machine: Machine, process: subprocess.Popen[bytes]) -> None:
        log = machine.folder / RAY_LOG
        if process.wait(START_S):
            raise UnavailableError(f"Ray does not start on {machine.name}: {log_tail(log)}")

    def start_up(self) -> None:
        """`lexicast up` on the head; returns when it serves. Raises UnavailableError."""
        temporary, log = self.head.folder / "tmp", self.folder / "up.log"
        ready = temporary / "ready.json"
        ready.unlink(missing_ok=True)
        (temporary / "lexicast.toml").write_text(self._config)
        where = ["--address", f"{self.head.host}:{RAY_PORT}", "--nodes", str(len(self.machines))]
        files = ["--config", str(TEMPORARY / "lexicast.toml"), "--data-dir", str(DATA)]
        more = ["--mqtt-port", str(MQTT_PORT), "--ready-file", str(TEMPORARY / ready.name)]
        command = [sys.executable, "-m", "lexicast.actors.cli", "up", *where, *files, *more]
        self._up = self.head.start_process(command, log, RAY_ENVIRONMENT)
        until = time.monotonic() + START_S
        while not ready.exists():
            if self._up.poll() is not None or time.monotonic() > until:
                raise UnavailableError(f"the cluster does not start: {log_tail(log)}")
            time.sleep(0.05)
        self.key = (self.head.disk / "cluster.key").read_bytes()

    def node(self, *arguments: str) -> None:
        """`lexicast node` with these arguments, on the head; returns when it has ended. Raises UnavailableError."""
        log = self.folder / "node.log"
        command = [sys.executable, "-m", "lexicast.actors.cli", "node", *arguments, "--data-dir", str(DATA)]
        if self.head.start_process(command, log, RAY_ENVIRONMENT).wait(START_S):
            raise UnavailableError(f"lexicast node {' '.join(arguments)} has failed: {log_tail(log)}")

    def stop_up(self) -> None:
        """End `lexicast up` and all its actors, cleanly where that can be."""
        if self._up is None:
            return
        for pid in self.head.processes().values():
            with suppress(OSError):
                arguments = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
                if b"lexicast.actors.cli" in arguments:
                    os.kill(pid, signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):
            self._up.wait(START_S)
        self._up = None

    def close(self) -> None:
        """End everything."""
        if self.probers is not None:
            self.probers.close()
        for machine in self.machines:
            machine.kill()
        if self.own_disk is not None:
            self.own_disk.close()

    # -- what is where

    @property
    def head(self) -> Machine:
        """The machine of Ray's control process and of the coordination server."""
        return self.machines[0]

    def endpoints(self) -> list[Endpoint]:
        """The brokers that serve now, as a Python client takes them. Raises LexicastError."""
        run = read_run(self.head.disk)
        return [
            Endpoint(name, tuple(a for a in addresses if a.startswith("tcp:")), run["cluster_id"], self.key)
            for name, addresses in run["brokers"].items()
        ]

    async def overview(self) -> dict[str, Any]:
        """What `lexicast status --json` tells; empty when nobody answers."""
        with suppress(LexicastError, OSError, TimeoutError):
            return dict(await ask_any_broker(self.endpoints(), "cluster"))
        return {}

    async def look(self) -> Overview:
        """Its status, and where each of its actors is."""
        return Overview(await self.overview(), self.machines)

    async def healed(self, within_s: float = HEAL_S) -> Overview:
        """Returns when all actors serve, matchers are linked, and every group has two copies. Raises
        UnavailableError."""
        until, lacks, seen = time.monotonic() + within_s, "", Overview({}, ())
        while time.monotonic() < until:
            seen = await self.look()
            nodes = len(self.machines)
            lacks = seen.lacks(nodes, self._matchers * nodes, nodes if self.probers is not None else 0)
            if not lacks:
                return seen
            if seen.needs_operator():
                break
            await asyncio.sleep(0.3)
        raise UnavailableError(f"the cluster is not whole again: {lacks} ({seen.warnings()})")

    async def restore(self) -> str:
        """Whole again, whatever was done to it: machines get power and Ray, and where actors do not come back by
        themselves `lexicast up` is ended and started again: why, else "". Raises UnavailableError."""
        for machine in self.machines:
            if not machine.runs:
                await asyncio.to_thread(self.power_on, machine)
            elif not machine.named("raylet"):
                await asyncio.to_thread(self.start_ray, machine)
        try:
            await self.healed()
        except UnavailableError as error:
            self.restarts += 1
            await asyncio.to_thread(self.stop_up)
            await asyncio.to_thread(self.start_up)
            await self.healed()
            return str(error)
        return ""
