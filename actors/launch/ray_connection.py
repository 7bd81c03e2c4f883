"""The connection of `lexicast up` to its data folder and to a Ray: taken in order, given back in the opposite one.

Taken in this order: the folder's lock; in a Ray of its own the look at the stores and the MQTT port (so that a busy one
is told at once) come before Ray, in one that is joined after it, since what a killed `up` left there had both.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from lexicast.cluster.config.tables import Config
from lexicast.cluster.errors import UnavailableError
from lexicast.cluster.security.files import NOTHING_KNOWN, SecurityFiles, wanted

from ..broker.port_claim import PortClaim, claim_port
from ..ray.handles import end_actors, named_actors
from ..tls.certificates import check_before_start, with_whole_paths
from .bridge_files import Bridges, read_bridges
from .files import left_run, lock_data_dir, remove_run
from .gcs_watch import GcsWatch
from .node_addresses import NodeAddresses
from .processes import children, end_leftovers, end_processes, forget_processes, note_processes
from .ray_nodes import RayNodes, check_closed, connect_ray, disconnect_ray, ray_address, start_embedded
from .security_files import read_security, with_whole_security_paths
from .store_check import check_stores

GONE_TIMEOUT_S: Final = 5.0
# How long the stores and the port may still be held by actors of a killed `up` that were just ended.
LEFT_TIMEOUT_S: Final = 10.0
INTERRUPTED: Final = 130


@dataclass(frozen=True, slots=True)
class ConnectedRay:
    """The Ray in which a cluster is to run. `config` names its data folder and its MQTT port; `gcs` watches over an
    embedded Ray's processes (None: one that was joined has its own keepers); `security`: the files of [security]."""

    nodes: RayNodes
    config: Config
    gcs: GcsWatch | None
    security: SecurityFiles
    bridges: Bridges = ()

    def addresses(self) -> NodeAddresses:
        """Where its nodes listen, and are reached."""
        return NodeAddresses(self.config, self.nodes.hosts_in_order())


