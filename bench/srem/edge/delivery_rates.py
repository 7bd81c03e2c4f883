"""Part `edge`: from JSON to matches at one broker's engine, events a second of one core; and what the peer does.

    content_events_s              40,000 subscriptions of width 10%, uniform, in 4 dimensions, one a subscriber, blocks
                                  of 256 events off the link to MQTT sessions: decoded, looked up, encoded, written
    content_events_s_...          the other cases, by their name: blocks of 1, 16 and 64 events, fewer subscriptions,
                                  wide ones (of which each event matches a tenth), Python clients' links
    content_share_...             the part of the time that each stage takes: `decoding` payloads, `columns` for the
                                  index, `index`, and `delivery`, the rest: who gets what, packets, writes
    content_vs_filtering          content_events_s by what the peer does: every subscriber gets everything and asks its
                                  own condition, json.loads and a compiled expression

A rate is the best of the rounds: other processes only ever slow one down. What was sent is held against a scan.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any, Final, NamedTuple
from unittest.mock import patch

import numpy as np

from lexicast.actors.broker.content import predicate_table
from lexicast.actors.broker.encoding import LINK, BlockView, Grant, Kind
from lexicast.actors.broker.fanout import Fanout
from lexicast.cluster.blocks import Block
from lexicast.cluster.content.extraction import columns_of
from lexicast.cluster.content.index.predicate_index import PredicateIndex
from lexicast.cluster.content.predicate import Predicate

from ...report import DriverReport, Steps
from ..peers import Scan
from ..population import BoxPopulation, BoxSetting, Floats, drawn
from .actor_gc import collecting_as_actors_do
from .delivery_load import FILTER, MQTT, Around, CountingSession, Edge, conditions, no_dictionaries, payloads, wires

BATCH: Final = 256
EVENTS: Final = 1_024
SUBSCRIPTIONS: Final = 40_000
QUICK_SUBSCRIPTIONS: Final = 4_000
FEW: Final = (10_000, 1_000)
QUICK_FEW: Final = (1_000,)
# In 4 dimensions: an event matches a tenth.
WIDE: Final = 0.6
WIDE_EVENTS: Final = 256
_PEER_EVENTS: Final = 2


class EdgeCase(NamedTuple):
    """One case; `name`: of its figure, "" the main one's."""

    name: str
    batch: int = BATCH
    kind: Kind = MQTT
    events: int = EVENTS

    @property
    def key(self) -> str:
        """The name of its figure."""
        return f"content_events_s_{self.name}" if self.name else "content_events_s"


def cases(quick: bool) -> dict[BoxSetting, list[EdgeCase]]:
    """Those that are measured, by what is subscribed to; the main one is the first."""
    batches = [EdgeCase(f"batch_{batch}", batch) for batch in (64, 16, 1)]
    many = [EdgeCase(""), *batches, EdgeCase("links", kind=Kind(LINK))]
    found = {BoxSetting(QUICK_SUBSCRIPTIONS if quick else SUBSCRIPTIONS): many}
    for count in QUICK_FEW if quick else FEW:
        found[BoxSetting(count)] = [EdgeCase(f"{count}")]
        found[BoxSetting(count, width=WIDE)] = [EdgeCase(f"{count}_wide", events=WIDE_EVENTS)]
    return found


def steps(quick: bool) -> int:
    """How many steps `measure` announces."""
    return sum([len(some) for some in cases(quick).values()]) + 1


def measure(report: DriverReport, progress: Steps) -> None:
    """See the module's docstring."""
    dice = np.random.default_rng(report.options.seed)
    rows: list[list[str]] = []
    for number, (setting, some) in enumerate(cases(report.options.quick).items()):
        population = drawn(setting, dice)
        held = [Predicate.parse(text) for text in conditions(population)]
        edges: dict[Kind, Edge] = {}
        for case in some:
            progress.step(f"edge: {setting.subscriptions:,} subscriptions, {case.name or 'the main case'}")
            edge = edges.get(case.kind) or edges.setdefault(case.kind, Edge(held, case.kind))
            points = population.events(case.events, dice)
            rates, each = _rates(report, edge, population, points, case)
            report.samples[case.key] = rates
            report.figure(case.key, max(rates))
            rows.append([case.name or "main", f"{max(rates):,.0f}", f"{each:,.1f}", f"{max(rates) * each:,.0f}"])
            if not case.name:
                _shares(report, edge, points, case.batch)
        if not number:
            progress.step("edge: the peer, which gets everything and filters")
            _beside_the_peer(report, population, population.events(_PEER_EVENTS, dice), rows)
    report.table("content subscriptions at one core", ["", "events/s", "each to", "deliveries/s"], rows)


