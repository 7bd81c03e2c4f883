"""Which actors run on which nodes: those that belong there, and so many more as each node is to have. Pure.

A coordinator belongs to the node on which its store lies, and is started nowhere else. A broker keeps nothing: one that
is away is not missed, and its name is taken again on its node.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence


def founding(nodes: Sequence[str], each: int, prefix: str = "coordinator") -> dict[str, str]:
    """The coordinators of a cluster that is new: so many on each node, by name."""
    return {f"{prefix}-{i}": node for i, node in enumerate(node for node in nodes for _ in range(each))}


def settled(names: Iterable[str], homes: Mapping[str, str], nodes: Sequence[str], each: int) -> dict[str, str]:
    """The node of each coordinator that a cluster has. `homes`: as far as it is known; what was stored before homes
    were is where it always was, in the order of names. A cluster of one node has them all there."""
    ordered = sorted(names, key=_number)
    if len(nodes) == 1 and len(set(homes.values())) <= 1:  # a machine may be given another name
        return dict.fromkeys(ordered, nodes[0])
    return {name: homes.get(name) or nodes[min(i // each, len(nodes) - 1)] for i, name in enumerate(ordered)}


def first(homes: Mapping[str, str], nodes: Iterable[str], each: int) -> dict[str, str]:
    """Those that belong to these nodes, by their numbers, as many on each as it is to have."""
    found: dict[str, str] = {}
    for node in nodes:
        here = sorted([name for name, home in homes.items() if home == node], key=_number)
        found |= dict.fromkeys(here[:each], node)
    return found


def more(
    homes: Mapping[str, str], nodes: Iterable[str], each: int, prefix: str, taken: Iterable[str] = ()
) -> dict[str, str]:
    """What lacks on these nodes until each has so many: new names, and their nodes. `taken`: names that are no new ones
    either."""
    numbers = {_number(name) for name in (*homes, *taken)}
    found: dict[str, str] = {}
    number = 0
    for node in nodes:
        for _ in range(each - sum(home == node for home in homes.values())):
            while number in numbers:
                number += 1
            numbers.add(number)
            found[f"{prefix}-{number}"] = node
    return found


def _number(name: str) -> int:
    _, _, number = name.rpartition("-")
    return int(number) if number.isdecimal() else 0
