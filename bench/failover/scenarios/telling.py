"""What the scenarios found: lines, figures, tables, the picture."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from ... import report as reports
from ...report import DriverReport
from ..figures import percentile
from .cases import BROKER, BROKERS, LOCAL, LOCATION, REMOTE, STORM
from .curves import Storm, TakeOver, middle
from .session_audit import WHATS

TAKEOVER_KEYS: Final = ("takeover_p50_ms", "takeover_p95_ms")
REPEATS: Final = (
    (50, "repeats_per_subscriber"),
    (95, "repeats_per_subscriber_p95"),
    (100, "repeats_per_subscriber_max"),
)


@dataclass(slots=True)
class Found:
    """What was measured. `sessions`, `rate`: those of the runs that count for the figures."""

    sessions: int
    rate: float
    takeovers: list[TakeOver] = field(default_factory=list)
    storms: list[Storm] = field(default_factory=list)

    def of(self, scenario: str, towards: str) -> list[TakeOver]:
        """Those that count."""
        return [each for each in self.counts(scenario, towards) if each.case.sessions == self.sessions]

    def counts(self, scenario: str, towards: str) -> list[TakeOver]:
        """With any number of sessions."""
        return [
            each
            for each in self.takeovers
            if (each.case.scenario, each.case.towards, each.case.shared_rate) == (scenario, towards, self.rate)
        ]

    def rates(self) -> list[TakeOver]:
        """At any rate, of one broker's sessions."""
        return [each for each in self.takeovers if each.case.scenario == BROKER]


def tell_run(report: DriverReport, run: TakeOver) -> None:
    """One fault's line, and what is not as it must be."""
    after, accepted = run.after_detection_ms(), run.accepted_ms()
    repeats = run.repeats()
    report.note(
        f"detected {_ms(run.detected_ms(), 100)}; CONNACK p50 {_ms(accepted, 50)} p95 {_ms(accepted, 95)}; "
        f"served p50 {_ms(after, 50)} p95 {_ms(after, 95)}, last {reports.format_number(run.lasted_ms(), 0)} after the "
        f"fault (ms); repeats p50 {percentile(repeats, 50)} max {max(repeats, default=0)}; "
        f"tries refused {sum([fate.refused for fate in run.fates])}; CPU {_by_kind(run.cpu_s)} s; load {run.load:.1f}"
    )
    for problem in run.lacks():
        report.problem(problem)


def tell_storm(report: DriverReport, storm: Storm) -> None:
    """One storm's line, and what is not as it must be."""
    back, refused = storm.back_s(), storm.refused_s()
    meanwhile = [delay_ms for _, delay_ms in storm.meanwhile]
    report.note(
        f"back: half after {reports.format_number(percentile(back, 50))} s, all after "
        f"{reports.format_number(storm.took_s())} s; {len(refused)} refused, for "
        f"{reports.format_number(max(refused, default=0.0))} s at most; others p50 {_ms(meanwhile, 50)} p99 "
        f"{_ms(meanwhile, 99)} max {_ms(meanwhile, 100)} ms, before p99 {_ms(storm.before_ms, 99)} ms; "
        f"CPU {_by_kind(storm.cpu_s)} s; load {storm.load:.1f}"
    )
    for problem in storm.lacks():
        report.problem(problem)


def _by_kind(cpu_s: dict[str, float]) -> str:
    return ", ".join([f"{kind}s {taken_s:.2f}" for kind, taken_s in cpu_s.items()])


def _ms(values: Sequence[float], percent: int) -> str:
    return reports.format_number(percentile(values, percent), 0)


# -- figures


def figure_keys(scenarios: Sequence[str]) -> list[str]:
    """Those that a run of these scenarios gives."""
    found: list[str] = []
    for name in [name for scenario, name, _ in _TAKEOVERS if scenario in scenarios]:
        found += [
            f"takeover_{name}_{each}_ms"
            for each in ("p95", "p95_worst", "p50", "connack_p95", "living_p95", "detected_p95", "last", "cpu")
        ]
    if set(scenarios) & {BROKER, BROKERS, LOCATION}:
        found += [key for _, key in REPEATS] + ["oldest_repeat_ms", *WHATS]
    if BROKER in scenarios:
        found.append("local_vs_remote")
    if STORM in scenarios:
        found += list(_STORM)
    return found


_TAKEOVERS: Final = (
    (BROKER, "local", LOCAL),
    (BROKER, "remote", REMOTE),
    (BROKERS, "brokers", LOCAL),
    (LOCATION, "location", LOCAL),
)


def tell_figures(report: DriverReport, found: Found | None) -> None:
    """All figures, those that were not measured null."""
    scenarios = report.options.scenario
    figures: dict[str, float | None] = dict.fromkeys(figure_keys(scenarios))
    if found is not None:
        for scenario, name, towards in _TAKEOVERS:
            if scenario in scenarios:
                figures |= _takeover_figures(name, found.of(scenario, towards))
        figures |= _audit_figures(found)
        figures |= _storm_figures(found.storms)
    for key in figure_keys(scenarios):
        report.figure(key, figures[key])


