"""The LMDB environment of a coordinator's store: one owner a directory, and nothing that gives up durability.

NOSYNC and WRITEMAP stay off: power loss would cost the store, not only its last second. `readahead` is off because
readers seek. The map is large and sparse, so that a store grows without a restart.

Four files lie in the directory: LMDB's two, and two that locks are taken on (`locks`); the kernel lets go of them
however a process ends. A fifth, `poisoned`, is left behind by an I/O error other than a full disk: after a failed fsync
the kernel may drop pages and yet show them to readers, so what a restart reads is not known to be on the disk until
somebody has looked.
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

from ..file.damage import Ledger
from ..file.disk import complete_file, leave_poison, map_bytes_possible, refuse_poisoned
from ..file.locks import begin_reading, no_slot, open_environment, own
from ..file.table import Database, ReadTransaction, Table, WriteTransaction
from ..tables.databases import PLAIN, Databases, raw_database
from ..tables.row_validation import form_of
from .options import GIB, StoreOptions

DATA_FILE: Final = "data.mdb"
_MAP_BYTES_MIN: Final = GIB


class Environment:
    """An open LMDB environment with its databases, and the lock that makes this process its only owner."""

    def __init__(self, directory: Path, options: StoreOptions) -> None:
        """Raises StoreError (in use, no permission, poisoned) or StoreFormatError (damaged, not a store)."""
        self.directory = directory
        self._lock = own(directory)
        try:
            refuse_poisoned(directory)
            self.damage = Ledger(f"the store {directory}:")
            self.lmdb = _open_lmdb(directory, options)
            try:
                complete_file(self.lmdb, directory / DATA_FILE)
                self.databases = open_databases(self.lmdb, self.damage)
            except BaseException:
                self.lmdb.close()
                raise
        except BaseException:
            os.close(self._lock)
            raise
        self.page_bytes = self.lmdb.stat()["psize"]
        self.map_bytes = self.lmdb.info()["map_size"]

    def begin(self) -> WriteTransaction:
        """A write transaction; the caller commits or aborts it."""
        return self.lmdb.begin(write=True)

    @contextmanager
    def snapshot(self) -> Iterator[ReadTransaction]:
        """A read transaction. Keep it under a second: an old one keeps LMDB from reusing pages, for good."""
        with begin_reading(self.lmdb) as txn:
            yield txn

    def file_bytes(self) -> int:
        """Bytes of the data file that were ever used; LMDB reuses freed pages and does not shrink the file."""
        return (self.lmdb.info()["last_pgno"] + 1) * self.page_bytes

    def used_bytes(self, txn: ReadTransaction | WriteTransaction) -> int:
        """Bytes of pages in use, in all databases."""
        pages = 0
        for name in Databases._fields:
            stat = txn.stat(raw_database(self.databases, name))
            pages += stat["branch_pages"] + stat["leaf_pages"] + stat["overflow_pages"]
        return pages * self.page_bytes

    def log_bytes(self, txn: ReadTransaction | WriteTransaction) -> int:
        """Bytes of pages that the log uses."""
        stat = txn.stat(self.databases.log)
        return (stat["branch_pages"] + stat["leaf_pages"] + stat["overflow_pages"]) * self.page_bytes

    def oldest_reader(self) -> tuple[int | None, int]:
        """The transaction that the oldest reader looks at (None: nobody reads), and the last one.

        Killed readers are cleared first: they would hold their pages for ever.
        """
        self.lmdb.reader_check()
        rows = [line.split() for line in self.lmdb.readers().splitlines()]
        held = [int(row[-1]) for row in rows if row and row[-1].isdigit()]
        return min(held, default=None), self.lmdb.info()["last_txnid"]

    def leave_poison(self, reason: str) -> None:
        """Write the file that keeps this store from being opened before somebody has looked at the disk."""
        leave_poison(self.directory, reason)

    def close(self) -> None:
        """Close LMDB and let go of the directory."""
        self.lmdb.close()
        os.close(self._lock)


def _open_lmdb(directory: Path, options: StoreOptions) -> lmdb.Environment:
    map_bytes = map_bytes_possible(directory, options.map_bytes)
    while True:
        try:
            return open_environment(directory, partial(_opened, directory, map_bytes, options.max_readers))
        except lmdb.MemoryError:
            if map_bytes <= _MAP_BYTES_MIN:
                raise StoreError(
                    f"cannot map {map_bytes} bytes for the store {directory}: raise the limit on address space "
                    "(ulimit -v) or lower map_bytes"
                ) from None
            map_bytes //= 2
        except lmdb.Error as error:
            raise StoreFormatError(
                f"{directory} is not a store this lexicast can open ({error}): restore it from a backup, or move it "
                "away to start with an empty store"
            ) from None


def _opened(directory: Path, map_bytes: int, max_readers: int) -> lmdb.Environment:
    return lmdb.open(
        str(directory),
        map_size=map_bytes,
        subdir=True,
        metasync=True,
        sync=True,
        map_async=False,
        writemap=False,
        readahead=False,
        max_dbs=len(Databases._fields),
        max_readers=max_readers,
        max_spare_txns=4,
        mode=FILE_MODE,
    )


def open_databases(environment: lmdb.Environment, damage: Ledger | None = None, create: bool = True) -> Databases:
    """Every database of the store; `damage` gets to know of damaged rows. Raises StoreFormatError."""
    ledger = damage or Ledger()

    def opened(name: str) -> Database | Table:
        database = environment.open_db(name.encode(), create=create)
        return database if name in PLAIN else Table(name, database, form_of(name), ledger)

    try:
        fields: dict[str, Any] = {name: opened(name) for name in Databases._fields}
    except lmdb.ReadersFullError:
        raise no_slot(Path(environment.path())) from None
    except lmdb.NotFoundError as error:
        raise StoreFormatError(
            f"the store {environment.path()} lacks a table ({error}): if an older lexicast was the last to serve it, "
            "start its coordinator with this one before anything else looks at it; else it is damaged: restore it from "
            "a backup"
        ) from None
    except lmdb.Error as error:
        raise StoreFormatError(
            f"the store {environment.path()} is damaged ({error}): restore it from a backup or from another member, "
            "or move it away to start with an empty store"
        ) from None
    return Databases(**fields)


def new_store_environment(directory: Path, **options: Any) -> lmdb.Environment:
    """An environment in an empty directory, to be filled and moved elsewhere. Raises lmdb.Error."""
    return lmdb.open(str(directory), max_dbs=len(Databases._fields), mode=FILE_MODE, **options)
