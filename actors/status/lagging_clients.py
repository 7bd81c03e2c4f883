"""Clients of a broker that have something to catch up with, and how much. Pure."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from typing import Any, Final, NamedTuple

# Clients that are looked at for one answer: each has a cursor in up to all topic groups, and a look at 10,000 of them
# would keep the broker from everything else for 50 ms.
LOOKED_AT_MAX: Final = 1_000


class LaggingClient(NamedTuple):
    """One client. `describe`: as lists of clients have it; `cursors`: by topic group, one of each of its subscriptions
    that lag."""

    describe: Callable[[], dict[str, Any]]
    cursors: list[Mapping[int, int]]


def furthest_behind(clients: Iterable[LaggingClient], heads: Mapping[int, int], count: int) -> list[dict[str, Any]]:
    """The `count` clients with most to catch up with, of the first LOOKED_AT_MAX, as they describe themselves and with
    "behind_records": what is stored in their topic groups up to the broker's `heads` and was not looked at for them,
    whether it matches their filters or not."""
    measured = [
        (sum([max(0, heads.get(group, 0) - at) for cursor in each.cursors for group, at in cursor.items()]), each)
        for each in islice(clients, LOOKED_AT_MAX)
    ]
    furthest = heapq.nlargest(count, measured, key=lambda found: found[0])
    return [{**each.describe(), "behind_records": records} for records, each in furthest]
