"""The disk below a store: its limits, whether it is full, and the mark that its errors leave."""

from __future__ import annotations

import os
import resource
from contextlib import suppress
from pathlib import Path
from typing import Final

import lmdb

from lexicast.cluster.errors import StorePoisonedError
from lexicast.cluster.files import write_whole

POISON_FILE: Final = "poisoned"
_FULL_BYTES: Final = 1 << 20


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


def complete_file(environment: lmdb.Environment, data: Path) -> None:
    """Lengthen a file that was cut short, so that looking at the lost pages is an error and not a SIGBUS."""
    expected = (environment.info()["last_pgno"] + 1) * environment.stat()["psize"]
    if data.stat().st_size < expected:
        os.truncate(data, expected)
