"""The addresses of a cluster's nodes: where they listen, and where they are reached from elsewhere.

Links and MQTT listen where the configuration says (node.host, mqtt.host). Over several nodes one loopback address for
all would reach nobody, so there each node listens at the address by which Ray knows it; and what listens on every
address of its machine ("0.0.0.0") is reached at that one.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from contextlib import suppress
from typing import Final

from lexicast.cluster.config.tables import Config
from lexicast.cluster.errors import ConfigError


class NodeAddresses:
    """The addresses of one cluster's nodes."""

    def __init__(self, config: Config, nodes: Mapping[str, str]) -> None:
        """`nodes`: {node id: the address by which Ray knows it}, this process's own first; empty: not known yet."""
        self._link = config.node.host
        self._mqtt = config.mqtt.host
        self._tls = (config.mqtt.tls_host or config.mqtt.host) if config.mqtt.tls_port else None
        self._anonymous = config.anonymous
        self._nodes = dict(nodes)

    def check(self) -> None:
        """Raises ConfigError: one machine's address is configured for several."""
        if len(self._nodes) < 2:
            return
        for key, host in (("node.host", self._link), ("mqtt.host", self._mqtt), ("mqtt.tls_host", self._tls)):
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

    def tls_host(self, node_id: str = "") -> str:
        """The same for MQTT over TLS; "" where there is none."""
        return "" if self._tls is None else self._listens(self._tls, node_id)

    def _listens(self, host: str, node_id: str) -> str:
        if host:
            return host
        if is_any(self._link) or len(self._nodes) < 2:
            return self._link
        return self._nodes[node_id] if node_id else next(iter(self._nodes.values()))

    def reached_at(self) -> list[str]:
        """The addresses at which MQTT clients reach the nodes, this process's own first, each once."""
        return self._reached({node: self.mqtt_host(node) for node in self._nodes})

    def reached_by_tls(self) -> list[str]:
        """The same of MQTT over TLS."""
        return [] if self._tls is None else self._reached({node: self.tls_host(node) for node in self._nodes})

    def _reached(self, hosts: Mapping[str, str]) -> list[str]:
        return list(dict.fromkeys(self._nodes[node] if is_any(host) else host for node, host in hosts.items()))

    def notice(self) -> str:
        """What to tell of who is let in at addresses that other machines reach; "" where none does."""
        if all(is_loopback(host) for host in [*self.reached_at(), *self.reached_by_tls()]):
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


def is_loopback(host: str) -> bool:
    """Whether `host` is reached from its own machine alone."""
    with suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost"
