"""The store in a directory, a coordinator's or a stand-alone DualDB: checked, repaired, compacted, backed up, counted.

Checking, backing up and counting only read, in transactions of LMDB's, and may run beside the process that has the
store open; repairing and compacting lock it, and refuse one in use.

LMDB trusts its pages: one that is damaged may end the process that walks it. So walking is done in a child, table by
table; where a child dies the table is named and the walk goes on with the next one.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Collection, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Final, NamedTuple

import lmdb

from lexicast.cluster.errors import StoreError, StoreFormatError
from lexicast.cluster.files import create_file, make_folder, sync_folder

from ..dualdb.environment import DUAL_FILE, ReadOnlyDual
from ..dualdb.journal import JOURNAL_FILE, journal_bytes
from ..environment.environment import DATA_FILE
from ..environment.read_only import ReadOnlyStore
from ..file.disk import POISON_FILE
from ..file.locks import ReadOnlyEnvironment, alone, replace_file
from ..file.table import Database
from ..tables.databases import Databases, raw_database
from . import check as checks
from .check import CheckReport, Damage
from .dualdb_check import DUAL_TABLES, check_dual
from .dualdb_repair import repair_dual
from .repair import repair_store
from .salvage import Progress, no_progress

BEFORE_REPAIR: Final = ".before-repair"
_NEW: Final = ".new"
_CHILD_ENDED: Final = "walking it ended the process ({}): pages of LMDB's own are damaged"


class TableStats(NamedTuple):
    """One table: its rows, and the bytes of its pages."""

    name: str
    rows: int
    bytes: int


class CareStats(NamedTuple):
    """What a store's file holds."""

    kind: str
    file_bytes: int
    used_bytes: int
    poisoned: bool
    tables: list[TableStats]


def data_file(directory: Path) -> Path:
    """The data file of the store in `directory`. Raises StoreFormatError naming stores below it, if there are any."""
    for name in (DATA_FILE, DUAL_FILE):
        if (directory / name).exists():
            return directory / name
    below = sorted({str(path.parent) for name in (DATA_FILE, DUAL_FILE) for path in directory.glob(f"*/{name}")})
    hint = f"; there are stores in {', '.join(below)}" if below else ""
    raise StoreFormatError(f"{directory} is not a store: there is no {DATA_FILE} and no {DUAL_FILE} in it{hint}")


def is_dual(directory: Path) -> bool:
    """The directory holds a stand-alone DualDB. Raises StoreFormatError when it holds no store."""
    return data_file(directory).name == DUAL_FILE


# checking


def check(directory: Path) -> CheckReport:
    """Walk everything in child processes. Raises StoreFormatError when it cannot be opened at all."""
    data_file(directory)
    crashed: list[Damage] = []
    while True:
        report, last, how = _walk_in_child(directory, [damage.table for damage in crashed])
        if report is not None:
            return report._replace(damages=[*crashed, *report.damages])
        if last is None or any(damage.table == last for damage in crashed):
            raise StoreFormatError(f"the store {directory} cannot be opened ({how}): repair it or restore a backup")
        crashed.append(Damage(last, -1, -1, _CHILD_ENDED.format(how)))


def _walk_in_child(directory: Path, skip: Collection[str]) -> tuple[CheckReport | None, str | None, str]:
    """(report or None when the child died, the table it was at, how it ended)."""
    command = [sys.executable, "-m", "lexicast.storage.maintenance.directory", str(directory), ",".join(skip)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=_environment())
    last = None
    for line in done.stdout.splitlines():
        told = json.loads(line)
        if "table" in told:
            last = told["table"]
        elif "error" in told:
            raise (StoreFormatError if told["format"] else StoreError)(told["error"])
        else:
            blocks, records, rows, damages = told["report"]
            return CheckReport(blocks, records, rows, [Damage(*damage) for damage in damages]), None, ""
    how = signal.Signals(-done.returncode).name if done.returncode < 0 else f"exit code {done.returncode}"
    return None, last, how


