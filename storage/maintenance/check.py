"""The check of a coordinator's store: walk everything, compare every checksum and reference, name each damage.

Reads only, in short transactions, so it may run beside the process that has the store open
(`check_coordinator_store`), or in it (`check_store`). It does not repair: a damaged record costs itself alone, the
others of its block are read as before.

`python -m lexicast.storage.maintenance.check DIR` prints each damage on a line and exits with 1 when there is any.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Collection
from contextlib import closing, suppress
from pathlib import Path
from typing import Final, NamedTuple

import lmdb

from lexicast.cluster.blocks import CONTROL, Block
from lexicast.cluster.errors import PeerError, StoreError, UsageError

from ..dualdb.segments import segment_rows
from ..environment.environment import DATA_FILE
from ..environment.identity import IDENTITY, identity_of, refuse_version
from ..environment.read_only import ReadOnlyStore
from ..file.damage import Ledger
from ..file.keys import group_prefix, log_key, name_key, parse_log_key
from ..file.locks import begin_reading
from ..file.sealing import DamageError, unseal
from ..file.table import ReadTransaction, Table
from ..index.log_index import entries_in
from ..index.memory import IndexEntry
from ..index.runs import MANIFEST_KEY, RUNS_PREFIX
from ..index.subscriptions import parse_subscription_key
from ..log.block_cuts import only_topic, retained_topic_at
from ..log.block_format import block_of, damaged_records, peek_head, record_offset, verified_head
from ..log.block_log import Log
from ..log.block_outline import outline
from ..log.unapplied_tail import parse_tail_key
from ..store import Store
from ..tables.databases import Databases, raw_database
from ..tables.groups import parse_group_row as group_of_row
from ..tables.row_validation import check_row
from ..tables.sessions import due_key, session_of
from ..tables.state import parse_retained_row
from ..tables.topics import find_topic, group_of, id_key, wildcard_id

DAMAGES_MAX: Final = 10_000
_SNAPSHOT_S: Final = 0.5
_EXPIRY_BYTES: Final = 8

# Tables whose keys do not start with the group.
_NOT_BY_GROUP: Final = ("ids", "names", "retained", "session_due")


class Damage(NamedTuple):
    """One thing that is wrong; group and offset are -1 where they cannot be told."""

    table: str
    group: int
    offset: int
    what: str

    def __str__(self) -> str:
        where = f"group {self.group}, " if self.group >= 0 else ""
        where += f"offset {self.offset}, " if self.offset >= 0 else ""
        return f"{self.table}: {where.removesuffix(', ')}{': ' if where else ''}{self.what}"


class CheckReport(NamedTuple):
    """What was looked at, and what is wrong (the first DAMAGES_MAX)."""

    blocks: int
    records: int
    rows: int
    damages: list[Damage]

    @property
    def sound(self) -> bool:
        """Nothing is wrong."""
        return not self.damages


class _End(NamedTuple):
    """The last block of a group so far."""

    group: int
    epoch: int
    last: int
    time_us: int


def _nobody(name: str) -> None:
    """Nobody wants to know."""


Snapshot = Callable[[], "lmdb.Transaction[memoryview]"]


class Checker:
    """One walk through a store."""

    def __init__(self, databases: Databases, begin: Snapshot) -> None:
        self._databases = databases
        self._begin = begin
        self._log = Log(databases.log, Ledger())
        self._damages: list[Damage] = []
        self._blocks = self._records = self._rows = 0

    def run(self, begun: Callable[[str], None] = _nobody, skip: Collection[str] = ()) -> CheckReport:
        """Walk everything but the tables `skip`; `begun` is told each before it is walked."""
        walks: list[tuple[str, Callable[..., object], object]] = [
            ("log", self._check_block, _End(-1, 0, -1, 0)),
            ("kept", self._check_kept, None),
            ("tail", self._check_tail, None),
        ]
        for name in Databases._fields:
            found = getattr(self._databases, name)
            if isinstance(found, Table):
                walks.append((name, self._row_check(found), None))
        walks.append(("dual", self._check_index, None))
        for name, look, carried in walks:
            if name not in skip:
                begun(name)
                self._walk(name, look, carried)
        return CheckReport(self._blocks, self._records, self._rows, self._damages)

    def _note(self, table: str, group: int, offset: int, what: str) -> None:
        if len(self._damages) < DAMAGES_MAX:
            self._damages.append(Damage(table, group, offset, what))

    def _walk(self, name: str, look: Callable[..., object], carried: object) -> None:
        """Call `look(txn, key, value, carried)` for each row; it returns what the next call is to be given."""
        database = raw_database(self._databases, name)
        after: bytes | None = None
        there = True
        while there:
            until = time.monotonic() + _SNAPSHOT_S
            try:
                with self._begin() as txn, txn.cursor(database) as cursor:
                    there = cursor.first() if after is None else cursor.set_range(after + b"\0")
                    while there and time.monotonic() < until:
                        after = bytes(cursor.key())
                        carried = self._look(look, name, txn, after, cursor.value(), carried)
                        there = cursor.next()
            except lmdb.Error as error:
                self._note(name, -1, -1, f"the tree of this table is damaged: {error}")
                return

    def _look(
        self,
        look: Callable[..., object],
        name: str,
        txn: ReadTransaction,
        key: bytes,
        value: memoryview,
        carried: object,
    ) -> object:
        try:
            return look(txn, key, value, carried)
        except DamageError as error:
            self._note(name, error.group, error.offset, error.what)
        except (StoreError, UsageError, PeerError, ValueError) as error:
            self._note(name, -1, -1, f"{key!r}: {error}")
        return carried

    # the log

    def _check_block(self, txn: ReadTransaction, key: bytes, value: memoryview, before: _End) -> _End:
        del txn
        group, last = parse_log_key(key)
        self._blocks += 1
        block = self._verified("log", group, last, value)
        if group == before.group:
            if block.first <= before.last:
                self._note("log", group, block.first, f"the block overlaps the one that ends at {before.last}")
            if block.epoch < before.epoch:
                self._note("log", group, block.first, f"epoch {block.epoch} after epoch {before.epoch}")
            if block.time_us < before.time_us:
                self._note("log", group, block.first, f"time {block.time_us} after time {before.time_us}")
        return _End(group, block.epoch, last, block.time_us)

    def _verified(self, table: str, group: int, last: int, value: memoryview) -> Block:
        head = verified_head(value, group, last)
        block = block_of(value, head)
        self._records += block.count
        damaged = damaged_records(value, head)
        for at in damaged:
            self._note(table, group, record_offset(block, at), "the payload does not match its checksum")
        if not (damaged and block.kind == CONTROL):
            outline(block)
        return block

    def _check_kept(self, txn: ReadTransaction, key: bytes, value: memoryview, _: object) -> None:
        group, offset = parse_log_key(key, "kept")
        self._blocks += 1
        block = self._verified("kept", group, offset, value)
        if block.count != 1:
            self._note("kept", group, offset, "a block of one record was expected")
        topic_id = find_topic(self._databases, txn, only_topic(block))
        row = None if topic_id is None else self._databases.retained.get(txn, id_key(topic_id))
        if row is None or parse_retained_row(row).offset != offset:
            self._note("kept", group, offset, "this is no topic's retained publication")

    def _check_tail(self, txn: ReadTransaction, key: bytes, value: memoryview, _: object) -> None:
        del txn
        _, group, last, _ = parse_tail_key(key)
        self._blocks += 1
        self._verified("tail", group, last, value)

    # tables

    def _row_check(self, table: Table) -> Callable[..., object]:
        def look(txn: ReadTransaction, key: bytes, value: memoryview, _: object) -> None:
            self._rows += 1
            group = -1 if table.name in _NOT_BY_GROUP else int.from_bytes(key[:2], "big")
            try:
                row = unseal(table.name, key, value)
                check_row(table.name, key, row)
            except DamageError as error:
                raise DamageError(table.name, group, -1, error.what) from None
            self._check_reference(txn, table.name, key, row)

        return look

    def _check_reference(self, txn: ReadTransaction, name: str, key: bytes, row: bytes) -> None:
        if name == "names":
            self._check_name(txn, int.from_bytes(key, "big"), row)
        elif name == "ids":
            said = self._databases.names.get(txn, row)
            if said is None or name_key(said) != key:
                self._note(name, group_of(int.from_bytes(row, "big")), -1, f"{key!r} has the id of another topic")
        elif name == "session_due":
            session = self._databases.sessions.get(txn, key[_EXPIRY_BYTES:])
            if session is None or due_key(key[_EXPIRY_BYTES:], session_of(session)) != key:
                self._note(name, -1, -1, f"{key!r} is the time of no session")
        elif name == "retained":
            group, offset = group_of(int.from_bytes(key, "big")), parse_retained_row(row).offset
            topic = self._databases.names.get(txn, key)
            if topic is None:
                self._note(name, group, offset, "the topic has no name")
            found = self._retained_topic(txn, group, offset)
            if found is None:
                self._note(name, group, offset, "the retained publication is neither in the log nor kept")
            elif topic is not None and found != topic:
                self._note(name, group, offset, f"{topic!r} has the retained publication of {found!r}")

    def _check_name(self, txn: ReadTransaction, topic_id: int, name: bytes) -> None:
        group = group_of(topic_id)
        if self._databases.ids.get(txn, name_key(name)) != id_key(topic_id):
            self._note("names", group, -1, f"topic {name!r} has another id or none")
        row = self._databases.groups.get(txn, group_prefix(group))
        if row is None or group_of_row(row).next_topic <= topic_id - wildcard_id(group):
            self._note("groups", group, -1, f"the id of topic {name!r} would be given out again")

    def _retained_topic(self, txn: ReadTransaction, group: int, offset: int) -> bytes | None:
        """The topic of the retained publication at a position; None where there is none."""
        value = txn.get(log_key(group, offset), None, self._databases.kept)
        if value is not None:
            return retained_topic_at(value, peek_head(value, group, offset), offset)
        for head, stored in self._log.from_offset(txn, group, offset):
            return retained_topic_at(stored, head, offset)
        return None

    # the index

    def _check_index(self, txn: ReadTransaction, key: bytes, value: memoryview, _: object) -> None:
        self._rows += 1
        if key == MANIFEST_KEY:
            unseal("dual", key, value)
        elif key.startswith(RUNS_PREFIX):
            for topic_id, entry in entries_in(segment_rows(value, verify=True)):
                self._check_entry(txn, topic_id, entry)
        else:
            topic_id, first = parse_subscription_key(key)
            try:
                unseal("dual", key, value)
            except DamageError as error:
                raise DamageError("dual", group_of(topic_id), first, error.what) from None

    def _check_entry(self, txn: ReadTransaction, topic_id: int, entry: IndexEntry) -> None:
        """An entry of a block that is still in the log: retention passes others by until a merge meets them."""
        group = group_of(topic_id)
        head = self._log.head_at(txn, group, entry.offset)
        if head is None or head.first > entry.offset:
            return
        if head.time_us != entry.time_us:
            self._note("dual", group, entry.offset, f"time {entry.time_us}, the log says {head.time_us}")
        if self._databases.names.get(txn, id_key(topic_id)) is None:
            self._note("dual", group, entry.offset, "the topic has no name")


def check_coordinator_store(
    directory: Path, begun: Callable[[str], None] = _nobody, skip: Collection[str] = ()
) -> CheckReport:
    """Walk the store in `directory`, which another process may have open (in this one: `check_store`).

    Damaged pages of LMDB's own may end the process: the check of `directory` walks in a child. Raises StoreFormatError
    when the store cannot be opened at all.
    """
    with closing(ReadOnlyStore(directory)) as store:
        _refuse_version(directory, store)
        expected = (store.lmdb.info()["last_pgno"] + 1) * store.lmdb.stat()["psize"]
        found = (directory / DATA_FILE).stat().st_size
        if found < expected:
            # Walking on would touch pages that are not there, which the kernel answers with SIGBUS.
            return CheckReport(0, 0, 0, [Damage("file", -1, -1, f"{expected - found} of {expected} bytes are cut off")])
        return Checker(store.databases, store.begin).run(begun, skip)


def _refuse_version(directory: Path, store: ReadOnlyStore) -> None:
    with store.begin() as txn:
        for key in IDENTITY:
            with suppress(DamageError, lmdb.Error):
                row = txn.get(key, None, store.databases.identity)
                if row is not None:
                    refuse_version(directory, identity_of(key, row).version)


def check_store(store: Store) -> CheckReport:
    """Walk a store that this process has open."""
    environment = store.environment
    return Checker(environment.databases, lambda: begin_reading(environment.lmdb)).run()


def rebuild_index(store: Store) -> None:
    """Empty DualDB's index and enter everything again from the log. Writer thread only; StoreError poisons."""
    store.rebuild_index()


def main(arguments: list[str]) -> int:
    """Check the store in the directory named; the exit code."""
    if len(arguments) != 1:
        print("usage: python -m lexicast.storage.maintenance.check DIR", file=sys.stderr)
        return 2
    try:
        report = check_coordinator_store(Path(arguments[0]))
    except StoreError as error:
        print(error, file=sys.stderr)
        return 2
    for damage in report.damages:
        print(damage)
    print(f"{report.blocks} blocks, {report.records} records, {report.rows} rows: {len(report.damages)} damaged")
    return 0 if report.sound else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
