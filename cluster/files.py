"""Files that lexicast writes for itself: mode 0600, in folders of mode 0700, whatever the umask says.

They hold what was published, keys and tokens, so they are for the user who runs lexicast alone.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, Final

FILE_MODE: Final = 0o600
FOLDER_MODE: Final = 0o700
UMASK: Final = 0o077


@contextmanager
def private_umask() -> Iterator[None]:
    """Files that others' code makes meanwhile, and processes started meanwhile ever make, are private too."""
    before = os.umask(UMASK)
    try:
        yield
    finally:
        os.umask(before)


def make_folder(path: Path) -> None:
    """Make a folder with those above it that are missing; one that is there keeps its mode. Raises OSError."""
    if not path.parent.exists():
        make_folder(path.parent)
    path.mkdir(mode=FOLDER_MODE, exist_ok=True)


def create_file(path: Path) -> BinaryIO:
    """A new file, open for writing. Raises FileExistsError, OSError."""
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, FILE_MODE), "wb")


def open_lock(path: Path, extra: int = 0) -> int:
    """The descriptor of a file that only locks are taken on, made where it is missing. Raises OSError."""
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | extra, FILE_MODE)


def write_whole(path: Path, data: bytes) -> None:
    """Write a file whole or not at all: a reader never sees half of it. Raises OSError."""
    part = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    part.unlink(missing_ok=True)
    try:
        with create_file(part) as file:
            file.write(data)
        part.replace(path)
    except BaseException:
        with suppress(OSError):
            part.unlink(missing_ok=True)
        raise


def sync_folder(path: Path) -> None:
    """Make the names in a folder durable. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_file(path: Path) -> None:
    """Make a file's content durable. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
