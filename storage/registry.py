"""The coordination server's store: few keys, small values, every commit durable before it returns.

An LMDB environment of its own (`registry.mdb`, mode 0600: it holds the cluster's key). Keys are texts, values
msgpack behind a CRC-32. LMDB syncs each commit; NOSYNC and WRITEMAP are forbidden (DESIGN.md section 3). After an
I/O error the registry refuses everything. An exclusive lock keeps a second server out, so that compare-and-set is
decided in one place. A damaged row is as if it were not there, and noted (`file.damage`); whoever must not take it for
one that never was asks `is_damaged`.
"""

from __future__ import annotations

import errno
import fcntl
import os
from binascii import crc32
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

import lmdb
import msgpack

from lexicast.cluster.errors import StoreError, StoreFormatError, StoreFullError, StorePoisonedError, UsageError
from lexicast.cluster.files import FILE_MODE, make_folder, open_lock

from .file.damage import Ledger
from .file.locks import begin_reading, open_environment
from .file.sealing import DamageError

FORMAT: Final = 1
FORMAT_KEY: Final = "format"
# Sparse: costs only what is written. A cluster of 10,000 groups and 10,000 members takes a few MB.
MAP_BYTES: Final = 64 * 1024 * 1024
KEY_BYTES_MAX: Final = 511  # LMDB's own limit
VALUE_BYTES_MAX: Final = 1024 * 1024
CRC_BYTES: Final = 4
FILE: Final = "registry.mdb"
LOCK_FILE: Final = "registry.lock"


class Registry:
    """A durable dictionary. Not thread-safe; one process at a time."""

    def __init__(self, folder: Path) -> None:
        """Open or create it. Raises StoreError (no permission, in use), StoreFormatError (damaged, newer)."""
        self._path = folder / FILE
        self.damage = Ledger(f"the registry {self._path}:")
        self._poison: str | None = None
        self._environment: lmdb.Environment | None = None
        self._lock = _lock(folder)
        try:
            self._environment = _open(self._path)
            self._check_format()
        except BaseException:
            self.close()
            raise

    def _check_format(self) -> None:
        stored = self.get(FORMAT_KEY)
        if stored is None:
            if self.items("") and not self.is_damaged(FORMAT_KEY):
                raise StoreFormatError(f"{self._path} is not a lexicast registry: move it away")
            self.commit({FORMAT_KEY: FORMAT})
        elif stored != FORMAT:
            raise StoreFormatError(
                f"{self._path} has format {stored}, this lexicast reads {FORMAT}: use the version that wrote it"
            )

    def get(self, key: str) -> Any:
        """The value; None where there is none, or a damaged one."""
        with begin_reading(self._healthy()) as transaction:
            packed = transaction.get(key.encode())
            return None if packed is None else self._unpacked(key, packed)

    def is_damaged(self, key: str) -> bool:
        """There is a row under `key`, and it is damaged."""
        with begin_reading(self._healthy()) as transaction:
            packed = transaction.get(key.encode())
            return packed is not None and _body(packed) is None

    def items(self, prefix: str) -> dict[str, Any]:
        """All sound rows whose key starts with `prefix`, in order of their keys."""
        found: dict[str, Any] = {}
        start = prefix.encode()
        with begin_reading(self._healthy()) as transaction, transaction.cursor() as cursor:
            for key, packed in cursor.iternext() if cursor.set_range(start) else ():
                if not bytes(key).startswith(start):
                    break
                name = bytes(key).decode(errors="replace")
                value = self._unpacked(name, packed)
                if value is not None:
                    found[name] = value
        return found

    def commit(self, changes: Mapping[str, Any]) -> None:
        """Put all of `changes` (None deletes), or nothing; durable on return.

        Raises UsageError (key or value too long), StoreFullError, StorePoisonedError (this or an earlier I/O error).
        """
        environment = self._healthy()
        packed = [(_key(key), None if value is None else _pack(key, value)) for key, value in changes.items()]
        try:
            with environment.begin(write=True) as transaction:
                for name, data in packed:
                    if data is None:
                        transaction.delete(name)
                    else:
                        transaction.put(name, data)
        except lmdb.MapFullError:
            raise StoreFullError(f"{self._path} has reached {MAP_BYTES} bytes: this cluster is too large") from None
        except lmdb.Error as error:
            self._poison = f"{self._path} could not be written ({error}): free or repair the disk, then start again"
            raise StorePoisonedError(self._poison) from None

    def close(self) -> None:
        """Close and let the next one in; everything committed is on disk already."""
        if self._environment is not None:
            self._environment.close()
            self._environment = None
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def _healthy(self) -> lmdb.Environment:
        if self._poison is not None:
            raise StorePoisonedError(self._poison)
        if self._environment is None:
            raise StoreError(f"{self._path} is closed")
        return self._environment

    def _unpacked(self, key: str, packed: bytes | memoryview) -> Any:
        body = _body(packed)
        try:
            if body is not None:
                return msgpack.unpackb(body, strict_map_key=False)
        except (ValueError, msgpack.UnpackException):
            pass
        self.damage.note(DamageError("registry", -1, -1, f"the row {key!r} does not match its checksum"))
        return None


def _key(key: str) -> bytes:
    name = key.encode()
    if not 1 <= len(name) <= KEY_BYTES_MAX:
        raise UsageError(f"a registry key has 1 to {KEY_BYTES_MAX} bytes, not {len(name)}")
    return name


def _body(packed: bytes | memoryview) -> bytes | None:
    """What a row says; None when it does not match its checksum."""
    data = bytes(packed)
    body = data[CRC_BYTES:]
    return body if crc32(body).to_bytes(CRC_BYTES, "big") == data[:CRC_BYTES] else None


def _pack(key: str, value: Any) -> bytes:
    body: bytes = msgpack.packb(value)
    if len(body) > VALUE_BYTES_MAX:
        raise UsageError(f"the value of {key!r} has {len(body)} bytes, more than {VALUE_BYTES_MAX}")
    return crc32(body).to_bytes(CRC_BYTES, "big") + body


def _lock(folder: Path) -> int:
    """The locked file's descriptor; also makes the folder. Raises StoreError."""
    try:
        make_folder(folder)
        descriptor = open_lock(folder / LOCK_FILE)
    except OSError as error:
        raise StoreError(f"cannot open {folder}: {error.strerror}; choose another --data-dir") from None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        if error.errno != errno.EWOULDBLOCK:
            raise StoreError(f"cannot lock {folder}: {error.strerror}") from None
        raise StoreError(f"{folder} is in use by another coordination server: stop that one first") from None
    return descriptor


def _opened(path: Path) -> lmdb.Environment:
    return lmdb.open(
        str(path), map_size=MAP_BYTES, subdir=False, mode=FILE_MODE, max_dbs=0, max_readers=16, readahead=False
    )


def _open(path: Path) -> lmdb.Environment:
    try:
        environment = open_environment(path.parent, partial(_opened, path))
    except lmdb.Error as error:
        raise StoreFormatError(
            f"{path} cannot be opened ({error}): restore it, or move its folder away (the stores know the rest)"
        ) from None
    # The file is as long as the map (sparse), so that a cut is seen here: reading a missing page would be a SIGBUS.
    size = path.stat().st_size
    if size < MAP_BYTES:
        if environment.stat()["entries"] > 0:
            environment.close()
            raise StoreFormatError(f"{path} is cut short to {size} bytes: restore it, or move its folder away")
        os.truncate(path, MAP_BYTES)
    return environment
