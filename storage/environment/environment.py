"""Opening the LMDB environment: one owner a directory, the right store in it, and nothing that gives up durability.

NOSYNC and WRITEMAP stay off: power loss would cost the store, not only its last second. `readahead` is off because
readers seek. The map is large and sparse, so that a store grows without a restart.

Four files lie in the directory: LMDB's two, and two that locks are taken on (`locks`); the kernel lets go of them
however a process ends. A fifth, `poisoned`, is left behind by an I/O error other than a full disk: after a failed fsync
the kernel may drop pages and yet show them to readers, so what a restart reads is not known to be on the disk until
somebody has looked.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import lmdb
import msgpack

from lexicast.cluster.errors import StoreError, StoreFormatError, StorePoisonedError
from lexicast.cluster.files import FILE_MODE, write_whole

from ..file.damage import Ledger
from ..file.locks import Reading, begin_reading, no_slot, open_environment, own
from ..file.table import Database, ReadTransaction, Table, WriteTransaction
from ..log.block_format import FORMAT_VERSION, DamageError, Value, seal, unseal
from ..tables.row_validation import form_of
from .options import GIB, StoreOptions

POISON_FILE: Final = "poisoned"
DATA_FILE: Final = "data.mdb"
# Beside the tables, for repair: a page that each commit writes anew.
IDENTITY_COPY: Final = b"identity.copy"

# Whose store this is cannot be told from anything else in it: the row stands there several times.
IDENTITY: Final = (b"identity", b"identity, again", b"identity, once more")
_MAP_BYTES_MIN: Final = GIB
_FULL_BYTES: Final = 1 << 20


class Identity(NamedTuple):
    """Whose store this is, written once when it is created."""

    version: int
    cluster_id: str
    member: str
    groups: int


class Databases(NamedTuple):
    """Every table of the environment. Keys of tables by group start with the group (u16, big-endian)."""

    identity: Database
    log: Database  # (group, last offset) -> block
    kept: Database  # (group, offset) -> single-record block of a retained publication that outlived its log block
    expiry: Database  # (expires_us u64, group, last offset) -> "": blocks that expire as a whole
    dual: Database  # DualDB, see `dual`
    groups: Table  # group -> what of it cannot be read from the log's end
    names: Table  # topic id u64 -> topic name
    ids: Table  # name -> topic id u64
    superseded: Database  # (group, offset) -> "", sealed: control records that count no more and are still in the log
    sessions: Table  # group, client id -> see `sessions`
    session_due: Table  # due_us u64, group, client id -> ""
    subscriptions: Table  # group, broker and filter -> offset u64, the Subscribed record
    producers: Table  # group, producer -> see `producers`
    marks: Table  # group, session uid, packet id u16 -> offset u64, time_us i64
    retained: Table  # topic id u64 -> offset u64, expires_us u64
    dictionaries: Table  # group, dictionary u64 -> the DictionaryStored record
    epochs: Table  # group, epoch u64 -> first offset u64, last offset before it u64


PLAIN: Final = ("identity", "log", "kept", "expiry", "dual", "superseded")


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


def raw_database(databases: Databases, name: str) -> Database:
    """The LMDB database called `name`."""
    found: Database | Table = getattr(databases, name)
    return found.database if isinstance(found, Table) else found


def disk_is_full(directory: Path, error: Exception) -> bool:
    """An I/O error came of a full disk: then nothing was written over, and a restart with space is enough.

    LMDB says ENOSPC where nothing could be written, and EIO where a part could (measured on tmpfs).
    """
    found = os.statvfs(directory)
    full = found.f_bavail * found.f_frsize < _FULL_BYTES
    return "No space" in str(error) or (full and "Input/output error" in str(error))


def leave_poison(directory: Path, reason: str) -> None:
    """Write the file that keeps a store from being opened before somebody has looked at the disk."""
    with suppress(OSError):
        write_whole(directory / POISON_FILE, reason.encode() + b"\n")


def refuse_poisoned(directory: Path) -> None:
    """Raise StorePoisonedError when an I/O error has left its mark in `directory`."""
    marker = directory / POISON_FILE
    if marker.exists():
        raise StorePoisonedError(
            f"the store {directory} had an I/O error ({marker.read_text().strip()}): look at the disk, and when "
            f"`lexicast store check {directory}` finds no damage, `lexicast store repair` clears this"
        )


def map_bytes_possible(directory: Path, wanted: int) -> int:
    """`wanted` capped by the largest file that the file system and the process's limits allow, in whole pages."""
    bits = os.pathconf(directory, "PC_FILESIZEBITS")
    limit = 2 ** (bits - 1) - 1 if 0 < bits < 64 else wanted
    soft, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    if soft != resource.RLIM_INFINITY:
        limit = min(limit, soft)
    page = os.sysconf("SC_PAGESIZE")
    return max(page, min(wanted, limit) // page * page)


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


def complete_file(environment: lmdb.Environment, data: Path) -> None:
    """Lengthen a file that was cut short, so that looking at the lost pages is an error and not a SIGBUS."""
    expected = (environment.info()["last_pgno"] + 1) * environment.stat()["psize"]
    if data.stat().st_size < expected:
        os.truncate(data, expected)


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
    except lmdb.Error as error:
        raise StoreFormatError(
            f"the store {environment.path()} is damaged ({error}): restore it from a backup or from another member, "
            "or move it away to start with an empty store"
        ) from None
    return Databases(**fields)


def open_new(directory: Path, **options: Any) -> lmdb.Environment:
    """An environment in an empty directory, to be filled and moved elsewhere. Raises lmdb.Error."""
    return lmdb.open(str(directory), max_dbs=len(Databases._fields), mode=FILE_MODE, **options)


class ReadOnly(Reading):
    """A store that is open for looking only, also beside its owner."""

    def __init__(self, directory: Path, shared: bool = True, damage: Ledger | None = None) -> None:
        """See `Reading`. Raises StoreFormatError (not a store, damaged), StoreError (no right, no slot, replaced)."""
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


def identify(environment: Environment, wanted: Identity) -> None:
    """Write `wanted` into an empty store; in another one, compare. Raises StoreFormatError when they differ."""
    found = read_identity(environment)
    if found is None or (found == wanted and environment.damage.counts.get("identity")):
        _write_identity(environment, wanted)
    elif found != wanted:
        raise StoreFormatError(
            f"{environment.directory} is the store of cluster {found.cluster_id!r}, member {found.member!r}, "
            f"{found.groups} groups; asked for cluster {wanted.cluster_id!r}, member {wanted.member!r}, "
            f"{wanted.groups} groups: use that cluster's data directory, or an empty one"
        )


def read_identity(environment: Environment) -> Identity | None:
    """Whose store this is; None when it is empty. Raises StoreFormatError when that cannot be read or is newer."""
    directory = environment.directory
    try:
        with environment.snapshot() as txn:
            rows = [(bytes(key), bytes(row)) for key, row in txn.cursor(environment.databases.identity)]
            if not rows and not txn.stat(environment.databases.log)["entries"]:
                return None
    except lmdb.Error as error:
        raise StoreFormatError(f"the store {directory} cannot be read ({error}): restore it from a backup") from None
    found = next(_identities(rows, environment.damage), None)
    if found is None:
        raise StoreFormatError(
            f"the store {directory} has lost its identity: repair it, or restore it from a backup or another member"
        )
    refuse_version(directory, found.version)
    return found


def _identities(rows: Iterable[tuple[bytes, bytes]], damage: Ledger) -> Iterator[Identity]:
    """What each sound row says; damaged ones are noted, all of them, so that they are written anew."""
    found = []
    for key, row in rows:
        try:
            found.append(identity_of(key, row))
        except DamageError as error:
            damage.note(error)
    return iter(found)


def identity_of(key: Value, row: Value) -> Identity:
    """What a stored row says. Raises DamageError."""
    data = unseal("identity", key, row)
    try:
        return Identity(*msgpack.unpackb(data))
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise DamageError("identity", -1, -1, str(error)) from None


def refuse_version(directory: Path, version: int) -> None:
    """Raise StoreFormatError when a store has another format than ours."""
    if version > FORMAT_VERSION:
        raise StoreFormatError(
            f"the store {directory} has format {version}, this lexicast reads {FORMAT_VERSION}: use the lexicast that "
            "wrote it, or a newer one"
        )
    if version < FORMAT_VERSION:
        raise StoreFormatError(
            f"the store {directory} has format {version}, from before the first release; this lexicast reads "
            f"{FORMAT_VERSION}: use the lexicast that wrote it, or move it away to start with an empty store"
        )


def _write_identity(environment: Environment, wanted: Identity) -> None:
    try:
        with environment.begin() as txn:
            txn.drop(environment.databases.identity, delete=False)
            packed = msgpack.packb(tuple(wanted))
            for key in IDENTITY:
                txn.put(key, seal("identity", key, packed), db=environment.databases.identity)
            txn.put(IDENTITY_COPY, seal("identity", IDENTITY_COPY, packed))
    except lmdb.Error as error:
        raise StoreError(f"cannot write the new store {environment.directory}: {error}") from None
