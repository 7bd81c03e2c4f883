"""A coordinator's store that is open for looking only."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import lmdb

from lexicast.cluster.errors import StoreFormatError
from lexicast.cluster.files import FILE_MODE

from ..file.damage import Ledger
from ..file.locks import ReadOnlyEnvironment
from ..tables.databases import Databases
from .environment import DATA_FILE, open_databases
from .options import StoreOptions


class ReadOnlyStore(ReadOnlyEnvironment):
    """A store that is open for looking only, also beside its owner."""

    def __init__(self, directory: Path, shared: bool = True, damage: Ledger | None = None) -> None:
        """See `ReadOnlyEnvironment`. Raises StoreFormatError (not a store, damaged), StoreError (no right, no slot)."""
        if not (directory / DATA_FILE).exists():
            raise StoreFormatError(f"{directory} is not a store: there is no {DATA_FILE} in it")
        try:
            super().__init__(directory, partial(_opened_read_only, directory), shared)
        except lmdb.Error as error:
            raise StoreFormatError(
                f"the store {directory} cannot be opened ({error}): repair it or restore it from a backup"
            ) from None
        try:
            self.databases = open_databases(self.lmdb, damage, create=False)
        except BaseException:
            self.close()
            raise


def _opened_read_only(directory: Path) -> lmdb.Environment:
    return lmdb.open(
        str(directory),
        readonly=True,
        create=False,
        readahead=False,
        max_dbs=len(Databases._fields),
        max_readers=StoreOptions().max_readers,
        mode=FILE_MODE,
    )
