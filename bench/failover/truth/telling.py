"""How true what nodes said of themselves was: figures, and a table by kind of fault."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Final

from ...report import DriverReport, format_number
from ..figures import in_ms
from .judging import DrillRecord, Judgement, Limits, NodeAnswers, judge

LIMITS: Final = Limits(ready_s=3.0, unready_s=2.0, page_s=4.0)
"""`ready_s`: `cluster.detect_s`, here 1 s, and 2 s; `page_s`: another second, for which the page's answer is kept."""
LIES_TOLD_MAX: Final = 30
TRUTH_FIGURES: Final = ("health_lies", "ready_false_ms", "unready_false_ms", "page_false_ms", "page_stale_ms")


def tell_truth(report: DriverReport, records: Sequence[DrillRecord], nodes: Mapping[str, NodeAnswers]) -> None:
    """Of all drills."""
    records = [record for record in records if record.until_s < math.inf]  # the others have not come to their end
    judged = [judge(record, nodes, LIMITS) for record in records]
    lies = [lie for each in judged for lie in each.lies]
    for lie in lies[:LIES_TOLD_MAX]:
        report.problem(f"untrue: {lie}")
    if len(lies) > LIES_TOLD_MAX:
        report.problem(f"untrue: {len(lies) - LIES_TOLD_MAX} more")
    report.samples["truth_records"] = [{**asdict(record), "known": sorted(record.known)} for record in records]
    report.samples["lies"] = [str(lie) for lie in lies]
    report.figure("health_lies", len(lies) if judged else None)
    for name, value in zip(TRUTH_FIGURES[1:], _longest(judged), strict=True):
        report.figure(name, in_ms(value))
    report.figure("health_answers", sum([len(said.ready) + len(said.live) for said in nodes.values()]))
    report.figure("page_answers", sum([len(said.pages) for said in nodes.values()]))
    kinds = dict.fromkeys([each.kind for each in judged])
    rows = []
    for kind in kinds:
        some = [each for each in judged if each.kind == kind]
        row = [format_number(in_ms(value), 0) for value in _longest(some)]
        rows.append([kind, str(len(some)), str(sum([len(each.lies) for each in some])), *row])
        report.samples[f"truth_{kind}"] = {
            "ready_false_s": [each.ready_false_s for each in some],
            "unready_false_s": [each.unready_false_s for each in some],
            "page_false_s": [each.page_false_s for each in some],
            "page_stale_s": [each.page_stale_s for each in some],
        }
    columns = [
        "fault",
        "drills",
        "lies",
        "ready: is not",
        "not ready: is",
        "page: all well",
        "page: still wrong",
    ]
    report.table("for how long nodes said what was not so, the longest, ms", columns, rows)


def _longest(judged: Sequence[Judgement]) -> list[float | None]:
    """Of ready, not ready, the page on what was struck, the page after it."""
    if not judged:
        return [None] * 4
    return [
        max([each.ready_false_s for each in judged]),
        max([each.unready_false_s for each in judged]),
        max([each.page_false_s for each in judged]),
        max([each.page_stale_s for each in judged]),
    ]
