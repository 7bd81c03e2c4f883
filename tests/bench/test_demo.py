"""The demo: its data, its verdicts (each kind of fault is seen), and a short run from end to end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from lexicast.bench.data.flights import PUBACK_BYTES, WEATHER, Event, Replay, prepare_flights, read_events, sizes
from lexicast.bench.demo import driver as demo
from lexicast.bench.demo.report import LinkBytes
from lexicast.bench.demo.verdicts import Received, Verdict, digests, judge, keep_arrivals, read_arrivals, topic_numbers
from lexicast.cluster.errors import UsageError

EVENTS = [
    Event("EWR", f"flights/EWR/{dest}", b"%s %d" % (dest.encode(), n)) for n in range(5) for dest in ("ATL", "LAX")
]


@pytest.fixture(scope="module")
def replay(tmp_path_factory: pytest.TempPathFactory) -> Replay:
    return prepare_flights(2_000, tmp_path_factory.mktemp("data") / "events.tsv")


# -- data


def test_events_are_real_sorted_and_told_apart_by_their_content(replay: Replay) -> None:
    events = replay.events
    times = [json.loads(event.payload)["time"] for event in events]
    assert times == sorted(times)
    assert sum(event.publisher != WEATHER for event in events) == replay.flights == 2_000
    assert len({(event.topic, event.payload) for event in events}) == len(events)
    assert replay.publishers == ["EWR", "JFK", "LGA", WEATHER]
    first = json.loads(next(event.payload for event in events if event.topic == "flights/EWR/IAH"))
    assert (first["carrier"], first["flight"], first["tail"], first["dep_delay_min"]) == ("UA", 1545, "N14228", 2)
    assert first["time"] == "2013-01-01T10:17Z"


def test_the_last_hour_is_what_left_in_the_60_minutes_before_the_last(replay: Replay) -> None:
    def when(event: Event) -> np.datetime64:
        return np.datetime64(json.loads(event.payload)["time"][:-1])

    last = when(replay.events[-1])
    hour = [number for number, event in enumerate(replay.events) if last - when(event) < np.timedelta64(60, "m")]
    assert hour[0] == replay.last_hour
    assert len(hour) == len(replay.events) - replay.last_hour


def test_other_processes_read_the_same_events(replay: Replay) -> None:
    assert read_events(replay.file) == replay.events


def test_sizes_are_those_of_the_packets() -> None:
    event = Event("EWR", "flights/EWR/ATL", b"A" * 100)
    computed = sizes([event])
    # fixed header 2, topic 2 + 15, packet id 2, no properties 1, payload 100
    assert computed.raw.tolist() == [2 + 2 + 15 + 2 + 1 + 100 + PUBACK_BYTES]
    assert computed.payload.tolist() == [100]
    assert computed.deflated[0] < 50
    # What does not become shorter stays raw, behind the byte that says so.
    assert sizes([Event("EWR", "flights/EWR/ATL", b"A")]).deflated[0] == 2 + 2 + 15 + 2 + 1 + 2 + PUBACK_BYTES


@pytest.mark.parametrize("options", [["--messages", "0"], ["--messages", "400000"], ["--rate", "0"], ["--out", "none"]])
def test_wrong_options_are_refused_before_anything_starts(
    options: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(signal, "signal", lambda number, handler: None)
    assert demo.main(options) == 2
    assert capsys.readouterr().err.startswith("error: ")


def test_more_flights_than_there_are_cannot_be_prepared(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="336,776"):
        prepare_flights(336_777, tmp_path / "events.tsv")


# -- verdicts


def verdict_of(sequence: list[Event], tmp_path: Path) -> Verdict:
    """What is said of a subscriber that got this, one delivery a millisecond."""
    file = tmp_path / "events.tsv"
    file.write_bytes(b"".join(f"{e.publisher}\t{e.topic}\t".encode() + e.payload + b"\n" for e in EVENTS))
    received = [Received(number * 1_000_000, one.topic, one.payload) for number, one in enumerate(sequence)]
    keep_arrivals(received, file, tmp_path, "it")
    sent_ns = np.zeros(len(EVENTS), dtype=np.int64)
    return judge(read_arrivals(tmp_path, "it"), digests(EVENTS), topic_numbers(EVENTS), sent_ns)


def counts(verdict: Verdict) -> tuple[int, int, int, int, int]:
    return (verdict.lost, verdict.duplicated, verdict.out_of_order, verdict.altered, verdict.topics - verdict.identical)


def test_a_perfect_subscriber(tmp_path: Path) -> None:
    verdict = verdict_of(EVENTS, tmp_path)
    assert verdict.perfect
    assert counts(verdict) == (0, 0, 0, 0, 0)
    assert verdict.delivered == 10
    assert verdict.latency_ms["p50"] == 4.5
    assert verdict.latency_ms["p100"] == 9.0


def test_topics_may_overtake_each_other(tmp_path: Path) -> None:
    by_topic = [event for event in EVENTS if "ATL" in event.topic] + [event for event in EVENTS if "LAX" in event.topic]
    assert verdict_of(by_topic, tmp_path).perfect


@pytest.mark.parametrize(
    ("sequence", "expected"),
    [
        (EVENTS[:4] + EVENTS[5:], (1, 0, 0, 0, 1)),
        (EVENTS[:-1], (1, 0, 0, 0, 1)),
        (EVENTS[:5] + EVENTS[4:], (0, 1, 0, 0, 1)),
        ([EVENTS[2], EVENTS[1], EVENTS[0], *EVENTS[3:]], (0, 0, 1, 0, 1)),
        ([EVENTS[0]._replace(payload=b"ATL 9"), *EVENTS[1:]], (1, 0, 0, 1, 1)),
        ([EVENTS[0]._replace(topic="flights/EWR/LAX"), *EVENTS[1:]], (1, 0, 0, 1, 2)),
        ([], (10, 0, 0, 0, 2)),
    ],
    ids=["lost", "lost at the end", "duplicated", "out of order", "altered", "wrong topic", "nothing"],
)
def test_each_fault_is_seen(sequence: list[Event], expected: tuple[int, ...], tmp_path: Path) -> None:
    verdict = verdict_of(sequence, tmp_path)
    assert counts(verdict) == expected
    assert not verdict.perfect


def test_reduction_of_payloads_leaves_the_headers_out() -> None:
    link = LinkBytes(measured=70, uncompressed=120, deflate=90, payload=100)
    assert link.payload_percent == 50.0
    assert link.reduction_percent == pytest.approx(100 - 100 * 70 / 120)
    assert link.deflate_percent == 25.0
    assert LinkBytes(70, 120, 90, 0).payload_percent is None


# -- from end to end


@contextmanager
def started(folder: Path, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A demo whose temporary files are in `folder`; a test that fails leaves none of it behind."""
    with subprocess.Popen(
        [sys.executable, "-m", "lexicast.bench.demo", "--out", str(folder), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # Ray's sockets need a shorter path than pytest's folders have.
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "TMPDIR": str(folder), "RAY_TMPDIR": "/tmp"},
    ) as process:
        try:
            yield process
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGINT)


