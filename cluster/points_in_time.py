"""The points in time that users name: durations, times, positions and cursors, as texts or as Python's own values.

Times are UTC. Positions are places in the log: `Position(group, epoch, offset)`, ordered within a topic group.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final, TypeAlias

from .errors import UsageError
from .positions import Cursor, Position

Since: TypeAlias = Position | Mapping[int, int] | Mapping[str, int] | datetime | timedelta | float | str | None
Until: TypeAlias = datetime | timedelta | float | str | None

# ("cursor", {group: next offset}) or ("time", microseconds since 1970)
WireSince: TypeAlias = tuple[str, Any] | None

CURSOR: Final = "cursor"
TIME: Final = "time"
FOREVER_US: Final = 2**63 - 1
US_PER_S: Final = 1_000_000
# Seconds since 1970 as a number: from 2001 on. Who writes 10 means a duration, and would get everything since 1970.
EPOCH_S_MIN: Final = 1_000_000_000

# Publications of a topic that may be asked for as its last ones: as many as MQTT has packet ids.
LAST_MAX: Final = 65_535

_COUNT: Final = re.compile("[0-9]{1,9}")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_DURATION: Final = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d|w)")
_UNIT_S: Final = {"ms": 0.001, "s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800}


def utc(time_us: int) -> datetime:
    """Microseconds since 1970 as a datetime, exactly."""
    return _EPOCH + timedelta(microseconds=time_us)


def parse_duration(text: str) -> timedelta:
    """A text such as "10m", "1h30m", "500ms": digits and units of ms, s, m, h, d, w. Raises UsageError."""
    parts = _DURATION.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise UsageError(f"{text!r} is no duration: write numbers with units ms, s, m, h, d or w, as in '10m', '1h30m'")
    return timedelta(seconds=sum(float(number) * _UNIT_S[unit] for number, unit in parts))


def parse_time(when: datetime | timedelta | float | str, now_us: int) -> int:
    """Microseconds since 1970 of a datetime (naive: local time), seconds since 1970 (from EPOCH_S_MIN on), or so long
    before `now_us`.

    Texts: a duration, back from now ("10m" or "-10m") or ahead ("+10m"), ISO 8601 ("2026-05-01T12:00:00+02:00"), "now"
    or "beginning". Raises UsageError.
    """
    if isinstance(when, str):
        if when in ("now", "beginning"):
            return now_us if when == "now" else 0
        unsigned = when.lstrip("+-") if when[1:2].isdigit() else when
        if _DURATION.match(unsigned) and when[-1].isalpha() and "T" not in when:
            when = parse_duration(unsigned) * (-1 if when[0] == "+" else 1)
        else:
            try:
                when = datetime.fromisoformat(when)
            except ValueError:
                raise UsageError(
                    f"{when!r} is no point in time: give a duration ('10m'), ISO 8601, 'now' or 'beginning'"
                ) from None
    if isinstance(when, timedelta):
        return max(0, now_us - when // timedelta(microseconds=1))
    if isinstance(when, datetime):
        return max(0, (when.astimezone(UTC) - _EPOCH) // timedelta(microseconds=1))
    if isinstance(when, bool) or not isinstance(when, int | float) or not 0 <= when < FOREVER_US / US_PER_S:
        raise UsageError(f"{when!r} is no point in time: give seconds since 1970, a datetime, a timedelta or a text")
    if when < EPOCH_S_MIN:
        raise UsageError(
            f"{when!r} may be a duration or seconds since 1970: write '{when:g}s' for so long ago, a datetime or "
            "seconds from 2001 on for a time, 'beginning' for all"
        )
    return round(when * US_PER_S)


def parse_since(since: Since, now_us: int, group: int | None) -> WireSince:
    """`since` as it goes to the broker. `group`: the group of an exact filter, None for a wildcard.

    A Position means what came after it. Raises UsageError for what names no point, and for a Position with a wildcard
    (a wildcard concerns all groups, a position lies in one: use a cursor or a time).
    """
    if since is None:
        return None
    if isinstance(since, str) and since.count(":") == 2 and since.replace(":", "").isdigit() and "T" not in since:
        since = Position.parse(since)
    if isinstance(since, Position):
        if group is None:
            raise UsageError("a position resumes one exact topic alone: else use the subscription's `.cursor`")
        if group != since.group:
            raise UsageError(f"position {since} lies in group {since.group}, the topic in group {group}")
        return (CURSOR, {since.group: since.offset + 1})
    if isinstance(since, Mapping):
        return (CURSOR, parse_cursor(since))
    return (TIME, parse_time(since, now_us))


def parse_cursor(cursor: Mapping[Any, Any]) -> Cursor:
    """A cursor {group: next offset}, also as it comes out of JSON (texts for keys). Raises UsageError."""
    try:
        parsed = {int(group): int(offset) for group, offset in cursor.items()}
    except (TypeError, ValueError):
        parsed = {-1: 0}
    if any(group < 0 or offset < 0 for group, offset in parsed.items()):
        raise UsageError("not a cursor: give {group: next offset}, as `subscription.cursor` does")
    return parsed


def parse_last(last: int | str) -> int:
    """How many of a topic's last publications are meant: 1 to LAST_MAX, also as a text. Raises UsageError."""
    number = int(last) if isinstance(last, str) and _COUNT.fullmatch(last) else last
    if isinstance(number, bool) or not isinstance(number, int) or not 1 <= number <= LAST_MAX:
        raise UsageError(
            f"last={last!r:.40}: give how many of each topic's last messages, a whole number, 1 to {LAST_MAX}"
        )
    return number
