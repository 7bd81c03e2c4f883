"""The past of few topics by DualDB's index beside a scan of the log; and what the index costs those who publish.

A coordinator over a log in which topics publish in a random order, each message a block of its own, as devices' mostly
are, in the groups that a cluster has by default. It is asked as a broker asks it, page by page; figures are ratios of
this process's CPU time, by the index and in a scan, in turns.

    past_vs_scan         the history of one topic
    last_vs_scan         the last message of each of the 100 topics of a wildcard; in a scan: their history
    count_vs_scan        how many messages the same wildcard has
    past_half_vs_scan    the weakest case: a wildcard of half of the topics, in a tenth of the groups (it is scanned
                         all the same, after a look at how many topics there are)
    past_short_vs_scan   one topic in a log of 2,000 messages
    index_share          the part of a commit's CPU, and of the housekeeping that follows, that is the index's: blocks
                         of 100 topics, with the index and without
    index_expired_rows   rows of the index whose publications have expired, after housekeeping
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, NamedTuple
from unittest.mock import patch

from lexicast.actors.coordinator.history import HistoryRequests
from lexicast.actors.coordinator.last_publications import LastPublications
from lexicast.actors.coordinator.server import CoordinatorServer
from lexicast.actors.coordinator.topic_filters import TopicFilters
from lexicast.cluster.blocks import Block
from lexicast.cluster.clock import SystemClock
from lexicast.cluster.leadership import GroupState
from lexicast.cluster.points_in_time import FOREVER_US
from lexicast.cluster.positions import DEFAULT_GROUPS, topic_group
from lexicast.storage.index.index_writer import IndexWriter
from lexicast.storage.index.log_index import expired_rows
from lexicast.storage.index.memory import BlockEntries

from .. import report as reports
from ..report import DriverReport
from .log import (
    PAYLOAD_BYTES,
    SITE_TOPICS,
    batch_log,
    block_of,
    device_log,
    keep_house,
    manual_clock,
    open_store,
    topic_name,
)

PAGE_BYTES: Final = 1024 * 1024
SHORT_LOG: Final = 2_000
LIFE_MS: Final = 60_000
# The part of its time that a coordinator's committer gives to housekeeping.
HOUSEKEEPING: Final = 1 / 20


class LogSize(NamedTuple):
    """How much is done."""

    publications: int
    topics: int
    blocks: int


FULL: Final = LogSize(2_000_000, 10_000, 4_000)
QUICK: Final = LogSize(40_000, 2_000, 300)


class Asked:
    """A coordinator, asked by the index or made to scan."""

    def __init__(self, server: CoordinatorServer) -> None:
        self._history = HistoryRequests(server.led, server.past)
        self._last = LastPublications(server.led, server.past)
        # Who asks is of no interest to these requests.
        self._peer: Any = None

    async def history(self, topic_filter: bytes, groups: Sequence[int], scan: bool) -> list[Any]:
        """The blocks of all pages."""
        cursor = dict.fromkeys(groups, 0)
        found: list[Any] = []
        while cursor:
            page = await self._history.history(self._peer, cursor, [topic_filter], FOREVER_US, PAGE_BYTES)
            found += page["blocks"]
            cursor = {g: at for g, at in {**cursor, **page["cursor"]}.items() if g not in page["done"]}
        return found

    async def last(self, topic_filter: bytes, groups: Sequence[int], scan: bool) -> list[Any]:
        """The blocks with the last messages, in a scan all blocks."""
        if scan:
            return await self.history(topic_filter, groups, scan)
        found: list[Any] = []
        after: Any = None
        while True:
            since = dict.fromkeys(groups, 0)
            page = await self._last.last(self._peer, [topic_filter], 1, since, None, FOREVER_US, after, PAGE_BYTES)
            found += page["blocks"]
            after = page["after"]
            if after is None:
                return found

    async def count(self, topic_filter: bytes, groups: Sequence[int], scan: bool) -> int:
        """How many messages."""
        cursor, found = dict.fromkeys(groups, 0), 0
        while cursor:
            page = await self._history.count(self._peer, cursor, [topic_filter], FOREVER_US)
            found += page["count"]
            cursor = {g: at for g, at in {**cursor, **page["cursor"]}.items() if g not in page["done"]}
        return found


Question = Callable[[bytes, Sequence[int], bool], Awaitable[Any]]
Meant = Callable[[Any], Any]


def offsets(answer: list[Any]) -> dict[bytes, list[int]]:
    """Topic -> the offsets of its messages."""
    found: dict[bytes, list[int]] = {}
    for block in map(Block.from_wire, answer):
        for record in block.records():
            found.setdefault(record.topic, []).append(record.offset)
    return found


def last_offsets(answer: list[Any]) -> dict[bytes, int]:
    """Topic -> the offset of its last message."""
    return {topic: found[-1] for topic, found in offsets(answer).items()}


class Compared(NamedTuple):
    """CPU time of each round, in seconds."""

    index_s: list[float | None]
    scan_s: list[float | None]


async def compare(
    report: DriverReport,
    question: Question,
    meant: Meant,
    topic_filter: bytes,
    groups: Sequence[int],
    rounds: int,
) -> Compared:
    """Ask in turns, by the index and in a scan; answers that differ are a problem."""
    took = Compared([], [])
    for number in range(rounds):
        answers = []
        for scan in (False, True) if number % 2 else (True, False):
            cpu_s = time.process_time()
            with patch.object(TopicFilters, "_decide", _undecided if scan else TopicFilters._decide):
                answers.append(await question(topic_filter, groups, scan))
            (took.scan_s if scan else took.index_s).append(time.process_time() - cpu_s)
        if meant(answers[0]) != meant(answers[1]):
            report.problem(f"the index and a scan do not agree on {topic_filter.decode()}")
    return took


async def _undecided(*unused: Any) -> None:
    """The filter's topics are not looked for: the log is scanned."""


