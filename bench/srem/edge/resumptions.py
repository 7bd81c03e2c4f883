"""Part `resumptions`: many subscriptions with conditions that go on from their places at once, as when their broker was
killed.

A coordinator with a store of flights and a broker's engine, linked. Each subscription is a Python client's stream with
a condition of its own, which a few of the messages match, and begins where the store does.

    content_resume_us         CPU of the broker a subscription, of all its work until each is live
    content_resume_turn_ms    the longest turn of its event loop meanwhile

What each gets is held against a client's own filter. The best of the rounds, and the longest turn of that one.
"""

from __future__ import annotations

import asyncio
import json
import random
import tempfile
import time
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgpack

from lexicast.actors.broker.encoding import LINK, Grant, Kind
from lexicast.actors.broker.engine import BrokerEngine
from lexicast.actors.broker.subscriber import Subscriber
from lexicast.actors.loop.turns import LoopWatch
from lexicast.cluster.blocks import Block
from lexicast.cluster.content.predicate import Predicate
from lexicast.compression.wire import Recoder

from ...data.flights import prepare_flights
from ...report import DriverReport, Steps
from .actor_gc import collecting_as_actors_do
from .past_cluster import CoordinatorThread, linked_engine, publish_all

MESSAGES: Final = 20_000
QUICK_MESSAGES: Final = 2_000
SUBSCRIPTIONS: Final = 1_500
QUICK_SUBSCRIPTIONS: Final = 200
FILTER: Final = b"flights/#"
# Miles: one flight in a hundred or so.
WIDTH_MI: Final = 10
FARTHEST_MI: Final = 2_600
WAIT_S: Final = 600.0


class Resumed(Subscriber):
    """A Python client's stream that keeps what it gets. `live`: it has got all."""

    __slots__ = ("data", "live")

    def __init__(self, engine: BrokerEngine) -> None:
        self.live = asyncio.Event()
        super().__init__(engine.subscriptions, Kind(LINK))
        self.data: list[bytes] = []

    def refresh(self) -> None:
        """See `Subscriber.refresh`: it has fallen behind, or is live."""
        super().refresh()
        (self.live.set if self.ready else self.live.clear)()

    def write(self, data: bytes) -> None:
        """Take a packed block."""
        self.data.append(data)


class Range(NamedTuple):
    """A condition: flights of `low` miles to WIDTH_MI more."""

    low: int

    @property
    def where(self) -> str:
        """As a subscriber writes it."""
        return f"distance_mi BETWEEN {self.low} AND {self.low + WIDTH_MI} AND dep_delay_min > {self.low % 7 - 8}"

    def holds(self, event: dict[str, Any]) -> bool:
        """What a client asks in its place."""
        delay = event.get("dep_delay_min")
        near = self.low <= event["distance_mi"] <= self.low + WIDTH_MI
        return near and delay is not None and delay > self.low % 7 - 8


def steps(quick: bool) -> int:
    """How many steps `measure` announces."""
    return 2


def measure(report: DriverReport, progress: Steps) -> None:
    """See the module's docstring."""
    quick = report.options.quick
    messages, count = (QUICK_MESSAGES, QUICK_SUBSCRIPTIONS) if quick else (MESSAGES, SUBSCRIPTIONS)
    progress.step(f"resumptions: {messages:,} flights are stored")
    with tempfile.TemporaryDirectory(prefix="lexicast-srem-") as name:
        folder = Path(name)
        events = [e for e in prepare_flights(messages, folder / "flights").events if e.topic.startswith("flights/")]
        with CoordinatorThread(folder) as coordinator:
            asyncio.run(_store(coordinator, events))
            progress.step(f"resumptions: {count:,} subscriptions go on")
            chance = random.Random(report.options.seed)
            ranges = [Range(chance.randrange(FARTHEST_MI)) for _ in range(count)]
            decoded = [json.loads(event.payload) for event in events]
            rounds = [asyncio.run(_resume(report, coordinator, ranges, decoded)) for _ in range(report.options.rounds)]
    best_s, turn_ms = min(rounds)
    report.figure("content_resume_us", 1e6 * best_s / count)
    report.figure("content_resume_turn_ms", turn_ms)
    report.table(
        f"{count:,} subscriptions with a condition each go on, {len(events):,} flights behind",
        ["CPU s", "us a subscription", "longest turn ms"],
        [[f"{seconds:.2f}", f"{1e6 * seconds / count:,.0f}", f"{longest:.1f}"] for seconds, longest in rounds],
    )


async def _store(coordinator: CoordinatorThread, events: list[Any]) -> None:
    engine = await linked_engine(coordinator)
    try:
        await publish_all(engine, events)
    finally:
        await engine.close()


async def _resume(
    report: DriverReport, coordinator: CoordinatorThread, ranges: list[Range], events: list[dict[str, Any]]
) -> tuple[float, float]:
    """Seconds of CPU, and the longest turn in ms."""
    engine = await linked_engine(coordinator)
    watch = LoopWatch()
    watching = asyncio.get_running_loop().create_task(watch.run())
    try:
        start = dict.fromkeys(range(engine.groups), 0)
        streams = [Resumed(engine) for _ in ranges]
        grants = [Grant(where=Predicate.parse(each.where)) for each in ranges]
        with collecting_as_actors_do():
            watch.longest_ms()
            began_s = time.thread_time()
            async with asyncio.timeout(WAIT_S):
                await asyncio.gather(
                    *[
                        engine.subscriptions.subscribe(stream, {FILTER: grant}, start=start)
                        for stream, grant in zip(streams, grants, strict=True)
                    ]
                )
                await asyncio.gather(*[stream.live.wait() for stream in streams])
            taken_s, turn_ms = time.thread_time() - began_s, watch.longest_ms()
        _check(report, streams, ranges, events)
        return taken_s, turn_ms
    finally:
        watching.cancel()
        await engine.close()


def _check(report: DriverReport, streams: list[Resumed], ranges: list[Range], events: list[dict[str, Any]]) -> None:
    recoder = Recoder()
    for stream, each in zip(streams, ranges, strict=True):
        found = 0
        for block in [Block.from_wire(msgpack.unpackb(data, use_list=False)) for data in stream.data]:
            raw = [recoder.to_raw(r.encoding, r.dictionary, r.payload) for r in block.records()]
            if not all([each.holds(json.loads(payload)) for payload in raw]):
                report.problem(f"resumptions: {each.where}: something is unwanted")
            found += len(raw)
        if found != (owed := sum(map(each.holds, events))):
            report.problem(f"resumptions: {each.where}: {found} messages, and {owed} are owed")
