"""The demo's report: tables for people, JSON for programs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any, Final

import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table

from ..data.flights import WEATHER, Replay, Sizes
from ..report import machine
from .history_questions import Answer, Learned
from .replay import ReplayOutcome
from .verdicts import Verdict

PLAIN: Final = "plain"
AWARE: Final = "aware"
PYTHON: Final = "python"
SUBSCRIBERS: Final = (PLAIN, AWARE, PYTHON)

TITLES: Final = {
    PLAIN: "plain MQTT subscriber",
    AWARE: "dictionary-aware subscriber",
    PYTHON: "Python client",
    WEATHER: "weather stations (plain)",
}


def title(name: str) -> str:
    """What a link's far end is called."""
    return TITLES.get(name, f"airport {name} (dictionary-aware)")


@dataclass(frozen=True)
class LinkBytes:
    """One link: bytes as measured at the socket, and as they would be uncompressed, and with DEFLATE a message.

    `payload`: the payloads among the uncompressed bytes; 0 where headers are other ones: the Python client's, and those
    of a subscriber that takes topic aliases, which are shorter.
    """

    measured: int
    uncompressed: int
    deflate: int
    payload: int

    @property
    def reduction_percent(self) -> float:
        """Of all bytes, against uncompressed."""
        return 100 - 100 * self.measured / self.uncompressed

    @property
    def deflate_percent(self) -> float:
        """The same with DEFLATE a message."""
        return 100 - 100 * self.deflate / self.uncompressed

    @property
    def payload_percent(self) -> float | None:
        """Of the payloads alone: whatever is not MQTT's headers counts as payload, dictionaries included."""
        headers = self.uncompressed - self.payload
        return 100 - 100 * (self.measured - headers) / self.payload if self.payload else None


