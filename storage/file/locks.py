"""The locks of a store: one writer, readers beside it, or nobody while its data file is replaced.

LMDB keeps the number of the last transaction in its lock file for as long as any process has the environment open.
Were a data file replaced meanwhile, the next one to open it would take that number for the new file's, find the wrong
header page, see an empty store and overwrite the full one. So whoever replaces a file (`replace_file`) holds

    owner.lock      flock: exclusively by the process that writes
    readers.lock    flock: shared by processes that read, exclusively by whoever replaces
    LMDB's own      a POSIX lock on byte 0 that every process with the environment open shares, also a program that
                    knows nothing of the locks above

and whoever opens one compares the lock file with the data file (`open_environment`): somebody may have copied a backup
over a file that a forgotten process still reads.

A replacement is these steps, each durable before the next; a crash between any two leaves a complete data file, and no
lock file that describes another one:

    1. the new file is complete, beside the old one
    2. if the old file is to be kept: a second name for it
    3. LMDB's lock file is deleted
    4. the new file takes the name of the old one
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import lmdb

from lexicast.cluster.errors import StoreError
from lexicast.cluster.files import make_folder, open_lock, sync_file, sync_folder

from .table import ReadTransaction

LOCK_FILE: Final = "owner.lock"
READERS_FILE: Final = "readers.lock"
# How long an opener waits for one of LMDB's reader slots: the owner clears those of killed readers every few seconds.
SLOTS_WAIT_S: Final = 10.0
_SLOTS_PAUSE_S: Final = 0.1
# LMDB's names in an environment that is a directory.
_LMDB_DATA_FILE: Final = "data.mdb"
_LMDB_LOCK_FILE: Final = "lock.mdb"
_BYTE_0: Final = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0)


# locks


def own(directory: Path) -> int:
    """Lock `directory` (made when missing) for the writing process: the lock's descriptor. Raises StoreError."""
    try:
        make_folder(directory)
        descriptor = open_lock(directory / LOCK_FILE)
    except OSError as error:
        raise StoreError(
            f"cannot use {directory} as a store: {error.strerror}; choose another data directory or fix it"
        ) from None
    if not _locked(descriptor, fcntl.LOCK_EX):
        raise StoreError(
            f"the store {directory} is in use by another process: stop that one, or choose another data directory"
        )
    return descriptor


def share(directory: Path) -> int:
    """Keep the data file of `directory` from being replaced while this process reads it: the lock's descriptor.

    -1 where nothing can be written: nobody replaces a file there. Raises StoreError.
    """
    try:
        descriptor = open_lock(directory / READERS_FILE)
    except OSError as error:
        if error.errno == errno.EROFS:
            return -1
        raise StoreError(f"cannot read the store {directory}: {error.strerror}: {error.filename}") from None
    if not _locked(descriptor, fcntl.LOCK_SH):
        raise StoreError(f"the store {directory} is being compacted or repaired: try again when that is done")
    return descriptor


def _locked(descriptor: int, how: int) -> bool:
    """Take a lock without waiting; the descriptor is closed when somebody else has it."""
    try:
        fcntl.flock(descriptor, how | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return False
    return True


def _holders(path: Path) -> str:
    """The processes that hold locks on a file, in words."""
    try:
        found = path.stat()
        lines = Path("/proc/locks").read_text().splitlines()
    except OSError:
        return "another process"
    own_file = f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}:{found.st_ino}"
    # Fields: number, kind, ADVISORY, READ or WRITE, pid, device and inode, first and last byte.
    words = [line.split() for line in lines if "->" not in line]
    pids = sorted({int(each[4]) for each in words if len(each) == 8 and each[5] == own_file} - {os.getpid()})
    if not pids:
        return "another process"
    return f"process{'es' if len(pids) > 1 else ''} {', '.join(map(str, pids))}"


# opening


def open_environment(directory: Path, open: Callable[[], lmdb.Environment]) -> lmdb.Environment:
    """What `open` returns, once a reader slot is free, those of killed readers cleared, its files belonging together.

    Raises StoreError (no slot within SLOTS_WAIT_S, the data file was replaced), and lmdb.Error as `open` does.
    """
    environment = _with_slot(directory, open)
    try:
        environment.reader_check()
        _check_lock_file(environment, directory)
    except BaseException:
        environment.close()
        raise
    return environment


def _with_slot(directory: Path, open: Callable[[], lmdb.Environment]) -> lmdb.Environment:
    until = time.monotonic() + SLOTS_WAIT_S
    while True:
        try:
            return open()
        except lmdb.ReadersFullError:
            if time.monotonic() > until:
                raise no_slot(directory) from None
        time.sleep(_SLOTS_PAUSE_S)


