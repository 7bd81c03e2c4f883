"""Reading every row that can be read from an LMDB file whose pages may be damaged, in child processes.

A child copies a table to a plain file, row by row (lengths, key, value). Where LMDB says that a page is corrupt, or the
child dies of it, a new child goes on beyond: first right after the last key, then ever further beyond it (keys are
numbers in this store's large tables, so a leap passes a damaged page sooner or later).
"""

from __future__ import annotations

import os
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import lmdb

_LENGTHS: Final = struct.Struct("<IQ")
_LEAPS: Final = 40
_DATABASES_MAX: Final = 32


def rows(file: Path, table: str, scratch: Path, lost: list[str]) -> Iterator[tuple[bytes, bytes]]:
    """The rows of a table of the LMDB file; `lost` gets a line for each stretch that could not be read."""
    after = b""
    leap = 0
    while leap <= _LEAPS:
        scratch.unlink(missing_ok=True)
        command = [sys.executable, "-m", __name__, str(file), table, _beyond(after, leap).hex(), str(scratch)]
        path = os.pathsep.join([each for each in sys.path if each])
        done = subprocess.run(command, capture_output=True, check=False, env={**os.environ, "PYTHONPATH": path})
        found = 0
        for key, value in _read(scratch):
            after, found = key, found + 1
            yield key, value
        if done.returncode == 0:
            return
        if not leap or found:
            lost.append(f"{table}: pages after key {after.hex() or 'the beginning'} cannot be read")
        leap = 1 if found else leap + 1
    scratch.unlink(missing_ok=True)


def _beyond(after: bytes, leap: int) -> bytes:
    """Where to go on: the first key after `after`, or one that much (2^leap of the number in its end) further."""
    if not after:
        return b"" if not leap else leap.to_bytes(1, "big")
    if not leap:
        return after + b"\0"
    number = int.from_bytes(after, "big") + 2**leap
    return number.to_bytes(len(after), "big") if number < 256 ** len(after) else b"\xff" * len(after)


def _read(scratch: Path) -> Iterator[tuple[bytes, bytes]]:
    if not scratch.exists():
        return
    with scratch.open("rb") as file:
        while len(lengths := file.read(_LENGTHS.size)) == _LENGTHS.size:
            key_bytes, value_bytes = _LENGTHS.unpack(lengths)
            key, value = file.read(key_bytes), file.read(value_bytes)
            if len(value) < value_bytes:
                return
            yield key, value


def _child(file: str, table: str, start: bytes, scratch: str) -> None:
    """Copy the table from `start` on; the exit code is 0 when its end was reached."""
    environment = lmdb.open(
        file, subdir=False, readonly=True, create=False, lock=False, readahead=False, max_dbs=_DATABASES_MAX
    )
    database = environment.open_db(table.encode(), create=False)
    # Unbuffered: what was copied before a page ends this process is in the file.
    with (
        Path(scratch).open("wb", buffering=0) as output,
        environment.begin(buffers=True) as txn,
        txn.cursor(database) as cursor,
    ):
        there = cursor.set_range(start) if start else cursor.first()
        while there:
            key, value = bytes(cursor.key()), bytes(cursor.value())
            output.write(_LENGTHS.pack(len(key), len(value)) + key + value)
            there = cursor.next()


if __name__ == "__main__":
    _child(sys.argv[1], sys.argv[2], bytes.fromhex(sys.argv[3]), sys.argv[4])
