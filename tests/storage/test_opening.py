"""Opening a store: whose it is, of which format, who has it already; how it is opened and closed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import lmdb
import msgpack
import pytest

from lexicast.cluster.errors import ConfigError, StoreError, StoreFormatError
from lexicast.storage.environment.identity import IDENTITY
from lexicast.storage.environment.options import StoreOptions
from lexicast.storage.file.sealing import seal
from lexicast.storage.log.block_format import FORMAT_VERSION

from ..support.store_bench import Bench, Pub, publications


def test_another_clusters_store_is_refused(bench: Bench) -> None:
    with bench.open():
        pass
    with pytest.raises(StoreFormatError, match="store of cluster 'c'"), bench.open(cluster_id="d"):
        pass
    with pytest.raises(StoreFormatError, match="4 groups"), bench.open(groups=5):
        pass


def test_a_newer_format_is_refused(bench: Bench) -> None:
    with bench.open() as store, store.environment.begin() as txn:
        row = msgpack.packb((FORMAT_VERSION + 1, "c", "m1", 4))
        txn.put(b"identity", seal("identity", b"identity", row), db=store.environment.databases.identity)
    with pytest.raises(StoreFormatError, match="newer"), bench.open():
        pass


def test_a_format_from_before_the_first_release_is_refused(bench: Bench) -> None:
    with bench.open() as store, store.environment.begin() as txn:
        row = msgpack.packb((FORMAT_VERSION - 1, "c", "m1", 4))
        txn.put(b"identity", seal("identity", b"identity", row), db=store.environment.databases.identity)
    with pytest.raises(StoreFormatError, match="from before the first release"), bench.open():
        pass


def test_a_damaged_header_is_refused(bench: Bench) -> None:
    with bench.open() as store, store.environment.begin() as txn:
        for key in IDENTITY:
            txn.put(key, b"junk", db=store.environment.databases.identity)
    with pytest.raises(StoreFormatError, match="lost its identity"), bench.open():
        pass


def test_a_file_that_is_no_store_is_refused(bench: Bench) -> None:
    bench.directory.mkdir()
    (bench.directory / "data.mdb").write_bytes(b"something else" * 1_000)
    with pytest.raises(StoreFormatError, match="not a store"), bench.open():
        pass


def test_two_owners_are_refused_also_across_processes(bench: Bench) -> None:
    with bench.open():
        with pytest.raises(StoreError, match="in use"), bench.open():
            pass
        script = (
            "import sys; from pathlib import Path\n"
            "from lexicast.cluster.clock import SystemClock\n"
            "from lexicast.storage.environment.options import StoreOptions\n"
            "from lexicast.storage.store import Store\n"
            "Store.open(Path(sys.argv[1]), cluster_id='c', member='m1', groups=4, options=StoreOptions(), "
            "clock=SystemClock())\n"
        )
        other = subprocess.run(
            [sys.executable, "-c", script, str(bench.directory)],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2] / "src")},
        )
        assert other.returncode != 0
        assert "in use by another process" in other.stderr
    with bench.open():
        pass


def test_a_closed_store_says_so(bench: Bench) -> None:
    with bench.open() as store:
        pass
    with pytest.raises(StoreError, match="closed"):
        store.read(0, 0)
    with pytest.raises(StoreError, match="closed"):
        store.commit([publications(0, [Pub(b"a", b"")])])
    store.close()


def test_nothing_gives_up_durability(bench: Bench) -> None:
    with bench.open() as store:
        flags = store.environment.lmdb.flags()
        assert flags["sync"]
        assert flags["metasync"]
        assert not flags["writemap"]
        assert not flags["map_async"]
        assert isinstance(store.environment.lmdb, lmdb.Environment)


@pytest.mark.parametrize(
    "wrong",
    [
        {"quota_bytes": 0},
        {"reserve_bytes": 1 << 50},
        {"retention_s": -1},
        {"retention_bytes": -1},
        {"block_bytes_max": 0},
        {"index_entries_max": 0},
    ],
)
def test_options_that_contradict_each_other_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ConfigError):
        StoreOptions(**wrong)
