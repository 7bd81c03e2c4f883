"""Where a stand-alone DualDB lives: one LMDB environment, and the manifest that says which runs count.

    batches     first operation u64 -> a batch (`batches`): the log, and the payloads
    runs        run u32, number u32 -> a segment (`segments`)
    meta        "manifest", "graves", each sealed

The rules of `environment` hold here as well: one owner a directory, NOSYNC and WRITEMAP off, a mark after an I/O error.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import lmdb
import msgpack

from lexicast.cluster.errors import ConfigError, StoreError, StoreFormatError
from lexicast.cluster.files import FILE_MODE

from ..environment.options import GIB, MIB
from ..file.disk import complete_file, leave_poison, map_bytes_possible, refuse_poisoned
from ..file.locks import Reading, begin_reading, no_slot, open_environment, own
from ..file.sealing import DamageError, Value, seal, unseal
from ..file.table import AnyTransaction, Database, ReadTransaction, WriteTransaction

DUAL_VERSION: Final = 1
DUAL_FILE: Final = "dual.mdb"
MANIFEST: Final = b"manifest"
GRAVES: Final = b"graves"


@dataclass(frozen=True, slots=True)
class DualOptions:
    """A stand-alone DualDB's knobs. Raises ConfigError."""

    # Address space of the map; sparse, as in StoreOptions.
    map_bytes: int = 64 * GIB

    # Rows of the memory table: 40 bytes each, twice while a full one is written, and once more while it is sorted:
    # 120 MiB at worst. Rows that expire before it is full are never written to a run.
    memory_rows_max: int = 1_000_000

    # Rows of one value of a run: 720 KB, about 1 ms to write. Smaller ones cost more calls a look-up, larger ones hold
    # up a commit for longer.
    segment_rows: int = 16_384

    # Runs of a level that are merged into one of the next: fewer make look-ups cheaper and merges more frequent.
    runs_fanout: int = 4

    # Graves (unsubscribed or renewed subscriptions) remembered before a merge of all runs: 48 bytes each.
    graves_max: int = 262_144

    # Bytes kept free on the disk: batches are refused, unsubscribing and expiry go on.
    reserve_bytes: int = 64 * MIB

    def __post_init__(self) -> None:
        if min(self.map_bytes, self.memory_rows_max, self.segment_rows, self.graves_max) < 1 or self.runs_fanout < 2:
            raise ConfigError(
                "map_bytes, memory_rows_max, segment_rows and graves_max must be above 0, runs_fanout at least 2"
            )
        if self.reserve_bytes < 0:
            raise ConfigError(f"reserve_bytes {self.reserve_bytes} must not be negative")


class RunRow(NamedTuple):
    """A run as the manifest names it."""

    number: int
    level: int
    segments: int


@dataclass
class Manifest:
    """What counts besides the batches: operations before `flushed` lie in `runs`, or had expired."""

    flushed: int = 0
    now_us: int = -(2**63)
    until_us: int = -(2**63)
    next_run: int = 1
    runs: list[RunRow] = field(default_factory=list)
    dropped: list[int] = field(default_factory=list)


class Home:
    """The open environment, and the lock that makes this process its only owner."""

    def __init__(self, directory: Path, map_bytes: int) -> None:
        """Raises StoreError (in use, no permission, poisoned) or StoreFormatError (damaged, not a DualDB)."""
        self.directory = directory
        self._lock = own(directory)
        try:
            refuse_poisoned(directory)
            self.lmdb = open_lmdb(directory, map_bytes)
            try:
                complete_file(self.lmdb, directory / DUAL_FILE)
                self.batches, self.runs, self.meta = open_tables(self.lmdb, directory)
            except BaseException:
                self.lmdb.close()
                raise
        except BaseException:
            os.close(self._lock)
            raise
        self.page_bytes: int = self.lmdb.stat()["psize"]

    def begin(self) -> WriteTransaction:
        """A write transaction; the caller commits or aborts it."""
        return self.lmdb.begin(write=True)

    @contextmanager
    def snapshot(self) -> Iterator[ReadTransaction]:
        """A short read transaction that reads in place."""
        with begin_reading(self.lmdb) as txn:
            yield txn

    def file_bytes(self) -> int:
        """Bytes of the file that were ever used; freed pages are used again, the file does not shrink."""
        return int((self.lmdb.info()["last_pgno"] + 1) * self.page_bytes)

    def used_bytes(self, txn: AnyTransaction) -> int:
        """Bytes of pages in use."""
        pages = 0
        for database in (self.batches, self.runs, self.meta):
            found = txn.stat(database)
            pages += found["branch_pages"] + found["leaf_pages"] + found["overflow_pages"]
        return pages * self.page_bytes

    def leave_poison(self, reason: str) -> None:
        """Write the file that keeps this store from being opened before somebody has looked at the disk."""
        leave_poison(self.directory, reason)

    def close(self) -> None:
        """Close LMDB and let go of the directory."""
        self.lmdb.close()
        os.close(self._lock)


