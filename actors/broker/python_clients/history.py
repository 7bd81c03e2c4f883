"""The past as Python clients ask for it: where it begins, and its pages, fetched from the coordinators."""

from __future__ import annotations

from typing import Any

from lexicast.cluster.errors import UnavailableError, UsageError
from lexicast.cluster.topics.names import check_filter

from ...client.subscription_feed import FILTERS_MAX
from ..coordinators import Coordinators

HISTORY_BYTES_MAX = 4 * 1024 * 1024

# ("cursor", group -> offset), or ("time", microseconds since 1970).
Since = tuple[str, Any]


def check_filters(filters: tuple[bytes, ...]) -> None:
    """Raises TopicError, UsageError."""
    if not 1 <= len(filters) <= FILTERS_MAX:
        raise UsageError(f"{len(filters)} filters: give 1 to {FILTERS_MAX}")
    for topic_filter in filters:
        check_filter(topic_filter)


async def beginning_of(
    coordinators: Coordinators, filters: tuple[bytes, ...], since: Since | None
) -> dict[int, int] | None:
    """The offset to begin at in each group that the filters concern; None for None. Raises UsageError."""
    if since is None:
        return None
    kind, value = since
    if kind == "cursor":
        return {group: value[group] for group in _groups(coordinators, filters) if group in value}
    if kind != "time":
        raise UsageError(f"since is of an unknown kind: {kind}")
    start: dict[int, int] = {}
    for topic_filter in filters:
        start |= await coordinators.offsets_at(topic_filter, int(value))
    return start


def _groups(coordinators: Coordinators, filters: tuple[bytes, ...]) -> list[int]:
    return sorted({group for topic_filter in filters for group in coordinators.groups_of(topic_filter)})


async def history_page(
    coordinators: Coordinators,
    filters: tuple[bytes, ...],
    since: Since | None,
    until_us: int,
    cursor: dict[int, int] | None,
    bytes_max: int,
) -> dict[str, Any]:
    """One page of the past: blocks before `until_us`, and the cursor to ask the next page with.

    Raises TopicError, UsageError, UnavailableError.
    """
    check_filters(filters)
    if cursor is None:
        everything = since is None or since == ("time", 0)
        start = None if everything else await beginning_of(coordinators, filters, since)
        cursor = start or dict.fromkeys(_groups(coordinators, filters), 0)
    for group in list(cursor):
        pipeline = coordinators.pipeline_of(group)
        if pipeline is None:
            raise UnavailableError(f"no coordinator leads group {group} now")
        part = {g: at for g, at in cursor.items() if coordinators.pipeline_of(g) is pipeline}
        room = min(bytes_max, HISTORY_BYTES_MAX)
        result = await pipeline.request("history", part, list(filters), until_us, room)
        left = {**cursor, **result["cursor"]}
        for ended in result["done"]:
            left.pop(ended, None)
        return {"blocks": result["blocks"], "cursor": left, "done": not left}
    return {"blocks": [], "cursor": {}, "done": True}
