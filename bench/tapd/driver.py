"""TAPD in an overlay (thesis chapter 6): 5,000 publishers, 50 brokers, 20 subscribers, a million messages.

`python -m lexicast.bench.tapd` first measures, for each corpus, what PREDICT (one publisher) makes of it: the mean
message raw, with DEFLATE, with the newest dictionary and with an outdated one, and when which dictionary came (table
6.2.1). Then it simulates the overlay for six distributions of messages over publishers (tables 6.4.1 and 6.4.2).

  tapd_links_above_deflate  publisher links, over all distributions and corpora, that cost more than DEFLATE although
                            they sent enough messages after their dictionary for it to pay
  tapd_links_unamortised    links that stopped before their first dictionary could pay, % of all links
  tapd_vs_predict           reduction on subscribers' links over as many messages as the corpus has, less PREDICT's with
                            one publisher, mean over the corpora, points
  tapd_br_subscriber, _publisher, _broker   overall reduction by kind of link, mean over corpora and distributions
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from lexicast.compression.accounting import reduction_percent
from lexicast.compression.codecs import Deflate
from lexicast.compression.predict import Predict
from lexicast.compression.training import mean_bytes

from .. import report as reports
from ..compression.offline_runs import simulate
from ..data.corpora import Corpus, of_folder, of_packages
from ..report import DriverReport
from .overlay import DISTRIBUTIONS, Overlay, overlay, senders
from .publisher_link import PublisherLink

_SEED: Final = 6
_CONNECTIONS: Final = 3
_WINDOW: Final = 500


class DictionaryCost(NamedTuple):
    """A dictionary of the sampling broker: after how many messages, and its bytes in full and as difference."""

    at: int
    full_bytes: int
    difference_bytes: int


@dataclass(frozen=True)
class Profile:
    """A row of table 6.2.1: bytes a message, tag included."""

    name: str
    raw: float
    deflate: float
    newest: float
    outdated: float
    begin: float
    end: float
    dictionaries: tuple[DictionaryCost, ...]


@dataclass
class OverlayOutcome:
    """What one corpus cost in one distribution: reductions in percent, overall and mean a link, and counts of links."""

    overall: dict[str, float]
    mean: dict[str, float]
    above: int
    unamortised: int


def profile(corpus: Corpus) -> Profile:
    """Measures a corpus: the newest dictionary all along; the first one at its begin and, outdated, at the end."""
    run = simulate(corpus.messages, Predict())
    raw = corpus.raw_bytes / len(corpus.messages)
    plain = Deflate()
    deflate = mean_bytes(plain, corpus.messages)
    if not run.dictionaries:
        return Profile(corpus.name, raw, deflate, deflate, deflate, 0.0, 0.0, ())
    first_at, first = run.dictionaries[0]
    before = sum(1 + len(plain.encode(message)[1]) for message in corpus.messages[:first_at])
    newest = (run.sent_bytes - before) / max(1, run.messages - first_at)
    codec = first.build()
    early, late = corpus.messages[first_at : first_at + _WINDOW], corpus.messages[-_WINDOW:]
    outdated = [min(1 + len(codec.encode(m)[1]), 1 + len(plain.encode(m)[1])) for m in late]
    announced = []
    previous = None
    for at, made in run.dictionaries:
        announced.append(DictionaryCost(at, len(made.pack()), len(made.pack(previous))))
        previous = made
    begin = 100 - 100 * mean_bytes(codec, early or late) * len(early or late) / sum(map(len, early or late))
    end = 100 - 100 * sum(outdated) / sum(map(len, late))
    # in the proportions of the whole corpus: its end may have shorter messages than its mean
    worn = max(newest, raw * sum(outdated) / sum(map(len, late)))
    return Profile(corpus.name, raw, deflate, min(newest, deflate), min(worn, deflate), begin, end, tuple(announced))


def simulate_overlay(one: Profile, distribution: str, graph: Overlay, messages: int) -> OverlayOutcome:
    """Algorithm 6.4 with `publisher_link` on each publisher's link."""
    publishers = len(graph.publisher_home)
    order = senders(distribution, publishers, messages, _SEED)
    links = [PublisherLink() for _ in range(publishers)]
    needed = [0.0] * publishers
    sender_list = order.tolist()
    ends = [made.at for made in one.dictionaries] + [messages]
    _send(links, sender_list[: ends[0]], one, -1, needed)
    for newest, (begin, end) in enumerate(pairwise(ends)):
        _send(links, sender_list[begin:end], one, newest, needed)
    return _outcome(one, graph, links, needed, np.bincount(order, minlength=publishers).tolist())


