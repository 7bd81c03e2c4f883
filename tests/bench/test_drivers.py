"""The drivers from end to end: figures and their keys, peers that are missing, losses, Ctrl-C."""

from __future__ import annotations

import argparse
import io
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
from rich.console import Console

from lexicast.bench import connections, fanin, fanout, latency, report, shared
from lexicast.bench.peers import targets
from lexicast.bench.peers.session_opening import raise_open_files
from lexicast.bench.peers.targets import TargetMissingError
from lexicast.bench.report import DriverReport
from lexicast.cluster.errors import UsageError

TINY = ["--rounds", "2", "--seconds", "0.05", "--calibrate-seconds", "0.02", "--subscribers", "1,5", "--topics", "7"]


def document(driver: Any, arguments: list[str], file: Path) -> dict[str, Any]:
    """Runs a driver, which must succeed, and reads what it wrote."""
    assert driver.main([*arguments, "--json", str(file)]) == 0
    told: dict[str, Any] = json.loads(file.read_text())
    assert list(told) == ["driver", "mode", "machine", "options", "samples", "problems", "figures"]
    return told


@pytest.fixture(autouse=True)
def _limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """The drivers change their process: its signal handler and its timers. This one is the tests'."""
    monkeypatch.setattr(signal, "signal", lambda number, handler: None)
    monkeypatch.setattr(latency, "sharpen_timers", lambda: None)


def test_fanout_measures_mosquitto_and_nats(tmp_path: Path) -> None:
    told = document(fanout, [*TINY, "--targets", "mosquitto,nats,toy", "--verify"], tmp_path / "f.json")
    figures = told["figures"]
    for name in ("mosquitto", "nats", "toy"):
        assert figures[f"fanout_1_{name}_per_s"] > 0
        assert figures[f"fanout_5_{name}_per_s"] > 0
        assert told["samples"]["fanout_5"][name]["lost"] == [0, 0]
    for scenario in ("fanout_1_varying", "fanout_topics_7", "fanout_pairs_7"):
        for name in ("mosquitto", "nats", "toy"):
            assert figures[f"{scenario}_{name}_per_s"] > 0
            assert told["samples"][scenario][name]["lost"] == [0, 0]
        assert figures[f"{scenario}_vs_mosquitto"] is None
    assert figures["qos1_mosquitto_per_s"] > 0
    assert "nats" not in told["samples"]["qos1"]
    # lexicast was left out, so its ratios are there and null.
    assert figures["fanout_1_vs_mosquitto"] is figures["fanout_5_vs_nats"] is figures["qos1_vs_mosquitto"] is None
    assert set(told["machine"]["versions"]) == {"mosquitto", "nats"}


def test_shared_counts_what_members_get_once(tmp_path: Path) -> None:
    arguments = ["--quick", "--members", "2", "--rounds", "1", "--messages", "3000", "--targets", "mosquitto"]
    told = document(shared, arguments, tmp_path / "s.json")
    assert told["samples"]["shared_2"]["mosquitto"]["lost"] == [0]
    assert told["figures"]["shared_2_mosquitto_per_s"] > 0


def test_fanin_measures_messages_and_cpu(tmp_path: Path) -> None:
    arguments = ["--publishers", "20", "--rounds", "2", "--seconds", "0.05", "--calibrate-seconds", "0.02"]
    told = document(fanin, [*arguments, "--targets", "mosquitto,nats,toy"], tmp_path / "i.json")
    figures, samples = told["figures"], told["samples"]
    assert set(samples["fanin_20"]) == {"mosquitto", "nats", "toy"}
    assert set(samples["fanin_20_qos1"]) == {"mosquitto", "toy"}
    for scenario, by_target in samples.items():
        for name, one in by_target.items():
            assert one["lost"] == [0, 0]
            assert figures[f"{scenario}_{name}_per_s"] > 0
            assert figures[f"{scenario}_{name}_brokers_cpu_us"] is not None
    # lexicast was left out.
    assert figures["fanin_20_vs_mosquitto"] is figures["fanin_20_qos1_vs_mosquitto"] is figures["fanin_cpu_us"] is None


