"""The past as Python clients ask for it: where it begins, and its pages, fetched from the coordinators."""

from __future__ import annotations

from typing import Any

from lexicast.cluster.errors import UnavailableError, UsageError
from lexicast.cluster.topics.names import check_filter

from ...client.subscription_feed import FILTERS_MAX
from ..coordinators import Coordinators
from ..pipelines.pipeline import Pipeline

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
    return await coordinators.offsets_at(filters, int(value))


def _groups(coordinators: Coordinators, filters: tuple[bytes, ...]) -> list[int]:
    return sorted(coordinators.groups_of_all(filters))


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
    room = min(bytes_max, HISTORY_BYTES_MAX)
    return await _page(coordinators, "history", filters, since, until_us, cursor, room)


async def count_page(
    coordinators: Coordinators,
    filters: tuple[bytes, ...],
    since: Since | None,
    until_us: int,
    cursor: dict[int, int] | None,
) -> dict[str, Any]:
    """How many publications the next part of the past has: "count", and the cursor to go on with; as `history_page`."""
    return {"count": 0, **await _page(coordinators, "count", filters, since, until_us, cursor)}


async def _page(
    coordinators: Coordinators,
    method: str,
    filters: tuple[bytes, ...],
    since: Since | None,
    until_us: int,
    cursor: dict[int, int] | None,
    *more: int,
) -> dict[str, Any]:
    """What the first coordinator of those that the cursor names says, and what is left of the cursor then."""
    check_filters(filters)
    if cursor is None:
        cursor = await _start(coordinators, filters, since)
    for group in list(cursor):
        pipeline = coordinators.leader_of(group)
        part = {g: at for g, at in cursor.items() if coordinators.pipeline_of(g) is pipeline}
        result = await pipeline.request(method, part, list(filters), until_us, *more)
        left = {**cursor, **result["cursor"]}
        for ended in result["done"]:
            left.pop(ended, None)
        return {**result, "cursor": left, "done": not left}
    return {"blocks": [], "cursor": {}, "done": True}


async def _start(coordinators: Coordinators, filters: tuple[bytes, ...], since: Since | None) -> dict[int, int]:
    """Where to begin: everything at 0, for which nobody need be asked; an empty cursor nowhere."""
    everything = since is None or since == ("time", 0)
    start = None if everything else await beginning_of(coordinators, filters, since)
    return start if start is not None else dict.fromkeys(_groups(coordinators, filters), 0)


async def last_page(
    coordinators: Coordinators,
    filters: tuple[bytes, ...],
    since: Since | None,
    until_us: int,
    count: int,
    after: tuple[str, Any] | None,
    bytes_max: int,
) -> dict[str, Any]:
    """One page of the last `count` publications of each topic: blocks, those of a topic one after the other, and the
    place `after` which the next page begins; None at the end.

    Raises TopicError, UsageError, UnavailableError.
    """
    check_filters(filters)
    parts: dict[str, tuple[Pipeline, dict[int, int]]] = {}
    for group, at in (await _start(coordinators, filters, since)).items():
        pipeline = coordinators.leader_of(group)
        parts.setdefault(pipeline.member.name, (pipeline, {}))[1][group] = at
    if not parts:
        return {"blocks": [], "after": None}
    # Each coordinator in its turn: the place names whose it is.
    names = sorted(parts)
    name, place = after or (names[0], None)
    if name not in parts:
        raise UnavailableError(f"{name} does not lead these topics any more: ask again from the start")
    pipeline, own = parts[name]
    room = min(bytes_max, HISTORY_BYTES_MAX)
    page = await pipeline.request("last", list(filters), count, own, None, until_us, place, room)
    following = name if page["after"] is not None else next((each for each in names if each > name), None)
    return {"blocks": page["blocks"], "after": None if following is None else (following, page["after"])}
