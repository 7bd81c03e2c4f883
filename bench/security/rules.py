"""What rules cost a message: the loads of `bench.fanout` and `bench.fanin` with 1,000 users' 5,000 rules and without.

    acl_fanout_ratio    the least, over the loads of fan-out, of deliveries/s with rules over those without
    acl_fanin_ratio     the same of fan-in

Two clusters at the same time, in turns. The generator has not logged in: what it may do are rules of `topic` for
whoever has not and a pattern, beside those of the users.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from .. import fanout
from .. import report as reports
from ..contest import WINDOWS, Scenario, contest
from ..peers.fleet_load import FleetLoad, OpenFleet
from ..peers.loadgen import Load, OpenLoad
from ..peers.session_opening import raise_open_files
from ..report import DriverReport
from ..stage.clusters import start_lexicast
from ..stage.servers import Target

USERS: Final = 1_000
RULES_A_USER: Final = 5
FANOUT: Final = (1, 100, 1_000)
FANIN: Final = (1_000, 5_000)
QUICK_FANOUT: Final = (1, 100)
QUICK_FANIN: Final = (1_000,)


def rules_text() -> str:
    """The acl file."""
    lines = ["topic write +/#", "topic readwrite #", "topic deny secret/#", "pattern readwrite own/%c/#"]
    for number in range(USERS):
        lines.append(f"user user-{number}")
        lines += [f"topic readwrite site-{number % 10}/user-{number}/part-{part}/#" for part in range(RULES_A_USER)]
    return "\n".join([*lines, ""])


def measure_rules(report: DriverReport) -> None:
    """Everything of this part. Of the options it takes quick, rounds, payload, seconds, calibrate_seconds, messages and
    mqtt_version."""
    quick, payload = report.options.quick, report.options.payload
    fanouts, fanins = (QUICK_FANOUT, QUICK_FANIN) if quick else (FANOUT, FANIN)
    raise_open_files(2 * max(*fanouts, *fanins) + 200)
    chosen = [
        *[
            Scenario(
                f"acl_fanout_{count}",
                partial(OpenLoad, load=Load(f"acl_fanout_{count}", count, payload)),
                copies=count,
                windows=fanout.WINDOW_LADDER[max(size for size in fanout.WINDOW_LADDER if size <= count)],
            )
            for count in fanouts
        ],
        *[
            Scenario(
                f"acl_fanin_{count}{'_qos1' if qos else ''}",
                partial(OpenFleet, load=FleetLoad(f"acl_fanin_{count}_{qos}", count, payload, qos)),
                qos,
                windows=sorted({max(count, window) for window in WINDOWS}),
            )
            for count in fanins
            for qos in (0, 1)
        ],
    ]
    steps = len(chosen) * (1 + report.options.rounds)
    with _running() as targets, reports.Steps(report.console, steps) as progress:
        for scenario in chosen:
            contest(report, progress, targets, scenario)
    _figures(report, chosen)


@contextlib.contextmanager
def _running() -> Iterator[list[Target]]:
    with contextlib.ExitStack() as stack:
        targets = []
        for name in ("lexicast", "lexicast-rules"):
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="lexicast-bench-")))
            rules = folder / "rules"
            rules.write_text(rules_text())
            rules.chmod(0o600)
            config = f'[security]\nacl_file = "{rules}"\n' if name != "lexicast" else ""
            targets.append(start_lexicast(folder, config, name))
            stack.callback(targets[-1].stop)
        yield targets


def _figures(report: DriverReport, chosen: Sequence[Scenario]) -> None:
    ratios: dict[str, list[float | None]] = {"acl_fanout": [], "acl_fanin": []}
    rows = []
    for scenario in chosen:
        samples = report.samples[scenario.name]
        rates = {name: told["deliveries_per_s"] for name, told in samples.items()}
        ratio = reports.median_ratio(rates.get("lexicast-rules"), rates.get("lexicast"))
        ratios["acl_fanin" if scenario.name.startswith("acl_fanin") else "acl_fanout"].append(ratio)
        report.figure(f"{scenario.name}_ratio", ratio)
        told = [reports.format_rate(reports.median(rates.get(name, ()))) for name in ("lexicast", "lexicast-rules")]
        rows.append([scenario.name, *told, reports.format_number(ratio)])
    for name, found in ratios.items():
        known = [ratio for ratio in found if ratio is not None]
        report.figure(f"{name}_ratio", min(known) if len(known) == len(found) else None)
    columns = ["deliveries/s", "no rules", f"{USERS * RULES_A_USER:,} rules", "ratio"]
    report.table(f"{report.options.payload} B, median of {report.options.rounds} rounds", columns, rows)
