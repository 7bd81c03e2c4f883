"""The network of brokers as their samples tell it (`interest_sample`). Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .bits import packed
from .interest_sample import ALL, InterestSample
from .network import BrokerNetwork


def network_of(samples: Mapping[str, InterestSample], locations: Mapping[str, str]) -> BrokerNetwork:
    """What backups are assigned from: brokers with their locations, what they want as far as all of them tell it, how
    many subscribers each has, and how many it may have (loads count subscribers: lambda_k = 1)."""
    names = tuple(sorted(samples))
    below = min([samples[name].below for name in names], default=ALL)
    rows = [_below(np.frombuffer(samples[name].hashes, "<u8"), below) for name in names]
    columns = np.unique(np.concatenate(rows)) if rows else np.empty(0, "<u8")
    brokers = np.repeat(np.arange(len(rows)), [len(row) for row in rows])
    at = np.searchsorted(columns, np.concatenate(rows)) if rows else np.empty(0, np.int64)
    return BrokerNetwork(
        names,
        tuple([locations.get(name, "") for name in names]),
        packed(brokers, at, (len(names), len(columns))),
        np.array([samples[name].subscribers for name in names], np.float64),
        np.array([samples[name].capacity for name in names], np.float64),
    )


def _below(hashes: NDArray[Any], bound: int) -> NDArray[Any]:
    return hashes if bound >= ALL else hashes[hashes < np.uint64(bound)]
