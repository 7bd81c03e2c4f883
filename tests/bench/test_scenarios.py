"""The failover driver's scenarios: lists of brokers, the audit of sessions, figures and curves, clients, and a run."""

from __future__ import annotations

import asyncio
import json
import random
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lexicast.bench.failover.driver import main, parse
from lexicast.bench.failover.machines import INSIDE, lacking
from lexicast.bench.failover.scenarios.cases import (
    LOCAL,
    LOCATIONS,
    REMOTE,
    broker_case,
    broker_list,
    brokers_case,
    far_from,
    location_case,
    storm_list,
)
from lexicast.bench.failover.scenarios.curves import Storm, TakeOver, middle
from lexicast.bench.failover.scenarios.driver import cases
from lexicast.bench.failover.scenarios.pictures import draw_scenarios
from lexicast.bench.failover.scenarios.plans import CrowdPlan, Fate, stamp_of, stamped
from lexicast.bench.failover.scenarios.publishing import SteadyPublisher
from lexicast.bench.failover.scenarios.session_audit import PLACE_OLD_NS, SessionAudit
from lexicast.bench.failover.scenarios.session_client import CrowdClient
from lexicast.bench.failover.scenarios.session_connection import SessionConnection
from lexicast.bench.failover.scenarios.storm import judge_others
from lexicast.bench.failover.scenarios.telling import Found, figure_keys, tell_figures, tell_tables
from lexicast.bench.report import DriverReport

from ..support.harness import eventually

ROOT = Path(__file__).resolve().parents[2]
MS = 1_000_000
LACKING = lacking()


# -- what is audited


def test_what_never_came_is_lost_but_not_what_was_not_acknowledged() -> None:
    audit = SessionAudit()
    for number in (0, 1, 3):
        audit.arrived(b"r/all/0", number, 1, 1, 10)
    assert audit.missing({"r/all/0": 6, "r/own/1": 2}, {}) == 3 + 2
    assert audit.missing({"r/all/0": 6, "r/own/1": 2}, {"r/all/0": [3, 5], "r/own/1": [0]}) == 2 + 1
    assert audit.counts == {}


def test_what_comes_after_a_later_one_is_disorder_and_no_loss() -> None:
    audit = SessionAudit()
    for number in (0, 2, 1):
        audit.arrived(b"r/all/0", number, 1, 1, 10)
    assert audit.counts == {"disorder": 1}
    assert audit.missing({"r/all/0": 3}, {}) == 0


@pytest.mark.parametrize(
    ("qos", "age_ns", "counted"),
    [
        (1, 10, "repeated"),
        (2, 10, "repeated_qos2"),
        (1, 2 * PLACE_OLD_NS, "repeated"),
        (2, 2 * PLACE_OLD_NS, "doubled"),
    ],
)
def test_what_comes_again_at_another_broker(qos: int, age_ns: int, counted: str) -> None:
    audit = SessionAudit()
    audit.arrived(b"r/all/0", 0, 1, qos, 100)
    audit.lost_connection(100 + age_ns, 150 + age_ns)
    audit.arrived(b"r/all/0", 0, 1, qos, 200 + age_ns)
    assert audit.counts == {counted: 1}


@pytest.mark.parametrize(("qos", "counted"), [(1, "unexplained"), (2, "doubled")])
def test_what_comes_again_on_one_connection(qos: int, counted: str) -> None:
    audit = SessionAudit()
    audit.lost_connection(50, 60)
    for now_ns in (100, 101):
        audit.arrived(b"r/all/0", 0, 1, qos, now_ns)
    assert audit.counts == {counted: 1}


def test_the_first_message_after_the_fault_is_one_published_after_it() -> None:
    audit = SessionAudit()
    audit.arrived(b"r/all/0", 0, 10, 1, 30)
    assert audit.first_after(20) == 0
    audit.arrived(b"r/all/0", 2, 25, 1, 50)
    audit.arrived(b"r/own/0", 0, 24, 1, 40)
    assert audit.first_after(20) == 40
    assert sorted(audit.delays()) == [(10, 20), (24, 16), (25, 25)]


