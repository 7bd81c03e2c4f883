"""The rows of an LMDB file, where they lie: the bytes of every key and value in the leaves below the newest header.

LMDB's layout (lmdb 0.9, its mdb.c), little-endian, pages of `psize` bytes:

    page    number u64, spare u16, flags u16 (1 branch, 2 leaf, 4 overflow), lower u16, upper u16; then u16 a node
    node    lo u16, hi u16, flags u16, bytes of key u16, key, data; in a leaf lo + hi << 16 is the size of the data, in
            a branch lo, hi and flags are the number of the page below
    data    itself, or (flag 1) the number u64 of its overflow page; of a named database (flag 2) its 48 bytes, of which
            the last 8 are the number of its root
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

_PAGE: Final = struct.Struct("<QHHHH")
_NODE: Final = struct.Struct("<HHHH")
_NUMBER: Final = struct.Struct("<Q")
_BRANCH, _LEAF = 1, 2
_BIG, _NAMED = 1, 2
_NO_PAGE: Final = 2**64 - 1
# In a header: behind the page's 16 bytes lie magic, version, address, map size, the free list's database and the main
# one (48 bytes each), the last page and the transaction.
_MAIN_ROOT: Final = 16 + 24 + 48 + 40
_TRANSACTION: Final = 16 + 24 + 2 * 48 + 8
_PAGE_BYTES: Final = 16 + 24


class FileRow(NamedTuple):
    """A row's place in the file: where key and value begin, and how long they are."""

    table: str
    key: bytes
    key_at: int
    value_at: int
    value_bytes: int

    @property
    def size(self) -> int:
        """Bytes that can be damaged."""
        return len(self.key) + self.value_bytes


class FileRows:
    """The rows of one file's content."""

    def __init__(self, content: bytes) -> None:
        self._content = content
        self._page_bytes = int.from_bytes(content[_PAGE_BYTES : _PAGE_BYTES + 4], "little")

    def __iter__(self) -> Iterator[FileRow]:
        headers = (0, self._page_bytes)
        newest = max(headers, key=lambda at: self._number(at + _TRANSACTION))
        for kind, _, key, value_at, _ in self._nodes(self._number(newest + _MAIN_ROOT)):
            if not kind & _NAMED:
                continue  # a copy of a table's row, for `repair`
            root = self._number(value_at + 40)
            for flags, key_at, name, at, size in self._nodes(root) if root != _NO_PAGE else ():
                del flags
                yield FileRow(key.decode(), name, key_at, at, size)

    def _number(self, at: int) -> int:
        number: int = _NUMBER.unpack_from(self._content, at)[0]
        return number

    def _nodes(self, page: int) -> Iterator[tuple[int, int, bytes, int, int]]:
        """(flags, key's place, key, data's place, bytes of data) of each node in the leaves below `page`, in order."""
        start = page * self._page_bytes
        _, _, flags, lower, _ = _PAGE.unpack_from(self._content, start)
        for index in range((lower - _PAGE.size) // 2):
            at = start + int.from_bytes(self._content[start + 16 + 2 * index : start + 18 + 2 * index], "little")
            low, high, node_flags, key_bytes = _NODE.unpack_from(self._content, at)
            key_at = at + _NODE.size
            key = self._content[key_at : key_at + key_bytes]
            if flags & _BRANCH:
                yield from self._nodes(low | high << 16 | node_flags << 32)
            elif node_flags & _BIG:
                overflow = self._number(key_at + key_bytes) * self._page_bytes
                yield node_flags, key_at, key, overflow + _PAGE.size, low | high << 16
            else:
                yield node_flags, key_at, key, key_at + key_bytes, low | high << 16