class ReadOnlyDual(Reading):
    """A DualDB that is open for looking only, also beside its owner."""

    def __init__(self, directory: Path, shared: bool = True) -> None:
        """See `Reading`. Raises StoreFormatError, StoreError."""
        with _explained(directory):
            super().__init__(directory, partial(_opened, directory, readonly=True, create=False), shared)
        try:
            self.tables = open_tables(self.lmdb, directory, create=False)
        except BaseException:
            self.close()
            raise


def open_lmdb(directory: Path, map_bytes: int) -> lmdb.Environment:
    """The LMDB environment of the DualDB in `directory`, to write. Raises StoreFormatError, StoreError."""
    with _explained(directory):
        return open_environment(
            directory, partial(_opened, directory, map_size=map_bytes_possible(directory, map_bytes))
        )


def open_new(directory: Path, **options: Any) -> lmdb.Environment:
    """An environment in an empty directory, to be filled and moved elsewhere. Raises lmdb.Error."""
    return _opened(directory, **options)


def _opened(directory: Path, **options: Any) -> lmdb.Environment:
    path = str(directory / DUAL_FILE)
    return lmdb.open(path, subdir=False, max_dbs=3, readahead=False, max_spare_txns=4, mode=FILE_MODE, **options)


@contextmanager
def _explained(directory: Path) -> Iterator[None]:
    try:
        yield
    except lmdb.MemoryError:
        raise StoreError(f"cannot map the store {directory}: raise the limit on address space (ulimit -v)") from None
    except lmdb.Error as error:
        raise StoreFormatError(
            f"{directory} is not a DualDB that can be opened ({error}): repair it or restore a backup"
        ) from None


def open_tables(environment: lmdb.Environment, directory: Path, create: bool = True) -> tuple[Database, ...]:
    """The tables batches, runs and meta. Raises StoreFormatError."""
    try:
        return tuple([environment.open_db(name, create=create) for name in (b"batches", b"runs", b"meta")])
    except lmdb.ReadersFullError:
        raise no_slot(directory) from None
    except lmdb.Error as error:
        raise StoreFormatError(f"the DualDB {directory} is damaged ({error}): repair it or restore a backup") from None


def read_manifest(txn: AnyTransaction, meta: Database, directory: Path) -> Manifest:
    """The manifest; a fresh one in an empty store. Raises StoreFormatError."""
    row = txn.get(MANIFEST, None, meta)
    return Manifest() if row is None else unpack_manifest(row, directory)


def unpack_manifest(row: Value, directory: Path) -> Manifest:
    """The manifest in a row. Raises StoreFormatError."""
    try:
        version, flushed, now_us, until_us, next_run, runs, dropped = msgpack.unpackb(unseal("meta", MANIFEST, row))
        if version > DUAL_VERSION:
            raise StoreFormatError(
                f"the DualDB {directory} has format {version}, this lexicast reads up to {DUAL_VERSION}: use the "
                "lexicast that wrote it, or a newer one"
            )
        return Manifest(flushed, now_us, until_us, next_run, [RunRow(*run) for run in runs], list(dropped))
    except (DamageError, ValueError, TypeError) as error:
        raise StoreFormatError(f"the manifest of the DualDB {directory} is damaged ({error}): repair it") from None


def write_manifest(txn: WriteTransaction, meta: Database, manifest: Manifest) -> None:
    """Store the manifest."""
    txn.put(MANIFEST, pack_manifest(manifest), db=meta)


def pack_manifest(m: Manifest) -> bytes:
    """The inverse of `unpack_manifest`."""
    fields = (DUAL_VERSION, m.flushed, m.now_us, m.until_us, m.next_run, [tuple(run) for run in m.runs], m.dropped)
    return seal("meta", MANIFEST, msgpack.packb(fields))
