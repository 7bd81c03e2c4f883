"""Sessions with a backlog that all return at once, many filters of one session, many retained publications.

Each round runs lexicast and Mosquitto one after the other with the same load generator. Sessions subscribe with QoS 1,
leave, miss publications, and return all at once; each must get exactly what it missed, each topic in order. A speed is
1 / the time from the first CONNECT to the last delivery; ratios are lexicast's by Mosquitto's.

    resume_vs_mosquitto     sessions with a wildcard each: 20 messages of their own and 20 shared ones
    resume_exact_ratio      the same with exact topics
    resume_backlog_ratio    100 sessions with a long backlog each (20,000; quick 1,000)
    resume_worst_ratio      the least of the three
    resume_live_p99_ms      another client's QoS 1 publication to itself, meanwhile
    resume_loop_ms          longest turn of a coordinator's event loop meanwhile
    resume_mib              growth of the coordinators' private memory
    filters_others_p99_ms   another client's p99 while one session subscribes to 10,000 wildcards, leaves and returns
    retained_miss_ms        the worse of two filters that match none of 100,000 retained topics, from SUBSCRIBE to the
                            PUBACK of a publication behind it: the median
    retained_complete       1 when 8 subscribers of all of them at once got all
    clean_session_bytes     bytes of log that one clean connection with one wildcard subscription writes
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import time
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

from lexicast.cluster.errors import PeerError

from .. import report as reports
from ..peers.loadgen import DeliveryError
from ..peers.session_opening import raise_open_files
from ..peers.targets import running
from ..report import DriverReport
from ..stage.clusters import cluster_status
from ..stage.servers import Target
from .clients import Crowd, Probe, Progress, ResumingClient, numbered_payload, publish_all, subscribe_packet

RETURNING = 100
"""Handshakes under way at a time."""
FILTERS_A_PACKET = 500
ASKED = 20
CPU_COLUMNS = ("clients", "brokers", "coordinators")


# Sessions, messages of their own, shared ones, and each session's filters.
Case = tuple[int, int, int, Callable[[int], list[str]]]


class Returning:
    """Sessions that leave and come back; what each got, by topic. `progress(what, total)`: of what takes its time."""

    def __init__(
        self,
        target: Target,
        count: int,
        filters: Callable[[int], list[str]],
        progress: Callable[[str, int], Progress],
    ) -> None:
        self._crowd = Crowd(target.address)
        self._progress = progress
        self._count = count
        self._filters = filters
        self._got: list[dict[bytes, array[int]]] = [{} for _ in range(count)]
        self._total = 0

    def prepare(self, messages: Iterable[tuple[str, bytes]], total: int) -> None:
        """Subscribe all, leave, and publish what they miss, `total` messages."""
        crowd = self._crowd
        self._open(lambda number, client: client.send(subscribe_packet(self._filters(number))), 2)
        crowd.leave(list(crowd.clients.values()))
        publisher = crowd.connect("resume-publisher", True)
        crowd.until(lambda: publisher.answered > 0, "CONNACK")
        publish_all(crowd, publisher, messages, progress=self._progress("published", total))
        crowd.leave([publisher])

    def _open(self, then: Callable[[int, ResumingClient], None], answers: int) -> None:
        crowd, opening = self._crowd, dict[int, ResumingClient]()
        number = 0
        while number < self._count or opening:
            while number < self._count and len(opening) < RETURNING:
                client = crowd.connect(f"resume-{number}", False, self._taker(number))
                opening[number] = client
                then(number, client)
                number += 1
            crowd.turn()
            opening = {n: c for n, c in opening.items() if c.answered < answers}

    def _taker(self, number: int) -> Callable[[bytes, list[int], bool], None]:
        got = self._got[number]

        def take(topic: bytes, numbers: list[int], retained: bool) -> None:
            got.setdefault(topic, array("I")).extend(numbers)
            self._total += len(numbers)

        return take

    def come_back(self, each: int) -> float:
        """All return; seconds until each had `each` messages. Raises DeliveryError when one lacks, repeats or disorders
        some."""
        wanted = each * self._count
        progress = self._progress("given", wanted)

        def complete() -> bool:
            progress.at(self._total)
            return self._total >= wanted

        started = time.perf_counter()
        self._open(lambda number, client: None, 1)
        self._crowd.until(complete, "what was missed")
        took = time.perf_counter() - started
        for number, got in enumerate(self._got):
            if sum(map(len, got.values())) != each or any(list(range(len(n))) != n.tolist() for n in got.values()):
                raise DeliveryError(f"session {number} did not get exactly its {each} messages in order")
        return took

    def close(self) -> None:
        """End the sessions."""
        self._crowd.close()


def one_return(target: Target, case: Case, progress: Callable[[str, int], Progress]) -> dict[str, float]:
    """Seconds, another client's p99, memory and the coordinators' longest turn; seconds of CPU by role."""
    sessions, own, shared, filters = case
    returning = Returning(target, sessions, filters, progress)
    try:
        started = time.perf_counter()
        returning.prepare(
            itertools.chain(
                ((f"resume/own/{n}/x", numbered_payload(i)) for i in range(own) for n in range(sessions)),
                (("resume/all/x", numbered_payload(i)) for i in range(shared)),
            ),
            own * sessions + shared,
        )
        published_s = time.perf_counter() - started
        if target.name == "lexicast":
            cluster_status(target)  # the longest turn is told since it was last asked for
        before = target.private_kib("coordinators") if "coordinators" in target.pids else 0
        probe = Probe(target.address)
        cpu_before, ours_before = target.cpu_by_role(), time.process_time()
        took = returning.come_back(own + shared)
        found = {"s": took, "published_s": published_s, "clients_cpu_s": time.process_time() - ours_before}
        found |= {f"{role}_cpu_s": spent - cpu_before[role] for role, spent in target.cpu_by_role().items()}
        found["live_p99_ms"] = probe.stop()
        if "coordinators" in target.pids:
            found["mib"] = (target.private_kib("coordinators") - before) / 1024
            found["loop_ms"] = max([c["loop_ms"] for c in coordinators(cluster_status(target))], default=0.0)
        return found
    finally:
        returning.close()


def many_filters(target: Target, count: int) -> float:
    """Another client's p99 while one session subscribes to `count` wildcards, leaves, and returns."""
    crowd = Crowd(target.address)
    probe = Probe(target.address)
    try:
        client = crowd.connect("resume-gateway", False)
        packets = -(-count // FILTERS_A_PACKET)
        for at in range(0, count, FILTERS_A_PACKET):
            names = [f"gateway/{n}/#" for n in range(at, min(count, at + FILTERS_A_PACKET))]
            client.send(subscribe_packet(names))
        crowd.until(lambda: client.answered > packets, "SUBACKs")
        crowd.leave([client])
        client = crowd.connect("resume-gateway", False)
        crowd.until(lambda: client.answered > 0, "CONNACK")
        return probe.stop()
    finally:
        crowd.close()


def many_retained(target: Target, count: int, subscribers: int = 8) -> tuple[float, bool]:
    """(ms for filters that match nothing, whether subscribers of all got all)."""
    crowd = Crowd(target.address)
    try:
        publisher = crowd.connect("resume-retained", True)
        publish_all(crowd, publisher, ((f"kept/{n}/state", numbered_payload(n)) for n in range(count)), True)
        worst = max(_miss_ms(crowd, name) for name in ("nothing/here/#", "kept/+/nothing"))
        got = [Counter[bytes]() for _ in range(subscribers)]
        for number in range(subscribers):
            client = crowd.connect(f"resume-all-{number}", True, partial(_count, got[number]))
            client.send(subscribe_packet(["kept/#"]))
        crowd.until(lambda: min(map(len, got)) >= count, "all that is retained")
        return worst, all(taken.total() == count for taken in got)
    finally:
        crowd.close()


def _count(taken: Counter[bytes], topic: bytes, numbers: list[int], retained: bool) -> None:
    taken[topic] += len(numbers)


def _miss_ms(crowd: Crowd, name: str) -> float:
    """The broker takes what stands behind a SUBSCRIBE when it is done with that."""
    took: list[float] = []
    for number in range(ASKED):
        client = crowd.connect(f"resume-miss-{number}", True)
        crowd.until_answered(client, 1)
        started = time.perf_counter()
        client.send(subscribe_packet([name]))
        crowd.until_answered(client, 2)
        took.append((time.perf_counter() - started) * 1_000)
        crowd.leave([client])
    return statistics.median(took)


def clean_session_bytes(target: Target, count: int) -> float:
    """Bytes of log of a clean connection that subscribes to a wildcard and leaves."""
    before = log_bytes(target)
    crowd = Crowd(target.address)
    try:
        for number in range(count):
            client = crowd.connect(f"resume-clean-{number}", True)
            client.send(subscribe_packet(["clean/#"]))
            crowd.until_answered(client, 2)
            crowd.leave([client])
    finally:
        crowd.close()
    return (log_bytes(target) - before) / count


def coordinators(told: dict[str, Any]) -> list[dict[str, Any]]:
    """The coordinators' own status in it."""
    found = told.get("coordinators", {})
    return [each for each in (found.values() if isinstance(found, dict) else found) if "loop_ms" in each]


def log_bytes(target: Target) -> int:
    """Bytes of all logs."""
    return sum([int(each["store"]["log_bytes"]) for each in coordinators(cluster_status(target))])


def measure(report: DriverReport) -> None:
    """Rounds of both targets, then what only lexicast is asked."""
    options = report.options
    raise_open_files(options.sessions + 200)
    names = options.targets.split(",")
    cases: dict[str, Case] = {
        "wildcard": (options.sessions, 20, 20, lambda n: [f"resume/own/{n}/#", "resume/all/+"]),
        "exact": (options.sessions, 20, 20, lambda n: [f"resume/own/{n}/x", "resume/all/x"]),
        "backlog": (100, options.backlog, 0, lambda n: [f"resume/own/{n}/#"]),
    }
    chosen = options.cases.split(",")
    with reports.Steps(report.console, len(names) * options.rounds * (len(cases) + 1)) as progress:
        for _ in range(options.rounds):
            for name in names:
                for case, settings in cases.items():
                    if case in chosen:
                        progress.step(f"{name}: {case}: {settings[0]} sessions return")
                        told = partial(Progress, tell=partial(_tell, report), limit_s=options.limit_s)
                        _run(report, name, case, partial(one_return, case=settings, progress=told))
                if name == "lexicast" and "others" in chosen:
                    progress.step(f"{name}: many filters, many retained, clean connections")
                    _run(report, name, "others", lambda target: _others(target, options))
    _figures(report, cases)


def _tell(report: DriverReport, text: str) -> None:
    report.console.print(f"  {text}", markup=False, highlight=False)


def _others(target: Target, options: argparse.Namespace) -> dict[str, float]:
    found = {"clean_session_bytes": clean_session_bytes(target, 200)}
    found["filters_others_p99_ms"] = many_filters(target, options.filters)
    found["retained_miss_ms"], complete = many_retained(target, options.retained)
    found["retained_complete"] = float(complete)
    return found


def _run(report: DriverReport, name: str, case: str, work: Callable[[Target], dict[str, float]]) -> None:
    missing = report.missing if name not in report.samples else lambda *told: None
    samples = report.samples.setdefault(name, {}).setdefault(case, [])
    with running([name], missing) as targets:
        for target in targets.values():
            try:
                samples.append(work(target))
            except (PeerError, DeliveryError, OSError) as error:
                report.problem(f"{name}: {case}: {error}")


def _figures(report: DriverReport, cases: dict[str, Any]) -> None:
    def values(name: str, case: str, key: str) -> list[float | None]:
        return [one.get(key) for one in report.samples.get(name, {}).get(case, [])]

    rows, ratios = [], []
    for case, key in zip(cases, ("resume_vs_mosquitto", "resume_exact_ratio", "resume_backlog_ratio"), strict=True):
        ours, theirs = values("lexicast", case, "s"), values("mosquitto", case, "s")
        ratios.append(reports.median_ratio(theirs, ours))
        report.figure(key, ratios[-1])
        meanwhile = [values(name, case, "live_p99_ms") for name in ("lexicast", "mosquitto")]
        told = [reports.median(found) for found in (ours, theirs, *meanwhile)]
        rows.append([case, *map(reports.format_number, told), reports.format_number(ratios[-1])])
    report.figure("resume_worst_ratio", min([ratio for ratio in ratios if ratio is not None], default=None))
    for key in ("live_p99_ms", "loop_ms", "mib"):
        worst = [value for case in cases for value in values("lexicast", case, key) if value is not None]
        report.figure(f"resume_{key}", max(worst, default=None))
    for key in ("filters_others_p99_ms", "retained_miss_ms", "retained_complete", "clean_session_bytes"):
        report.figure(key, reports.median(values("lexicast", "others", key)))
    columns = ["sessions return", "lexicast s", "mosquitto s", "another's p99 ms", "mosquitto's", "speed ratio"]
    report.table("From the first CONNECT to the last delivery", columns, rows)
    report.table("Meanwhile, seconds of CPU", ["", *CPU_COLUMNS, "published in s"], _cpu_rows(report, cases))


def _cpu_rows(report: DriverReport, cases: dict[str, Any]) -> list[list[str]]:
    """The clients' too: where they need a core they are what is measured."""
    keys = [*(f"{role}_cpu_s" for role in CPU_COLUMNS), "published_s"]
    return [
        [f"{name}: {case}", *(reports.format_number(reports.median([one.get(key) for one in found])) for key in keys)]
        for name, of_target in report.samples.items()
        for case, found in of_target.items()
        if case in cases and found
    ]


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The driver's options."""
    parser = reports.parser("resume", __doc__, default_targets="lexicast,mosquitto")
    parser.set_defaults(rounds=1)
    parser.add_argument("--sessions", type=reports.positive, help="default 1000; quick 200")
    parser.add_argument("--backlog", type=reports.positive, help="of each of 100 sessions: default 20000; quick 500")
    parser.add_argument(
        "--limit-s", type=reports.positive, default=900, help="for publishing, and for coming back: default 900"
    )
    parser.add_argument("--filters", type=reports.positive, help="of one session: default 10000; quick 2000")
    parser.add_argument("--retained", type=reports.positive, help="default 100000; quick 10000")
    parser.add_argument("--cases", default="wildcard,exact,backlog,others", help="which to run (default all)")
    options = parser.parse_args(argv)
    quick = options.quick
    options.sessions = options.sessions or (200 if quick else 1_000)
    options.backlog = options.backlog or (500 if quick else 20_000)
    options.filters = options.filters or (2_000 if quick else 10_000)
    options.retained = options.retained or (10_000 if quick else 100_000)
    return options


def main(argv: Sequence[str] | None = None) -> int:
    """`python -m lexicast.bench.resume`; returns the exit code."""
    return reports.drive("resume", parse(argv), measure)