def _tell(report: DriverReport, rows: list[list[str]], key: str, what: str, took: Compared) -> None:
    ratio = reports.median_ratio(took.scan_s, took.index_s)
    report.figure(f"{key}_vs_scan", ratio)
    index_ms, scan_ms = ((reports.median(each) or 0.0) * 1e3 for each in took)
    report.figure(f"{key}_index_ms", index_ms)
    report.figure(f"{key}_scan_ms", scan_ms)
    report.samples[key] = {"index_s": took.index_s, "scan_s": took.scan_s}
    rows.append([what, *[reports.format_number(each, 1) for each in (index_ms, scan_ms, ratio)]])


async def look(report: DriverReport, folder: Path, size: LogSize, short: bool, rows: list[list[str]]) -> None:
    """The figures of one log."""
    server = await _filled(folder, size)
    groups = range(DEFAULT_GROUPS)
    try:
        asked = Asked(server)
        topic = topic_name(SITE_TOPICS + 1)
        own = [topic_group(topic, DEFAULT_GROUPS)]
        rounds = report.options.rounds
        one = await compare(report, asked.history, offsets, topic, own, rounds)
        if short:
            _tell(report, rows, "past_short", f"one topic, {size.publications:,} messages", one)
            return
        _tell(report, rows, "past", "one topic's history", one)
        site, few = b"dev/1/1/+", min(2, rounds)
        _tell(
            report,
            rows,
            "last",
            "the last of each of 100 topics",
            await compare(report, asked.last, last_offsets, site, groups, few),
        )
        _tell(
            report,
            rows,
            "count",
            "how many 100 topics have",
            await compare(report, asked.count, int, site, groups, few),
        )
        some = groups[: DEFAULT_GROUPS // 10]
        half = await compare(report, asked.history, offsets, b"dev/0/#", some, few)
        _tell(report, rows, "past_half", "half of the topics, a tenth of the groups", half)
    finally:
        await server.stop()


async def _filled(folder: Path, size: LogSize) -> CoordinatorServer:
    clock = SystemClock()
    store = open_store(folder, DEFAULT_GROUPS, clock)
    for blocks in device_log(size.publications, size.topics, DEFAULT_GROUPS):
        store.commit(blocks)
        store.reclaim(blocks[-1].time_us)
    keep_house(store, blocks[-1].time_us)
    server = CoordinatorServer("bench", store, clock)
    await server.start({g: GroupState(2, server.name, (server.name,)) for g in range(DEFAULT_GROUPS)})
    return server


def index_share(report: DriverReport, folder: Path, size: LogSize) -> None:
    """Two stores take the same blocks in turns, one without what makes the index."""
    clock = manual_clock()
    stores = {name: open_store(folder / name, 1, clock) for name in ("with", "without")}
    cpu_s, house_s = dict.fromkeys(stores, 0.0), dict.fromkeys(stores, 0.0)
    warm = 3 * size.topics // 100
    for number, block in enumerate(batch_log(warm + size.blocks, 100, size.topics)):
        if number == warm:  # by now every topic has its id
            cpu_s, house_s = dict.fromkeys(stores, 0.0), dict.fromkeys(stores, 0.0)
        # In turns, and a block of its own each: what one store has unpacked the other would have for nothing.
        for name in list(stores) if number % 2 else reversed(stores):
            store, own = stores[name], replace(block, _meta=None)
            with patch.object(IndexWriter, "entries", _no_entries if name == "without" else IndexWriter.entries):
                start = time.process_time()
                store.commit([own])
                cpu_s[name] += time.process_time() - start
                while house_s[name] < HOUSEKEEPING * cpu_s[name]:
                    start = time.process_time()
                    more = store.reclaim(block.time_us).more
                    house_s[name] += time.process_time() - start
                    if not more:
                        break
    cpu_s = {name: cpu_s[name] + house_s[name] for name in stores}
    for store in stores.values():
        store.close()
    report.figure("index_share", 1 - cpu_s["without"] / cpu_s["with"])
    for name, took_s in cpu_s.items():
        report.figure(f"commit_{name}_index_us", took_s / size.blocks * 1e6)
    report.table(
        "a commit of one block with 100 topics, housekeeping included",
        ["", "us of CPU"],
        [[f"{name} the index", reports.format_number(s / size.blocks * 1e6, 0)] for name, s in cpu_s.items()],
    )


def _no_entries(*unused: Any) -> BlockEntries:
    return BlockEntries([], [], [], None, 0)


def expire(report: DriverReport, folder: Path, size: LogSize) -> None:
    """Half of the publications expire; what the index holds of them once housekeeping has had its time."""
    clock = manual_clock()
    store = open_store(folder, 1, clock)
    blocks = size.blocks // 2
    for at, block in enumerate(batch_log(blocks, 100, size.topics, LIFE_MS)):
        store.commit([block if at % 2 else _lasting(block)])
        store.reclaim(block.time_us)
    store.flush()
    clock.advance(LIFE_MS / 1e3 + 3_600 + blocks * 1e-3)
    keep_house(store, clock.time_us())
    clock.advance(60)
    keep_house(store, clock.time_us())
    with store.environment.snapshot() as txn:
        expired, rows = expired_rows(txn, store.environment.databases.dual, clock.time_us())
    store.close()
    report.figure("index_expired_rows", expired)
    report.figure("index_rows", rows)


def _lasting(block: Block) -> Block:
    """The same, of publications that do not expire."""
    return block_of(block.group, block.first, block.time_us, list(block.meta.topics))


def measure(report: DriverReport) -> None:
    """Everything, in folders that are deleted in the end."""
    size = QUICK if report.options.quick else FULL
    rows: list[list[str]] = []
    with tempfile.TemporaryDirectory(prefix="lexicast-past-") as name, reports.Steps(report.console, 4) as progress:
        folder = Path(name)
        progress.step(f"{size.publications:,} messages of {size.topics:,} topics")
        asyncio.run(look(report, folder / "log", size, False, rows))
        progress.step(f"{SHORT_LOG:,} messages")
        asyncio.run(look(report, folder / "short", size._replace(publications=SHORT_LOG), True, rows))
        progress.step("what the index costs a commit")
        index_share(report, folder, size)
        progress.step("what has expired")
        expire(report, folder / "expiring", size)
    title = f"{size.publications:,} messages of {PAYLOAD_BYTES} B on {size.topics:,} topics, {DEFAULT_GROUPS} groups"
    report.table(title, ["", "by the index, ms of CPU", "in a scan", "times"], rows)


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The driver's options."""
    return reports.parser("past", __doc__, default_targets="lexicast").parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """`python -m lexicast.bench.past`; returns the exit code."""
    return reports.drive("past", parse(argv), measure)
