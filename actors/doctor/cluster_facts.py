"""What checks of lexicast's own things judge, gathered: ports, stores, what Ray has left, what the cluster tells."""

from __future__ import annotations

import asyncio
import os
import socket
import stat
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import psutil

from lexicast.cluster.bridges.definitions import BridgeDefinition, BridgeSecrets
from lexicast.cluster.config.tables import Config
from lexicast.cluster.errors import LexicastError, UnavailableError

from ..bridge.remote_link import tls_context
from ..broker.port_claim import PORT_OPTION, check_free
from ..client.address import KEY_FILE, RUN_FILE, read_run, resolver
from ..launch.bridge_files import read_bridges
from ..launch.node_addresses import NodeAddresses
from ..status.over_link import ask_any_broker
from .network import ConfiguredPort
from .ray_state import RaySession, RaySessions
from .safety import BridgeFiles
from .served import RunState

ASK_TIMEOUT_S: Final = 6.0
SESSIONS_MAX: Final = 2_000
LOOK_S: Final = 2.0  # at Ray's sessions
CONNECT_TIMEOUT_S: Final = 0.2
# Of a process's start as psutil computes it.
STARTS_ALIKE_S: Final = 2.0


def run_state(folder: Path) -> RunState:
    """What `lexicast up` has left in a data folder."""
    if not (folder / RUN_FILE).exists():
        return RunState(str(folder), None)
    try:
        run = read_run(folder)
    except LexicastError as error:
        return RunState(str(folder), None, failure=str(error))
    return RunState(str(folder), run, _is_alive(run))


def _is_alive(run: dict[str, Any]) -> bool:
    """Whether the process that wrote it runs, and is no later one with its number."""
    try:
        started_s = psutil.Process(int(run["up_pid"])).create_time()
        return bool(started_s <= int(run["started_us"]) / 1_000_000 + STARTS_ALIKE_S)
    except (psutil.Error, KeyError, TypeError, ValueError):
        return False


def told_by_brokers(folder: Path) -> dict[str, Any]:
    """The cluster's status, see `report.gather`. Raises UnavailableError."""
    if not (folder / KEY_FILE).exists():
        raise UnavailableError(f"{folder / KEY_FILE}, the key of its links, is missing")

    async def ask() -> dict[str, Any]:
        async with asyncio.timeout(ASK_TIMEOUT_S):
            told: dict[str, Any] = await ask_any_broker(await resolver(None, folder, None)(), "cluster")
            return told

    try:
        return asyncio.run(ask())
    except TimeoutError:
        raise UnavailableError(f"none has answered within {ASK_TIMEOUT_S:.0f} s") from None


def configured_ports(config: Config) -> list[ConfiguredPort]:
    """All but those that are 0: any free one, or none."""
    addresses = NodeAddresses(config, {})
    found = [ConfiguredPort("mqtt.port", addresses.mqtt_host(), config.mqtt.port)]
    more = config.mqtt.more_ports()
    found += [ConfiguredPort(each.port_knob, addresses.host_of(each), each.port) for each in more]
    found.append(ConfiguredPort("http.port", config.http.host, config.http.port))
    return [each for each in found if each.port]


def with_holder(port: ConfiguredPort) -> ConfiguredPort:
    """The same, with who has it."""
    try:
        check_free(port.host, port.port)
    except UnavailableError as error:
        return port._replace(refusal=str(error).replace(PORT_OPTION, port.knob), holder=_holder(port.port))
    return port


def _holder(port: int) -> str:
    """The process that listens there, as far as this user may know."""
    with suppress(psutil.Error, OSError):
        listed: Any = psutil.net_connections("tcp")  # of what kind an address is its types do not say
        for each in listed:
            if each.status == psutil.CONN_LISTEN and each.laddr and each.laddr.port == port and each.pid:
                return f"process {each.pid}, {psutil.Process(each.pid).name()}"
    return ""


def stores_bytes(folder: Path) -> list[int]:
    """Of each store below a data folder the bytes that it takes."""
    return [_taken_bytes(each, time.monotonic() + LOOK_S)[0] for each in folder.glob("coordinator-*")]


def mode_of(path: Path) -> int | None:
    """The rights of a file; None where there is none."""
    try:
        return stat.S_IMODE(path.stat().st_mode)
    except OSError:
        return None


def bridge_files(path: str) -> list[BridgeFiles]:
    """The bridges that a file defines. Raises ConfigError: `lexicast up` would not take them."""
    return [_bridge_files(definition, secrets) for definition, secrets in read_bridges(path)]


def _bridge_files(definition: BridgeDefinition, secrets: BridgeSecrets) -> BridgeFiles:
    tls_context(definition, secrets)
    found = {}
    for field, data in (("ca", secrets.ca), ("certificate", secrets.certificate)):
        if data:
            from cryptography import x509  # 50 ms: only where there are some

            found[field] = min([each.not_valid_after_utc for each in x509.load_pem_x509_certificates(data)])
    return definition.name, found


def ray_sessions(below: Path) -> RaySessions:
    """This user's sessions of Ray below a temporary folder, in its own folders and in lexicast's."""
    found: list[RaySession] = []
    until = time.monotonic() + LOOK_S
    for folder in _session_folders(below):
        if len(found) == SESSIONS_MAX or time.monotonic() > until:
            return RaySessions(tuple(found), False)
        used_bytes, is_whole = _taken_bytes(folder, until)
        found.append(RaySession(str(folder), used_bytes, _answers(folder / "sockets")))
        if not is_whole:
            return RaySessions(tuple(found), False)
    return RaySessions(tuple(found), True)


def _session_folders(below: Path) -> Iterator[Path]:
    own = f"lexicast-{os.getuid()}-"
    with suppress(OSError), os.scandir(below) as entries:
        for entry in entries:
            if entry.name == "ray" or entry.name.startswith(own):
                yield from _sessions_in(Path(entry.path) if entry.name == "ray" else Path(entry.path) / "ray")


def _sessions_in(folder: Path) -> Iterator[Path]:
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if not entry.name.startswith("session_") or not entry.is_dir(follow_symlinks=False):
                continue
            if entry.stat(follow_symlinks=False).st_uid == os.getuid():
                yield Path(entry.path)


def _taken_bytes(folder: Path, until: float) -> tuple[int, bool]:
    """The bytes of disk below a folder; whether there was time to look at all of it."""
    taken = 0
    for where, _, names in os.walk(folder):
        if time.monotonic() > until:
            return taken, False
        for name in names:
            with suppress(OSError):
                taken += 512 * os.lstat(os.path.join(where, name)).st_blocks  # noqa: PTH118 - thousands of files
    return taken, True


def _answers(sockets: Path) -> bool:
    """Whether a server may listen at one of the sockets in a folder: what is not certain to be dead is in use."""
    try:
        paths = list(sockets.iterdir())
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return any([_may_listen(path) for path in paths])


def _may_listen(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.settimeout(CONNECT_TIMEOUT_S)
        try:
            sock.connect(str(path))
        except (ConnectionRefusedError, FileNotFoundError):
            return False
        except OSError:
            return True
    return True