@given(st.lists(st.integers(0, 30), unique=True))
def test_whatever_comes_once_is_lost_where_it_did_not_come(numbers: list[int]) -> None:
    audit = SessionAudit()
    for number in numbers:
        audit.arrived(b"r/all/0", number, 1, 2, 10)
    assert audit.missing({"r/all/0": 31}, {}) == 31 - len(numbers)
    assert audit.counts["disorder"] == sum([number < max(numbers[:at], default=0) for at, number in enumerate(numbers)])
    assert audit.counts["doubled"] == 0


# -- who dies, and where they go


def test_a_list_goes_on_with_the_own_location_or_with_the_other_one() -> None:
    for home in range(len(LOCATIONS)):
        local, remote = broker_list(home, LOCAL), broker_list(home, REMOTE)
        assert local[0] == remote[0] == home
        assert sorted(local) == sorted(remote) == [0, 1, 2, 3]
        assert LOCATIONS[local[1]] == LOCATIONS[home] != LOCATIONS[remote[1]]
    assert {broker_list(home, REMOTE)[1] for home in (2, 3)} == {0, 1}


def test_the_head_lives_and_each_scenario_leaves_somebody() -> None:
    for case in (broker_case(LOCAL, 1, 1, 1), brokers_case(1, 1, 1), location_case(1, 1, 1)):
        assert 0 in case.survivors
        assert not set(case.survivors) & set(case.victims)
    assert {LOCATIONS[number] for number in brokers_case(1, 1, 1).victims} == set(LOCATIONS)
    assert {LOCATIONS[number] for number in location_case(1, 1, 1).victims} == {"west"}
    assert far_from([3]) == far_from([2, 3]) == [0, 1]
    assert far_from([1, 3]) == []


def test_a_storm_is_spread() -> None:
    chance = random.Random(1)
    lists = [storm_list(3, chance) for _ in range(300)]
    assert all(each[0] == 3 and sorted(each) == [0, 1, 2, 3] for each in lists)
    assert all(80 < sum([each[1] == number for each in lists]) < 120 for number in range(3))


# -- figures and curves


def fate(lost_ms: int, accepted_ms: int, first_ms: int, **counts: int) -> Fate:
    """One that is served again."""
    return Fate(1, lost_ms * MS, accepted_ms * MS, accepted_ms * MS - MS, first_ms * MS, counts=counts)


def test_a_take_over_is_measured_from_the_end_of_each_connection() -> None:
    run = TakeOver(broker_case(LOCAL, 3, 5, 0), 100 * MS, [fate(101, 150, 160), fate(102, 120, 110), Fate(2, 103 * MS)])
    assert run.after_detection_ms() == [59, 18]
    assert run.after_hit_ms() == [60, 20]
    assert run.accepted_ms() == [49, 18]
    assert run.migrated_ms() == [20, 50]
    assert run.lasted_ms() is None
    assert [text.partition(": ")[2].partition(": ")[2] for text in run.lacks()] == ["1 sessions were not served again"]
    assert TakeOver(run.case, 100 * MS, run.fates[:2]).lasted_ms() == 60


def test_what_must_not_be_is_told_and_what_may_be_is_counted() -> None:
    fates = [fate(1, 2, 3, lost=2, repeated=4), fate(1, 2, 3, repeated=1, repeated_qos2=2), fate(1, 2, 3)]
    run = TakeOver(broker_case(LOCAL, 3, 5, 0), 0, fates)
    assert run.repeats() == [4, 3, 0]
    assert run.counts["repeated"] == 5
    assert [text.rpartition(": ")[2] for text in run.lacks()] == ["2 lost"]


def test_a_storm_lasts_till_the_last_one_is_back_and_who_was_refused_is_known() -> None:
    storm = Storm(0, [Fate(1, 1, 2 * 10**9), Fate(1, 1, 5 * 10**9, refused=2, refused_ns=10**9)], [], [])
    assert storm.took_s() == 5
    assert storm.refused_s() == [4]
    assert storm.lacks() == []
    judge_others(storm, [(-10 * MS, 5 * MS), (-10 * MS, 15 * MS), (MS, 2 * MS), (6 * 10**9, MS)])
    assert storm.before_ms == [5]
    assert storm.meanwhile == [(-0.01, 15), (0.001, 2)]
    assert storm.others_p99_ms() == 15
    storm.fates.append(Fate(1, 1))
    assert storm.took_s() is None
    assert storm.lacks() == ["storm: 1 clients are not back"]