def test_broker_and_coordinator_add_up_to_the_fleets_cpu() -> None:
    cpu_us: dict[str, list[float | None]] = {
        "brokers": [10.0, 30.0, None],
        "coordinators": [1.0, 2.0, 3.0],
        "sampling": [7.0, 7.0, 7.0],
    }
    assert fanin.data_path_cpu_us(cpu_us) == 21.5
    assert fanin.data_path_cpu_us({"brokers": [None], "coordinators": [None]}) is None


def test_latency_measures_both_qualities(tmp_path: Path) -> None:
    arguments = ["--rounds", "2", "--seconds", "0.05", "--rates", "1000", "--targets", "mosquitto,nats", "--no-curve"]
    figures = document(latency, arguments, tmp_path / "l.json")["figures"]
    for key in ("mosquitto_qos0", "mosquitto_qos1", "nats_qos0"):
        assert 0 < figures[f"latency_p50_ms_{key}_1000"] <= figures[f"latency_p99_ms_{key}_1000"]
        assert figures[f"latency_p999_ms_{key}_1000"] is None  # 100 messages do not tell a p99.9
    assert figures["latency_p50_ms"] is None


def test_latency_rises_with_the_rate_until_a_target_is_saturated(tmp_path: Path) -> None:
    curve = ["--curve-rates", "500,5000000,6000000", "--curve-seconds", "0.02", "--rates", "1000"]
    picture = tmp_path / "curve.png"
    arguments = [*curve, "--rounds", "1", "--seconds", "0.02", "--qos", "0", "--targets", "mosquitto,nats"]
    told = document(latency, [*arguments, "--picture", str(picture)], tmp_path / "l.json")
    figures = told["figures"]
    for name in ("mosquitto", "nats"):
        points = told["samples"]["curve"][name]
        # 5 million a second are more than the generator can send. A busy machine may be too slow for 500.
        assert list(points) in (["500", "5000000"], ["500"])
        assert list(points.values())[-1]["saturated"]
        assert figures[f"latency_curve_delivered_per_s_{name}"] > 0
        assert 0 < figures[f"latency_window_p50_ms_{name}"] <= figures[f"latency_window_p99_ms_{name}"]
    assert picture.stat().st_size > 1_000


def test_connections_measures_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "SETTLE_TIMEOUT_S", 1.0)
    arguments = ["--connections", "400", "--targets", "mosquitto,toy", "--quick"]
    told = document(connections, arguments, tmp_path / "c.json")
    assert told["mode"] == "quick"
    assert 0 < told["figures"]["connection_kib_toy"] < 50
    assert 0 < told["figures"]["connection_kib_mosquitto"] < 50
    assert told["figures"]["connection_kib"] is None


