"""The examination of a machine and of the cluster on it: everything is looked at at once, and nothing waited for long.

Each part gathers facts and has them judged, in a thread of its own. One that fails, or hangs (a network's disk that
does not answer), becomes a finding itself: a doctor who falls ill is no help.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from typing import Final, TypeAlias

from lexicast.cluster.config.tables import Config
from lexicast.cluster.errors import ConfigError

from .findings import PROBLEM, WARNING, Finding

PATIENCE_S: Final = 8.0
# In the place of this machine's address in the network, by which others reach what listens on every address.
EVERY_ADDRESS: Final = "0.0.0.0"

# What the parts need. Threads that load at the same time what goes in a circle lock each other out, so one loads it
# before they begin; what cannot be loaded is told by the part that needs it.
LOADED_FIRST: Final = (
    "cryptography.x509",
    "cryptography.hazmat.primitives.serialization",
    "psutil",
    *[f"lexicast.actors.doctor.{module}" for module in ("machine_facts", "software", "network", "ray_state", "safety")],
    *[f"lexicast.actors.launch.{module}" for module in ("spark_environment", "node_addresses", "security_files")],
    "lexicast.actors.tls.certificates",
    "lexicast.actors.ray.token",
    "lexicast.actors.status.installed",
    "lexicast.actors.doctor.cluster_facts",
)

Part: TypeAlias = Callable[[], Iterable[Finding]]


def load_first() -> None:
    """Load what the parts need, as far as it is there."""
    for module in LOADED_FIRST:
        with suppress(Exception):  # whatever a broken package raises
            import_module(module)


def examine(parts: Mapping[str, Part], patience_s: float = PATIENCE_S) -> list[Finding]:
    """What the parts find, in their order, within `patience_s`; of one that fails or hangs that. Blocking."""
    found: dict[str, list[Finding]] = {}

    def look(name: str, part: Part) -> None:
        try:
            found[name] = list(part())
        except Exception as error:  # whatever a broken machine makes of a look at it
            told = " ".join(str(error).split()) or type(error).__name__
            found[name] = [Finding(name, WARNING, f"cannot be looked at: {told}", "look at it by hand")]

    threads = [threading.Thread(target=look, args=item, daemon=True) for item in parts.items()]
    for thread in threads:
        thread.start()
    until = time.monotonic() + patience_s
    for thread in threads:
        thread.join(max(0.0, until - time.monotonic()))
    hangs = "see what hangs: a disk of the network, a program that does not end"
    silent = {name: [Finding(name, PROBLEM, f"no answer within {patience_s:.0f} s", hangs)] for name in parts}
    return [finding for name in parts for finding in found.get(name, silent[name])]


class Examination:
    """The parts, for one configuration. Each names what it needs itself: that may be missing."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._folder = config.node.data_path()

    def parts(self) -> dict[str, Part]:
        """By the names of their checks. What they need has been loaded."""
        load_first()
        return {
            "python": self._python,
            "packages": self._packages,
            "data path": self._data_path,
            "java": self._java,
            "open files": self._open_files,
            "memory": self._memory,
            "clock": self._clock,
            "file system": self._file_system,
            "disk space": self._room,
            "ports": self._ports,
            "ray's token": self._ray_token,
            "ray's sessions": self._ray_sessions,
            "addresses": self._addresses,
            "certificates": self._certificates,
            "bridges": self._bridges,
            "security": self._security,
            "rights": self._rights,
            "cluster": self._cluster,
        }

    def _actors(self) -> int:
        node = self._config.node
        return node.brokers + node.coordinators + node.sampling + node.matchers + (self._config.http.port != 0) + 1

    # -- software

    def _python(self) -> Iterable[Finding]:
        from .machine_facts import machine_here, python_here
        from .software import machine_finding, python_finding

        yield python_finding(*python_here())
        yield machine_finding(*machine_here())

    def _packages(self) -> Iterable[Finding]:
        from .machine_facts import installed_package, required_packages
        from .software import package_findings, parse_requirements

        listed = required_packages()
        extras = ["spark"] if installed_package("raydp").version else []
        wanted = parse_requirements(listed, extras)
        yield from package_findings(wanted, {each.name: installed_package(each.name) for each in wanted})

    def _data_path(self) -> Iterable[Finding]:
        from lexicast.compiled import PURE, fitting, sources_are_asked_for

        from .software import data_path_finding

        yield data_path_finding(fitting(), PURE if sources_are_asked_for() else "")

    def _java(self) -> Iterable[Finding]:
        from ..launch.spark_environment import java_for_spark, spark_installed
        from .software import java_finding

        is_spark = spark_installed()
        problem, version = java_for_spark(os.environ) if is_spark else ("", None)
        yield java_finding(is_spark, problem, version)

    # -- the machine

    def _open_files(self) -> Iterable[Finding]:
        from .machine import open_files_finding
        from .machine_facts import open_files_here

        yield open_files_finding(*open_files_here(), self._config.mqtt.connections_max)

    def _memory(self) -> Iterable[Finding]:
        from .cluster_facts import run_state
        from .machine import memory_finding, shared_memory_finding
        from .machine_facts import memory_here, shared_memory_here

        total_bytes, available_bytes = memory_here()
        yield memory_finding(total_bytes, available_bytes, self._actors(), run_state(self._folder).is_running)
        yield shared_memory_finding(shared_memory_here(), available_bytes)

    def _clock(self) -> Iterable[Finding]:
        from .machine import clock_finding
        from .machine_facts import clock_here

        yield clock_finding(clock_here())

    def _file_system(self) -> Iterable[Finding]:
        from .cluster_facts import mode_of
        from .disks import file_system_finding, folder_finding
        from .machine_facts import mount_here, there_or_above

        there = there_or_above(self._folder)
        yield file_system_finding(str(self._folder), mount_here(self._folder))
        is_own = there != self._folder or self._folder.stat().st_uid == os.geteuid()
        may_write = there.is_dir() and os.access(there, os.W_OK | os.X_OK)
        yield folder_finding(str(self._folder), may_write, mode_of(self._folder), is_own)

    def _room(self) -> Iterable[Finding]:
        from .cluster_facts import stores_bytes
        from .disks import FolderRoom, room_finding
        from .machine_facts import free_bytes, there_or_above

        storage, stores = self._config.storage, stores_bytes(self._folder)
        count = max(len(stores), self._config.node.coordinators)
        free, _ = free_bytes(there_or_above(self._folder))
        yield room_finding(FolderRoom(free, sum(stores), count, storage.quota_bytes, storage.reserve_bytes))

    # -- the network and Ray

    def _ports(self) -> Iterable[Finding]:
        from .cluster_facts import configured_ports, run_state, with_holder
        from .network import port_findings

        state, ports = run_state(self._folder), configured_ports(self._config)
        served = state.ports() if state.is_running else ()
        looked = [each if each.port in served else with_holder(each) for each in ports]
        yield from port_findings(looked, state.ports(), state.is_running)

    def _addresses(self) -> Iterable[Finding]:
        from ..launch.node_addresses import NodeAddresses
        from .network import addresses_finding

        addresses, refusal = NodeAddresses(self._config, {"": EVERY_ADDRESS}), ""
        try:
            addresses.check()
        except ConfigError as error:
            refusal = str(error)
        yield addresses_finding(refusal, addresses.notice())

    def _ray_token(self) -> Iterable[Finding]:
        from ..ray.token import MODE_VARIABLE, token_file
        from .cluster_facts import mode_of
        from .ray_state import token_finding

        yield token_finding(os.environ.get(MODE_VARIABLE, ""), mode_of(token_file()))

    def _ray_sessions(self) -> Iterable[Finding]:
        from .cluster_facts import ray_sessions
        from .machine_facts import free_bytes
        from .ray_state import sessions_finding, temporary_space_finding

        below = Path(os.environ.get("RAY_TMPDIR") or "/tmp")
        yield sessions_finding(ray_sessions(below))
        yield temporary_space_finding(str(below), *free_bytes(below))

    # -- security

    def _certificates(self) -> Iterable[Finding]:
        from ..tls.certificates import TlsFiles, check_before_start
        from .safety import certificate_findings

        looked: TlsFiles | str | None = None
        now = datetime.now(UTC)
        if self._config.tls.certificate:
            try:
                looked = check_before_start(self._config.tls, now)
            except ConfigError as error:
                looked = str(error)
        yield from certificate_findings(looked, now)

    def _bridges(self) -> Iterable[Finding]:
        from .cluster_facts import bridge_files
        from .safety import BridgeFiles, bridge_findings

        read: list[BridgeFiles] | ConfigError
        try:
            read = bridge_files(self._config.bridge.file)
        except ConfigError as error:
            read = error
        yield from bridge_findings(read, datetime.now(UTC))

    def _security(self) -> Iterable[Finding]:
        from lexicast.cluster.security.files import wanted

        from ..launch.security_files import read_security
        from .safety import password_findings, security_findings

        paths = wanted(self._config.security)
        if not paths:
            yield from security_findings(None)
            return
        try:
            read = read_security(paths, self._config.security.jwt_algorithms)
        except ConfigError as error:
            yield from security_findings(error)
            return
        yield from security_findings([each for each in read.warnings if each not in read.rights])  # see `rights`
        if read.contents.passwords is not None:
            yield from password_findings(read.contents.passwords)

    def _rights(self) -> Iterable[Finding]:
        from ..client.address import KEY_FILE, RUN_FILE
        from .cluster_facts import mode_of
        from .safety import KeptFile, rights_findings

        security, tls, own = self._config.security, self._config.tls, self._folder
        paths = [(own / KEY_FILE, True), (own / RUN_FILE, False)]
        named = [(security.password_file, True), (security.jwt_key_file, True), (security.acl_file, False)]
        named += [(tls.key, True), (tls.certificate, False), (tls.client_ca, False)]
        paths += [(Path(path).expanduser(), is_secret) for path, is_secret in named if path]
        kept = [(path, mode_of(path), is_secret) for path, is_secret in paths]
        yield from rights_findings([KeptFile(str(path), mode, s) for path, mode, s in kept if mode is not None])

    # -- the cluster

    def _cluster(self) -> Iterable[Finding]:
        from lexicast.cluster.errors import LexicastError

        from ..status.installed import installed_version
        from .cluster_facts import run_state, told_by_brokers
        from .served import run_finding, served_findings, unreachable_finding, version_findings

        state = run_state(self._folder)
        yield run_finding(state)
        if not state.is_running:
            return
        try:
            now = told_by_brokers(self._folder)
        except LexicastError as error:
            yield unreachable_finding(" ".join(str(error).split()))
            return
        yield from served_findings(now)
        yield from version_findings(now, installed_version())
