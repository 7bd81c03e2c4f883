"""Repairing a coordinator's store: a new file with every undamaged record and row of the old one.

    log, kept     blocks whose payloads are damaged lose those records and keep the others, each at its own offset; a
                  block whose head is damaged is lost, because nobody can say which record is which
    tables        rows that do not match their checksum, or have another form, are left out; of a topic's two rows (name
                  and id) one suffices
    dual          not copied: it is built again from the log when the store is opened

What follows from a lost record (a session, a subscription) stays as its table has it: the table has its own checksum.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Final

import lmdb

from lexicast.cluster.blocks import Block
from lexicast.cluster.errors import LexicastError, StoreFormatError

from .check import Damage, Report
from .cut import cut
from .environment import DATA_FILE, Databases, map_bytes_possible
from .format import (
    DamageError,
    Head,
    block_of,
    damaged_records,
    encode_block,
    log_key,
    name_key,
    parse_log_key,
    record_offset,
    seal,
    unseal,
    verified_head,
)
from .forms import look_at_form
from .groups import pack, unpack
from .options import GIB
from .outline import outline
from .retention import expiry_key
from .salvage import rows as salvaged_pairs

_REBUILT: Final = ("dual", "expiry", "superseded")


class StoreRepair:
    """One repair, from the file in `directory` to the directory `new`."""

    def __init__(self, directory: Path, new: Path) -> None:
        self._file = directory / DATA_FILE
        self._scratch = new / "scratch"
        map_bytes = map_bytes_possible(new, 64 * GIB)
        self._environment = lmdb.open(str(new), map_size=map_bytes, max_dbs=len(Databases._fields), mode=0o600)
        self._databases = {name: self._environment.open_db(name.encode()) for name in Databases._fields}
        self._damages: list[Damage] = []
        self._lines: list[str] = []
        self._blocks = self._records = self._rows = 0

    def run(self) -> Report:
        """Copy everything."""
        for name in Databases._fields:
            if name in ("log", "kept"):
                self._copy_blocks(name)
            elif name not in _REBUILT:
                self._copy_rows(name)
        self._mend_names()
        self._reset_index()
        self._environment.close()
        self._scratch.unlink(missing_ok=True)
        self._damages += [Damage(line.partition(":")[0], -1, -1, line.partition(": ")[2]) for line in self._lines]
        return Report(self._blocks, self._records, self._rows, self._damages)

    def _pairs(self, name: str) -> Iterator[tuple[bytes, bytes]]:
        return salvaged_pairs(self._file, name, self._scratch, self._lines)

    # blocks

    def _copy_blocks(self, name: str) -> None:
        for key, value in self._pairs(name):
            group = last = -1
            try:
                group, last = parse_log_key(key, name)
                head = verified_head(memoryview(value), group, last)
                kept = list(self._undamaged(name, memoryview(value), head))
            except (LexicastError, ValueError) as error:
                self._damages.append(Damage(name, group, last, f"the block is lost: {error}"))
                continue
            with self._environment.begin(write=True) as txn:
                for block, stored in kept:
                    txn.put(log_key(group, block.last), stored, db=self._databases[name])
                    self._blocks += 1
                    self._records += block.count
                    if name == "log" and (until := outline(block).expire_all_us):
                        txn.put(expiry_key(group, block.last, until), b"", db=self._databases["expiry"])

    def _undamaged(self, name: str, value: memoryview, head: Head) -> Iterator[tuple[Block, bytes]]:
        """The block, or what is left of it around its damaged records."""
        block = block_of(value, head)
        damaged = [record_offset(block, at) for at in damaged_records(value, head)]
        if not damaged:
            yield block, bytes(value)
            return
        self._damages += [Damage(name, block.group, offset, "the record is lost") for offset in damaged]
        for before, after in pairwise([block.first - 1, *damaged, block.last + 1]):
            part = cut(block, before + 1, after - 1)
            if part is not None:
                found = outline(part)
                yield part, encode_block(part, found.flags, found.expire_first_us, found.expire_all_us)

    # rows

    def _copy_rows(self, name: str) -> None:
        with self._environment.begin(write=True) as txn:
            for key, value in self._pairs(name):
                try:
                    look_at_form(name, key, unseal(name, key, value))
                except DamageError as error:
                    self._damages.append(Damage(name, -1, -1, error.what))
                    continue
                txn.put(key, value, db=self._databases[name])
                self._rows += 1

    def _mend_names(self) -> None:
        """Give each topic the one of its two rows that it has lost."""
        ids, names = self._databases["ids"], self._databases["names"]
        with self._environment.begin(write=True) as txn:
            for id_row, sealed in list(txn.cursor(names)):
                key = name_key(unseal("names", id_row, sealed))
                if txn.get(key, None, ids) is None:
                    txn.put(key, seal(key, id_row), db=ids)
            for key, sealed in list(txn.cursor(ids)):
                id_row = unseal("ids", key, sealed)
                if txn.get(id_row, None, names) is None:
                    if key[:1] == b"\0":
                        txn.put(id_row, seal(id_row, key[1:]), db=names)
                    else:
                        txn.delete(key, db=ids)

    def _reset_index(self) -> None:
        """Set every group's watermark back, so that opening the store enters the whole log into the index."""
        table = self._databases["groups"]
        with self._environment.begin(write=True) as txn:
            for key, sealed in list(txn.cursor(table)):
                row = unpack(unseal("groups", key, sealed))
                data = pack(row._replace(indexed_below=0, records=0))
                txn.put(key, seal(key, data), db=table)


def repair_store(directory: Path, new: Path) -> Report:
    """Write a repaired store into the directory `new`; what was lost is in the report. Raises StoreError."""
    try:
        return StoreRepair(directory, new).run()
    except lmdb.Error as error:
        raise StoreFormatError(f"{directory} cannot be repaired ({error}): restore a backup") from None