def _beside_the_peer(report: DriverReport, population: BoxPopulation, points: Floats, rows: list[list[str]]) -> None:
    rate = _filtering_events_s(report, population, points)
    rows.insert(1, ["clients filter", f"{rate:,.1f}", f"{len(population.low):,}", f"{rate * len(population.low):,.0f}"])
    report.figure("content_filtering_events_s", rate)
    report.figure("content_vs_filtering", max(report.samples["content_events_s"]) / rate)


def _rates(
    report: DriverReport, edge: Edge, population: BoxPopulation, points: Floats, case: EdgeCase
) -> tuple[list[float], float]:
    """Events a second of CPU time, round by round; how many subscribers an event goes to."""
    blocks = wires(payloads(points), case.batch)
    rates = []
    with collecting_as_actors_do():
        for _ in range(report.options.rounds):
            began = time.process_time()
            sent = sum([edge.deliver(block) for block in blocks])
            rates.append(len(points) / (time.process_time() - began))
    expected = len(Scan(population).match(points)[0])
    if sent != expected:
        report.problem(f"edge, {case.name or 'main'}: {sent:,} publications were sent, {expected:,} match")
    return rates, sent / len(points)


def _shares(report: DriverReport, edge: Edge, points: Floats, batch: int) -> None:
    """What each stage takes, as a part of the whole: the best round's."""
    events = payloads(points)
    blocks = wires(events, batch)
    with collecting_as_actors_do():
        rounds = [_stages_s(edge, events, blocks) for _ in range(report.options.rounds)]
    best = min(rounds, key=lambda stages: stages["whole"])
    whole = best.pop("whole")
    for name, taken in best.items():
        report.figure(f"content_share_{name}", taken / whole)


def _stages_s(edge: Edge, events: list[bytes], blocks: list[Any]) -> dict[str, float]:
    """Seconds of CPU time by stage, and of the whole."""
    reader = edge.predicates.reader
    began = time.process_time()
    for event in events:
        reader.fields(event)
    decoding = time.process_time() - began
    columns, index = TimedStage(columns_of), TimedStage(PredicateIndex.match)
    with patch.object(predicate_table, "columns_of", columns), patch.object(PredicateIndex, "match", index.method()):
        began = time.process_time()
        for block in blocks:
            edge.deliver(block)
        whole = time.process_time() - began
    found = {"decoding": decoding, "columns": columns.seconds - decoding, "index": index.seconds}
    return {**found, "delivery": whole - sum(found.values()), "whole": whole}


class TimedStage:
    """A function whose CPU time is counted."""

    def __init__(self, work: Callable[..., Any]) -> None:
        self._work = work
        self.seconds = 0.0

    def __call__(self, *arguments: Any) -> Any:
        began = time.process_time()
        try:
            return self._work(*arguments)
        finally:
            self.seconds += time.process_time() - began

    def method(self) -> Callable[..., Any]:
        """To stand in a class."""
        return lambda *arguments: self(*arguments)


class FilteringClient(CountingSession):
    """A client that is subscribed to everything and keeps what its condition holds for."""

    __slots__ = ("_holds", "kept")

    def __init__(self, around: Around, low: list[float], high: list[float]) -> None:
        super().__init__(around)
        self._holds = _closure(low, high)
        self.kept = 0

    def write(self, data: bytes) -> None:
        """One packet: what stands behind its head is JSON."""
        super().write(data)
        self.kept += self._holds(json.loads(data[data.index(b"{") :]))


def _closure(low: list[float], high: list[float]) -> Callable[[dict[str, Any]], bool]:
    """A condition as its client would write it in Python."""
    (low_a, low_b, low_c, low_d), (high_a, high_b, high_c, high_d) = low, high
    return lambda event: (
        low_a <= event["a"] <= high_a
        and low_b <= event["b"] <= high_b
        and low_c <= event["c"] <= high_c
        and low_d <= event["d"] <= high_d
    )


def _filtering_events_s(report: DriverReport, population: BoxPopulation, points: Floats) -> float:
    """Events a second of CPU time, the broker's and all clients'."""
    around, fanout = Around(), Fanout(1)
    bounds = zip(population.low.tolist(), population.high.tolist(), strict=True)
    clients = [FilteringClient(around, low, high) for low, high in bounds]
    for client in clients:
        fanout.insert({FILTER: Grant()}, client)
    encoder, blocks = no_dictionaries(), wires(payloads(points), 1)
    with collecting_as_actors_do():
        began = time.process_time()
        for wire in blocks:
            fanout.deliver(BlockView(Block.from_wire(wire), 0), encoder)
        taken = time.process_time() - began
    if sum([client.kept for client in clients]) != len(Scan(population).match(points)[0]):
        report.problem("edge: clients that filter by themselves kept something else than a scan")
    return len(points) / taken
