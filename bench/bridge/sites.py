"""The brokers of the driver: a lexicast with a bridge, a Mosquitto with one, a Mosquitto that a bridge leads to."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from lexicast.cluster.errors import UnavailableError

from ..peers.targets import program_of
from ..stage.clusters import start_lexicast
from ..stage.ports import free_port
from ..stage.servers import Address, Target, spawn_child, wait_until

HOST: Final = "127.0.0.1"
_CONFIG: Final = """
listener {port} 127.0.0.1
allow_anonymous true
max_connections -1
max_queued_messages 0
max_queued_bytes 0
max_inflight_messages {inflight}
set_tcp_nodelay false
log_type error
{more}
"""
_BRIDGE: Final = """
connection bench
address 127.0.0.1:{port}
bridge_protocol_version mqttv311
topic # {direction} 1
restart_timeout 1
notifications false
max_inflight_messages {inflight}
"""


class MosquittoSite:
    """A Mosquitto that may be stopped and started again at its port. Raises TargetMissingError, UnavailableError."""

    def __init__(
        self,
        folder: Path,
        inflight: int = 65_535,
        bridge_to: int = 0,
        keeps: bool = False,
        direction: str = "out",
    ) -> None:
        """`bridge_to`: the port of a broker to which its own bridge leads, all topics `direction`; `keeps`: sessions
        outlive a restart."""
        folder.mkdir(parents=True)
        folder.chmod(0o777)
        self.port = free_port()
        self._executable = program_of("mosquitto", "mosquitto")
        more = _BRIDGE.format(port=bridge_to, inflight=inflight, direction=direction) if bridge_to else ""
        if keeps:
            more = f"persistence true\npersistence_location {folder}/\n" + more
        if os.getuid() == 0:
            more = "user root\n" + more
        self._file = folder / "mosquitto.conf"
        self._file.write_text(_CONFIG.format(port=self.port, inflight=inflight, more=more))
        self._log = folder / "mosquitto.log"
        self.target = self._started()

    def _started(self) -> Target:
        process = spawn_child([self._executable, "-c", str(self._file)], self._log)
        target = Target("mosquitto", Address(HOST, self.port), process, self._log, {"brokers": [process.pid]})
        wait_until(target, self._listens)
        return target

    def _listens(self) -> bool:
        try:
            with socket.create_connection((HOST, self.port), 1.0):
                return True
        except OSError:
            return False

    def restart(self, pause_s: float) -> None:
        """It saves what it has, is away for a while, and comes back."""
        self.target.stop()
        time.sleep(pause_s)
        self.target = self._started()

    def stop(self) -> None:
        """End it."""
        self.target.stop()


def bridge_text(name: str, port: int, topics: str, fields: str = "") -> str:
    """One bridge of a `bridges.toml`; `topics`: the value of its field `topic`."""
    return f'[{name}]\naddress = "mqtt://{HOST}:{port}"\nreconnect_s = [0.05, 1]\n{fields}\ntopic = {topics}\n'


def start_bridged(folder: Path, bridges: str, config: str = "") -> Target:
    """A lexicast with these bridges. Raises UnavailableError."""
    folder.mkdir(parents=True)
    file = folder / "bridges.toml"
    file.write_text(bridges)
    return start_lexicast(folder, f'{config}\n[bridge]\nfile = "{file}"\n')


def wait_connected(ask: Callable[[], dict[str, Any]], names: list[str], limit_s: float = 60.0) -> None:
    """Returns when all these bridges are connected; `ask()` tells the cluster's status. Raises UnavailableError."""
    until = time.monotonic() + limit_s
    while True:
        bridges = ask()["bridges"]
        if all(bridges.get(f"bridge-{name}", {}).get("connected") for name in names):
            return
        if time.monotonic() > until:
            raise UnavailableError(f"not all bridges are connected: {bridges}")
        time.sleep(0.2)
