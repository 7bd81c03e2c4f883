"""The demo's questions to the past, by the Python client: the last hour's flights, and the dictionaries learned."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lexicast.actors.client.client import Client
from lexicast.actors.client.connect import connect
from lexicast.compression.dictionary import Dictionary, unpack_dictionary

from ..data.flights import Event, Replay


@dataclass(frozen=True)
class Answer:
    """The flights to `dest` in the last hour of the data, as history gives them; `expected` has the replayed ones."""

    dest: str
    since_us: int
    seconds: float
    flights: list[dict[str, Any]]
    positions: list[str]
    right: bool


@dataclass(frozen=True)
class Learned:
    """One dictionary of the log: when it was published, and its size as sent."""

    time_us: int
    dictionary: Dictionary
    sent_bytes: int


async def ask_past(data_dir: Path, replay: Replay, last_hour_us: int) -> tuple[Answer, list[Learned]]:
    """Asks the cluster on `data_dir`. `last_hour_us`: when the data's last hour began to be published."""
    async with connect(data_dir=data_dir, client_id="demo-past") as bus:
        return await _flights(bus, replay, last_hour_us), await _dictionaries(bus)


def busiest(events: Sequence[Event]) -> str:
    """The destination of most flights."""
    flights = [event.topic.rpartition("/")[2] for event in events if event.topic.startswith("flights/")]
    return Counter(flights).most_common(1)[0][0]


async def _flights(bus: Client, replay: Replay, last_hour_us: int) -> Answer:
    hour = replay.events[replay.last_hour :]
    dest = busiest(hour)
    started = time.perf_counter()
    found = [message async for message in bus.history(f"flights/+/{dest}", since=last_hour_us / 1e6)]
    seconds = time.perf_counter() - started
    # Another airport may have been a moment behind when the hour began.
    timed = [(json.loads(message.payload), message) for message in found]
    kept = [(flight, message) for flight, message in timed if flight["time"] > replay.last_hour_from]
    kept.sort(key=lambda one: (one[0]["time"], one[1].position))
    expected = sorted(event.payload for event in hour if event.topic.endswith(f"/{dest}"))
    return Answer(
        dest,
        last_hour_us,
        seconds,
        [flight for flight, _ in kept],
        [str(message.position) for _, message in kept],
        sorted(message.payload for _, message in kept) == expected,
    )


async def _dictionaries(bus: Client) -> list[Learned]:
    """All that were ever announced: they are publications like any other."""
    return [
        Learned(round(message.time.timestamp() * 1e6), unpack_dictionary(message.payload), len(message.payload))
        async for message in bus.history("$sdc/#")
        if message.payload
    ]
