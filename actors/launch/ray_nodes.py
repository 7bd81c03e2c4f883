"""The Ray of a cluster and its nodes: started inside this process, or joined; and left without leftovers."""

from __future__ import annotations

import logging
import math
import os
import shutil
import signal
import sys
import threading
import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import ray

from lexicast.cluster.errors import UnavailableError, UsageError
from lexicast.cluster.files import make_folder, private_umask

from ..link.run_directory import private_folder
from ..ray.address import RAY_CLIENT, check_ray, is_open
from ..ray.errors import error_line, ray_errors
from ..ray.handles import NAMESPACE
from ..ray.token import DISABLED, MODE_VARIABLE, make_own_token
from .lean_ray import lean_ray
from .node_names import LivingNode, node_names

# An actor waits for sockets most of the time; its share only keeps Ray from packing without end.
ACTOR_CPUS: Final = 0.01
# Machines of a `ray up` come one after the other; each installs before it starts.
NODES_TIMEOUT_S: Final = 300.0
NODES_PAUSE_S: Final = 0.5
GCS_FOLDER: Final = "ray"
TEMPORARY_VARIABLE: Final = "RAY_TMPDIR"
_FILES_HINT: Final = f"its files are below {TEMPORARY_VARIABLE}, else /tmp"
# Read by Ray's processes when they start (FACTS.md): no reports home, quiet, and a GCS that survives its own end.
QUIET: Final[Mapping[str, str]] = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_USAGE_STATS_PROMPT_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_DEDUP_LOGS": "0",
    # By default Ray runs its workers 15 steps behind everything else on the machine: good for batch work, but a broker
    # then waits for its own clients' CPU.
    "RAY_worker_niceness": "0",
}


@dataclass(frozen=True, slots=True)
class RayNodes:
    """The Ray that this process is connected to."""

    address: str
    nodes: tuple[str, ...]  # ids of the nodes alive that have a name; this process's own first
    hosts: dict[str, str]  # node id -> its address
    embedded: bool
    names: dict[str, str]  # node id -> its name, see `node_names`
    locations: dict[str, str]  # node id -> its location, "" where nobody has said
    nameless: tuple[str, ...] = ()  # ids of nodes alive whose names others have

    def ids(self) -> dict[str, str]:
        """Of each name the node's id."""
        return {self.names[node_id]: node_id for node_id in self.nodes}

    def hosts_in_order(self) -> dict[str, str]:
        """`hosts`, this process's own first."""
        return {node_id: self.hosts[node_id] for node_id in self.nodes}


def start_embedded(data_dir: Path, actors: int) -> RayNodes:
    """A Ray of one node for this process, which it ends with. Call it from the main thread: Ray's processes die with
    the thread that started them. Raises UnavailableError."""
    if ray.is_initialized():
        raise UsageError("this process is connected to a Ray already: give its address instead")
    store = data_dir / GCS_FOLDER
    shutil.rmtree(store, ignore_errors=True)  # names and actors of a run that has ended
    make_folder(store)
    make_own_token()
    os.environ.update(QUIET)
    durable = {"RAY_gcs_storage": "rocksdb", "RAY_gcs_storage_path": str(store)}
    os.environ.update(durable)
    try:
        cpus = embedded_cpus(os.cpu_count() or 1, actors)
        with private_umask(), lean_ray():  # Ray's processes and our actors write logs
            where = str(ray_folder(data_dir))
            _init(address="local", namespace=NAMESPACE, include_dashboard=False, num_cpus=cpus, _temp_dir=where)
    finally:
        for name in durable:
            del os.environ[name]
    return _nodes(embedded=True)


def ray_folder(data_dir: Path) -> Path:
    """Where a Ray of one's own has its sockets, logs and what actors are given, below a folder that nobody else enters:
    Ray lets everybody write into its own folders, and who replaces a socket there is taken for Ray.

    A short path, as `run_directory`'s: Ray's longest socket has 105 bytes of 107 where user and process ids are long.
    Raises UnavailableError.
    """
    below = Path(os.environ.get(TEMPORARY_VARIABLE) or "/tmp")
    try:
        folder = private_folder(data_dir, below) / "ray"
        make_folder(folder)
    except OSError as error:
        raise UnavailableError(f"cannot start Ray: {error.strerror} ({below}); {_FILES_HINT}") from None
    return folder


def embedded_cpus(cores: int, actors: int) -> int:
    """CPUs for Ray to give out: the machine's, and what our actors occupy on top of them.

    Ray gives out whole CPUs to most that asks for one. With the machine's alone two cores were one after our actors'
    hundredths, Spark took that one, and Ray Data waited beside it for ever.
    """
    return cores + math.ceil(actors * ACTOR_CPUS)


