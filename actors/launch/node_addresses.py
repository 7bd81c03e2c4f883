"""The addresses of a cluster's nodes: where they listen, and where they are reached from elsewhere.

Links and MQTT listen where the configuration says (node.host, mqtt.host). Over several nodes one loopback address for
all would reach nobody, so there each node listens at the address by which Ray knows it; and what listens on every
address of its machine ("0.0.0.0") is reached at that one.
"""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Mapping
from contextlib import suppress
from itertools import chain
from typing import Final

from lexicast.cluster.config.tables import Config, MqttPort
from lexicast.cluster.errors import ConfigError
from lexicast.cluster.security.addresses import is_loopback, is_open_to_strangers

from ..mqtt.login.admission import is_encrypted_console
from ..ray.token import DISABLED, MODE_VARIABLE


class NodeAddresses:
    """The addresses of one cluster's nodes."""

    def __init__(self, config: Config, nodes: Mapping[str, str]) -> None:
        """`nodes`: {node id: the address by which Ray knows it}, this process's own first; empty: not known yet."""
        self._link = config.node.host
        self._mqtt = config.mqtt.host
        self._more = config.mqtt.more_ports()
        self._config = config
        self._anonymous = config.anonymous
        self._insecure = config.security.insecure
        self._http = config.http.host if config.http.port else None
        self._http_port = config.http.port
        self._http_tls = bool(config.tls.certificate) and is_encrypted_console(config)
        self._nodes = dict(nodes)

    def check(self, ray_mode: str | None = None) -> None:
        """Raises ConfigError: one machine's address is configured for several, or the cluster is open to strangers and
        security.insecure does not say that it is meant to be. `ray_mode`: RAY_AUTH_MODE; None: what this process has.
        """
        self._check_one_machine()
        if not self._insecure:
            self._check_strangers()
            self._check_console()
            self._check_own_ray(os.environ.get(MODE_VARIABLE, "") if ray_mode is None else ray_mode)

    def _check_strangers(self) -> None:
        if not self.is_open():
            return
        raise ConfigError(
            'mqtt.allow_anonymous = "always" lets whoever reaches the MQTT port publish and read everything, and it is '
            f"reached from other machines ({', '.join(self._beyond())}). Give rules (security.acl_file), users "
            '(security.password_file) and allow_anonymous = "auto", or say --insecure if it is meant so'
        )

    def _check_console(self) -> None:
        if self._http is not None and not is_loopback(self._http) and not self._http_tls:
            raise ConfigError(
                f"http.host = {self._http!r} is reached from other machines, and passwords would cross the network as "
                "they are: give tls.certificate and tls.key (`lexicast cert make` makes some to try it), leave "
                "http.host out, or say --insecure if it is meant so"
            )

    def _check_own_ray(self, ray_mode: str) -> None:
        """A Ray that was joined is looked at by itself, whoever has started it (`ray_nodes.check_closed`)."""
        if ray_mode == DISABLED and len(self._nodes) < 2 and (beyond := self._beyond()):
            raise ConfigError(
                f"{MODE_VARIABLE}=disabled: Ray would run code for whoever reaches this machine, and the cluster is to "
                f"be reached from others ({', '.join(beyond)}). Leave it out, or say --insecure if it is meant so"
            )

    def is_open(self) -> bool:
        """Whether strangers on other machines may publish and read everything."""
        reached = [(host, False) for host in self.reached_at()]
        reached += [(host, each.is_encrypted) for each in self._more for host in self.reached_by(each)]
        return is_open_to_strangers(self._config, reached)

    def _beyond(self) -> list[str]:
        """The addresses at which MQTT clients of other machines reach the nodes."""
        reached = [self.reached_at(), *map(self.reached_by, self._more)]
        return [host for host in dict.fromkeys(chain.from_iterable(reached)) if not is_loopback(host)]

    def _check_one_machine(self) -> None:
        if len(self._nodes) < 2:
            return
        more = [("http.host", self._http), *[(each.host_knob, each.host) for each in self._more]]
        for key, host in (("node.host", self._link), ("mqtt.host", self._mqtt), *more):
            if host and not is_any(host) and not is_loopback(host):
                raise ConfigError(
                    f"{key} = {host!r} is one machine's address, and this Ray has {len(self._nodes)} nodes: leave it "
                    f"out (each node listens at its own), or set {key.replace('node', 'mqtt')} to '0.0.0.0'"
                )

    def link_host(self, node_id: str) -> str:
        """Where a node's actors listen for links: always an address that those who dial it can use."""
        if len(self._nodes) > 1 or is_any(self._link):
            return self._nodes[node_id]
        return self._link

    def mqtt_host(self, node_id: str = "") -> str:
        """Where a node's brokers listen for MQTT; "": this process's own node."""
        return self._listens(self._mqtt, node_id)

    def host_of(self, port: MqttPort, node_id: str = "") -> str:
        """The same of a port beside mqtt.port."""
        return self._listens(port.host or self._mqtt, node_id)

    def _listens(self, host: str, node_id: str) -> str:
        if host:
            return host
        if is_any(self._link) or len(self._nodes) < 2:
            return self._link
        return self._nodes[node_id] if node_id else next(iter(self._nodes.values()))

    def reached_at(self) -> list[str]:
        """The addresses at which MQTT clients reach the nodes, this process's own first, each once."""
        return self._reached({node: self.mqtt_host(node) for node in self._nodes})

    def reached_by(self, port: MqttPort) -> list[str]:
        """The same of a port beside mqtt.port."""
        return self._reached({node: self.host_of(port, node) for node in self._nodes})

    def pages(self) -> list[str]:
        """The consoles as a browser takes them; none where there are none."""
        if self._http is None:
            return []
        hosts = self._reached(dict.fromkeys(self._nodes, self._http))
        scheme = "https" if self._http_tls else "http"
        return [f"{scheme}://{f'[{host}]' if ':' in host else host}:{self._http_port}/" for host in hosts]

    def _reached(self, hosts: Mapping[str, str]) -> list[str]:
        return list(dict.fromkeys(self._nodes[node] if is_any(host) else host for node, host in hosts.items()))

    def notice(self) -> str:
        """What to tell of who is let in at addresses that other machines reach; "" where none does."""
        if not self._beyond() or (self._anonymous == "always" and not self.is_open()):
            return ""
        return _NOTICES[self._anonymous]


_NOTICES: Final = {
    "always": 'mqtt.allow_anonymous = "always": whoever reaches the MQTT port publishes and reads everything',
    "loopback": 'mqtt.allow_anonymous = "loopback": MQTT clients of other machines are refused',
    "never": 'mqtt.allow_anonymous = "never": MQTT clients are refused',
}


def is_any(host: str) -> bool:
    """Whether `host` stands for every address of a machine, so that nobody can dial it."""
    with suppress(ValueError):
        return ipaddress.ip_address(host).is_unspecified
    return host == ""
