"""A cluster with its page, and the flights of 2013 replayed faster than they were flown, until Ctrl-C.

What is published: each flight when it left (`flights/<origin>/<destination>`), the weather (`weather/<station>`), and
each second where every aircraft is that is in the air (`aircraft/<flight>`).
"""

from __future__ import annotations

import argparse
import asyncio
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

from rich.console import Console

import lexicast

from ..data.flights import Event, Replay, prepare_flights
from ..demo.on_cluster import DemoCluster, on_cluster
from ..stage.ports import free_port
from .aircraft import Aircraft, Airport, aircraft, airports, when

TICK_S: Final = 1.0
# Of 2013, a second.
MINUTES_A_SECOND: Final = 2.0
FLIGHTS: Final = 20_000
# Aircraft told of in one tick: there are 250 in the air at the most.
AIRBORNE_MAX: Final = 1_000


def show_page(options: argparse.Namespace, console: Console) -> int:
    """Until Ctrl-C, or `options.seconds` are over; returns the exit code. Raises LexicastError."""

    def prepare(folder: Path) -> tuple[Replay, dict[str, Airport]]:
        return prepare_map(folder, options.messages)

    async def play(cluster: DemoCluster, data: tuple[Replay, dict[str, Airport]]) -> None:
        cluster.begun()
        page = cluster.run["pages"][0]
        console.print(f"The page: {page}   the map: {page}#messages?filter=aircraft/%23&past=1", soft_wrap=True)
        console.print("The flights of 2013, two minutes of them a second; Ctrl-C ends it.")
        async with lexicast.connect(data_dir=cluster.data_dir) as bus:
            await fly(bus, *data, options.seconds)

    on_cluster(console, prepare, play, options.keep, http_config(options.page))
    return 0


def prepare_map(folder: Path, messages: int = FLIGHTS) -> tuple[Replay, dict[str, Airport]]:
    """The flights and the airports; `folder`: for files."""
    return prepare_flights(min(messages, FLIGHTS), folder / "events.tsv"), airports()


def http_config(port: int | None) -> str:
    """The configuration of a cluster with its page at a port; None, 0: at a free one."""
    return f"[http]\nport = {port or free_port()}\n"


async def fly(bus: lexicast.Client, replay: Replay, known: dict[str, Airport], seconds: float | None) -> None:
    """Publish what happens, from the first flight to the last, and from the first again."""
    loop = asyncio.get_running_loop()
    end_s = None if seconds is None else loop.time() + seconds
    events, airborne = Events(replay), dict[str, Aircraft]()
    while end_s is None or loop.time() < end_s:
        due_s = loop.time() + TICK_S
        now, happened = events.until(timedelta(minutes=MINUTES_A_SECOND * TICK_S))
        await bus.publish_many([(event.topic, event.payload) for event in happened])
        airborne.update({each.flight: each for each in aircraft(happened, known)})
        airborne = {flight: each for flight, each in airborne.items() if each.left <= now < each.lands}
        await bus.publish_many([each.message(now) for each in list(airborne.values())[:AIRBORNE_MAX]])
        await asyncio.sleep(max(0.0, due_s - loop.time()))


class Events:
    """The events of a replay, a while of 2013 at a time; behind the last comes the first again."""

    def __init__(self, replay: Replay) -> None:
        self._events = [(when(event), event) for event in replay.events]
        self._next = 0
        self._now = self._events[0][0]

    def until(self, span: timedelta) -> tuple[datetime, list[Event]]:
        """The time in 2013 after another `span`, and what happened in it."""
        if self._next == len(self._events):
            self._next, self._now = 0, self._events[0][0]
        self._now += span
        begun = self._next
        while self._next < len(self._events) and self._events[self._next][0] <= self._now:
            self._next += 1
        return self._now, [event for _, event in self._events[begun : self._next]]