def connect_ray(address: str, nodes: int = 1, namespace: str = NAMESPACE) -> RayNodes:
    """Connect to the Ray at `address` ("auto", "HOST:PORT"); wait till it has so many nodes, NODES_TIMEOUT_S at most.

    `namespace`: where the names of actors that are named nowhere else belong. Raises UnavailableError, UsageError.
    """
    address = ray_address(address)
    os.environ.update(QUIET)
    _init(address=address, namespace=namespace)
    until = time.monotonic() + NODES_TIMEOUT_S
    while len((found := _nodes(embedded=False)).nodes) < nodes:
        if time.monotonic() > until:
            raise UnavailableError(
                f"the Ray at {found.address} has {len(found.nodes)} of {nodes} nodes after {NODES_TIMEOUT_S:.0f} s: "
                "start Ray on the others, or give a smaller --nodes"
            )
        time.sleep(NODES_PAUSE_S)
    return found


def ray_address(address: str) -> str:
    """The address HOST:PORT of the Ray at `address` ("auto", "HOST:PORT"). Raises UnavailableError, UsageError."""
    if address.startswith(RAY_CLIENT):
        raise UsageError("run this on a node of the Ray cluster, with --address auto")
    return check_ray(address)


def check_closed(address: str) -> str:
    """A warning where the Ray at HOST:PORT runs code for whoever reaches it; "" where it asks for a token.

    Raises UnavailableError for such a Ray unless RAY_AUTH_MODE=disabled says that it is meant to be open.
    """
    if not is_open(address):
        return ""
    told = f"the Ray at {address} asks for no token: whoever reaches it runs code as its user"
    if os.environ.get(MODE_VARIABLE) == DISABLED:
        return f"{told} ({MODE_VARIABLE}={DISABLED})"
    raise UnavailableError(
        f"{told}; start it with {MODE_VARIABLE}=token (`ray get-auth-token --generate` makes one), or, where nobody "
        f"else reaches it, set {MODE_VARIABLE}={DISABLED} here"
    )


def disconnect_ray() -> None:
    """Leave Ray; an embedded one ends."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # Ray leaves its children's log files to the collector
        ray.shutdown()


def _init(**options: Any) -> None:
    try:
        with warnings.catch_warnings(), _own_sigterm():
            warnings.simplefilter("ignore")  # Ray's notices about its own future defaults: nothing a user can act on
            ray.init(log_to_driver=False, logging_level=logging.ERROR, **options)
    except Exception as error:
        reason = error_line(error)
        what = "start Ray" if options["address"] == "local" else f"join the Ray at {options['address']}"
        hint = _FILES_HINT
        if options["address"] != "local":
            hint = f"if it asks for a token, set {MODE_VARIABLE}=token"
        raise UnavailableError(f"cannot {what}: {reason}; {hint}") from None


@contextmanager
def _own_sigterm() -> Iterator[None]:
    """Ray puts a handler of its own in our one's place, which prints a stack of C++ and ends the process at once."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if before is not None and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)


def nodes_now(before: RayNodes, patient: bool) -> RayNodes:
    """The Ray that this process is connected to, as it is now; see `node_names`. Blocking. Raises UnavailableError."""
    with ray_errors("looking for nodes"):
        return _nodes(before.embedded, before.names, patient)


def _nodes(embedded: bool, known: Mapping[str, str] | None = None, patient: bool = False) -> RayNodes:
    """`known`: what nodes were called so far."""
    context = ray.get_runtime_context()
    list_nodes: Any = ray.nodes
    own = context.get_node_id()
    alive = [
        LivingNode(node["NodeID"], node["NodeManagerAddress"], node["NodeManagerHostname"], node.get("Labels") or {})
        for node in list_nodes()
        if node["Alive"]
    ]
    alive.sort(key=lambda node: (node.id != own, node.host, node.id))
    names = node_names(alive, known or {}, patient)
    return RayNodes(
        address=context.gcs_address,
        nodes=tuple(node.id for node in alive if node.id in names),
        hosts={node.id: node.host for node in alive},
        embedded=embedded,
        names=names,
        locations={node.id: node.location() for node in alive},
        nameless=tuple(node.id for node in alive if node.id not in names),
    )


def worker_environment(nodes: RayNodes) -> dict[str, Any] | None:
    """The runtime environment of the actors: this Python. An embedded Ray has it anyway."""
    return None if nodes.embedded else {"py_executable": sys.executable}
