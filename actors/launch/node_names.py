"""The names of nodes, which outlive their Ray: the label `lexicast-node`, else the machine's. Pure.

Several Rays on one machine are told apart by numbers; one that comes gets the number of one that has gone, since it is
taken for that one come back. Two nodes with one label are one node; the second waits until the first is gone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

NAME_LABEL: Final = "lexicast-node"
LOCATION_LABELS: Final = ("lexicast-location", "ray.io/zone")


@dataclass(frozen=True, slots=True)
class LivingNode:
    """A node of the Ray that lives."""

    id: str
    host: str  # the address by which Ray knows it
    machine: str
    labels: Mapping[str, str] = field(default_factory=dict)

    def location(self) -> str:
        """Where it is; "" where nobody has said."""
        return next((self.labels[label] for label in LOCATION_LABELS if self.labels.get(label)), "")


def node_names(nodes: Sequence[LivingNode], known: Mapping[str, str], patient: bool = False) -> dict[str, str]:
    """The name of each node by its id; `known`: what they were called so far.

    Whose name another one still has may be that one come back before Ray has noticed that it was gone: `patient` leaves
    it out. Else it gets a number, unless a label says who it is.
    """
    names = {node.id: known[node.id] for node in nodes if node.id in known}
    for node in nodes:
        if node.id in names:
            continue
        label = node.labels.get(NAME_LABEL, "")
        name = label or node.machine or node.host
        taken = set(names.values())
        if name not in taken:
            names[node.id] = name
        elif not patient and not label:
            names[node.id] = _free(name, taken)
    return names


def _free(name: str, taken: set[str]) -> str:
    number = 2
    while f"{name}-{number}" in taken:
        number += 1
    return f"{name}-{number}"
