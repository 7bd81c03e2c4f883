"""Content subscriptions on real data: flights are replayed through a cluster, and one condition is asked in two ways.

Of the flights, say, those delayed more than an hour, to the west coast: one MQTT subscriber gives the condition to the
broker, one receives everything and asks it itself, at the same time; then the history is asked in both ways. Told and
drawn are messages, bytes on each link and CPU of each client, and whether all four have the same, in the same order.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
from rich.console import Console

from lexicast.actors.client.connect import connect
from lexicast.cluster.positions import DEFAULT_GROUPS, topic_group

from ..data.flights import Event, Replay, prepare_flights
from ..demo.bars import Bars
from ..demo.conclusion import conclude, say_picture
from ..demo.on_cluster import DemoCluster, on_cluster
from ..demo.replay import PUBLISHED, ReplayOutcome, ReplayRun, ReplaySubscriber, link_address
from ..demo.verdicts import Arrivals, Ints, read_arrivals, topic_numbers
from ..stage.links import Links
from ..stage.parts import END_TIMEOUT_S, Stage
from .agreement import judge_selected
from .conditions import check_condition, numbers_that_hold
from .report import LIVE_ALL, LIVE_WHERE, PAST_ALL, PAST_WHERE, TITLES, Trail, Way, WhereReport, show_where

CLIENTS: Final = "lexicast.bench.demo_where.clients"
WHERE_PICTURE: Final = "lexicast-demo-where.png"
PAST_TIMEOUT_S: Final = 300.0


class WhereDemo:
    """One run."""

    def __init__(self, options: argparse.Namespace, console: Console) -> None:
        self._options = options
        self._console = console

    def run(self) -> WhereReport:
        """From nothing to the report; everything that was started has ended when it returns or raises."""
        return on_cluster(self._console, self._data, self._play, self._options.keep)

    def _data(self, folder: Path) -> tuple[Replay, Ints]:
        replay = prepare_flights(self._options.messages, folder / "events.tsv")
        return replay, numbers_that_hold(replay.events, self._options.where)

    async def _play(self, cluster: DemoCluster, data: tuple[Replay, Ints]) -> WhereReport:
        replay, wanted = data
        trails = {LIVE_WHERE: Trail(), LIVE_ALL: Trail()}
        totals = {LIVE_WHERE: len(wanted), LIVE_ALL: len(replay.events)}
        async with Stage(cluster.folder) as stage:
            subscribers = {
                name: ReplaySubscriber(CLIENTS, "live", total, self._asking(name), on_told=trails[name].add)
                for name, total in totals.items()
            }
            rate = self._options.rate
            replaying = await ReplayRun.open(stage, replay, cluster.run, cluster.folder, rate, subscribers)
            cluster.begun()
            with Bars(self._console, {PUBLISHED: len(replay.events), **totals}, TITLES) as bars:
                outcome = await replaying.run(bars.update)
            broker = await _broker_content(cluster.data_dir)
            with self._console.status("asking the history"):
                past = await self._ask_past(stage, cluster, replay)
        ways = {name: _live(trails[name], outcome, name) for name in totals} | past
        return self._report(replay, wanted, outcome, ways, trails, broker)

    def _asking(self, name: str) -> tuple[str, ...]:
        at_broker = ("--at-broker",) if name in (LIVE_WHERE, PAST_WHERE) else ()
        return ("--where", self._options.where, *at_broker)

    async def _ask_past(self, stage: Stage, cluster: DemoCluster, replay: Replay) -> dict[str, Way]:
        """One after the other; the one with the condition first, which finds nothing in anybody's cache."""
        names = (PAST_WHERE, PAST_ALL)
        links = await Links.open(stage, dict.fromkeys(names, link_address(cluster.run)), name="past-links")
        common = ["--events", str(replay.file), "--folder", str(cluster.folder), "--data-dir", str(cluster.data_dir)]
        ways = {}
        for name in names:
            options = ["past", "--name", name, "--port", str(links.ports[name]), *common, *self._asking(name)]
            part = stage.part(name, CLIENTS, options)
            await part.start()
            await part.wait_for("ready")
            part.order("go 0")
            seconds = await part.wait_for("seconds", PAST_TIMEOUT_S)
            part.order("finish")
            await part.wait_for("done", END_TIMEOUT_S)
            carried = (await links.sample())[name]
            received, cpu_s = part.state["received"], part.state["cpu_s"]
            ways[name] = Way(received, carried, cpu_s, read_arrivals(cluster.folder, name), seconds=seconds)
        return ways

    def _report(
        self,
        replay: Replay,
        wanted: Ints,
        outcome: ReplayOutcome,
        ways: Mapping[str, Way],
        trails: Mapping[str, Trail],
        broker: Mapping[str, Any],
    ) -> WhereReport:
        groups, topics = group_numbers(replay.events), topic_numbers(replay.events)
        logged = ways[PAST_ALL].arrivals.numbers
        known = logged[logged >= 0]
        selected = {
            name: judge_selected(way.arrivals.numbers, wanted, groups, topics, known) for name, way in ways.items()
        }
        where, rate = self._options.where, self._options.rate
        return WhereReport(replay, where, rate, len(wanted), outcome, ways, selected, trails, broker)


def group_numbers(events: list[Event]) -> Ints:
    """Each event's topic group, in a cluster with default settings."""
    known = {event.topic: topic_group(event.topic.encode(), DEFAULT_GROUPS) for event in events}
    return np.array([known[event.topic] for event in events], dtype=np.int64)


def _live(trail: Trail, outcome: ReplayOutcome, name: str) -> Way:
    arrivals = outcome.arrivals[name]
    return Way(trail.received[-1], outcome.carried.now(name), trail.cpu_s[-1], arrivals, _latency(arrivals, outcome))


def _latency(arrivals: Arrivals, outcome: ReplayOutcome) -> Ints:
    ours = arrivals.numbers >= 0
    return arrivals.at_ns[ours] - outcome.sent_ns[arrivals.numbers[ours]]


async def _broker_content(data_dir: Path) -> dict[str, Any]:
    """What the broker says about its content subscriptions."""
    async with connect(data_dir=data_dir, client_id="demo-status") as bus:
        told: dict[str, Any] = (await bus.status())["content"]
        return told


def compare(options: argparse.Namespace, console: Console) -> int:
    """`lexicast demo --where`: runs it, prints, draws and writes what came out; returns the exit code.

    Raises UsageError for what is no condition, before anything is started.
    """
    check_condition(options.where)
    report = WhereDemo(options, console).run()
    show_where(report, console)
    if options.out is not None:
        from .picture import draw  # loads matplotlib, half a second that the start need not wait for

        picture = (options.out / WHERE_PICTURE).absolute()
        draw(report, picture)
        say_picture(picture, console)
    return conclude(report, options, console)