def _environment() -> dict[str, str]:
    """The child imports what this process does, wherever it was started from."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join([path for path in sys.path if path])}


def walk(directory: Path, begun: Callable[[str], None], skip: Collection[str]) -> CheckReport:
    """Walk in this process; see `check`."""
    if is_dual(directory):
        return check_dual(directory, begun, skip)
    return checks.check_coordinator_store(directory, begun, skip)


def _child(directory: Path, skip: Collection[str]) -> None:
    def tell(**told: object) -> None:
        print(json.dumps(told), flush=True)

    try:
        report = walk(directory, lambda name: tell(table=name), skip)
    except StoreError as error:
        tell(error=str(error), format=isinstance(error, StoreFormatError))
    else:
        tell(report=[report.blocks, report.records, report.rows, [list(damage) for damage in report.damages]])


# copying


def _open(directory: Path, shared: bool = True) -> ReadOnlyStore | ReadOnlyDual:
    return ReadOnlyDual(directory, shared) if is_dual(directory) else ReadOnlyStore(directory, shared)


def backup(directory: Path, target: Path) -> int:
    """Copy the store as it is at one moment into the empty or missing `target`; the bytes written.

    May run beside the owner. While it runs LMDB reuses no page that was freed after it began: the owner's file may
    grow. Raises StoreError when `target` is not empty or cannot be written: then it is left empty, to be tried again.
    """
    name = data_file(directory).name
    journal = journal_bytes(directory)  # before its tables: what is moved meanwhile is in them
    with closing(_open(directory)) as store:  # first: where there is no store there is to be no folder for its copy
        _prepare(target)
        try:
            if journal:
                _write_journal(target, journal)
            return _copy(directory, store, target / name) + len(journal)
        except BaseException:
            _take_back(target, (JOURNAL_FILE, name))
            raise


def _prepare(target: Path) -> None:
    try:
        make_folder(target)
        if any(target.iterdir()):
            raise StoreError(f"{target} is not empty: give another directory for the backup")
    except OSError as error:
        raise StoreError(f"cannot write the backup {target}: {error.strerror}") from None


def _write_journal(target: Path, journal: bytes) -> None:
    try:
        with create_file(target / JOURNAL_FILE) as file:
            file.write(journal)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise StoreError(f"cannot write the backup {target}: {error.strerror}") from None


def _take_back(target: Path, names: Collection[str]) -> None:
    """What a backup that failed has written: half a store, and the next one asks for an empty folder."""
    with suppress(OSError):  # the error that it failed with says more
        for name in names:
            (target / name).unlink(missing_ok=True)
        sync_folder(target)


def _copy(directory: Path, store: ReadOnlyEnvironment, target: Path) -> int:
    """Copy the live pages to the file `target`, and make them durable; the bytes written.

    Raises StoreError; then part of the file may be there.
    """
    try:
        with create_file(target) as file:
            store.lmdb.copyfd(file.fileno(), compact=True)
            os.fsync(file.fileno())
        sync_folder(target.parent)
        return target.stat().st_size
    except (lmdb.Error, OSError) as error:
        raise StoreError(f"{directory} could not be copied ({error}): check it, and look at the space left") from None


def compact(directory: Path) -> tuple[int, int]:
    """Rewrite a stopped store without its free pages: (bytes before, after).

    Raises StoreError when it is in use or being read; then nothing has changed.
    """
    data = data_file(directory)
    with _rewriting(directory, data) as new:
        before = data.stat().st_size
        with closing(_open(directory, shared=False)) as store:
            after = _copy(directory, store, new / data.name)
        replace_file(directory, data, new / data.name)
    return before, after


def repair(directory: Path, progress: Progress = no_progress) -> CheckReport:
    """Rewrite a stopped store with all that is undamaged, and clear its poison; what was lost is in the report.

    `progress` is told (bytes looked at, bytes in all). It takes about as much room as the old file has, which stays
    beside it, with BEFORE_REPAIR at the end of its name. Raises StoreError.
    """
    data = data_file(directory)
    with _rewriting(directory, data) as new:
        report = (repair_dual if data.name == DUAL_FILE else repair_store)(directory, new, progress)
        replace_file(directory, data, new / data.name, data.with_name(data.name + BEFORE_REPAIR))
        journal = directory / JOURNAL_FILE
        if journal.exists():  # what it held is in the new file
            journal.replace(journal.with_name(journal.name + BEFORE_REPAIR))
        (directory / POISON_FILE).unlink(missing_ok=True)
        sync_folder(directory)
    return report


@contextmanager
def _rewriting(directory: Path, data: Path) -> Iterator[Path]:
    """Nobody else has the store open, and there is an empty folder for its new file."""
    with alone(directory, data):
        new = data.with_name(data.name + _NEW)
        try:
            shutil.rmtree(new, ignore_errors=True)
            make_folder(new)
            yield new
        except OSError as error:
            raise StoreError(
                f"the store {directory} could not be rewritten: {error}; look at the disk, then try again"
            ) from None
        finally:
            shutil.rmtree(new, ignore_errors=True)


# counting


def stats(directory: Path) -> CareStats:
    """Count. May run beside the owner."""
    with closing(_open(directory)) as store:
        page = store.lmdb.stat()["psize"]
        tables = []
        with store.begin() as txn:
            for name, database in _tables(store):
                found = txn.stat(database)
                pages = found["branch_pages"] + found["leaf_pages"] + found["overflow_pages"]
                tables.append(TableStats(name, found["entries"], pages * page))
        file_bytes = (store.lmdb.info()["last_pgno"] + 1) * page
    poisoned = (directory / POISON_FILE).exists()
    kind = "DualDB" if is_dual(directory) else "coordinator"
    return CareStats(kind, file_bytes, sum(t.bytes for t in tables), poisoned, tables)


def _tables(store: ReadOnlyStore | ReadOnlyDual) -> list[tuple[str, Database]]:
    if isinstance(store, ReadOnlyDual):
        return list(zip(DUAL_TABLES, store.tables, strict=True))
    return [(name, raw_database(store.databases, name)) for name in Databases._fields]


if __name__ == "__main__":
    _child(Path(sys.argv[1]), [name for name in sys.argv[2].split(",") if name])
