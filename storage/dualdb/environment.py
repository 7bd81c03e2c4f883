"""The LMDB environment of a stand-alone DualDB, and its three tables.

    batches     first operation u64 -> a batch (`batches`): the log, and the payloads
    runs        run u32, number u32 -> a segment (`segments`)
    meta        "manifest" (`manifest`), "graves" (the tombstones), each sealed

The rules of `environment.environment` hold here as well: one owner a directory, NOSYNC and WRITEMAP off, a mark after
an I/O error. Beside it lies the journal (`journal`).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

import lmdb

from lexicast.cluster.errors import StoreError, StoreFormatError
from lexicast.cluster.files import FILE_MODE

from ..file.disk import complete_file, leave_poison, map_bytes_possible, refuse_poisoned
from ..file.locks import ReadOnlyEnvironment, begin_reading, no_slot, open_environment, own
from ..file.table import AnyTransaction, Database, ReadTransaction, WriteTransaction
from .journal import Journal

DUAL_FILE: Final = "dual.mdb"


class DualEnvironment:
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
                self.journal = Journal(directory)
            except BaseException:
                self.lmdb.close()
                raise
        except OSError as error:
            os.close(self._lock)
            raise StoreError(f"cannot use the store {directory}: {error}") from None
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
        """Close LMDB and the journal, and let go of the directory."""
        self.lmdb.close()
        self.journal.close()
        os.close(self._lock)


class ReadOnlyDual(ReadOnlyEnvironment):
    """A DualDB that is open for looking only, also beside its owner."""

    def __init__(self, directory: Path, shared: bool = True) -> None:
        """See `ReadOnlyEnvironment`. Raises StoreFormatError, StoreError."""
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


def new_dual_environment(directory: Path, **options: Any) -> lmdb.Environment:
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