def of_this_demo(folder: Path) -> list[psutil.Process]:
    """Processes that work in `folder`."""
    running = psutil.process_iter(["cmdline"])
    return [one for one in running if any(str(folder) in part for part in one.info["cmdline"] or ())]


def test_a_short_demo(tmp_path: Path) -> None:
    with started(tmp_path, "--messages", "2000", "--rate", "1000", "--json", str(tmp_path / "told.json")) as process:
        out, err = process.communicate(timeout=120)
    assert (process.returncode, err) == (0, ""), out + err
    told: dict[str, Any] = json.loads((tmp_path / "told.json").read_text())
    figures = told["figures"]
    assert told["problems"] == []
    assert figures["flights"] == 2_000
    assert figures["published"] == figures["events"] > 2_000
    for name in ("plain", "aware", "python"):
        assert figures[f"delivered_{name}"] == figures["events"]
        assert [figures[f"{key}_{name}"] for key in ("lost", "duplicated", "out_of_order", "altered")] == [0] * 4
        assert figures[f"identical_{name}"] == figures[f"topics_{name}"] > 50
        assert 0 < figures[f"latency_p50_ms_{name}"] <= figures[f"latency_p99_ms_{name}"]
    # What is computed for an uncompressed link is what an uncompressed link carries, but for 1 byte of 3.1.1 a packet.
    assert figures["measured_bytes_plain"] == pytest.approx(figures["uncompressed_bytes_plain"], rel=0.01)
    assert figures["measured_bytes_weather"] == pytest.approx(figures["uncompressed_bytes_weather"], rel=0.01)
    # Dictionaries were learned, and what they save is measured: far more than DEFLATE, and far from nothing.
    assert figures["dictionaries"] >= 3
    assert figures["measured_bytes_aware"] < 0.8 * figures["deflate_bytes_aware"]
    assert figures["measured_bytes_python"] < figures["uncompressed_bytes_python"]
    assert figures["payload_bytes_plain"] > figures["payload_bytes_aware"] == 0, "by aliases its headers are shorter"
    assert figures["question_right"]
    assert figures["question_flights"] >= 1
    assert (tmp_path / "lexicast-demo.png").read_bytes().startswith(b"\x89PNG")
    assert "flights/EWR/+" in out
    assert str(tmp_path / "lexicast-demo.png") in out
    assert of_this_demo(tmp_path) == []
    assert not list(tmp_path.glob("lexicast-demo-*")), "its temporary folder is left"


def test_ctrl_c_leaves_nothing_behind(tmp_path: Path) -> None:
    with started(tmp_path, "--messages", "50000", "--rate", "1000") as process:
        deadline = time.monotonic() + 120
        while not any("demo.clients" in " ".join(one.info["cmdline"]) for one in of_this_demo(tmp_path)):
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < deadline
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 130, out + err
    assert err == "stopped; everything that was started is stopped too\n"
    assert of_this_demo(tmp_path) == []
    assert not list(tmp_path.glob("lexicast-demo-*"))