def no_slot(directory: Path) -> StoreError:
    """What to raise where LMDB's ReadersFullError stays: nothing is damaged."""
    return StoreError(f"all reader slots of the store {directory} are taken: wait until some of its readers have ended")


def begin_reading(environment: lmdb.Environment) -> ReadTransaction:
    """A read transaction that reads in place; slots of killed readers are cleared when it finds none.

    Raises lmdb.ReadersFullError when living ones have them all.
    """
    try:
        return environment.begin(buffers=True)
    except lmdb.ReadersFullError:
        environment.reader_check()
        return environment.begin(buffers=True)


def _check_lock_file(environment: lmdb.Environment, directory: Path) -> None:
    """Raise StoreError when LMDB's lock file describes another data file than this one."""
    writes = not environment.flags()["readonly"]
    if writes:
        # A writer that was killed within its commit: LMDB sets the lock file right when the next one begins.
        environment.begin(write=True).abort()
    before = environment.info()["last_txnid"]
    with begin_reading(environment) as txn:
        locked = txn.id()
    # Beside a writer: a commit may stand in the file and not yet in the lock file, and others follow.
    if not before - (not writes) <= locked <= environment.info()["last_txnid"]:
        raise StoreError(
            f"the data file in {directory} has been replaced while {_holders(_lmdb_lock(Path(environment.path())))} "
            "had the former one open: end that, then try again; nothing was changed"
        )


class ReadOnlyEnvironment:
    """An environment that is open for reading only; its file is not replaced meanwhile. Use `close`."""

    def __init__(self, directory: Path, open: Callable[[], lmdb.Environment], shared: bool = True) -> None:
        """`shared` is false within `alone`. Raises StoreError (being replaced, no slot), and what `open` raises."""
        self._directory = directory
        self._lock = share(directory) if shared else -1
        try:
            self.lmdb = open_environment(directory, open)
        except BaseException:
            self._unlock()
            raise

    def begin(self) -> ReadTransaction:
        """A read transaction that reads in place. Raises StoreError when living readers have all slots."""
        try:
            return begin_reading(self.lmdb)
        except lmdb.ReadersFullError:
            raise no_slot(self._directory) from None

    def _unlock(self) -> None:
        if self._lock >= 0:
            os.close(self._lock)

    def close(self) -> None:
        """Close the environment, then let go of the lock."""
        self.lmdb.close()
        self._unlock()


# replacing


@contextmanager
def alone(directory: Path, data: Path) -> Iterator[None]:
    """Nobody else has the store in `directory` open, nor can open it. Raises StoreError saying who has it."""
    owner = own(directory)
    try:
        readers = open_lock(directory / READERS_FILE)
        if not _locked(readers, fcntl.LOCK_EX):
            raise StoreError(_being_read(directory, directory / READERS_FILE))
        try:
            with _lmdb_locked(directory, data):
                pass
            yield
        finally:
            os.close(readers)
    finally:
        os.close(owner)


def replace_file(directory: Path, data: Path, new: Path, kept: Path | None = None) -> None:
    """Put the complete file `new` in the place of `data`; the old one stays as `kept`. Within `alone`, and durable.

    Raises StoreError (a program that knows no lock but LMDB's has it open), OSError: the old file is in its place.
    """
    sync_file(new)
    with _lmdb_locked(directory, data):
        if kept is not None:
            _keep(data, kept)
        _lmdb_lock(data).unlink(missing_ok=True)
        sync_folder(directory)
        new.replace(data)
        sync_folder(directory)


def _keep(data: Path, kept: Path) -> None:
    """A second name for a file; a second file where the file system has no second names."""
    kept.unlink(missing_ok=True)
    try:
        kept.hardlink_to(data)
    except OSError:
        shutil.copy2(data, kept)
        sync_file(kept)


def _lmdb_lock(data: Path) -> Path:
    """LMDB's lock file of a data file or its directory."""
    if data.is_dir():
        return data / _LMDB_LOCK_FILE
    return data.with_name(_LMDB_LOCK_FILE if data.name == _LMDB_DATA_FILE else f"{data.name}-lock")


@contextmanager
def _lmdb_locked(directory: Path, data: Path) -> Iterator[None]:
    """Hold LMDB's own lock exclusively: nobody has the environment open, and who opens it waits."""
    path = _lmdb_lock(data)
    descriptor = open_lock(path)
    try:
        try:
            # Of this descriptor, not of the process: LMDB's own is the process's.
            fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, _BYTE_0)
        except OSError:
            raise StoreError(_being_read(directory, path)) from None
        yield
    finally:
        os.close(descriptor)


def _being_read(directory: Path, lock: Path) -> str:
    return f"the store {directory} is being read by {_holders(lock)}: wait until that has ended, or end it"
