"""The guard between a store and LMDB's errors: poison, a full disk or map, closing under readers.

A *full* disk (ENOSPC) or map refuses: LMDB writes over no page that anything refers to, so nothing was half written,
and publishing resumes when there is room. Any other error of LMDB or the operating system *poisons* the store: what a
failed fsync left on the disk is unknown, so nothing is retried and every later call is a StorePoisonedError.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import lmdb

from lexicast.cluster.errors import StoreError, StoreFullError, StorePoisonedError

from ..file.disk import disk_is_full
from ..file.table import ReadTransaction
from .environment import Environment
from .space import Space

_NOT_POISON: Final = (lmdb.ReadersFullError, lmdb.MapResizedError)
_FULL: Final = (lmdb.MapFullError, lmdb.TxnFullError)
_CLOSE_WAIT_S: Final = 5.0


class Guard:
    """One store's. Used from any thread."""

    def __init__(self, environment: Environment, space: Space) -> None:
        self._environment = environment
        self._space = space
        self.poison: str | None = None
        self.closed = False
        self._readers = 0
        self._readers_changed = threading.Condition()

    def usable(self) -> None:
        """Raises StorePoisonedError, or StoreError when the store is closed."""
        if self.poison is not None:
            raise StorePoisonedError(
                f"the store {self._environment.directory} refuses everything after an I/O error ({self.poison}): "
                "let a follower take over, look at the disk and start again"
            )
        if self.closed:
            raise StoreError(f"the store {self._environment.directory} is closed")

    @contextmanager
    def __call__(self) -> Iterator[None]:
        """Turn LMDB's and the system's errors into poison, a full disk or map into StoreFullError."""
        self.usable()
        try:
            yield
        except _NOT_POISON as error:
            raise StoreError(f"the store {self._environment.directory} cannot be read now: {error}") from None
        except (lmdb.Error, OSError) as error:
            raise self._refused(error) from error

    def _refused(self, error: Exception) -> StoreError:
        directory = self._environment.directory
        if isinstance(error, _FULL) or disk_is_full(directory, error):
            self._space.ran_out()
            return StoreFullError(f"no space left for {directory} ({error}): publishing resumes when there is some")
        self.poison = str(error)
        self._environment.leave_poison(str(error))
        return StoreError(f"I/O error in the store {directory}: {error}; it refuses everything now")

    @contextmanager
    def reading(self) -> Iterator[ReadTransaction]:
        """A read transaction that `close` waits for."""
        with self.counted(), self(), self._environment.snapshot() as txn:
            yield txn

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Work that `close` waits for."""
        with self._readers_changed:
            self.usable()
            self._readers += 1
        try:
            yield
        finally:
            with self._readers_changed:
                self._readers -= 1
                self._readers_changed.notify_all()

    def close(self) -> None:
        """Let nobody in any more, wait for who reads, close. Raises StoreError when somebody does not end."""
        with self._readers_changed:
            self.closed = True
            self._readers_changed.wait_for(lambda: self._readers == 0, _CLOSE_WAIT_S)
            if self._readers:
                raise StoreError(f"{self._readers} readers still hold the store {self._environment.directory}")
        self._environment.close()