def test_the_median_of_rounds_leaves_out_those_that_have_none() -> None:
    assert middle([3.0, None, 1.0, 2.0]) == 2.0
    assert middle([None]) is None


def report_of(*arguments: str) -> DriverReport:
    """A report with these options."""
    return DriverReport("failover", parse(["--scenario", "broker,storm", *arguments]))


def found() -> Found:
    """Two runs of each list, a storm."""
    made = Found(2, 5.0)
    for towards, more_ms in ((LOCAL, 0), (REMOTE, 20), (REMOTE, 60), (LOCAL, 10)):
        fates = [fate(1, 10 + more_ms, 20 + more_ms, repeated=3), fate(1, 10, 30 + more_ms)]
        made.takeovers.append(TakeOver(broker_case(towards, 2, 5.0, 50.0), 0, fates))
    made.takeovers.append(TakeOver(broker_case(LOCAL, 1, 20.0, 50.0), 0, [fate(1, 2, 3, repeated=9)]))
    made.storms.append(Storm(0, [Fate(1, 1, 2 * 10**9)], [1.0], [(0.5, 7.0)]))
    return made


def test_figures_are_of_the_rounds_and_those_of_a_quick_run_have_the_same_keys() -> None:
    report = report_of("--sessions", "2")
    tell_figures(report, found())
    assert list(report.figures) == figure_keys(["broker", "storm"])
    assert report.figures["takeover_local_p95_ms"] == 29
    assert report.figures["takeover_local_p95_worst_ms"] == 39
    assert report.figures["takeover_remote_p95_ms"] == 49
    assert report.figures["local_vs_remote"] == pytest.approx(39 / 89, abs=1e-3)
    assert report.figures["repeats_per_subscriber_max"] == 3
    assert report.figures["lost"] == 0
    assert report.figures["storm_s"] == 2
    assert report.figures["storm_others_p99_ms"] == 7
    quick = report_of("--quick")
    tell_figures(quick, None)
    assert list(quick.figures) == list(report.figures)
    assert set(quick.figures.values()) == {None}


def test_tables_and_picture_are_made_of_what_was_found_even_of_nothing(tmp_path: Path) -> None:
    for made in (found(), Found(2, 5.0)):
        report = report_of()
        tell_tables(report, made)
        assert len(report.samples["runs"]) == len(made.takeovers)
        json.dumps(report.samples)
        draw_scenarios(made, tmp_path / "picture.png")
        assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")


# -- options


def test_scenarios_are_played_in_an_order_of_their_own_and_drills_without_them() -> None:
    assert parse([]).scenario is None
    assert parse(["--scenario", "location,broker"]).scenario == ["broker", "location"]
    full, quick = parse(["--scenario", "broker"]), parse(["--scenario", "broker", "--quick"])
    assert full.sessions == 1_000
    assert full.clients == 10_000
    assert len(cases(quick)) == 2
    planned = [(case.sessions, case.towards) for case in cases(full)]
    assert {sessions for sessions, _ in planned} >= {23, 50, 74, 97, 250, 500, 1_000}
    assert planned.count((1_000, LOCAL)) == planned.count((1_000, REMOTE)) == full.rounds
    a_round = len(planned) // full.rounds
    assert planned[12:14] == [(1_000, LOCAL), (1_000, REMOTE)]
    assert planned[a_round : a_round + 2] == [(23, REMOTE), (23, LOCAL)]
    assert cases(full)[14].rate == 1.0 + 50.0 / 100


def test_a_scenario_that_is_none_is_an_error_that_names_those_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["--scenario", "flood"], ["--scenario", "broker", "--shared-rates", "0"]):
        with pytest.raises(SystemExit):
            parse(arguments)
        assert arguments[-2] in capsys.readouterr().err


