"""What the drills took: figures, tables, the picture."""

from __future__ import annotations

from typing import Final

from .. import report as reports
from ..report import DriverReport
from .clusters import DrilledCluster
from .drills import Drills
from .figures import in_ms, percentile
from .kinds import KINDS
from .load import DrillLoad
from .picture import draw

BARS_S: Final = {"a crash: 250 ms": 0.25, "a node: 1.25 s": 1.25}
CRASHES: Final = ("broker_kill", "coordinator_kill")
NODES_LOST: Final = ("raylet_kill", "node_kill", "node_off", "node_pause", "cut_both")
ONE_WAY: Final = ("cut_in", "cut_out")
FIGURES: Final = ("lost", "disorder", "doubled", "recover_crash_p95_ms", "recover_node_p95_ms")
MIGRATORY: Final = (
    ["before", "11", "10.7", "6.04", "15", "16", "21"],
    ["after", "11", "11.39", "12.06", "15", "17", "56"],
)


def tell(report: DriverReport, cluster: DrilledCluster, load: DrillLoad, drills: Drills) -> None:
    """Figures, tables and picture."""
    audit, drilled = load.audit, drills.drilled
    counts = {"lost": audit.lost(), **{what: audit.counts[what] for what in ("disorder", "doubled", "unreadable")}}
    for name, count in counts.items():
        if count:
            report.problem(f"{count} {name}")
    report.samples["notes"] = audit.notes
    report.samples["missing"] = audit.missing(dict.fromkeys(load.publishers, 0))
    more = {name: audit.counts[name] for name in ("repeated", "repeated_qos2", "unexplained", "sent_anew", "refused")}
    more["restarts"] = cluster.restarts
    told = {"drills": len(drilled), "published": audit.published, "delivered": audit.delivered, **counts, **more}
    for name, count in told.items():
        report.figure(name, count)
    report.figure("lost_qos0", audit.fleeting_lost())
    for name, some in (("crash", CRASHES), ("node", NODES_LOST), ("one_way", ONE_WAY)):
        values = [each.elsewhere_s for each in drilled if each.kind in some]
        report.figure(f"recover_{name}_p95_ms", in_ms(percentile(values, 95)))
    drains = [each.elsewhere_s for each in drilled if each.kind == "node_drain"]
    report.figure("drain_max_ms", in_ms(max(drains, default=None)))
    returned = [back_s for each in drilled for back_s in each.returned_s]
    for percent in (50, 95, 100):
        report.figure(f"returned_p{percent}_ms", in_ms(percentile(returned, percent)))
    rows = []
    for kind in [name for name in KINDS if any(each.kind == name for each in drilled)]:
        values = [each.elsewhere_s for each in drilled if each.kind == kind]
        back = [back_s for each in drilled if each.kind == kind for back_s in each.returned_s]
        report.samples[kind] = {"elsewhere_s": values, "returned_s": back}
        row = [in_ms(percentile(values, percent)) for percent in (50, 95, 100)]
        for name, value in zip(("p50", "p95", "max"), row, strict=True):
            report.figure(f"recover_{kind}_{name}_ms", value)
        row += [in_ms(percentile(back, percent)) for percent in (50, 95)]
        rows.append([kind, str(len(values)), *(reports.format_number(each, 0) for each in row)])
    columns = ["fault", "drills", "p50", "p95", "max", "returned p50", "p95"]
    report.table("a drill's longest delay elsewhere, and when clients of what was lost are back, ms", columns, rows)
    tell_stopped(report, drills)
    if report.options.picture is not None and drilled:
        draw(drilled, drills.stopped, BARS_S, report.options.picture)


def tell_stopped(report: DriverReport, drills: Drills) -> None:
    """MigratoryData's table 2, ours beside theirs."""
    if not drills.spells:
        return
    names = ("median", "mean", "deviation", "p90", "p95", "p99", "max")
    rows = []
    for spell in drills.spells:
        row = spell.row()
        rows.append([spell.name, *(reports.format_number(value, 1) for value in row), "/".join(map(str, spell.spread))])
        for name, value in zip(names, row, strict=True):
            report.figure(f"stopped_{spell.name.split()[0]}_{name}_ms", value)
    report.table("one of three nodes without power in the middle, ms", ["spell", *names, "clients"], rows)
    report.table(
        "MigratoryData's table 2 (300,000 subscribers, one of three servers stopped), ms",
        ["spell", "median", "mean", "deviation", "p90", "p95", "p99"],
        MIGRATORY,
    )
