"""The overlay of thesis section 6.4.1 and what crosses its edges: publishers, brokers, subscribers, shortest paths."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

DISTRIBUTIONS: Final = ("Equal", "Exponential", "Gamma", "Normal", "Rayleigh", "Zipf")
"""How the messages are spread over the publishers, equation 6.4.1."""

Edge = tuple[int, int]


@dataclass(frozen=True)
class Overlay:
    """Who is connected to which broker, and the edges that messages and dictionaries take between brokers."""

    publisher_home: list[int]
    subscriber_home: list[int]
    message_edges: list[set[Edge]]
    """For each broker: the edges on the shortest paths to all subscribers' brokers."""
    dictionary_edges: set[Edge]
    """The edges on the shortest paths from the sampling broker to all brokers."""


def overlay(publishers: int, brokers: int, subscribers: int, connections: int, seed: int) -> Overlay:
    """Algorithms 6.1 and 6.2: random connections in both directions, everyone at a random broker, shortest paths.

    Brokers are also joined in a ring first, so that every one is reached (the thesis does not say how it made sure).
    """
    draw = random.Random(seed)
    neighbours: list[set[int]] = [set() for _ in range(brokers)]
    for broker in range(brokers):
        for other in [(broker + 1) % brokers, *(draw.randrange(brokers) for _ in range(connections))]:
            if other != broker:
                neighbours[broker].add(other)
                neighbours[other].add(broker)
    publisher_home = [draw.randrange(brokers) for _ in range(publishers)]
    subscriber_home = [draw.randrange(brokers) for _ in range(subscribers)]
    trees = [_parents(neighbours, broker) for broker in range(brokers)]
    message_edges = [_paths(tree, subscriber_home) for tree in trees]
    return Overlay(
        publisher_home, subscriber_home, message_edges, _paths(trees[draw.randrange(brokers)], range(brokers))
    )


def _parents(neighbours: Sequence[set[int]], root: int) -> dict[int, int]:
    """The breadth-first tree from `root`: for each broker the one before it."""
    parents = {root: root}
    waiting = deque([root])
    while waiting:
        at = waiting.popleft()
        for other in sorted(neighbours[at]):
            if other not in parents:
                parents[other] = at
                waiting.append(other)
    return parents


def _paths(parents: Mapping[int, int], targets: Sequence[int]) -> set[Edge]:
    edges: set[Edge] = set()
    for target in targets:
        at = target
        while parents[at] != at and (parents[at], at) not in edges:
            edges.add((parents[at], at))
            at = parents[at]
    return edges


def senders(distribution: str, publishers: int, messages: int, seed: int) -> npt.NDArray[np.int64]:
    """Who sends each message, in order. Raises ValueError for an unknown distribution."""
    draw = np.random.default_rng(seed)
    weights: dict[str, Callable[[], npt.NDArray[np.float64]]] = {
        "Equal": lambda: np.ones(publishers),
        "Exponential": lambda: draw.exponential(1.0, publishers),
        "Gamma": lambda: draw.gamma(2.0, 1.0, publishers),
        "Normal": lambda: np.abs(draw.normal(1.0, 0.25, publishers)),
        "Rayleigh": lambda: draw.rayleigh(1.0, publishers),
        "Zipf": lambda: 1.0 / np.arange(1, publishers + 1),
    }
    if distribution not in weights:
        raise ValueError(f"unknown distribution {distribution!r}: one of {', '.join(weights)}")
    share = weights[distribution]()
    counts = np.floor(share / share.sum() * messages).astype(np.int64)
    counts[: messages - int(counts.sum())] += 1
    order = np.repeat(np.arange(publishers), counts)
    draw.shuffle(order)
    return order
