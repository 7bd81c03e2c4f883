"""Which coordinators' stores lie on which nodes: asked of the nodes where the registry cannot tell.

It cannot where it was lost, and where a node has another name than it had. A store that is not found again would be
made anew beside the old one, empty.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from ..coordination.recovering import stores_here
from ..ray.errors import ray_errors
from .ray_nodes import ACTOR_CPUS, RayNodes, worker_environment

ASK_TIMEOUT_S: Final = 60.0


async def stores_on_nodes(nodes: RayNodes, folder: Path) -> dict[str, list[str]]:
    """Of each node the coordinators that have a store below `folder` there. Raises UnavailableError."""
    if len(nodes.nodes) == 1:
        return {nodes.names[nodes.nodes[0]]: stores_here(folder)}
    look: Any = ray.remote(_look)
    found = {}
    with ray_errors("looking for stores"):
        asked = {
            nodes.names[node_id]: look.options(
                num_cpus=ACTOR_CPUS,
                scheduling_strategy=NodeAffinitySchedulingStrategy(node_id, soft=False),
                runtime_env=worker_environment(nodes),
                max_retries=0,
            ).remote(str(folder))
            for node_id in nodes.nodes
        }
        async with asyncio.timeout(ASK_TIMEOUT_S):
            for name, answer in asked.items():
                found[name] = list(await answer)
    return found


def _look(folder: str) -> list[str]:
    return stores_here(Path(folder))


def homes_of(stores: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """The node of each coordinator whose store lies on one node; where several share a folder nobody can tell."""
    nodes: dict[str, list[str]] = {}
    for node, names in stores.items():
        for name in names:
            nodes.setdefault(name, []).append(node)
    return {name: where[0] for name, where in nodes.items() if len(where) == 1}
