"""Part `overlay`: matchers that form an overlay, on real links: who is linked to whom, and what a question's way takes.

So many matchers, a coordinator's part that asks them and a broker's that tells them conditions, all in one process, so
times are those of a machine that has nothing else to do, over Unix sockets.

    overlay_hops, .._max      between matchers, of questions to each of them in turn, and the most one took
    overlay_entries           links of a coordinator; without an overlay it has one to each matcher
    overlay_links             links of a matcher to others; it has none without
    overlay_answer_ms         from question to answer, median; overlay_direct_ms: the same by a link to each
    overlay_spread_ms         until all matchers have a new roster that one was told
    overlay_told_ms           until all matchers know a condition that a broker has just got
    overlay_idle_messages     that a matcher sends others in a second in which nothing happens

Each of the largest number of matchers that was measured; the table has all.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

from lexicast.actors.broker.engine import BrokerEngine
from lexicast.actors.coordinator.matching.asked_blocks import AskedBlock, Matchers
from lexicast.actors.link.link import Link, LinkUser
from lexicast.actors.link.sockets import listen
from lexicast.actors.matcher.server import CYCLE_S, MatcherServer, OverlaySetting
from lexicast.actors.matcher.sockets import MatcherSockets
from lexicast.cluster.blocks import PUBLICATIONS, Block, Meta, Run, pack_meta
from lexicast.cluster.clock import SystemClock
from lexicast.cluster.config.tables import Config
from lexicast.cluster.content.event_rows import pack_rows
from lexicast.cluster.content.predicate import Predicate
from lexicast.cluster.hpartition.live_map import LiveMap
from lexicast.cluster.membership import ClusterInfo, Member, Members
from lexicast.cluster.protocol.heartbeat import Beats
from lexicast.cluster.skipcloud.identifiers import CloudShape

from ...report import DriverReport, Steps

COUNTS: Final = (16, 64, 256)
QUICK_COUNTS: Final = (16,)
SHAPE: Final = CloudShape(8, 2)
INFO: Final = ClusterInfo("bench", b"k" * 32, 1, 1)
# Rare: what beats cost is not what is measured, and all sides of all links beat in this process.
BEATS: Final = Beats(2.0, 60.0)
ASKED_EACH: Final = 8
WAIT_S: Final = 120.0
IDLE_S: Final = 5.0
# Of members that have all come at once views are right after so many cycles.
SETTLING_CYCLES: Final = 20
QUICK_SETTLING_CYCLES: Final = 1
COORDINATOR, BROKER = "coordinator-0", "broker-0"


class OverlayFigures(NamedTuple):
    """What was measured of so many matchers. `linked`: links of a coordinator where there is no overlay."""

    matchers: int
    hops: float
    hops_max: int
    entries: int
    links: float
    answer_ms: float
    direct_ms: float
    spread_ms: float
    told_ms: float
    idle_messages: float


class BenchMatchers:
    """So many matchers, and those whom they serve. Use as an async context manager."""

    def __init__(self, count: int, beyond: int) -> None:
        self.matchers = Matchers(SystemClock())
        self.engine = BrokerEngine(BROKER, 1, 1, Config().replaced(node__matchers=1), SystemClock())
        self.servers: dict[str, MatcherServer] = {}
        self._setting = OverlaySetting(beyond, SHAPE)
        self._names = [f"matcher-{number}" for number in range(count)]
        self._folder = tempfile.TemporaryDirectory(prefix="lexicast-bench-")
        self._sockets: list[MatcherSockets] = []
        self._listening: list[asyncio.AbstractServer] = []
        self._served: dict[str, Member] = {}
        self._version = 0

    async def __aenter__(self) -> BenchMatchers:
        told = self.engine.subscriptions.told_conditions
        assert told is not None
        await self._serve(COORDINATOR, self.matchers.opened)
        await self._serve(BROKER, told.opened)
        members = dict[str, Member]()
        for name in self._names:
            sockets = MatcherSockets(name, INFO, BEATS)
            await sockets.open(Path(self._folder.name), "127.0.0.1")
            self._sockets.append(sockets)
            server = MatcherServer(name, 1, INFO, BEATS, self._setting._replace(addresses=sockets.addresses[:1]))
            sockets.admit(server.opened)
            self.servers[name] = server
            members[name] = Member(name, 1, sockets.addresses[:1], "bench", 0)
            server.follow(self.members(members))
            await asyncio.sleep(0)
        told.follow(LiveMap(1, tuple(sorted(self._names))))
        return self

    async def _serve(self, name: str, opened: Callable[[Link], LinkUser | None]) -> None:
        address = f"unix:{self._folder.name}/{name}.sock"
        server, real = await listen(address, INFO.key, INFO.cluster_id, opened, {}, BEATS)
        self._listening.append(server)
        self._served[name] = Member(name, 1, (real,), "bench", 0)

    def members(self, matchers: dict[str, Member]) -> Members:
        """What the coordination server would say."""
        self._version += 1
        served = self._served
        coordinators, brokers = {COORDINATOR: served[COORDINATOR]}, {BROKER: served[BROKER]}
        return Members(self._version, coordinators, brokers, {}, matchers=matchers, cells=(self._version,))

    async def __aexit__(self, *unused: object) -> None:
        await self.engine.close()
        for server in self.servers.values():
            await server.stop()
        self.matchers.close()
        for sockets in self._sockets:
            sockets.close()
        for listening in self._listening:
            listening.close()
        self._folder.cleanup()

    async def settled(self) -> None:
        """Return when each matcher has a place, and is told conditions. Raises TimeoutError."""
        told = self.engine.subscriptions.told_conditions
        assert told is not None
        await until(lambda: len(told.links) == len(self.servers))

    def hear(self, condition: str) -> None:
        """A subscriber's condition begins."""
        told = self.engine.subscriptions.told_conditions
        assert told is not None
        told.begin((b"t/#", Predicate.parse(condition)))

    async def told(self, conditions: int) -> float:
        """Seconds until all matchers know so many."""
        servers = self.servers.values()
        return await until(lambda: all([len(server.conditions.table) == conditions for server in servers]))

    async def spread(self) -> float:
        """Seconds until all have what one is told."""
        members = self.members({name: Member(name, 1, ("nowhere",), "bench", 0) for name in self.servers})
        first = next(iter(self.servers.values()))
        first.follow(members)

        def have() -> bool:
            overlays = [server.overlay for server in self.servers.values()]
            return all([each is not None and each.version == members.version for each in overlays])

        return await until(have)

    async def ask(self, name: str) -> float | None:
        """Seconds until a question to one is answered; None: it was not, in time."""
        block = AskedBlock(_block(), [(1, (name,), array("I", [0]).tobytes(), pack_rows([], ()))])
        unanswered = self.matchers.unanswered
        answered = asyncio.Event()
        block.on_settled.append(answered.set)
        begun = time.perf_counter()
        self.matchers.ask(block)
        self.matchers.flush()
        if block.open:
            await answered.wait()
        return None if self.matchers.unanswered > unanswered else time.perf_counter() - begun