class RayConnection:
    """One `up`'s hold of its folder and of Ray. Whatever of it `connect` has taken, `close` gives back."""

    def __init__(self, config: Config, progress: Callable[[str], None], warn: Callable[[str], None]) -> None:
        """`progress` gets one short line a step, `warn` what is dangerous, once. `config.node.data_dir` may be empty:
        the user's folder."""
        self._folder = config.node.data_path()
        self._config = with_whole_security_paths(with_whole_paths(config.replaced(node__data_dir=str(self._folder))))
        self._progress = progress
        self._warn = warn
        self._files_are_ours = False
        self._gcs: GcsWatch | None = None
        self._claims: list[PortClaim] = []
        self._security = NOTHING_KNOWN
        self._bridges: Bridges = ()
        self._taken = ExitStack()

    def connect(self, address: str | None, nodes: int) -> ConnectedRay:
        """Take the data folder and connect to Ray (None: an own one) of so many nodes. Main thread.

        Raises LexicastError.
        """
        self._look_at_certificates()
        self._read_security()
        self._bridges = read_bridges(self._config.bridge.file)
        self._taken.callback(os.close, lock_data_dir(self._folder))
        self._taken.callback(self.remove_files)
        end_leftovers(self._folder)
        return self._start_ray() if address is None else self._join_ray(address, nodes)

    def _start_ray(self) -> ConnectedRay:
        self._take_files()
        check_stores(self._config, all_here=True)
        self._look_at_port({})
        self._progress("starting Ray")
        node = self._config.node
        own = node.brokers + node.coordinators + node.sampling + node.matchers + (self._config.http.port != 0)
        nodes = start_embedded(self._folder, own + len(self._bridges) + 1)
        self._taken.callback(self._leave_ray, nodes)
        self._look_at_ray(nodes.address)
        self._look_at_addresses(nodes)
        self._note()
        self._gcs = GcsWatch(nodes.address, self._progress, self._note)
        return ConnectedRay(nodes, self._config, self._gcs, self._security, self._bridges)

    def _join_ray(self, address: str, nodes_wanted: int) -> ConnectedRay:
        self._progress(f"joining Ray at {address}")
        address = ray_address(address)
        self._look_at_ray(address)
        nodes = connect_ray(address, nodes_wanted)
        self._taken.callback(self._leave_ray, nodes)
        self._look_at_addresses(nodes)
        self._check_alone(nodes, left_run(self._folder))
        self._take_files()
        # Not before: what a killed `up` left in that Ray had the stores and the port.
        check_stores(self._config, all_here=False, wait_s=LEFT_TIMEOUT_S)
        self._look_at_port(nodes.hosts_in_order())
        return ConnectedRay(nodes, self._config, None, self._security, self._bridges)

    def _look_at_ray(self, address: str) -> None:
        if warning := check_closed(address):
            self._warn(warning)

    def _look_at_addresses(self, nodes: RayNodes) -> None:
        """Raises ConfigError where an address that is configured cannot be every node's."""
        addresses = NodeAddresses(self._config, nodes.hosts_in_order())
        addresses.check()
        if notice := addresses.notice():
            self._warn(notice)

    def _look_at_certificates(self) -> None:
        """Raises ConfigError where the files of [tls] cannot be used on this machine."""
        if any([each.is_encrypted for each in self._config.mqtt.more_ports()]):
            now = datetime.now(UTC)
            looked = check_before_start(self._config.tls, now)
            for warning in [*looked.warnings, *looked.overdue(now)]:
                self._warn(warning)

    def _read_security(self) -> None:
        """Raises ConfigError where the files of [security] cannot be used."""
        found = read_security(wanted(self._config.security), self._config.security.jwt_algorithms)
        self._security = found.files
        for warning in found.warnings:
            self._warn(warning)

    def _take_files(self) -> None:
        """From here on what tells of a running cluster is ours; before, it may tell what a killed `up` left."""
        remove_run(self._folder)
        self._files_are_ours = True

    def remove_files(self) -> None:
        """Remove what tells of a running cluster, where it is ours."""
        if self._files_are_ours:
            remove_run(self._folder)

    def _look_at_port(self, hosts: dict[str, str]) -> None:
        """Nobody of this cluster runs now, so whoever holds the port is a stranger; a free one for 0 is fixed here.
        `hosts`: as far as they are known, see `NodeAddresses`."""
        addresses, mqtt = NodeAddresses(self._config, hosts), self._config.mqtt
        with closing(claim_port(addresses.mqtt_host(), mqtt.port, uuid.uuid4().hex)) as claim:
            self._config = self._config.replaced(mqtt__port=claim.port)
        for each in mqtt.more_ports():
            claim_port(addresses.host_of(each), each.port, uuid.uuid4().hex, each.port_knob).close()

    def _check_alone(self, nodes: RayNodes, killed: str) -> None:
        """Nobody else's actors are in this Ray; ours may be, where an `up` of this folder was killed.

        `killed`: the Ray of such an `up`, whose actors are ended; "" when it stopped cleanly.
        """
        names = named_actors()
        if names and nodes.address != killed:
            raise UnavailableError(
                "a lexicast cluster runs in this Ray already: stop that one first (`lexicast down` with its --data-dir)"
            )
        if names:
            self._progress("ending what a killed `lexicast up` left")
            end_actors(names)

    def _note(self) -> None:
        note_processes(self._folder)

    def hold_port(self, claim: PortClaim) -> None:
        """Keep a port of the cluster's until Ray's processes are gone."""
        self._claims.append(claim)

    def _leave_ray(self, nodes: RayNodes) -> None:
        """See Ray's processes gone; then give the port back."""
        started = children() if nodes.embedded else []
        with suppress(Exception):  # Ray may have gone before us: then there is nothing to leave
            disconnect_ray()
        if self._gcs is not None:
            self._gcs.end()
        end_processes(started, GONE_TIMEOUT_S)
        forget_processes(self._folder)
        for claim in self._claims:
            claim.close()

    def close(self) -> None:
        """Leave Ray, see its processes gone, give port and folder back. Main thread; never raises."""
        self._taken.close()

    def kill(self) -> None:
        """The second Ctrl-C: end the processes that this `up` started, now."""
        self.remove_files()
        if self._gcs is not None:
            end_processes(children(), 0.0)
        os._exit(INTERRUPTED)
