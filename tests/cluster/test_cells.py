"""Locations to cell topics."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import lexicast
from lexicast.cluster.errors import UsageError
from lexicast.cluster.points_in_time import parse_time
from lexicast.cluster.topics.cells import METRES_A_DEGREE, cells

NEW_YORK = (40.0, -80.0, 45.0, -70.0)  # cells of 0.01 by 0.02 degrees


def test_a_place_is_in_one_cell_and_its_neighbours_come_after_it() -> None:
    assert lexicast.cells(40.005, -79.99, box=NEW_YORK) == ["cell/0/0"]
    assert cells(42.5, -75.0, box=NEW_YORK, prefix="ny/cell") == ["ny/cell/250/250"]
    near = cells(42.505, -74.99, box=NEW_YORK, around_m=900)
    assert near[0] == "cell/250/250"
    assert set(near) == {f"cell/{r}/{c}" for r in (249, 250, 251) for c in (249, 250, 251)} - {
        "cell/249/249",
        "cell/249/251",
        "cell/251/249",
        "cell/251/251",
    }


def test_edges_belong_to_the_south_and_the_west_and_nothing_lies_beyond_the_box() -> None:
    assert cells(40.0, -80.0, box=NEW_YORK) == ["cell/0/0"]
    assert cells(45.0, -75.0, box=NEW_YORK) == []
    assert cells(50.0, -75.0, box=NEW_YORK) == []
    assert cells(45.001, -74.99, box=NEW_YORK, around_m=200) == ["cell/499/250"]


@example(latitude=40.65, longitude=-71.0, around=1.0)  # an edge that rounding puts on the other side
@given(latitude=st.floats(40, 44.999), longitude=st.floats(-80, -70.001), around=st.floats(0, 5_000))
def test_every_cell_within_reach_is_there_the_own_one_first(latitude: float, longitude: float, around: float) -> None:
    found = cells(latitude, longitude, box=NEW_YORK, around_m=around)
    assert len(set(found)) == len(found) > 0
    assert cells(latitude, longitude, box=NEW_YORK) == found[:1]
    for degrees in range(0, 360, 30):
        reach = 0.98 * around / METRES_A_DEGREE
        there = (
            latitude + reach * math.sin(math.radians(degrees)),
            longitude + reach * math.cos(math.radians(degrees)) / math.cos(math.radians(latitude)),
        )
        assert set(cells(*there, box=NEW_YORK)) <= set(found)


@pytest.mark.parametrize(
    ("given_", "why"),
    [
        ({"box": (45.0, -80.0, 40.0, -70.0)}, "no box"),
        ({"rows": 0}, "at least 1"),
        ({"latitude": 91.0}, "no place"),
        ({"around_m": math.inf}, "no place"),
        ({"around_m": 500_000.0}, "wildcard"),
        ({"prefix": "a/#"}, "#"),
    ],
)
def test_what_cannot_be_is_refused(given_: dict[str, Any], why: str) -> None:
    arguments: dict[str, Any] = {"latitude": 42.0, "longitude": -75.0, "box": NEW_YORK, **given_}
    with pytest.raises(UsageError, match=why):
        cells(**arguments)


def test_windows_are_told_back_and_ahead_from_now() -> None:
    now_us = 1_700_000_000_000_000
    assert parse_time("-10s", now_us) == parse_time("10s", now_us) == now_us - 10_000_000
    assert parse_time("+1m30s", now_us) == now_us + 90_000_000
    for wrong in ("+", "+-10s", "--10s", "+10"):
        with pytest.raises(UsageError):
            parse_time(wrong, now_us)
