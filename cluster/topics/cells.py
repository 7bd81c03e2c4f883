"""Locations to cell topics: what a moving subscriber listens to (the DualDB paper's running example, section 1).

A bounding box is cut into rows and columns of equal size; a cell's topic is `PREFIX/ROW/COLUMN`, so that `PREFIX/ROW/+`
is a band. Whoever moves subscribes to `cells(...)` of the new place for a window, such as `since="-10s", until="+10s"`,
and need not unsubscribe: the window ends by itself.
"""

from __future__ import annotations

from math import ceil, cos, floor, isfinite, radians
from typing import Final, NamedTuple

from ..errors import UsageError
from .names import check_topic

# Metres of a degree of latitude, on a sphere of the earth's mean radius.
METRES_A_DEGREE: Final = 111_195.0
CELLS_MAX: Final = 10_000
"""Topics of one call at most: more is a radius far beyond a cell, which a wildcard serves better."""


class BoundingBox(NamedTuple):
    """A bounding box in degrees."""

    south: float
    west: float
    north: float
    east: float


def cells(
    latitude: float,
    longitude: float,
    *,
    box: tuple[float, float, float, float],
    rows: int = 500,
    columns: int = 500,
    around_m: float = 0.0,
    prefix: str = "cell",
) -> list[str]:
    """The topics of the cell that holds a place and, with `around_m`, of those within that many metres of it.

    `box` is (south, west, north, east) in degrees; its southern and western edges belong to it, and its cell (0, 0)
    lies in the south-west. The place's own cell comes first, the others from south to north. Cells beyond the box do
    not exist; a place beyond it has only those that `around_m` reaches. A box across the 180th meridian is two boxes.

    Raises UsageError: an empty or turned box, no rows or columns, a place that is none, more than CELLS_MAX topics, a
    prefix that no topic may begin with.
    """
    area = _checked(BoundingBox(*box), rows, columns)
    if not (abs(latitude) <= 90 and abs(longitude) <= 180 and around_m >= 0 and isfinite(around_m)):
        raise UsageError(f"({latitude}, {longitude}) within {around_m} m is no place on the earth")
    check_topic(f"{prefix}/0/0".encode())
    height, width = (area.north - area.south) / rows, (area.east - area.west) / columns
    north = around_m / METRES_A_DEGREE
    # Degrees of longitude are shortest, so most of them are reached, at the far edge of the circle.
    shortest = cos(radians(min(90.0, abs(latitude) + north)))
    east = north / shortest if shortest > 1e-9 else 360.0
    near_rows = _span(latitude - north, latitude + north, area.south, height, rows)
    near_columns = _span(longitude - east, longitude + east, area.west, width, columns)
    if len(near_rows) * len(near_columns) > CELLS_MAX:
        raise UsageError(f"{len(near_rows) * len(near_columns)} cells, more than {CELLS_MAX}: use a wildcard filter")
    found = [
        (away > 0, r, c)
        for r in near_rows
        for c in near_columns
        if (away := _metres(latitude, longitude, area, height, width, r, c)) <= around_m
    ]
    return [f"{prefix}/{r}/{c}" for _, r, c in sorted(found)]


def _checked(box: BoundingBox, rows: int, columns: int) -> BoundingBox:
    if not (-90 <= box.south < box.north <= 90 and -180 <= box.west < box.east <= 180):
        raise UsageError(f"{tuple(box)} is no box (south, west, north, east) in degrees")
    if rows < 1 or columns < 1:
        raise UsageError(f"{rows} rows and {columns} columns: at least 1 of each")
    return box


def _span(low: float, high: float, origin: float, size: float, count: int) -> range:
    """The rows (columns) between two latitudes (longitudes), as far as they exist."""
    return range(max(0, floor((low - origin) / size)), min(count, max(ceil((high - origin) / size), 0) + 1))


def _metres(
    latitude: float, longitude: float, box: BoundingBox, height: float, width: float, row: int, column: int
) -> float:
    """Metres from a place to the nearest point of a cell (0 inside), on a plane: good for cells of some kilometres."""
    # The same numbers for an edge from both sides, so that every place is in exactly one cell.
    south, north = box.south + row * height, box.south + (row + 1) * height
    west, east = box.west + column * width, box.west + (column + 1) * width
    # Half-open cells: a place on a northern or eastern edge is in the next one.
    if south <= latitude < north and west <= longitude < east:
        return 0.0
    up = max(south - latitude, latitude - north, 0.0)
    right = max(west - longitude, longitude - east, 0.0) * cos(radians(latitude))
    return max(float((up * up + right * right) ** 0.5) * METRES_A_DEGREE, 1e-9)
