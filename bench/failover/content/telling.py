"""What the drills of content subscriptions found: figures, and a table."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Final

from ... import report as reports
from ...report import DriverReport
from ..audit import Audit
from ..figures import Drilled, in_ms, percentile
from .cells_seen import CellsSeen
from .kinds import CONTENT_NAMES, MATCHER_KILL, MATCHER_PAUSE, TWO_KILLED
from .spared import SparedRecords

WRONG: Final = ("disorder", "doubled", "unwanted", "unreadable")
PERMITTED: Final = ("repeated", "repeated_qos2", "unexplained", "sent_anew", "refused")
OF_MATCHERS: Final = {"matcher_death": MATCHER_KILL, "matchers_death": TWO_KILLED, "matcher_pause": MATCHER_PAUSE}
CONTENT_FIGURES: Final = (
    "content_lost",
    *(f"content_{what}" for what in WRONG),
    *(f"{name}_{each}" for name in OF_MATCHERS for each in ("ms", "p50_ms", "at_once_ms", "control_ms")),
    "content_quiet_ms",
    "content_quiet_p50_ms",
    "withheld_share",
    "cells_most",
    "cells_split",
    "cells_copied",
)
"""Those that say whether it is as it must be."""


def tell_content(
    report: DriverReport, audit: Audit, drilled: Sequence[Drilled], spared: SparedRecords, seen: CellsSeen
) -> None:
    """All of it."""
    figures: dict[str, float | None] = {"content_lost": audit.lost()}
    figures |= {f"content_{what}": audit.counts[what] for what in WRONG}
    for name, count in figures.items():
        if count:
            report.problem(f"{count} {name}")
    for name, fault in OF_MATCHERS.items():
        of_kind = [each for each in drilled if each.kind == fault.name]
        values, at_once = [each.elsewhere_s for each in of_kind], [each.at_once_s for each in of_kind]
        figures[f"{name}_ms"] = in_ms(max(values, default=None))
        figures[f"{name}_p50_ms"] = in_ms(percentile(values, 50))
        figures[f"{name}_at_once_ms"] = in_ms(max(at_once, default=None))
        figures[f"{name}_control_ms"] = in_ms(max([each.control_s for each in of_kind], default=None))
    quiet = [each.quiet_s for each in drilled]
    figures["content_quiet_ms"] = in_ms(max(quiet, default=None))
    figures["content_quiet_p50_ms"] = in_ms(percentile(quiet, 50))
    share = figures["withheld_share"] = spared.withheld_share()
    if drilled and not share:
        report.problem("matchers spared brokers nothing: these drills prove nothing of them")
    figures |= {"cells_most": seen.cells, "cells_split": seen.split, "cells_copied": seen.copied}
    for key in CONTENT_FIGURES:
        report.figure(key, figures[key])
    _tell_more(report, audit, drilled, spared)


def _tell_more(report: DriverReport, audit: Audit, drilled: Sequence[Drilled], spared: SparedRecords) -> None:
    more = {f"content_{name}": audit.counts[name] for name in PERMITTED}
    more |= {"content_lost_qos0": audit.fleeting_lost(), "content_drills": len(drilled)}
    more |= {"content_published": audit.published, "content_delivered": audit.delivered, **spared.totals}
    for key, value in more.items():
        report.figure(key, value)
    report.figure("load_1min", os.getloadavg()[0])
    rows = []
    for kind in [kind for kind in CONTENT_NAMES if any(each.kind == kind for each in drilled)]:
        values = [each.elsewhere_s for each in drilled if each.kind == kind]
        control = [each.control_s for each in drilled if each.kind == kind]
        back = [back_s for each in drilled if each.kind == kind for back_s in each.returned_s]
        report.samples[kind] = {"elsewhere_s": values, "control_s": control, "returned_s": back}
        row = [in_ms(percentile(values, percent)) for percent in (0, 50, 100)]
        row += [in_ms(percentile(control, percent)) for percent in (50, 100)]
        row += [in_ms(percentile(back, percent)) for percent in (50, 100)]
        report.figure(f"content_{kind}_ms", row[2])
        rows.append([kind, str(len(values)), *(reports.format_number(each, 0) for each in row)])
    report.samples["notes"], report.samples["missing"] = audit.notes, audit.missing(dict.fromkeys(audit.marks(), 0))
    report.samples["quiet_s"] = [each.quiet_s for each in drilled]
    columns = ["fault", "drills", "least", "median", "most", "control: median", "most", "returned: median", "most"]
    report.table(
        "a drill's longest delay with conditions, without one, and when those of what is lost are back, ms",
        columns,
        rows,
    )