def _send(links: Sequence[PublisherLink], order: Sequence[int], one: Profile, newest: int, needed: list[float]) -> None:
    """Messages while dictionary `newest` is the newest (-1: there is none)."""
    packed = one.dictionaries[newest].full_bytes if newest >= 0 else 0
    # what it will save at least: as an outdated one; promised savings that wear off would leave links unpaid
    least = one.deflate - one.outdated
    for sender in order:
        link = links[sender]
        if newest >= 0 and link.dictionary != newest:
            saving = least if link.dictionary is None else one.outdated - one.newest
            if link.should_take(newest, packed, saving):
                if link.dictionary is None:
                    needed[sender] = packed / least
                link.take(newest, packed)
        link.send(one.newest if link.dictionary == newest else one.outdated, one.deflate)


def _outcome(
    one: Profile, graph: Overlay, links: Sequence[PublisherLink], needed: Sequence[float], counts: Sequence[int]
) -> OverlayOutcome:
    total = sum(counts)
    downstream, subscriber = _downstream(one, total)
    differences = _differences(one, total)
    publisher_raw = sum(count * one.raw for count in counts)
    publisher_sent = sum(link.sent_bytes + link.dictionary_bytes for link in links)
    each = [
        100 - 100 * (link.sent_bytes + link.dictionary_bytes) / (count * one.raw)
        for link, count in zip(links, counts, strict=True)
        if count
    ]
    broker_overall, broker_each = _between_brokers(one, graph, counts, downstream / max(1, total), differences)
    behind = [(link, need) for link, need in zip(links, needed, strict=True) if link.saved_bytes < -1e-6]
    above = sum(link.messages - link.taken_at > need + 1 for link, need in behind)
    publisher = 100 - 100 * publisher_sent / publisher_raw
    return OverlayOutcome(
        overall={"B": broker_overall, "P": publisher, "S": subscriber},
        mean={"B": broker_each, "P": sum(each) / len(each), "S": subscriber},
        above=above,
        unamortised=len(behind) - above,
    )


def _differences(one: Profile, messages: int) -> int:
    """The bytes of all dictionaries on a link that gets each of them."""
    return sum(made.difference_bytes for made in one.dictionaries if made.at <= messages)


def _downstream(one: Profile, messages: int) -> tuple[float, float]:
    """Towards a subscriber, the newest dictionary always: bytes of messages, and the reduction with dictionaries."""
    first = min((made.at for made in one.dictionaries), default=messages)
    before = min(first, messages)
    sent = before * one.deflate + (messages - before) * one.newest
    return sent, reduction_percent(round(messages * one.raw), round(sent + _differences(one, messages)))


def _between_brokers(
    one: Profile, graph: Overlay, counts: Sequence[int], sent: float, differences: int
) -> tuple[float, float]:
    """(overall, mean) reduction of the edges between brokers, dictionaries on the edges that they take."""
    messages: dict[tuple[int, int], int] = {}
    for publisher, count in enumerate(counts):
        for edge in graph.message_edges[graph.publisher_home[publisher]]:
            messages[edge] = messages.get(edge, 0) + count
    raw = sum(messages.values()) * one.raw
    cost = sum(messages.values()) * sent + differences * len(graph.dictionary_edges)
    each = [
        100 - 100 * (count * sent + (differences if edge in graph.dictionary_edges else 0)) / (count * one.raw)
        for edge, count in messages.items()
        if count
    ]
    return 100 - 100 * cost / raw, sum(each) / len(each)


