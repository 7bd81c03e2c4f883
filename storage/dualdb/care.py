"""What keeps a DualDB from writing: an I/O error that it has met, and a disk that is nearly full."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from os import statvfs
from typing import Final, NoReturn

import lmdb

from lexicast.cluster.errors import StoreError, StorePoisonedError

from ..file.disk import disk_is_full
from ..file.table import AnyTransaction
from .environment import DualEnvironment

# So many bytes are written between two looks at the disk.
GRANTED_BYTES: Final = 64 << 10


class DualGuard:
    """After an error of LMDB or the system everything is refused."""

    __slots__ = ("_environment", "closed", "poison")

    def __init__(self, environment: DualEnvironment) -> None:
        self._environment = environment
        self.poison: str | None = None
        self.closed = False

    def usable(self) -> None:
        """Raise StorePoisonedError after an error, StoreError when it is closed."""
        if self.poison is not None:
            raise StorePoisonedError(
                f"the DualDB {self._environment.directory} refuses everything after an I/O error ({self.poison}): "
                "look at the disk and open it anew"
            )
        if self.closed:
            raise StoreError(f"the DualDB {self._environment.directory} is closed")

    @contextmanager
    def watch(self) -> Iterator[None]:
        """What is done inside may meet an error. Raises as `usable` and `fail`."""
        self.usable()
        try:
            yield
        except (lmdb.Error, OSError) as error:
            self.fail(error)

    def fail(self, error: Exception) -> NoReturn:
        """Refuse everything from now on; raises StoreError."""
        directory = self._environment.directory
        self.poison = str(error)
        if disk_is_full(directory, error):
            raise StoreError(
                f"No space left for the DualDB {directory} ({error}): add some and open it anew"
            ) from error
        # A full disk fails before anything is written over; anything else may have lost pages.
        self._environment.leave_poison(str(error))
        raise StoreError(f"I/O error in the DualDB {directory}: {error}; it refuses everything now") from error


class DiskRoom:
    """The room left for a DualDB; the disk is asked each GRANTED_BYTES."""

    __slots__ = ("_environment", "_free_pages_bytes", "_granted_bytes", "_reserve_bytes")

    def __init__(self, environment: DualEnvironment, reserve_bytes: int) -> None:
        self._environment = environment
        self._reserve_bytes = reserve_bytes
        self._free_pages_bytes = 0
        self._granted_bytes = 0

    def look(self, txn: AnyTransaction) -> None:
        """Count the free pages inside the file: LMDB fills them first and never shrinks the file."""
        self._free_pages_bytes = max(0, self._environment.file_bytes() - self._environment.used_bytes(txn))

    def free_bytes(self, waiting_bytes: int) -> int:
        """What can be written, besides `waiting_bytes` of the journal, which are written once more."""
        found = statvfs(self._environment.directory)
        return found.f_bavail * found.f_frsize + self._free_pages_bytes - waiting_bytes

    def grants(self, size_bytes: int, waiting_bytes: int) -> bool:
        """So much leaves the reserve untouched."""
        self._granted_bytes -= size_bytes
        if self._granted_bytes < 0:
            left = self.free_bytes(waiting_bytes) - size_bytes - self._reserve_bytes
            self._granted_bytes = min(left, GRANTED_BYTES)
        return self._granted_bytes >= 0