def _takeover_figures(name: str, runs: Sequence[TakeOver]) -> dict[str, float | None]:
    """Medians over the rounds, of the percentiles of each; and the worst round's."""

    def each(of: Callable[[TakeOver], list[float]], percent: int) -> list[float | None]:
        return [percentile(of(run), percent) for run in runs]

    p95 = each(TakeOver.after_detection_ms, 95)
    return {
        f"takeover_{name}_p95_ms": middle(p95),
        f"takeover_{name}_p95_worst_ms": max([value for value in p95 if value is not None], default=None),
        f"takeover_{name}_p50_ms": middle(each(TakeOver.after_detection_ms, 50)),
        f"takeover_{name}_connack_p95_ms": middle(each(TakeOver.accepted_ms, 95)),
        f"takeover_{name}_living_p95_ms": middle(each(TakeOver.living_ms, 95)),
        f"takeover_{name}_detected_p95_ms": middle(each(TakeOver.detected_ms, 95)),
        f"takeover_{name}_last_ms": middle([run.lasted_ms() for run in runs]),
        f"takeover_{name}_cpu_ms": middle([run.cpu_ms() for run in runs]),
    }


def _audit_figures(found: Found) -> dict[str, float | None]:
    runs = [run for run in found.takeovers if run.case.shared_rate == found.rate]
    repeats = [count for run in runs for count in run.repeats()]
    told: dict[str, float | None] = {key: percentile(repeats, percent) for percent, key in REPEATS}
    told["oldest_repeat_ms"] = max([run.oldest_repeat_ms() for run in runs], default=None)
    for what in WHATS:
        told[what] = sum([run.counts[what] for run in found.takeovers]) if found.takeovers else None
    pairs = list(zip(found.of(BROKER, LOCAL), found.of(BROKER, REMOTE), strict=False))
    ratios = [
        local / remote
        for one, other in pairs
        if (local := percentile(one.after_detection_ms(), 95))
        and (remote := percentile(other.after_detection_ms(), 95))
    ]
    return {**told, "local_vs_remote": middle(ratios)}


_STORM: Final = (
    "storm_s",
    "storm_worst_s",
    "storm_half_s",
    "storm_others_p99_ms",
    "storm_others_p99_worst_ms",
    "storm_others_before_p99_ms",
    "storm_cpu_ms",
    "storm_refused",
    "storm_refused_max_s",
)


def _storm_figures(storms: Sequence[Storm]) -> dict[str, float | None]:
    took = [storm.took_s() for storm in storms]
    p99 = [storm.others_p99_ms() for storm in storms]
    values = (
        middle(took),
        max([each for each in took if each is not None], default=None),
        middle([percentile(storm.back_s(), 50) for storm in storms]),
        middle(p99),
        max([each for each in p99 if each is not None], default=None),
        middle([percentile(storm.before_ms, 99) for storm in storms]),
        middle([storm.cpu_ms() for storm in storms]),
        middle([len(storm.refused_s()) for storm in storms]),
        max([each for storm in storms for each in storm.refused_s()], default=0.0) if storms else None,
    )
    return dict(zip(_STORM, values, strict=True))


# -- tables


def tell_tables(report: DriverReport, found: Found) -> None:
    """Figure 3b's numbers, and the repeats'."""
    rows = []
    for scenario, name, towards in _TAKEOVERS:
        for sessions in sorted({run.case.sessions for run in found.counts(scenario, towards)}):
            runs = [run for run in found.counts(scenario, towards) if run.case.sessions == sessions]
            values = [_spread(runs, of) for of in (_p50, _p95, TakeOver.lasted_ms)]
            rows.append([name, f"{sessions:,}", str(len(runs)), *values])
    columns = ["takeover", "sessions", "runs", "served p50", "p95", "last, after the fault"]
    report.table("from detection till served, ms: median (least to most)", columns, rows)
    rows = []
    for rate in sorted({run.case.shared_rate for run in found.rates()}):
        repeats = [count for run in found.rates() if run.case.shared_rate == rate for count in run.repeats()]
        rows.append([f"{rate:g}", *[str(percentile(repeats, percent)) for percent in (50, 95, 100)]])
    report.table("messages that a session got again, by messages/s to all", ["rate", "p50", "p95", "most"], rows)
    report.samples["runs"] = [sample(run) for run in found.takeovers]
    report.samples["storms"] = [
        {
            "back_s": storm.back_s(),
            "refused_s": storm.refused_s(),
            "others_p99_ms": storm.others_p99_ms(),
            "load": storm.load,
            "cpu_s": storm.cpu_s,
        }
        for storm in found.storms
    ]


def _p50(run: TakeOver) -> float | None:
    return percentile(run.after_detection_ms(), 50)


def _p95(run: TakeOver) -> float | None:
    return percentile(run.after_detection_ms(), 95)


def _spread(runs: Sequence[TakeOver], of: Callable[[TakeOver], float | None]) -> str:
    values = sorted([value for run in runs if (value := of(run)) is not None])
    if not values:
        return "-"
    told = reports.format_number(middle(values), 0)
    return told if len(values) == 1 else f"{told} ({values[0]:,.0f} to {values[-1]:,.0f})"


def sample(run: TakeOver) -> dict[str, Any]:
    """One run, for the JSON file."""
    return {
        "scenario": run.case.scenario,
        "towards": run.case.towards,
        "sessions": run.case.sessions,
        "shared_rate": run.case.shared_rate,
        "load": run.load,
        "cpu_s": run.cpu_s,
        "after_detection_p95_ms": _p95(run),
        "after_detection_p50_ms": _p50(run),
        "connack_p95_ms": percentile(run.accepted_ms(), 95),
        "detected_p95_ms": percentile(run.detected_ms(), 95),
        "lasted_ms": run.lasted_ms(),
        "repeats": [percentile(run.repeats(), percent) for percent in (50, 95, 100)],
        "counts": dict(run.counts),
        "publishers_connected_again": run.reconnects,
    }
