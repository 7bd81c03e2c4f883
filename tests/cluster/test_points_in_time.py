"""Points in time as users write them."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from lexicast.cluster.errors import UsageError
from lexicast.cluster.points_in_time import (
    LAST_MAX,
    parse_cursor,
    parse_duration,
    parse_last,
    parse_since,
    parse_time,
    utc,
)
from lexicast.cluster.positions import Position

NOW_US = 1_700_000_000_000_000


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("10m", 600), ("1h30m", 5400), ("500ms", 0.5), ("2d", 172_800), ("1.5s", 1.5), ("1w", 604_800)],
)
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration(text) == timedelta(seconds=seconds)
    assert parse_time(text, NOW_US) == NOW_US - round(seconds * 1e6)


@pytest.mark.parametrize("text", ["", "10", "m", "10 m", "10x", "1h-3m", "10m "])
def test_no_durations(text: str) -> None:
    with pytest.raises(UsageError, match="duration"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("when", "time_us"),
    [
        ("now", NOW_US),
        ("beginning", 0),
        (1_000_000_001.5, 1_000_000_001_500_000),
        (1_000_000_000, 1_000_000_000_000_000),
        (timedelta(seconds=2), NOW_US - 2_000_000),
        (timedelta(days=100_000), 0),
        (datetime(2001, 9, 9, 1, 46, 40, 5, tzinfo=UTC), 1_000_000_000_000_005),
        ("2001-09-09T03:46:40+02:00", 1_000_000_000_000_000),
        ("2001-09-09 01:46:40Z", 1_000_000_000_000_000),
    ],
)
def test_times(when: Any, time_us: int) -> None:
    assert parse_time(when, NOW_US) == time_us
    assert utc(time_us).timestamp() == pytest.approx(time_us / 1e6)


@pytest.mark.parametrize("when", ["yesterday", "", "10 m", -1.0, float("nan"), float("inf"), True, None, [], 1e300])
def test_no_times(when: Any) -> None:
    with pytest.raises(UsageError, match="no point in time"):
        parse_time(when, NOW_US)


@pytest.mark.parametrize("when", [0, 10, 1.5, 999_999_999])
def test_a_number_that_may_be_a_duration_is_refused(when: float) -> None:
    for parse in (lambda: parse_time(when, NOW_US), lambda: parse_since(when, NOW_US, 3)):
        with pytest.raises(UsageError, match=r"may be a duration.* for so long ago"):
            parse()


def test_since() -> None:
    assert parse_since(None, NOW_US, 3) is None
    assert parse_since(Position(3, 9, 41), NOW_US, 3) == ("cursor", {3: 42})
    assert parse_since("3:9:41", NOW_US, 3) == ("cursor", {3: 42})
    assert parse_since({"3": 42, "4": 0}, NOW_US, None) == ("cursor", {3: 42, 4: 0})
    assert parse_since(json.loads(json.dumps({3: 42})), NOW_US, None) == ("cursor", {3: 42})
    assert parse_since("10m", NOW_US, None) == ("time", NOW_US - 600_000_000)
    for wrong in ({"a": 1}, {1: -1}, {1: None}):
        with pytest.raises(UsageError, match="not a cursor"):
            parse_cursor(wrong)


@pytest.mark.parametrize("last", [1, LAST_MAX, "1", "17", str(LAST_MAX)])
def test_a_number_of_last_publications(last: int | str) -> None:
    assert parse_last(last) == int(last)


@pytest.mark.parametrize("last", [0, -1, LAST_MAX + 1, True, 1.0, None, "", "0", "-1", "+1", "1e3", "9" * 5_000])
def test_what_is_no_number_of_last_publications_is_refused(last: Any) -> None:
    with pytest.raises(UsageError, match="1 to 65535"):
        parse_last(last)
