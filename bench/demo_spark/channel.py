"""The channel of `demo_spark`: two subscribers move, emergencies happen, and each is told of those near them."""

from __future__ import annotations

import csv
import json
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.table import Table

import lexicast.sync
from lexicast.cluster.errors import UnavailableError
from lexicast.raydp_jobs.channels.backend_subscriptions import channel_subscriptions
from lexicast.raydp_jobs.channels.bus import ChannelBus
from lexicast.raydp_jobs.channels.definitions import channel_topic
from lexicast.raydp_jobs.channels.example import NAME, SHELTERS, emergencies_near_me
from lexicast.raydp_jobs.channels.questions import SparkQuestions
from lexicast.raydp_jobs.channels.runner import ChannelRunner

from .pictures import Place, draw_map

PERIOD_S: Final = 5.0
KM: Final = 5
WAIT_S: Final = 60.0
WAYS: Final[Mapping[str, tuple[Place, ...]]] = {
    "ann": ((33.760, -117.930), (33.715, -117.875), (33.690, -117.840), (33.672, -117.800)),
    "bob": ((33.600, -117.700), (33.620, -117.730), (33.650, -117.755), (33.668, -117.782)),
}
# when it happens (period), and where
EMERGENCIES: Final[Mapping[str, tuple[int, Place]]] = {
    "fire": (0, (33.650, -117.830)),
    "flood": (1, (33.722, -117.880)),
    "crash": (3, (33.690, -117.762)),
}


def show_channel(console: Console, spark: Any, data_dir: Path) -> Callable[[Path], None]:
    """Defines the channel, subscribes, moves, and shows what was delivered; what draws it. Raises UnavailableError."""
    channel = emergencies_near_me(period_s=PERIOD_S)
    topics = {user: channel_topic(NAME, {"user": user, "km": KM}) for user in WAYS}
    with (
        lexicast.sync.connect(data_dir=data_dir) as bus,
        ChannelBus({"data_dir": data_dir}) as runners,
        ExitStack() as stack,
    ):
        bus.publish(channel.topic, channel.pack(), retain=True)
        inboxes = {user: stack.enter_context(bus.subscribe(topic)) for user, topic in topics.items()}
        _await(lambda: NAME in runners.channels and set(topics.values()) <= set(channel_subscriptions().get(NAME, {})))
        console.print("\n".join(f"{user} subscribes to {topic}" for user, topic in topics.items()), markup=False)
        runners.claim()
        runner = ChannelRunner(runners, SparkQuestions(spark).ask, channel_subscriptions)
        table = Table("period", "ann is at", "bob is at", "happens", "delivered")
        delivered: list[tuple[str, Place, str]] = []
        for period in range(len(WAYS["ann"])):
            happens = [kind for kind, (at, _) in EMERGENCIES.items() if at == period]
            bus.publish_many([_located(f"locations/{user}", way[period]) for user, way in WAYS.items()])
            bus.publish_many(
                [_located(f"emergencies/{kind}", EMERGENCIES[kind][1], id=kind, kind=kind) for kind in happens]
            )
            told = _period(runner, period, topics, inboxes)
            delivered += [(user, WAYS[user][period], row["id"]) for user, row in told]
            lines = [f"{user}: {row['kind']} at {row['km']} km, go to {row['shelter']}" for user, row in told]
            places = [f"{lat:.3f}, {lon:.3f}" for lat, lon in (way[period] for way in WAYS.values())]
            table.add_row(f"{period + 1}", *places, ", ".join(happens), "\n".join(lines))
        console.print(table)
    emergencies = {kind: place for kind, (_, place) in EMERGENCIES.items()}
    return partial(draw_map, WAYS, emergencies, shelters(), delivered, KM)


def _located(topic: str, place: Place, **more: str) -> tuple[str, bytes]:
    return topic, json.dumps({**more, "lat": place[0], "lon": place[1]}).encode()


def _period(
    runner: ChannelRunner, period: int, topics: Mapping[str, str], inboxes: Mapping[str, Any]
) -> list[tuple[str, dict[str, Any]]]:
    """Answer the channel once; (user, row) of all that was delivered."""
    runner.step(period * PERIOD_S)
    told: list[tuple[str, dict[str, Any]]] = []
    for user, topic in topics.items():
        for _ in range(runner.told.count(topic)):
            told += [(user, row) for row in json.loads(next(iter(inboxes[user])).payload)["rows"]]
    return told


def _await(true: Any) -> None:
    end = time.monotonic() + WAIT_S
    while not true():
        if time.monotonic() > end:
            raise UnavailableError(f"the channel's subscriptions are not there after {WAIT_S:.0f} s")
        time.sleep(0.1)


def shelters() -> dict[str, Place]:
    """The channel's fixed table."""
    return {row["name"]: (float(row["lat"]), float(row["lon"])) for row in csv.DictReader(SHELTERS.splitlines())}