async def until(true: Callable[[], bool]) -> float:
    """Seconds until it is so. Raises TimeoutError."""
    begun = time.perf_counter()
    async with asyncio.timeout(WAIT_S):
        while not true():  # noqa: ASYNC110 - of what others do
            await asyncio.sleep(0.001)
    return time.perf_counter() - begun


def _block() -> Block:
    meta = Meta((b"t",), (Run(0, 0, 0, 0, 0, None, -1, 1),), (), (), (), ())
    return Block(0, 1, 0, 0, 0, PUBLICATIONS, pack_meta(meta), array("I", [1]).tobytes(), b"x", meta)


def steps(quick: bool) -> int:
    """See `driver.SremPart`."""
    return 2 * len(QUICK_COUNTS if quick else COUNTS)


def measure(report: DriverReport, progress: Steps) -> None:
    """See the module's docstring."""
    found = []
    for count in QUICK_COUNTS if report.options.quick else COUNTS:
        progress.step(f"overlay: {count} matchers, a link to each")
        direct_ms = asyncio.run(_direct_ms(count))
        progress.step(f"overlay: {count} matchers")
        found.append(asyncio.run(_measured(report, count, direct_ms)))
    report.samples["overlay"] = [each._asdict() for each in found]
    last = found[-1]
    for key in ("hops", "hops_max", "entries", "links", "answer_ms", "direct_ms", "spread_ms", "told_ms"):
        report.figure(f"overlay_{key}", getattr(last, key))
    report.figure("overlay_idle_messages", last.idle_messages)
    rows = [
        [
            f"{each.matchers}",
            f"{each.hops:.2f}, {each.hops_max}",
            f"{each.entries}",
            f"{each.links:.0f}",
            f"{each.answer_ms:.2f}, {each.direct_ms:.2f}",
            f"{each.spread_ms:.0f}",
            f"{each.told_ms:.0f}",
            f"{each.idle_messages:.1f}",
        ]
        for each in found
    ]
    columns = ["matchers", "hops: mean, most", "links of a coordinator", "of a matcher", "answer ms, by a link"]
    report.table("Matchers that form an overlay", [*columns, "roster ms", "condition ms", "idle messages/s"], rows)


async def _direct_ms(count: int) -> float:
    async with BenchMatchers(count, beyond=count) as bench:
        await until(lambda: len(bench.matchers) == count)
        await bench.settled()
        return 1e3 * statistics.median(await _answers(bench) or [0.0])


async def _measured(report: DriverReport, count: int, direct_ms: float) -> OverlayFigures:
    async with BenchMatchers(count, beyond=0) as bench:
        await bench.settled()
        await asyncio.sleep((QUICK_SETTLING_CYCLES if report.options.quick else SETTLING_CYCLES) * CYCLE_S)
        answers = await _answers(bench)
        if len(answers) < count * ASKED_EACH:
            report.problem(f"{count} matchers: {count * ASKED_EACH - len(answers)} questions were not answered in time")
        hops = bench.matchers.status()["overlay"]
        bench.hear("a > 1")
        told_s = await bench.told(1)
        spread_s = await bench.spread()
        before = _said(bench)
        await asyncio.sleep(IDLE_S)
        idle = (_said(bench) - before) / count / IDLE_S
        links = statistics.mean([each.status()["overlay"]["neighbour_links"] for each in bench.servers.values()])
        answer_ms = 1e3 * statistics.median(answers)
        return OverlayFigures(
            count,
            hops["hops_mean"],
            hops["hops_max"],
            len(bench.matchers),
            links,
            answer_ms,
            direct_ms,
            1e3 * spread_s,
            1e3 * told_s,
            idle,
        )


def _said(bench: BenchMatchers) -> int:
    return sum([server.status()["overlay"]["said"] for server in bench.servers.values()])


async def _answers(bench: BenchMatchers) -> list[float]:
    """Seconds that each of some questions to all took, one at a time."""
    found = [await bench.ask(name) for _ in range(ASKED_EACH) for name in bench.servers]
    return [each for each in found if each is not None]
