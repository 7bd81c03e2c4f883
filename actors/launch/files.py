"""The files by which `lexicast up` is found: its lock, `run.json` and the cluster's key, all in the data folder.

up.lock       held (flock) as long as an `up` uses the folder; holds its process id
run.json      where the cluster is: `ClusterRun` as JSON; written when everything serves, removed when it stops
cluster.key   the key of the links (`client_address` reads both); removed with run.json
processes.json  the processes below `up`, for who cleans up after it was killed
"""

from __future__ import annotations

import dataclasses
import fcntl
import json
import os
import signal
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from lexicast.cluster.errors import StoreError, UnavailableError
from lexicast.cluster.files import make_folder, open_lock, write_whole

from ..client.address import KEY_FILE, RUN_FILE
from .processes import PROCESSES_FILE, end_leftovers

LOCK_FILE: Final = "up.lock"
DOWN_PAUSE_S: Final = 0.05


@dataclass(frozen=True)
class ClusterRun:
    """A running cluster, as run.json and --ready-file tell it."""

    data_dir: str
    cluster_id: str
    ray_address: str
    namespace: str
    mqtt_host: str  # the first of mqtt_hosts
    mqtt_port: int
    started_us: int
    up_pid: int
    mqtt_hosts: list[str]  # at which MQTT clients reach the nodes, the one of `up` first
    brokers: dict[str, list[str]]  # name -> link addresses
    mqtt_tls_port: int = 0  # 0: no MQTT over TLS
    mqtt_tls_hosts: list[str] = field(default_factory=list)
    mqtt_ws_port: int = 0  # 0: no MQTT over WebSocket
    mqtt_ws_hosts: list[str] = field(default_factory=list)
    mqtt_wss_port: int = 0  # 0: no MQTT over WebSocket with TLS
    mqtt_wss_hosts: list[str] = field(default_factory=list)
    pages: list[str] = field(default_factory=list)  # the addresses of consoles, as a browser takes them
    pids: dict[str, Any] = field(default_factory=dict)  # brokers, coordinators, sampling: lists; coordination: one


def write_run(run: ClusterRun, key: bytes, ready_file: Path | None) -> None:
    """Write the files, each at once and readable by the owner alone. Raises StoreError."""
    text = json.dumps(dataclasses.asdict(run), indent=1).encode() + b"\n"
    folder = Path(run.data_dir)
    _write(folder / KEY_FILE, key)
    _write(folder / RUN_FILE, text)
    if ready_file is not None:
        _write(ready_file, text)


def left_run(folder: Path) -> str:
    """The Ray address of an `up` that was killed here; "" without one. Call it only with the folder's lock held."""
    try:
        return str(json.loads((folder / RUN_FILE).read_text())["ray_address"])
    except (OSError, ValueError, KeyError, TypeError):
        return ""


def remove_run(folder: Path) -> None:
    """Remove what `write_run` wrote into the data folder."""
    for name in (RUN_FILE, KEY_FILE):
        with suppress(OSError):
            (folder / name).unlink()


def lock_data_dir(folder: Path) -> int:
    """Take the folder for this process; the lock's descriptor. Raises UnavailableError (in use), StoreError."""
    try:
        make_folder(folder)
        descriptor = open_lock(folder / LOCK_FILE)
    except OSError as error:
        raise StoreError(f"cannot use {folder}: {error.strerror}; choose another --data-dir") from None
    if not _try_lock(descriptor):
        pid = _read_pid(descriptor)
        os.close(descriptor)
        raise UnavailableError(
            f"{folder} is in use by `lexicast up` (process {pid}): stop it with `lexicast down`, "
            "or choose another --data-dir"
        )
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, str(os.getpid()).encode(), 0)
    return descriptor


def stop_up(folder: Path, timeout_s: float) -> int:
    """Ask the `up` that uses the folder to stop and wait until it has; its process id. Raises UnavailableError."""
    try:
        descriptor = os.open(folder / LOCK_FILE, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        raise UnavailableError(f"no cluster runs on {folder}: nothing to stop") from None
    try:
        if _try_lock(descriptor):
            _tell_killed(folder)
            raise UnavailableError(f"no cluster runs on {folder}: nothing to stop")
        pid = _read_pid(descriptor)
        _ask_to_stop(pid, folder)
        until = time.monotonic() + timeout_s
        while not _try_lock(descriptor):
            if time.monotonic() > until:
                raise UnavailableError(f"process {pid} has not stopped within {timeout_s:.0f} s: kill it")
            time.sleep(DOWN_PAUSE_S)
        return pid
    finally:
        os.close(descriptor)


def _tell_killed(folder: Path) -> None:
    """Where `up` was killed, end what it left and raise what was done, or what else is to do."""
    embedded, address = (folder / PROCESSES_FILE).exists(), left_run(folder)
    if embedded:
        remove_run(folder)
        left = end_leftovers(folder)
        raise UnavailableError(f"`lexicast up` was killed on {folder}: ended the {left} processes that it had left")
    if address:
        raise UnavailableError(
            f"`lexicast up` was killed on {folder}, its actors serve on in the Ray at {address}: run "
            f"`lexicast up --address {address}` again, then `lexicast down`"
        )


def _ask_to_stop(pid: int, folder: Path) -> None:
    if pid <= 0:
        raise UnavailableError(f"{folder / LOCK_FILE} names no process yet: try again")
    try:
        os.kill(pid, signal.SIGTERM)
    except ProcessLookupError:
        pass  # it stopped just now
    except PermissionError:
        raise UnavailableError(f"process {pid} belongs to another user: stop it as that user") from None


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _read_pid(descriptor: int) -> int:
    text = os.pread(descriptor, 20, 0)
    return int(text) if text.isdigit() else 0


def _write(path: Path, data: bytes) -> None:
    try:
        write_whole(path, data)
    except OSError as error:
        raise StoreError(f"cannot write {path}: {error.strerror}") from None
