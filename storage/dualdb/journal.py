"""The journal of a stand-alone DualDB: small batches are durable here with one write and one `fdatasync`.

A transaction of LMDB waits for the disk twice, and a batch of one operation has a page of its own to write: 2 ms where
appending takes 0.3. So small batches are appended here, and many together are moved into LMDB's table `batches`; then
the journal is begun anew from its start. Its file keeps its length: written over, it needs no new blocks, and
`fdatasync` has no metadata to write.

An entry, little-endian, at a multiple of 8: bytes of the batch u32, crc u32 over salt and batch, salt u64, the batch
(`batches`) with the number of its first operation. All entries of a round have its salt, a random number: so nobody can
put into a payload what would be taken for an entry where an older round's bytes follow the last one.

What counts are the entries from the start on that follow each other by number, the first one following LMDB's last
operation; entries that LMDB has already are an older round's. An entry that is not whole ends the journal: it was being
written when the process was killed, and nobody was told that it is durable. Unless whole entries of its round follow:
then it is damaged.
"""

from __future__ import annotations

import os
import struct
from binascii import crc32
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from lexicast.cluster.files import FILE_MODE, sync_folder

from .batches import unverified_span

JOURNAL_FILE: Final = "dual.journal"

_ENTRY: Final = struct.Struct("<IIQ")
_SALT: Final = struct.Struct("<Q")
_ALIGN: Final = 8
# The file grows by so much at a time, filled with zeros: blocks that are there already cost `fdatasync` less.
_GROWTH_BYTES: Final = 128 << 10
_READS: Final = 5
# Where in an entry the number of its first operation lies, in words of 8 bytes; and how far apart two can be.
_FIRST_WORD: Final = 4
_OPERATIONS_MAX: Final = 1 << 24


class JournalEntry(NamedTuple):
    """A batch of the journal: its first operation's number, how many there are, its bytes; whether it is whole."""

    first: int
    operations: int
    value: bytes
    whole: bool


class JournalContent(NamedTuple):
    """What counts of a journal: its entries, their round's salt, and where the next one goes."""

    entries: list[JournalEntry]
    salt: int
    end: int

    @property
    def damaged(self) -> list[JournalEntry]:
        """The entries that are not whole though others follow; where its length is lost, `value` is empty."""
        return [entry for entry in self.entries if not entry.whole]


class Journal:
    """The open journal. Raises OSError; then nothing more may be written."""

    __slots__ = ("_descriptor", "_path", "_salt", "_size", "end")

    def __init__(self, directory: Path) -> None:
        self._path = directory / JOURNAL_FILE
        self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
        try:
            self._size = os.fstat(self._descriptor).st_size
            if not self._size:
                sync_folder(directory)
        except BaseException:
            os.close(self._descriptor)
            raise
        self.end = 0
        self._salt = _new_salt()

    def resume(self, following: int) -> JournalContent:
        """What a former process has left, `following` being the operation after LMDB's last one; goes on after it."""
        found = content_of(os.pread(self._descriptor, self._size, 0), following)
        if found.entries:
            self.end, self._salt = found.end, found.salt
        return found

    def append(self, value: bytes) -> None:
        """Write a batch; durable on return."""
        data = entry_bytes(value, self._salt)
        end = self.end + len(data)
        if end > self._size:
            data += bytes(_GROWTH_BYTES)
            self._size = self.end + len(data)
        written = os.pwrite(self._descriptor, data, self.end)
        if written != len(data):
            raise OSError(f"No space left: {written} of {len(data)} bytes of the journal were written")
        os.fdatasync(self._descriptor)
        self.end = end

    def restart(self) -> None:
        """Everything in it is durable elsewhere: the next entry is the first one."""
        self.end = 0
        self._salt = _new_salt()

    def close(self) -> None:
        """Let go of the file."""
        os.close(self._descriptor)


def _new_salt() -> int:
    return int.from_bytes(os.urandom(8), "little") | 1


def entry_bytes(value: bytes, salt: int) -> bytes:
    """A batch as it stands in the journal."""
    return b"".join((_ENTRY.pack(len(value), _crc(value, salt), salt), value, bytes(-len(value) % _ALIGN)))


def _crc(value: bytes, salt: int) -> int:
    return crc32(value, crc32(_SALT.pack(salt)))


def content_of(data: bytes, following: int) -> JournalContent:
    """What counts of a journal's bytes, `following` being the operation after LMDB's last one."""
    entries: list[JournalEntry] = []
    at, salt, wanted = 0, 0, following
    while True:
        entry = _whole_entry(data, at, salt)
        if entry is not None and entry.first < following:
            break
        if entry is None or entry.first != wanted:
            place = _following(data, at, salt, wanted)
            if place is None:
                break
            entries.append(_damaged_entry(data, at, place, wanted))
            entry = _whole_entry(data, place, salt)
            at = place
        assert entry is not None
        entries.append(entry)
        salt = _ENTRY.unpack_from(data, at)[2]
        at += _stride(len(entry.value))
        wanted = entry.first + entry.operations
    return JournalContent(entries, salt, at)


def _stride(size: int) -> int:
    return _ENTRY.size + size + -size % _ALIGN


def _whole_entry(data: bytes, at: int, salt: int) -> JournalEntry | None:
    """The entry at a place, of that round (0: any); None where there is none."""
    if at + _ENTRY.size > len(data):
        return None
    size, crc, own = _ENTRY.unpack_from(data, at)
    start = at + _ENTRY.size
    if not size or not own or start + size > len(data) or (salt and own != salt):
        return None
    value = data[start : start + size]
    span = unverified_span(value) if _crc(value, own) == crc else None
    return None if span is None else JournalEntry(span[0], span[1], value, True)


def _following(data: bytes, at: int, salt: int, after: int) -> int | None:
    """Where the next whole entry of that round lies, from `at` on, whose number is above `after`."""
    words = np.frombuffer(data, np.uint64, len(data) // _ALIGN)[at // _ALIGN :]
    firsts = words[_FIRST_WORD:]
    likely = (firsts > np.uint64(after)) & (firsts <= np.uint64(after + _OPERATIONS_MAX))
    if salt:
        likely &= words[1 : 1 + len(firsts)] == np.uint64(salt)
    for place in (np.flatnonzero(likely) * _ALIGN + at).tolist():
        found = _whole_entry(data, place, salt)
        if found is not None and found.first > after:
            return int(place)
    return None


def _damaged_entry(data: bytes, at: int, place: int, wanted: int) -> JournalEntry:
    """What lies between two whole entries: its bytes where its length fits, so that they can be salvaged."""
    size = _ENTRY.unpack_from(data, at)[0]
    value = data[at + _ENTRY.size : at + _ENTRY.size + size] if at + _stride(size) == place else b""
    return JournalEntry(wanted, 0, value, False)


def journal_bytes(directory: Path) -> bytes:
    """The journal in `directory`, also beside its owner; to be read before LMDB is.

    So what the owner moves meanwhile is in LMDB, and what is read here is older than that. An entry that is being
    written meanwhile may look damaged: then it is read again.
    """
    data = b""
    for _ in range(_READS):
        try:
            data = (directory / JOURNAL_FILE).read_bytes()
        except FileNotFoundError:
            break
        first = _whole_entry(data, 0, 0)
        if first is not None and not content_of(data, first.first).damaged:
            break
    return data
