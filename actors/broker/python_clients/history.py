"""The past as Python clients ask for it: where it begins, and its pages, fetched from the coordinators."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from lexicast.cluster.errors import LedElsewhereError, UsageError
from lexicast.cluster.topics.names import check_filter

from ...client.subscription_feed import FILTERS_MAX
from ..coordinators import ASK_AGAIN_S, Coordinators
from ..feeds.led_parts import LedParts

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
    if not cursor:
        return {"blocks": [], "cursor": {}, "done": True}
    result = await _asked_of_a_leader(coordinators, method, cursor, list(filters), until_us, *more)
    left = {**cursor, **result["cursor"]}
    for ended in result["done"]:
        left.pop(ended, None)
    return {**result, "cursor": left, "done": not left}


async def _asked_of_a_leader(coordinators: Coordinators, method: str, cursor: dict[int, int], *more: Any) -> Any:
    """What the leader of the first group that the cursor names says of all those that it leads; asked of whoever leads
    then, while groups move. Raises UnavailableError after `link.request_timeout_s`."""
    first = next(iter(cursor))
    answer: list[Any] = []
    until_s = asyncio.get_running_loop().time() + coordinators.request_timeout_s
    while True:
        pipeline = coordinators.leader_of(first)
        part = {group: cursor[group] for group in coordinators.by_leader(cursor)[pipeline]}
        try:
            await coordinators.ask(pipeline, answer.append, method, part, *more)
        except LedElsewhereError:
            if asyncio.get_running_loop().time() > until_s:
                raise
            await asyncio.sleep(ASK_AGAIN_S)
        else:
            return answer[0]


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
    after: Sequence[tuple[Sequence[int], Any]] | None,
    bytes_max: int,
) -> dict[str, Any]:
    """One page of the last `count` publications of each topic: blocks, those of a topic one after the other, and what
    is left to be asked `after` it: groups, each with the place where to go on with them; None at the end.

    Raises TopicError, UsageError, UnavailableError.
    """
    check_filters(filters)
    start = await _start(coordinators, filters, since)
    asked = [(start.keys(), None)] if after is None else after
    parts = LedParts(coordinators, [(None, tuple([g for g in groups if g in start]), at) for groups, at in asked])
    if not parts.left:
        return {"blocks": [], "after": None}
    room = min(bytes_max, HISTORY_BYTES_MAX)

    def arguments(_: None, groups: tuple[int, ...], place: Any) -> tuple[Any, ...]:
        return (list(filters), count, {group: start[group] for group in groups}, None, until_us, place, room)

    _, page = await parts.ask("last", arguments)
    parts.took(page["after"])
    return {"blocks": page["blocks"], "after": [(groups, place) for _, groups, place in parts.left] or None}
