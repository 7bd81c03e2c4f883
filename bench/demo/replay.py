"""The demo's run against a cluster: links are opened, clients subscribe, the flights are replayed, all arrives."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

import numpy as np

from ..data.flights import WEATHER, Replay
from ..stage.links import Carried, Links
from ..stage.parts import END_TIMEOUT_S, Part, Stage
from .verdicts import Arrivals, Ints, read_arrivals

CLIENTS: Final = "lexicast.bench.demo.clients"
PUBLISHED: Final = "published"
"""Among subscribers' counts: how many publications are acknowledged."""

POLL_S: Final = 0.1
START_IN_NS: Final = 200_000_000
"""The order to begin has reached every publisher by then."""

STALL_S: Final = 20.0
"""Nothing has moved for so long: what is missing does not come any more."""


@dataclass(frozen=True)
class ReplaySubscriber:
    """A subscriber of a replay: the part that it is, and how many messages it is to have in the end.

    `over_mqtt`: its link leads to the MQTT port, else to a broker's link. `on_told` gets each line of the part.
    """

    module: str
    role: str
    expected: int
    more: tuple[str, ...] = ()
    over_mqtt: bool = True
    on_told: Callable[[dict[str, Any]], None] = lambda told: None


@dataclass
class ReplayOutcome:
    """What a replay has left: times `_ns` on the monotonic clock, `_us` in microseconds since 1970."""

    start_ns: int
    start_us: int
    end_ns: int
    published: int
    sent_ns: Ints
    last_hour_us: int
    arrivals: dict[str, Arrivals]
    carried: Carried


Progress = Callable[[Mapping[str, int], Carried], None]
"""Is told how many publications are acknowledged (PUBLISHED) and how many each subscriber has."""


class ReplayRun:
    """One replay whose parts are ready: subscriptions are confirmed, publishers connected."""

    def __init__(
        self,
        replay: Replay,
        folder: Path,
        links: Links,
        expected: dict[str, int],
        subscribers: dict[str, Part],
        publishers: dict[str, Part],
    ) -> None:
        """`folder`: where the parts leave their accounts; `expected`: by name, how many messages are to arrive."""
        self._replay = replay
        self._folder = folder
        self._links = links
        self._expected = expected
        self._subscribers = subscribers
        self._publishers = publishers

    @classmethod
    async def open(
        cls,
        stage: Stage,
        replay: Replay,
        run: Mapping[str, Any],
        folder: Path,
        rate: float,
        wanted: Mapping[str, ReplaySubscriber],
    ) -> Self:
        """Starts all parts on `stage`; returns when all are ready. `run`: what the cluster wrote of itself (run.json).

        Raises `PeerError` when one does not start.
        """
        mqtt, link = mqtt_address(run), link_address(run)
        ends = {name: mqtt if one.over_mqtt else link for name, one in wanted.items()}
        links = await Links.open(stage, {**ends, **dict.fromkeys(replay.publishers, mqtt)})
        common = ["--events", str(replay.file), "--folder", str(folder)]
        subscribers, publishers = dict[str, Part](), dict[str, Part]()
        for name, one in wanted.items():
            arguments = _arguments(one.role, name, links.ports[name], [*common, *one.more])
            subscribers[name] = stage.part(name, one.module, arguments, one.on_told)
        for name in replay.publishers:
            more = ["--rate", str(rate), "--last-hour", str(replay.last_hour)]
            more += [] if name == WEATHER else ["--aware"]
            publishers[name] = stage.part(
                name, CLIENTS, _arguments("publish", name, links.ports[name], [*common, *more])
            )
        parts = [*subscribers.values(), *publishers.values()]
        await asyncio.gather(*[part.start() for part in parts])
        await asyncio.gather(*[part.wait_for("ready") for part in parts])
        expected = {name: one.expected for name, one in wanted.items()}
        return cls(replay, folder, links, expected, subscribers, publishers)

    def _parts(self) -> list[Part]:
        return [*self._subscribers.values(), *self._publishers.values()]

    async def run(self, progress: Progress) -> ReplayOutcome:
        """Replays everything; returns when all has arrived, or nothing moves any more.

        Raises `PeerError` when a part dies.
        """
        start_ns = time.monotonic_ns() + START_IN_NS
        start_us = (time.time_ns() + START_IN_NS) // 1000
        for part in self._publishers.values():
            part.order(f"go {start_ns}")
        await self._arrive(progress)
        end_ns = time.monotonic_ns()
        for part in self._parts():
            part.order("finish")
        await asyncio.gather(*[part.wait_for("done", END_TIMEOUT_S) for part in self._parts()])
        return self._outcome(start_ns, start_us, end_ns)

    async def _arrive(self, progress: Progress) -> None:
        expected = {PUBLISHED: len(self._replay.events), **self._expected}
        before, since = dict[str, int](), time.monotonic()
        while time.monotonic() - since < STALL_S:
            for part in (self._links.part, *self._parts()):
                if "done" not in part.state:
                    part.require_alive()
            counts = self.counts()
            progress(counts, self._links.carried)
            if all(counts[name] >= count for name, count in expected.items()):
                return
            if counts != before:
                before, since = counts, time.monotonic()
            await asyncio.sleep(POLL_S)

    def counts(self) -> dict[str, int]:
        """How far each is."""
        received = {name: int(part.state.get("received", 0)) for name, part in self._subscribers.items()}
        return {PUBLISHED: _sum(self._publishers.values(), "acknowledged"), **received}

    def _outcome(self, start_ns: int, start_us: int, end_ns: int) -> ReplayOutcome:
        sent_ns = np.full(len(self._replay.events), start_ns, dtype=np.int64)
        for name in self._publishers:
            sent = np.load(self._folder / f"sent-{name}.npy")
            sent_ns[sent[:, 0]] = sent[:, 1]
        begun = [part.state["last_hour_us"] for part in self._publishers.values()]
        return ReplayOutcome(
            start_ns,
            start_us,
            end_ns,
            self.counts()[PUBLISHED],
            sent_ns,
            min(us for us in begun if us is not None),
            {name: read_arrivals(self._folder, name) for name in self._subscribers},
            self._links.carried,
        )


def _arguments(role: str, name: str, port: int, more: Sequence[str]) -> list[str]:
    return [role, "--name", name, "--port", str(port), *more]


def mqtt_address(run: Mapping[str, Any]) -> str:
    """HOST:PORT where MQTT clients connect."""
    return f"{run['mqtt_host']}:{run['mqtt_port']}"


def link_address(run: Mapping[str, Any]) -> str:
    """HOST:PORT of a broker's link."""
    addresses = [address for broker in run["brokers"].values() for address in broker]
    return next(str(address).removeprefix("tcp:") for address in addresses if address.startswith("tcp:"))


def _sum(parts: Iterable[Part], key: str) -> int:
    return sum(int(part.state.get(key, 0)) for part in parts)
