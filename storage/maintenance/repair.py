"""The repair of a coordinator's store: a new file with every undamaged record and row of the old one.

    log, kept     blocks whose payloads are damaged lose those records and keep the others, each at its own offset; a
                  block whose head is damaged is lost, because nobody can say which record is which
    tables        rows that do not match their checksum, or have another form, are left out; what refers to something
                  that is lost is set right (`reference_repair`)
    dual          not copied: it is built again from the log when the store is opened; `expiry`, `session_due` are
                  made again here

Rows are found along the trees of LMDB's pages, and beside them where a page of a tree is lost (`salvage`). What follows
from a lost record (a session, a subscription) stays as its table has it: the table has its own checksum.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Final

import lmdb

from lexicast.cluster.errors import LexicastError, StoreError, StoreFormatError

from ..environment.environment import DATA_FILE, new_store_environment
from ..environment.identity import IDENTITY, IDENTITY_COPY, identity_of, refuse_version
from ..file.disk import disk_is_full
from ..file.keys import expiry_key, log_key, parse_log_key
from ..file.sealing import DamageError, seal, unseal
from ..log.block_cuts import cut
from ..log.block_format import (
    IS_KEPT,
    Head,
    block_of,
    damaged_records,
    encode_block,
    peek_head,
    record_offset,
    verified_head,
)
from ..log.block_outline import Outline, outline
from ..tables.databases import PLAIN, Databases
from ..tables.row_validation import check_row, is_newer
from .check import DAMAGES_MAX, CheckReport, Damage
from .reference_repair import GroupEnds, ReferenceRepair
from .salvage import Progress, Salvage, Writer, no_progress

_BLOCKS: Final = ("log", "kept")
# `session_due` follows from the sessions.
_SEALED: Final = ("superseded", *[name for name in Databases._fields if name not in (*PLAIN, "session_due")])
_GAPS_TOLD_MAX: Final = 100

# What is lost with a row, and what to do.
_MEANS: Final = {
    "log": "the publications in them are gone; a backup or the publishers may have them",
    "kept": "these retained publications are gone: publish them again",
    "retained": "these topics have no retained publication any more: publish them again",
    "sessions": "those clients connect as new ones: they subscribe again, what they missed is not brought up",
    "subscriptions": "brokers subscribe again when they start",
    "producers": "what a publisher sends again after the repair may be stored twice",
    "marks": "what a publisher sends again with QoS 2 after the repair may be stored twice",
    "dictionaries": "stored payloads that were compressed with them cannot be read",
    "superseded": "records that count no more leave the log by age",
    "epochs": "nothing to do: new ones follow",
    "promises": "nothing to do: its leaders ask again",
    "counted": "nothing to do while the coordination server has its registry; its leaders write them anew",
    "groups": "taken from what is left: no offset and no topic id is given out twice",
    "names": "topics without stored publications, or with one that is named below: nothing to do",
    "ids": "topics without stored publications, or with one that is named below: nothing to do",
}


class StoreRepair:
    """One repair, from the file in `directory` to the directory `new`."""

    def __init__(self, directory: Path, new: Path, progress: Progress) -> None:
        self._directory = directory
        self._salvage = Salvage(directory / DATA_FILE, progress)
        size = (directory / DATA_FILE).stat().st_size
        self._writer = Writer(new, partial(new_store_environment, new), Databases._fields, size)
        self._ends = GroupEnds()
        self._mending = ReferenceRepair(self._writer, self._ends)
        self._damages: list[Damage] = []
        self._untold = 0
        # Blocks and rows that were found whole, before anything was mended.
        self._found: Counter[str] = Counter()
        self._blocks = self._records = self._rows = 0

    def run(self) -> CheckReport:
        """Copy everything."""
        whole = False
        try:
            self._copy_identity()
            for name in (*_SEALED, *_BLOCKS):
                for key, value in self._salvage.rows(name):
                    self._take(name, key, value)
            self._ends.settle()
            for key, value in self._salvage.strays((*_SEALED, *_BLOCKS)):
                self._take_stray(key, value)
            self._mending.run(self._lost("retained") != 0)
            self._tell()
            whole = True
        finally:
            self._salvage.close()
            self._writer.close(whole)
        return CheckReport(self._blocks, self._records, self._rows, self._damages)

    def _note(self, table: str, what: str, group: int = -1, offset: int = -1) -> None:
        if len(self._damages) < DAMAGES_MAX:
            self._damages.append(Damage(table, group, offset, what))
        else:
            self._untold += 1

    # identity

    def _copy_identity(self) -> None:
        """Whose store it is, from the table or from the copy beside it. Raises StoreFormatError (another format)."""
        for key, row in [*self._salvage.rows("identity"), *self._salvage.words.items()]:
            if key in IDENTITY or key == IDENTITY_COPY:
                with suppress(DamageError):
                    self._put_identity(key, row)
                    return

    def _put_identity(self, key: bytes, row: bytes) -> None:
        refuse_version(self._directory, identity_of(key, row).version)
        data = unseal("identity", key, row)
        for each in IDENTITY:
            self._writer.put("identity", each, seal("identity", each, data))
        self._writer.put(None, IDENTITY_COPY, seal("identity", IDENTITY_COPY, data))

    # rows and blocks

    def _take(self, table: str, key: bytes, value: bytes) -> None:
        """Take a row that was found in the tree of a table."""
        try:
            self._put(table, key, value)
        except (LexicastError, ValueError) as error:
            if self._take_stray(key, value):
                return  # a page of another table
            what = error.what if isinstance(error, DamageError) else str(error)
            if table in _BLOCKS:
                group, last = parse_log_key(key) if len(key) == len(log_key(0, 0)) else (-1, -1)
                self._note(table, f"the block is lost: {what}", group, last)
            else:
                self._note(table, what)

    def _take_stray(self, key: bytes, value: bytes) -> bool:
        """Take a row by its checksum alone, which says what table it is of; False when none is."""
        for table in (*_SEALED, *_BLOCKS):
            with suppress(LexicastError, ValueError):
                self._put(table, key, value, stray=True)
                return True
        if key in IDENTITY and not self._writer.entries("identity"):
            with suppress(DamageError):
                self._put_identity(key, value)
                return True
        return False

    def _is_stale(self, head: Head) -> bool:
        """A block of the log that lies outside of its tree had been deleted from it."""
        end = self._ends.of(head.group)
        # Free pages are looked at for the last commit alone.
        return head.last < end.first_kept or (self._salvage.rolled_back and head.last <= end.in_tree)

    def _put(self, table: str, key: bytes, value: bytes, stray: bool = False) -> None:
        """Write a row, if it is newer than what is known under its key. Raises LexicastError, ValueError (damaged)."""
        if table in _BLOCKS:
            self._put_block(table, key, value, stray)
            return
        row = unseal(table, key, value)
        check_row(table, key, row)
        known = self._writer.get(table, key)
        if known is None:
            if stray and self._salvage.rolled_back:
                return  # deleted, or of the last commit: nobody can say
            self._found[table] += 1
        elif not is_newer(table, row, unseal(table, key, known)):
            return
        self._ends.row(table, key, row)
        self._writer.put(table, key, value)

    def _put_block(self, table: str, key: bytes, value: bytes, stray: bool) -> None:
        group, last = parse_log_key(key, table)
        head = verified_head(memoryview(value), group, last)
        if bool(head.flags & IS_KEPT) != (table == "kept"):
            raise DamageError(table, group, last, "this block is of another table")
        if self._writer.get(table, key) is not None or (stray and table == "log" and self._is_stale(head)):
            return
        kept = list(self._undamaged(table, memoryview(value), head))
        self._found[table] += 1
        self._ends.block(head, table == "kept")
        for found, stored in kept:
            block = found.block
            self._writer.put(table, log_key(group, block.last), stored)
            self._blocks += 1
            self._records += block.count
            if table == "log" and found.expire_all_us:
                self._writer.put("expiry", expiry_key(group, block.last, found.expire_all_us), b"")

    def _undamaged(self, name: str, value: memoryview, head: Head) -> Iterator[tuple[Outline, bytes]]:
        """The block, or what is left of it around its damaged records."""
        block = block_of(value, head)
        damaged = [record_offset(block, at) for at in damaged_records(value, head)]
        if not damaged:
            yield outline(block), bytes(value)
            return
        for offset in damaged:
            self._note(name, "the record is lost", block.group, offset)
        for before, after in pairwise([block.first - 1, *damaged, block.last + 1]):
            part = cut(block, before + 1, after - 1)
            if part is not None:
                found = outline(part)
                flags = found.flags | head.flags & IS_KEPT
                yield found, encode_block(part, flags, found.expire_first_us, found.expire_all_us)

    # what was lost

    def _lost(self, table: str) -> int | None:
        """How many rows of a table were not found; None when nobody knows how many there were."""
        entries = self._salvage.entries(table)
        return None if entries is None else max(0, entries - self._found[table])

    def _tell(self) -> None:
        """Say what was lost, by kind and number."""
        self._rows = sum(self._writer.entries(name) for name in (*_SEALED, "session_due"))
        if not self._writer.entries("identity"):
            self._note("identity", "whose store this is has been lost: restore a backup")
        for name in (*_BLOCKS, *_SEALED):
            lost, dangling = self._lost(name), self._mending.dangling.get(name, 0)
            restored = min(self._mending.restored.get(name, 0), lost or 0)
            what = "blocks" if name in _BLOCKS else "rows"
            if lost is None:
                self._note(name, f"an unknown number of {what} is lost, {self._found[name]} were found: {_MEANS[name]}")
            elif lost - restored + dangling:
                again = f", {restored} more were made again" if restored else ""
                self._note(name, f"{lost - restored + dangling} {what} are lost{again}: {_MEANS[name]}")
            if name == "log" and lost != 0:
                self._tell_gaps()
        if self._salvage.rolled_back:
            self._note("file", "one of the two headers is damaged: sessions and subscriptions may be one commit old")
        if not self._salvage.free_known:
            self._note("file", "the list of free pages is damaged: rows that were deleted may have come back")
        if self._untold:
            self._damages.append(Damage("file", -1, -1, f"{self._untold} more damages are not listed"))

    def _tell_gaps(self) -> None:
        """Name stretches of offsets that no block covers: those that were lost are among them."""
        before: Head | None = None
        told = 0
        for key, value in self._writer.rows("log"):
            head = peek_head(value, *parse_log_key(key))
            same = before is not None and before.group == head.group and before.epoch == head.epoch
            if same and before is not None and head.first > before.last + 1:
                told += 1
                if told <= _GAPS_TOLD_MAX:
                    what = f"offsets {before.last + 1} to {head.first - 1} are not there: lost, or expired before"
                    self._note("log", what, head.group, before.last + 1)
            before = head


def repair_store(directory: Path, new: Path, progress: Progress = no_progress) -> CheckReport:
    """Write a repaired store into the directory `new`; what was lost is in the report. Raises StoreError, OSError."""
    try:
        return StoreRepair(directory, new, progress).run()
    except lmdb.Error as error:
        if disk_is_full(new, error) or isinstance(error, lmdb.MapFullError):
            raise StoreError(f"there is no room for a repaired copy beside {directory}: make some") from None
        raise StoreFormatError(f"{directory} cannot be repaired ({error}): restore a backup") from None