def test_where_no_machines_can_be_made_the_figures_of_scenarios_are_null(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    assert main(["--quick", "--scenario", "broker,storm"]) == 0
    told = capsys.readouterr().out
    assert "namespaces need root" in told
    assert "takeover_local_p95_ms = null" in told
    assert "storm_s = null" in told


# -- the clients


class FakeBroker:
    """A broker that says what a test wants it to: what came is in `packets`."""

    def __init__(self) -> None:
        self.packets: list[bytes] = []
        self.writers: list[asyncio.StreamWriter] = []
        self.came = asyncio.Event()
        self.port = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection."""
        self.writers.append(writer)
        while True:
            try:
                head = await reader.readexactly(2)
                packet = head + await reader.readexactly(head[1])
            except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
                return
            self.packets.append(packet)
            present = len(self.writers) > 1
            answers = {0x10: bytes([0x20, 2, present, 0]), 0x80: b"\x90\x03" + packet[2:4] + b"\1"}
            writer.write(answers.get(packet[0] & 0xF0, b""))
            self.came.set()

    async def has(self, kind: int, count: int = 1) -> list[bytes]:
        """All packets of a kind, once there are so many."""
        async with asyncio.timeout(5):
            while len(found := [packet for packet in self.packets if packet[0] & 0xF0 == kind]) < count:
                self.came.clear()
                await self.came.wait()
        return found


@pytest.fixture
async def broker(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[FakeBroker]:
    """One that listens where clients look."""
    made = FakeBroker()
    server = await asyncio.start_server(made.serve, "127.0.0.1", 0)
    made.port = server.sockets[0].getsockname()[1]
    for module in ("session_client", "publishing"):
        monkeypatch.setattr(f"lexicast.bench.failover.scenarios.{module}.PORT", made.port)
    yield made
    for writer in made.writers:
        writer.close()
    server.close()


def publish(topic: bytes, packet_id: int, payload: bytes, qos: int) -> bytes:
    """PUBLISH."""
    body = len(topic).to_bytes(2, "big") + topic + packet_id.to_bytes(2, "big") + payload
    return bytes([0x30 | qos << 1, len(body)]) + body


async def test_a_client_acknowledges_both_qualities_and_takes_a_held_packet_id_once(broker: FakeBroker) -> None:
    client = CrowdClient("r-1", 2, ["r/all/#"], ["127.0.0.1"], {}, 5.0, random.Random(1))
    await client.begin()
    one = publish(b"r/all/0", 7, stamped(0, 5), 2)
    broker.writers[0].write(one + one + publish(b"r/all/1", 8, stamped(0, 6), 1))
    assert await broker.has(0x50, 2) == [b"\x50\x02\x00\x07"] * 2
    assert await broker.has(0x40) == [b"\x40\x02\x00\x08"]
    broker.writers[0].write(b"\x62\x02\x00\x07")
    assert await broker.has(0x70) == [b"\x70\x02\x00\x07"]
    assert client.audit.missing({"r/all/0": 1, "r/all/1": 1}, {}) == 0
    assert client.audit.counts == {}
    await client.end()


async def test_a_client_only_connects_again_and_tells_when_it_was_served(broker: FakeBroker) -> None:
    client = CrowdClient("r-1", 1, ["r/all/#"], ["127.0.0.1"], {}, 5.0, random.Random(1))
    await client.begin()
    living = asyncio.create_task(client.live())
    client.hit_ns = 1
    broker.writers[0].transport.abort()
    await broker.has(0x10, 2)
    broker.writers[1].write(publish(b"r/all/0", 7, stamped(0, 5), 1))
    await broker.has(0x40)
    assert 0 < client.fate.lost_ns < client.fate.living_ns < client.fate.accepted_ns < client.told().first_ns
    assert (client.fate.losses, client.fate.refused, client.fate.anew) == (1, 0, 0)
    assert len(await broker.has(0x80)) == 1  # the session was there
    await client.end()
    await living


async def test_a_client_that_is_refused_tries_the_next_one_a_moment_later(broker: FakeBroker) -> None:
    client = CrowdClient("r-1", 1, ["r/all/#"], ["127.0.0.1", "127.0.0.2"], {}, 5.0, random.Random(1))
    await client.begin()
    living = asyncio.create_task(client.live())
    broker.writers[0].transport.abort()
    await broker.has(0x10, 2)
    await eventually(lambda: client.connection is not None, wait_s=5)
    assert client.fate.refused == 1
    assert client.fate.accepted_ns - client.fate.refused_ns > 0.1e9
    await client.end()
    await living


async def test_a_far_broker_answers_later_and_a_silent_one_is_given_up(broker: FakeBroker) -> None:
    loop = asyncio.get_running_loop()
    connection = SessionConnection(lambda *_: None, set(), 0.05)
    began_s = loop.time()
    await loop.create_connection(lambda: connection, "127.0.0.1", broker.port)
    await connection.open("far")
    assert loop.time() - began_s > 0.09
    connection.look_for_silence(time.monotonic() + 0.6, 1.0)
    connection.look_for_silence(time.monotonic() + 0.6, 1.0)
    assert await broker.has(0xC0) == [b"\xc0\x00"]
    connection.look_for_silence(time.monotonic() + 1.5, 1.0)
    await connection.closed


async def test_a_publisher_sends_again_what_was_not_acknowledged(broker: FakeBroker) -> None:
    publisher, ready = SteadyPublisher("p", 2, ["127.0.0.1"]), asyncio.Event()
    living = asyncio.create_task(publisher.live(ready))
    await ready.wait()
    for _ in range(2):
        publisher.publish("r/all/0")
    await broker.has(0x30, 2)
    broker.writers[0].write(b"\x50\x02\x00\x01")
    assert await broker.has(0x60) == [b"\x62\x02\x00\x01"]
    broker.writers[0].transport.abort()
    assert len(await broker.has(0x60, 2)) == 2
    again = (await broker.has(0x30, 3))[2]
    assert again[0] == 0x3C  # DUP, QoS 2
    assert publisher.unanswered() == {"r/all/0": [0, 1]}
    broker.writers[1].write(b"\x70\x02\x00\x01" + b"\x50\x02\x00\x02" + b"\x70\x02\x00\x02")
    await broker.has(0x60, 3)
    await eventually(lambda: not publisher.unanswered(), wait_s=5)
    assert publisher.counts == {"r/all/0": 2}
    assert publisher.reconnects == 1
    living.cancel()
    await asyncio.gather(living, return_exceptions=True)


def test_a_payload_says_which_one_it_is_and_a_plan_is_read_as_it_was_written(tmp_path: Path) -> None:
    assert stamp_of(stamped(17, 123_456_789_012)) == (17, 123_456_789_012)
    plan = CrowdPlan("r", 5, [["a", "b"]], True, False, ["b"], 0.01)
    plan.write(tmp_path / "plan")
    assert CrowdPlan.read(tmp_path / "plan") == plan


# -- the real thing

LIMIT_S = 150.0


def played(folder: Path, *arguments: str) -> dict[str, Any]:
    """What a quick run writes; it ends within LIMIT_S, with all that it started."""
    file = folder / "figures.json"
    command = [sys.executable, "-m", "lexicast.bench.failover", "--quick", "--json", str(file), *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=ROOT)
    try:
        told, _ = process.communicate(timeout=LIMIT_S)
    except BaseException:
        process.send_signal(signal.SIGINT)
        process.communicate()
        raise
    assert process.returncode == 0, told
    assert left_of(process.pid) == []
    found: dict[str, Any] = json.loads(file.read_text())
    return found


def left_of(driver: int) -> list[str]:
    """Processes that a driver has started and that are still there."""
    mark, found = f"{INSIDE}={driver}".encode(), []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with suppress(OSError):
                if mark in (folder / "environ").read_bytes().split(b"\0"):
                    found.append((folder / "cmdline").read_text())
    return found


@pytest.mark.drill  # four nodes of Ray: beside other tests it takes one for gone
@pytest.mark.skipif(bool(LACKING), reason=LACKING)
@pytest.mark.timeout(200)
def test_sessions_of_a_killed_broker_go_on_at_another_one(tmp_path: Path) -> None:
    found = played(tmp_path, "--scenario", "broker", "--sessions", "20")
    figures = found["figures"]
    assert list(figures) == figure_keys(["broker"])
    assert figures["lost"] == figures["disorder"] == figures["doubled"] == figures["unexplained"] == 0
    assert 0 < figures["takeover_local_p95_ms"] < 20_000
    assert 0 < figures["takeover_remote_p95_ms"] < 20_000
    assert [run["towards"] for run in found["samples"]["runs"]] == [LOCAL, REMOTE]