def test_missing_peer_is_said_and_its_figures_are_null(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(shutil, "which", lambda name, path: None)
    arguments = [*TINY, "--targets", "mosquitto,toy", "--cases", "same"]
    figures = document(fanout, arguments, tmp_path / "f.json")["figures"]
    assert "mosquitto not found: apt-get install mosquitto" in capsys.readouterr().out
    assert figures["fanout_1_vs_mosquitto"] is None
    assert figures["fanout_1_toy_per_s"] > 0
    assert fanout.main([*arguments, "--require-peers"]) == 3


def test_unknown_target_is_one_line_and_code_1(capsys: pytest.CaptureFixture[str]) -> None:
    assert fanout.main([*TINY, "--targets", "rabbit"]) == 1
    error = capsys.readouterr().err
    assert error == "error: unknown target 'rabbit'; choose from lexicast, mosquitto, nats, toy\n"


def test_executable_that_is_missing_names_its_package() -> None:
    with pytest.raises(TargetMissingError, match="no-such-broker not found: apt-get install some-package"):
        targets.program_of("no-such-broker", "some-package")


def test_ctrl_c_stops_the_driver_and_everything_it_started(tmp_path: Path) -> None:
    log = tmp_path / "log"
    command = [sys.executable, "-u", "-m", "lexicast.bench.fanout", "--targets", "mosquitto,nats,toy"]
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*command, "--subscribers", "3", "--calibrate-seconds", "0.02"],
            stdout=subprocess.PIPE,
            stderr=output,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
    try:
        assert process.stdout is not None
        for line in process.stdout:  # until it measures
            if b"round 1 of" in line:
                break
        children = psutil.Process(process.pid).children(recursive=True)
        assert len(children) == 3
        process.send_signal(signal.SIGINT)
        process.stdout.read()
        assert process.wait(30) == 130
        assert "everything that was started is stopped" in log.read_text()
        assert psutil.wait_procs(children, timeout=60)[1] == []
    finally:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


# The report


def made_report(**options: Any) -> DriverReport:
    settings = {"quick": False, "json": None, "targets": "toy", "require_peers": False, **options}
    return DriverReport("test", argparse.Namespace(**settings), Console(file=io.StringIO()))


def test_ratio_is_the_median_of_ratios_within_rounds() -> None:
    # The second round met a slow machine: its ratio is as good as any.
    assert report.median_ratio([10.0, 2.0, 12.0], [5.0, 1.0, 4.0]) == 2.0
    assert report.median_ratio([10.0, None, 9.0], [5.0, 1.0, 1.0]) == 5.5
    assert report.median_ratio(None, [1.0]) is None
    assert report.median_ratio([1.0], None) is None
    assert report.median_ratio([None], [1.0]) is None


def test_problem_makes_the_exit_code_1_and_is_kept(tmp_path: Path) -> None:
    made = made_report(json=tmp_path / "r.json")
    made.problem("mosquitto, fanout_1: 3 of 10 deliveries were lost")
    made.figure("a", 123456.0)
    made.figure("b", None)
    assert made.finish() == 1
    told = json.loads((tmp_path / "r.json").read_text())
    assert told["problems"] == ["mosquitto, fanout_1: 3 of 10 deliveries were lost"]
    assert told["figures"] == {"a": 123_500.0, "b": None}


def test_missing_peer_changes_the_exit_code_only_on_request() -> None:
    for required, code in ((False, 0), (True, 3)):
        made = made_report(require_peers=required)
        made.missing("nats", "nats-server not found: apt-get install nats-server")
        assert made.finish() == code


def test_where_a_report_goes_is_looked_at_before_anything_is_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def measure(_: DriverReport) -> None:
        raise AssertionError("hours would be lost")

    (tmp_path / "file").write_text("")
    for option, named in (("json", tmp_path / "file" / "r.json"), ("picture", tmp_path)):
        settings = argparse.Namespace(quick=True, targets="", require_peers=False, **{option: named})
        assert report.drive("test", settings, measure) == 1
        assert f"error: --{option} {named}: " in capsys.readouterr().err


def test_the_folder_of_a_report_is_made(tmp_path: Path) -> None:
    file = tmp_path / "not" / "yet" / "r.json"
    settings = argparse.Namespace(quick=True, targets="", require_peers=False, json=file)
    assert report.drive("test", settings, lambda made: made.figure("a", 1.0)) == 0
    assert json.loads(file.read_text())["figures"] == {"a": 1.0}


@pytest.mark.parametrize("text", ["0", "1,0", "-3", "x"])
def test_counts_below_one_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"only numbers from 1|invalid literal"):
        report.integers(text)


def test_too_many_connections_are_refused_before_anything_starts() -> None:
    with pytest.raises(UsageError, match="open files are needed but the hard limit is"):
        raise_open_files(2**40)
