"""The DualDB driver in pieces: sections, what is taken over from an earlier piece, places, the picture."""

from __future__ import annotations

import gzip
import json
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from lexicast.bench.dualdb import batch_sizes
from lexicast.bench.dualdb import driver as dualdb
from lexicast.bench.dualdb.growth import PARTS, ROUNDS, Took, grow, took_ratio
from lexicast.bench.dualdb.workload import CITY, STATE, Workload, city_cells, taxi_cells
from lexicast.cluster.errors import UnavailableError, UsageError

TINY = dualdb.Size(100, 100, 1, 3_000, 1_000, 100)


@pytest.fixture(autouse=True)
def _signals() -> Iterator[None]:
    """A driver takes SIGTERM for itself."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


@contextmanager
def _no_server() -> Iterator[str]:
    raise UnavailableError("PostgreSQL is not installed")
    yield ""


def test_sections_are_done_in_their_order_and_unknown_ones_named() -> None:
    assert dualdb.sections("memory,ratios") == ["ratios_3_1", "ratios_1_3", "memory"]
    with pytest.raises(SystemExit):
        dualdb.main(["--only", "memory,nothing"])


def test_pieces_of_a_run_come_together_in_one_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dualdb, "QUICK", TINY)
    monkeypatch.setattr(dualdb, "server", _no_server)
    file, picture = tmp_path / "figures.json", tmp_path / "curves.png"
    options = ["--quick", "--json", str(file), "--picture", str(picture)]
    assert dualdb.main([*options, "--only", "growth"]) == 0
    first = json.loads(file.read_text())["figures"]
    assert set(first) == {"growth_15m", "growth_15m_cpu", "file_growth"}
    assert dualdb.main([*options, "--only", "ratios_3_1"]) == 0
    found = json.loads(file.read_text())
    assert {key: found["figures"][key] for key in first} == first
    assert found["figures"]["vs_two_databases"] > 0
    assert found["figures"]["vs_padres"] is None
    assert {"dualdb", "dualdb_alone", "repqueries"} <= set(found["samples"]["curves"]["3_1"])
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_the_curve_has_every_engine_at_every_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dualdb, "QUICK", TINY)
    monkeypatch.setattr(batch_sizes, "SIZES", {1: 2, 10: 2})
    file = tmp_path / "figures.json"
    monkeypatch.setattr(dualdb, "server", _no_server)
    picture = tmp_path / "curves.png"
    assert dualdb.main(["--quick", "--json", str(file), "--picture", str(picture), "--only", "curve"]) == 0
    told = json.loads(file.read_text())
    engines = told["samples"]["curve"]
    assert {"dualdb", "leveldb", "rocksdb", "two_databases", "repqueries", "repqueries_joined"} == set(engines)
    measures = ("ops_s", "p50_ms", "p99_ms", "cpu_us")
    wanted = {f"{what}_{name}_{size}" for what in measures for name in engines for size in (1, 10)}
    sides = [f"vs_{peer}_{size}" for peer in batch_sizes.PEERS for size in ("single", "100")]
    ratios = {f"{side}{ending}" for side in sides for ending in ("", "_cpu")}
    assert set(told["figures"]) == wanted | ratios
    assert all(value > 0 for key, value in told["figures"].items() if "_100" not in key)
    assert told["figures"]["vs_leveldb_100"] is None
    assert len(engines["dualdb"]["10"]["batch_s"]) == 2
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_a_ratio_is_the_median_of_rounds_and_counts_what_few_batches_take() -> None:
    slow = batch_sizes.Point([1.0] * 10, [1.0] * 8 + [11.0] * 2)
    fast = batch_sizes.Point([0.5] * 10, [0.5] * 10)
    assert batch_sizes.rounds_of(slow.batch_s) == [2.0, 2.0, 2.0, 2.0, 22.0]
    assert slow.quantile_ms(0.99) == 11_000
    points = {"dualdb": {1: fast}, "leveldb": {1: slow}}
    assert batch_sizes.points_in(batch_sizes.samples_of(points)) == points


def test_a_file_of_another_mode_is_not_taken_over(tmp_path: Path) -> None:
    file = tmp_path / "figures.json"
    file.write_text(json.dumps({"driver": "dualdb", "mode": "full", "figures": {}, "samples": {}}))
    assert dualdb.main(["--quick", "--json", str(file), "--only", "memory"]) == 1
    assert json.loads(file.read_text())["mode"] == "full"


def test_the_last_part_is_measured_in_turns_with_a_young_stores_second() -> None:
    said: list[str] = []
    found = grow(Workload(city_cells(1, 500), 0.75, 100, 50, 8), PARTS * 100, 100, said.append)
    assert len(found.parts) == PARTS
    assert len(found.file_bytes) == len(found.cumulative) == PARTS * 100 // 50
    assert len(found.ratios) == ROUNDS == len(said) - 1
    assert found.wall > 0
    assert found.cpu > 0
    assert took_ratio(Took(6.0, 3.0), Took(2.0, 2.0)) == Took(3.0, 1.5)


def test_taxis_pick_up_in_the_box_of_their_city_or_of_the_state(tmp_path: Path) -> None:
    places = [("-73.98", "40.75"), ("-73.78", "40.64"), ("0", "0")]
    lines = [",".join(["", "", "", "", "", "", longitude, latitude]) for longitude, latitude in places]
    with gzip.open(tmp_path / "debs2015_taxi.csv.gz", "wt") as file:
        file.write("\n".join(lines))
    assert len(taxi_cells(tmp_path, CITY)) == len(taxi_cells(tmp_path, STATE)) == 2
    with pytest.raises(UsageError, match="leave --data away"):
        taxi_cells(tmp_path / "elsewhere")
