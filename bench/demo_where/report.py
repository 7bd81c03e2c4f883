"""The report of the demo of content subscriptions: tables for people, JSON for programs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final

import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table

from ..data.flights import Replay
from ..demo.replay import ReplayOutcome
from ..demo.verdicts import Arrivals, Ints
from ..report import machine
from .agreement import Selected

LIVE_WHERE: Final = "live-where"
LIVE_ALL: Final = "live-all"
PAST_WHERE: Final = "past-where"
PAST_ALL: Final = "past-all"

TITLES: Final = {
    LIVE_WHERE: "live, the broker asks",
    LIVE_ALL: "live, all received, the client asks",
    PAST_WHERE: "history(where=)",
    PAST_ALL: "history, all received, the client asks",
}
PAIRS: Final = {"live": (LIVE_WHERE, LIVE_ALL), "past": (PAST_WHERE, PAST_ALL)}


@dataclass
class Trail:
    """What a subscriber told on its way: messages received and seconds of CPU, at these times (monotonic ns)."""

    at_ns: list[int] = field(default_factory=list)
    received: list[int] = field(default_factory=list)
    cpu_s: list[float] = field(default_factory=list)

    def add(self, told: Mapping[str, Any]) -> None:
        """One line of it."""
        if "cpu_s" in told:
            self.at_ns.append(told["at_ns"])
            self.received.append(told["received"])
            self.cpu_s.append(told["cpu_s"])


@dataclass(frozen=True)
class Way:
    """One way of asking: messages and bytes (both ways) on its link, its process's CPU from being connected on, and
    what it kept. Live: latencies from publish() to its program; past: seconds that the question took."""

    received: int
    link_bytes: int
    cpu_s: float
    arrivals: Arrivals
    latency_ns: Ints | None = None
    seconds: float = 0.0


@dataclass(frozen=True)
class Saving:
    """What asking with the condition costs of what receiving everything does, each as a share."""

    messages: float
    link_bytes: float
    cpu: float

    @classmethod
    def of(cls, one: Way, other: Way) -> Saving:
        """`one`: with the condition, `other`: without."""
        return cls(
            one.received / max(1, other.received),
            one.link_bytes / max(1, other.link_bytes),
            one.cpu_s / max(1e-6, other.cpu_s),
        )


@dataclass(frozen=True)
class WhereReport:
    """Everything that is known at the end. `wanted`: how many events the condition holds for; `broker`: what the
    broker says of its content subscriptions."""

    replay: Replay
    where: str
    rate: float
    wanted: int
    outcome: ReplayOutcome
    ways: Mapping[str, Way]
    selected: Mapping[str, Selected]
    trails: Mapping[str, Trail]
    broker: Mapping[str, Any]

    def savings(self) -> dict[str, Saving]:
        """Live and in the past."""
        return {kind: Saving.of(self.ways[one], self.ways[other]) for kind, (one, other) in PAIRS.items()}

    def problems(self) -> list[str]:
        """What went wrong, one line each."""
        total = len(self.replay.events)
        found = []
        if self.outcome.published != total:
            found.append(f"{total - self.outcome.published} of {total:,} publications were not acknowledged")
        for name, its in self.selected.items():
            if not its.right:
                found.append(
                    f"{TITLES[name]}: {its.missing} missing, {its.wrong} wrong, {its.out_of_order} out of order"
                )
        if len({one.fingerprint for one in self.selected.values()}) > 1:
            found.append("they have not all the same, in the same order")
        for kind, (one, other) in PAIRS.items():
            received = [self.ways[name].received for name in (one, other)]
            if received != [self.wanted, total]:
                found.append(f"{kind}: {received[0]:,} and {received[1]:,} messages came over the links")
        return found

    def summary(self) -> str:
        """What is to be remembered, where there are no problems."""
        live, past = self.savings().values()
        return (
            f"All four have the same {self.wanted:,} of {len(self.replay.events):,} events, in the same order. Whoever "
            f"gives the broker the condition gets them in {_percent(live.link_bytes)} of the bytes live and "
            f"{_percent(past.link_bytes)} in the past, with {_percent(live.cpu)} and {_percent(past.cpu)} of the CPU."
        )

    def document(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """The JSON document, in the form of all drivers."""
        figures: dict[str, Any] = {
            "published": self.outcome.published,
            "events": len(self.replay.events),
            "flights": self.replay.flights,
            "wanted": self.wanted,
            "same": len({one.fingerprint for one in self.selected.values()}) == 1,
            "broker_us_a_publication": self.broker["us_a_record"],
        }
        for name, way in self.ways.items():
            key = name.replace("-", "_")
            figures |= {f"received_{key}": way.received, f"link_bytes_{key}": way.link_bytes, f"cpu_s_{key}": way.cpu_s}
            figures |= {f"{what}_{key}": value for what, value in asdict(self.selected[name]).items()}
            figures |= {f"latency_{p}_ms_{key}": value for p, value in latency_ms(way).items()}
            if way.seconds:
                figures[f"seconds_{key}"] = way.seconds
        for kind, saving in self.savings().items():
            figures |= {f"{what}_share_{kind}": round(value, 5) for what, value in asdict(saving).items()}
        return {
            "driver": "demo_where",
            "mode": "full",
            "machine": machine([]),
            "options": dict(options),
            "samples": {name: asdict(trail) for name, trail in self.trails.items()},
            "problems": self.problems(),
            "figures": figures,
        }


def latency_ms(way: Way) -> dict[str, float]:
    """p50 and p99; nothing where it has none."""
    if way.latency_ns is None or not len(way.latency_ns):
        return {}
    return {f"p{p}": round(float(np.percentile(way.latency_ns, p)) / 1e6, 3) for p in (50, 99)}


def show_where(report: WhereReport, console: Console) -> None:
    """Prints the tables."""
    for table in (_same(report), _costs(report)):
        console.print(table)
        console.print()


def _table(heading: str, columns: list[str]) -> Table:
    made = Table(title=heading, title_justify="left", title_style="bold", caption_justify="left", box=box.SIMPLE_HEAD)
    for number, column in enumerate(columns):
        made.add_column(column, justify="right" if number else "left", no_wrap=number > 0)
    return made


def _same(report: WhereReport) -> Table:
    replay = report.replay
    heading = (
        f"{replay.flights:,} flights and {len(replay.events) - replay.flights:,} weather reports, "
        f"{replay.first[:10]} to {replay.last[:10]} (paced at {report.rate:,.0f}/s), QoS 1\n"
        f"where {report.where}"
    )
    table = _table(heading, ["", "received", "kept", "missing", "wrong", "out of order", "fingerprint"])
    for name, one in report.selected.items():
        counts = [report.ways[name].received, one.kept, one.missing, one.wrong, one.out_of_order]
        style = None if one.right else "bold red"
        table.add_row(TITLES[name], *[f"{count:,}" for count in counts], one.fingerprint, style=style)
    table.caption = (
        "wrong: not asked for, altered or repeated. out of order: beside the log of each topic group, and each topic's "
        "publisher. The same fingerprint: the same events in the same order within each topic group"
    )
    return table


def _costs(report: WhereReport) -> Table:
    heading = "What it costs: bytes on each link, both ways, counted at the socket; CPU of each client's process"
    table = _table(heading, ["", "bytes", "", "CPU", "", "p50", "p99", "took"])
    for kind, (one, other) in PAIRS.items():
        saving = report.savings()[kind]
        for name, shares in ((other, ("", "")), (one, (_percent(saving.link_bytes), _percent(saving.cpu)))):
            way, latency = report.ways[name], latency_ms(report.ways[name])
            told = [f"{latency[key]:,.1f} ms" if key in latency else "-" for key in ("p50", "p99")]
            took = f"{way.seconds * 1e3:,.0f} ms" if way.seconds else "-"
            bytes_told, cpu_told = f"{way.link_bytes / 1e6:,.3f} MB", f"{way.cpu_s:,.3f} s"
            table.add_row(TITLES[name], bytes_told, shares[0], cpu_told, shares[1], *told, took)
        table.add_section()
    table.caption = (
        "Live: paho, MQTT 5, QoS 1. Past: the Python client, whose link carries blocks as they are stored, compressed. "
        "The client that asks itself has the broker's decoder, which takes less than json.loads. p50, p99: from "
        f"publish() to the program. The broker took {report.broker['us_a_record']:,.1f} us a live publication to "
        "decode it and ask"
    )
    return table


def _percent(share: float) -> str:
    return f"{100 * share:.1f}%" if share < 0.1 else f"{100 * share:.0f}%"
