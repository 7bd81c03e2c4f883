"""Reading every row that can be read from an LMDB file whose pages may be damaged, in child processes.

A child copies a table to a plain file, row by row (lengths, key, value). Where LMDB says that a page is corrupt the
child goes on beyond, and where it dies of it a new one does: first right after the last key, then ever further beyond
it (keys are numbers in this store's large tables, so a leap passes a damaged page sooner or later).
"""

from __future__ import annotations

import os
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Final

import lmdb

_LENGTHS: Final = struct.Struct("<IQ")
# Leap n goes 4^n beyond the last key; the last one passes any number of 64 bits.
_LEAPS: Final = 33
_DATABASES_MAX: Final = 32
_GAVE_UP: Final = 3


def rows(file: Path, table: str, scratch: Path, lost: list[str]) -> Iterator[tuple[bytes, bytes]]:
    """The rows of a table of the LMDB file; `lost` gets a line for each stretch that could not be read."""
    after = b""
    leap = 0
    while leap <= _LEAPS:
        scratch.unlink(missing_ok=True)
        command = [sys.executable, "-m", __name__, str(file), table, after.hex(), str(leap), str(scratch)]
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
        # A child that died has tried this leap; one that gave up has tried them all.
        leap = _LEAPS + 1 if done.returncode == _GAVE_UP else 1 if found else leap + 1
    scratch.unlink(missing_ok=True)


def _beyond(after: bytes, leap: int) -> bytes:
    """Where to go on: the first key after `after`, or one that many numbers further."""
    if not after:
        return b"" if not leap else leap.to_bytes(1, "big")
    if not leap:
        return after + b"\0"
    number = int.from_bytes(after, "big") + 4 ** (leap - 1)
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


class _Copy:
    """The child: copies a table row by row, and leaps where LMDB finds its pages corrupt."""

    def __init__(self, file: str, table: str, after: bytes, leap: int) -> None:
        self._environment = lmdb.open(
            file, subdir=False, readonly=True, create=False, lock=False, readahead=False, max_dbs=_DATABASES_MAX
        )
        self._database = self._environment.open_db(table.encode(), create=False)
        self._after = after
        self._leap = leap

    def run(self, output: BinaryIO) -> bool:
        """Copy to the end; False when no leap led any further."""
        while self._leap <= _LEAPS:
            try:
                self._stretch(output)
                return True
            except lmdb.Error:
                self._leap += 1
        return False

    def _stretch(self, output: BinaryIO) -> None:
        start = _beyond(self._after, self._leap)
        with self._environment.begin(buffers=True) as txn, txn.cursor(self._database) as cursor:
            there = cursor.set_range(start) if start else cursor.first()
            while there:
                key, value = bytes(cursor.key()), bytes(cursor.value())
                output.write(_LENGTHS.pack(len(key), len(value)) + key + value)
                self._after, self._leap = key, 0
                there = cursor.next()


def _child(file: str, table: str, after: bytes, leap: int, scratch: str) -> int:
    # Unbuffered: what was copied before a page ends this process is in the file.
    with Path(scratch).open("wb", buffering=0) as output:
        return 0 if _Copy(file, table, after, leap).run(output) else _GAVE_UP


if __name__ == "__main__":
    sys.exit(_child(sys.argv[1], sys.argv[2], bytes.fromhex(sys.argv[3]), int(sys.argv[4]), sys.argv[5]))