@dataclass(frozen=True)
class DemoReport:
    """Everything that is known at the end."""

    replay: Replay
    sizes: Sizes
    outcome: ReplayOutcome
    verdicts: dict[str, Verdict]
    answer: Answer
    learned: list[Learned]
    rate: float

    @property
    def seconds(self) -> float:
        """Of the replay."""
        return (self.outcome.end_ns - self.outcome.start_ns) / 1e9

    def links(self) -> dict[str, LinkBytes]:
        """Every link, publishers first."""
        publisher = np.array([event.publisher for event in self.replay.events])
        made = {}
        for name in (*self.replay.publishers, *SUBSCRIBERS):
            its = slice(None) if name in SUBSCRIBERS else publisher == name
            sizes = self.sizes
            payload = 0 if name in (PYTHON, AWARE) else int(sizes.payload[its].sum())
            measured = self.outcome.carried.now(name)
            made[name] = LinkBytes(measured, int(sizes.raw[its].sum()), int(sizes.deflated[its].sum()), payload)
        return made

    def problems(self) -> list[str]:
        """What went wrong, one line each."""
        total = len(self.replay.events)
        found = []
        if self.outcome.published != total:
            found.append(f"{total - self.outcome.published} of {total:,} publications were not acknowledged")
        for name, v in self.verdicts.items():
            if not v.perfect:
                found.append(
                    f"{title(name)}: {v.lost} lost, {v.duplicated} duplicated, {v.out_of_order} out of order, "
                    f"{v.altered} altered, {v.topics - v.identical} of {v.topics} topics differ from what was published"
                )
        if not self.answer.right:
            found.append(f"history does not give the flights to {self.answer.dest} that were published")
        return found

    def summary(self) -> str:
        """What is to be remembered, where there are no problems."""
        link = self.links()[AWARE]
        return (
            f"All three subscribers have all {len(self.replay.events):,} events: once, unaltered, in order. "
            f"Learned dictionaries saved {link.reduction_percent:.0f}% of all bytes to the dictionary-aware one; "
            f"DEFLATE for each message would have saved {link.deflate_percent:.0f}%."
        )

    def document(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """The JSON document, in the form of all drivers."""
        links = self.links()
        figures: dict[str, Any] = {
            "published": self.outcome.published,
            "events": len(self.replay.events),
            "flights": self.replay.flights,
            "seconds": round(self.seconds, 2),
            "dictionaries": len(self.learned),
            "question_right": self.answer.right,
            "question_flights": len(self.answer.flights),
        }
        for name, verdict in self.verdicts.items():
            told = {key: value for key, value in asdict(verdict).items() if key != "latency_ms"}
            figures |= {f"{key}_{name}": value for key, value in told.items()}
            figures |= {f"latency_{key}_ms_{name}": value for key, value in verdict.latency_ms.items()}
        for name, link in links.items():
            figures |= {f"{key}_bytes_{name}": value for key, value in asdict(link).items()}
            figures[f"reduction_percent_{name}"] = round(link.reduction_percent, 2)
        carried = self.outcome.carried
        at_s = [round((at - self.outcome.start_ns) / 1e9, 3) for at in carried.at_ns]
        return {
            "driver": "demo",
            "mode": "full",
            "machine": machine([]),
            "options": dict(options),
            "samples": {"at_s": at_s, "link_bytes": carried.bytes},
            "problems": self.problems(),
            "figures": figures,
        }


def show_report(report: DemoReport, console: Console) -> None:
    """Prints the tables."""
    for table in (_deliveries(report), _links(report), _dictionaries(report), _answer(report)):
        console.print(table)
        console.print()


def _table(heading: str, columns: Sequence[str], left: int = 1) -> Table:
    made = Table(title=heading, title_justify="left", title_style="bold", caption_justify="left", box=box.SIMPLE_HEAD)
    for number, column in enumerate(columns):
        made.add_column(column, justify="left" if number < left else "right", overflow="fold", no_wrap=number > 0)
    return made


def _deliveries(report: DemoReport) -> Table:
    replay, outcome = report.replay, report.outcome
    heading = (
        f"{replay.flights:,} flights and {len(replay.events) - replay.flights:,} weather reports, "
        f"{replay.first[:10]} to {replay.last[:10]}, in {report.seconds:.0f} s (paced at {report.rate:,.0f}/s), QoS 1"
    )
    columns = ["to", "published", "delivered", "lost", "duplicated", "out of order", "same topics", "p50", "p99"]
    table = _table(heading, columns)
    for name, v in report.verdicts.items():
        latency = [f"{v.latency_ms[key]:,.1f} ms" if key in v.latency_ms else "-" for key in ("p50", "p99")]
        counts = [outcome.published, v.delivered, v.lost, v.duplicated, v.out_of_order]
        style = None if v.perfect else "bold red"
        same = f"{v.identical} of {v.topics}"
        table.add_row(title(name), *[f"{count:,}" for count in counts], same, *latency, style=style)
    table.caption = (
        "same topics: the hash over a topic's payloads, in order of arrival, is that of what was published. "
        "p50, p99: from publish() to the subscriber's program. "
        "Plain MQTT is paho 3.1.1, dictionary-aware lexicast.mqtt (MQTT 5); the Python client holds an actor handle"
    )
    return table


def _links(report: DemoReport) -> Table:
    columns = ["link of", "measured", "uncompressed", "DEFLATE", "saved", "DEFLATE saves", "saved of payloads"]
    table = _table("Bytes on each link, both ways, counted at the socket by a TCP proxy", columns)
    for name, link in report.links().items():
        if name == SUBSCRIBERS[0]:
            table.add_section()
        payload = "-" if link.payload_percent is None else f"{link.payload_percent:.1f}%"
        sizes = [_mb(link.measured), _mb(link.uncompressed), _mb(link.deflate)]
        saved = [f"{link.reduction_percent:.1f}%", f"{link.deflate_percent:.1f}%"]
        table.add_row(title(name), *sizes, *saved, payload)
    table.caption = (
        "uncompressed: the same events' MQTT 5 PUBLISH packets and PUBACKs (computed). DEFLATE: the same with each "
        "payload compressed by itself (computed). Measured bytes include everything: connecting, topics, "
        "acknowledgements, dictionaries. The dictionary-aware subscriber takes topic aliases, so its headers are "
        "shorter too; the Python client's link carries batches instead of MQTT packets"
    )
    return table


def _dictionaries(report: DemoReport) -> Table:
    columns = ["family", "codec", "learned", "from samples", "size", "as sent", "first after", "newest after"]
    table = _table("Dictionaries learned from the stream (retained on $sdc/<family>)", columns, left=2)
    start_us = report.outcome.start_us
    for family, all_of_it in _by_family(report.learned):
        newest = all_of_it[-1]
        after = [f"{(one.time_us - start_us) / 1e6:.1f} s" for one in (all_of_it[0], newest)]
        sizes = [f"{len(newest.dictionary.content):,} B", f"{newest.sent_bytes:,} B"]
        table.add_row(
            family, newest.dictionary.codec, str(len(all_of_it)), str(newest.dictionary.samples), *sizes, *after
        )
    return table


def _by_family(learned: Sequence[Learned]) -> Iterator[tuple[str, list[Learned]]]:
    families: dict[str, list[Learned]] = {}
    for one in learned:
        families.setdefault(one.dictionary.family.decode(), []).append(one)
    for family, all_of_it in sorted(families.items()):
        yield family, sorted(all_of_it, key=lambda one: one.time_us)


def _answer(report: DemoReport) -> Table:
    answer, replay = report.answer, report.replay
    since = datetime.fromtimestamp(answer.since_us / 1e6).isoformat(timespec="milliseconds")
    heading = (
        f"A question to the past: flights to {answer.dest} in the last hour of the data, "
        f"{_clock(replay.last_hour_from)} to {_clock(replay.last)}"
    )
    table = _table(heading, ["left (UTC)", "flight", "from", "aircraft", "delay", "position in the log"], left=4)
    table.caption = f"bus.history('flights/+/{answer.dest}', since='{since}') took {answer.seconds * 1e3:.0f} ms"
    for flight, position in zip(answer.flights, answer.positions, strict=True):
        delay = "cancelled" if flight.get("cancelled") else f"{flight['dep_delay_min']:+d} min"
        name = f"{flight['carrier']} {flight['flight']}"
        table.add_row(_clock(flight["time"]), name, flight["origin"], flight["tail"] or "?", delay, position)
    return table


def _clock(time: str) -> str:
    return time.replace("T", " ")


def _mb(size: int) -> str:
    return f"{size / 1e6:,.2f} MB"
