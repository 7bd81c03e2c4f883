"""The nodes of a cluster as its status tells of them, in words and numbers. Pure."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

SERVES: Final = "serves"
AWAY: Final = "away"
DRAINING: Final = "draining"
DRAINED: Final = "drained"


class NodeReport(NamedTuple):
    """One node: its members, topic groups that it leads and has copies of, clients that are connected there."""

    state: str
    location: str
    coordinators: tuple[str, ...]
    brokers: tuple[str, ...]
    leads: int
    copies: int
    clients: int


def node_reports(now: dict[str, Any]) -> dict[str, NodeReport]:
    """`now`: see `report.gather`; by the nodes' names."""
    said, brokers = now["coordination"], now["brokers"]
    return {name: _report(node, set(said["lost"]), brokers) for name, node in said["nodes"].items()}


def _report(node: dict[str, Any], lost: set[str], brokers: dict[str, Any]) -> NodeReport:
    serving = set(node["serving"]) - lost - {name for name in node["brokers"] if "error" in brokers.get(name, {})}
    clients = sum([_clients(brokers.get(name, {})) for name in node["brokers"]])
    return NodeReport(
        _state(node, serving, clients),
        node["location"],
        tuple(node["coordinators"]),
        tuple(node["brokers"]),
        node["leads"],
        node["copies"],
        clients,
    )


def _state(node: dict[str, Any], serving: set[str], clients: int) -> str:
    if not serving.intersection([*node["coordinators"], *node["brokers"]]):
        return AWAY
    if node["leaving"]:
        return DRAINING if node["leads"] or node["copies"] or clients else DRAINED
    return SERVES


def _clients(broker: dict[str, Any]) -> int:
    return int(broker.get("mqtt", {}).get("connections", 0) + broker.get("clients", 0))