def measure(report: DriverReport) -> None:
    """The whole driver."""
    options = report.options
    corpora = of_packages(options.messages_max)
    if options.data is not None:
        corpora += of_folder(options.data, options.messages_max)
    graph = overlay(options.publishers, options.brokers, options.subscribers, _CONNECTIONS, _SEED)
    outcomes: dict[tuple[str, str], OverlayOutcome] = {}
    profiles = []
    gaps = []
    with reports.Steps(report.console, 2 * len(corpora)) as progress:
        for corpus in corpora:
            progress.step(f"{corpus.name}: PREDICT with one publisher")
            one = profile(corpus)
            profiles.append(one)
            progress.step(f"{corpus.name}: {len(DISTRIBUTIONS)} distributions of {options.messages:,} messages")
            alone = simulate(corpus.messages, Predict()).reduction()
            for distribution in DISTRIBUTIONS:
                outcomes[corpus.name, distribution] = simulate_overlay(one, distribution, graph, options.messages)
            gaps.append(_downstream(one, len(corpus.messages))[1] - alone)
    _figures(report, outcomes, gaps)
    _tables(report, profiles, outcomes)


def _figures(report: DriverReport, outcomes: dict[tuple[str, str], OverlayOutcome], gaps: Sequence[float]) -> None:
    every = list(outcomes.values())
    report.figure("tapd_links_above_deflate", float(sum(one.above for one in every)))
    links = len(every) * report.options.publishers
    report.figure("tapd_links_unamortised", 100 * sum(one.unamortised for one in every) / links)
    report.figure("tapd_vs_predict", sum(gaps) / len(gaps))
    for name, kind in (("subscriber", "S"), ("publisher", "P"), ("broker", "B")):
        report.figure(f"tapd_br_{name}", sum(one.overall[kind] for one in every) / len(every))


def _tables(report: DriverReport, profiles: Sequence[Profile], outcomes: dict[tuple[str, str], OverlayOutcome]) -> None:
    columns = ["corpus", "raw B", "DEFLATE B", "newest B", "outdated B", "begin %", "end %", "dictionaries", "B each"]
    rows = []
    for one in profiles:
        made = [each.full_bytes for each in one.dictionaries]
        values = (one.raw, one.deflate, one.newest, one.outdated, one.begin, one.end)
        rows.append([one.name, *(f"{v:.1f}" for v in values), str(len(made)), f"{sum(made) / max(1, len(made)):.0f}"])
        report.samples[one.name] = {"profile": values, "dictionaries": made}
    report.table("First dictionary kept against newest (table 6.2.1)", columns, rows)
    for title, attribute in (("Overall", "overall"), ("Mean a link", "mean")):
        rows = [[one.name, *_cells(outcomes, [one.name], attribute, "P")] for one in profiles]
        names = [one.name for one in profiles]
        for kind, label in (("P", "publishers"), ("S", "subscribers"), ("B", "between brokers")):
            rows.append([f"mean, {label}", *_cells(outcomes, names, attribute, kind)])
        tables = "6.4.1" if attribute == "overall" else "6.4.2"
        report.table(f"{title} reduction on publishers' links in % (table {tables})", ["corpus", *DISTRIBUTIONS], rows)
    report.samples["links"] = {f"{c}, {d}": (one.above, one.unamortised) for (c, d), one in outcomes.items()}


def _cells(
    outcomes: dict[tuple[str, str], OverlayOutcome], names: Sequence[str], attribute: str, kind: str
) -> list[str]:
    """For each distribution, the mean over `names`."""
    means = []
    for distribution in DISTRIBUTIONS:
        values = [getattr(outcomes[name, distribution], attribute)[kind] for name in names]
        means.append(f"{sum(values) / len(values):.1f}")
    return means


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The driver's options."""
    parser = reports.parser("tapd", __doc__, default_targets="")
    parser.add_argument("--data", type=Path, metavar="DIR", help="more corpora: files whose lines are messages")
    parser.add_argument("--publishers", type=reports.positive, help="default 5,000 (quick 500)")
    parser.add_argument("--brokers", type=reports.positive, default=50, help="default 50")
    parser.add_argument("--subscribers", type=reports.positive, default=20, help="default 20")
    parser.add_argument("--messages", type=reports.positive, help="simulated (default 1,000,000; quick 50,000)")
    options = parser.parse_args(argv)
    options.publishers = options.publishers or (500 if options.quick else 5_000)
    options.messages = options.messages or (50_000 if options.quick else 1_000_000)
    options.messages_max = 3_000 if options.quick else None
    return options


def main(argv: Sequence[str] | None = None) -> int:
    """`python -m lexicast.bench.tapd`; returns the exit code."""
    return reports.drive("tapd", parse(argv), measure)
