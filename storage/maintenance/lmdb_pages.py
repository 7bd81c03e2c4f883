"""The pages of an LMDB file, read one by one without LMDB: nothing in a damaged file can end the process.

A file is pages of one size (all numbers little-endian, as on the machines that lexicast runs on):

    header         number u64, spare u16, flags u16, then lower u16 and upper u16 (of a long value: pages u32)
    two headers    pages 0 and 1, META: magic u32, version u32, address u64, map size u64, the trees of the free list
                   and of the names, last page u64, transaction u64; the one with the greater transaction counts
    a tree         48 bytes: spare u32 (of the free list's: the page size), flags u16, depth u16, branch pages, leaf
                   pages, long pages, entries, root: u64 each; root 2^64-1: empty
    BRANCH, LEAF   u16 a node: where in the page it begins; a node: low u16, high u16, flags u16, key bytes u16, key,
                   and in a leaf the value of low + high * 2^16 bytes, or (BIG) the number of the first of its own
                   pages; in a branch low, high and flags are the child's number
    LONG           a value's own pages; only the first has a header

Pages carry no checksum and no transaction: whoever takes rows from here verifies each row.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from lexicast.cluster.errors import StoreFormatError

BRANCH: Final = 0x01
LEAF: Final = 0x02
LONG: Final = 0x04
META: Final = 0x08
NO_PAGE: Final = 2**64 - 1
# A longer value is damage: a block has at most 16 MiB by default, and what is read lies in memory.
VALUE_BYTES_MAX: Final = 256 << 20

_MAGIC: Final = 0xBEEFC0DE
_VERSION: Final = 1
_HEADER = struct.Struct("<QHHHH")
_META = struct.Struct("<IIQQ")
_TREE = struct.Struct("<IHHQQQQQ")
_LAST = struct.Struct("<QQ")
_HEADER_BYTES: Final = 16 + _META.size + 2 * _TREE.size + _LAST.size
_NODE = struct.Struct("<HHHH")
_U64 = struct.Struct("<Q")
_BIG: Final = 1
_SUBTREE: Final = 2
_PAGE_SIZES: Final = tuple(1 << bits for bits in range(9, 17))
_DEPTH_MAX: Final = 32


class PageError(Exception):
    """A page is not what it should be; the message says why."""


class Tree(NamedTuple):
    """A table's tree: its root and how many rows it says it has."""

    root: int
    entries: int


class Header(NamedTuple):
    """One of the file's two headers."""

    page_bytes: int
    free: Tree
    names: Tree
    last_page: int
    transaction: int


class LeafRow(NamedTuple):
    """A row as it lies in a leaf. `tree` instead of a value where it names a table."""

    key: bytes
    value: bytes
    tree: Tree | None = None


class PageFile:
    """The pages of one file, read only. Not thread-safe."""

    def __init__(self, path: Path) -> None:
        """Raises StoreFormatError when the file has no header left, OSError."""
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            self.size = os.fstat(self._descriptor).st_size
            headers = [each for each in (_header(self._read(0, _HEADER_BYTES)), self._second()) if each is not None]
            if not headers:
                raise StoreFormatError(f"both headers of {path} are damaged: restore a backup")
            self.header = max(headers, key=lambda each: each.transaction)
            # With one alone nobody can say whether it was the newer one.
            self.both_headers = len(headers) == 2
        except BaseException:
            self.close()
            raise
        self.page_bytes = self.header.page_bytes
        # Pages beyond the last one were never written, or by a transaction that did not end; or by one whose header is
        # lost.
        pages = max([each.last_page for each in headers]) + 1
        self.pages = min(pages, self.size // self.page_bytes) if self.both_headers else self.size // self.page_bytes

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)

    def _second(self) -> Header | None:
        """The header in page 1, wherever that is."""
        for place in _PAGE_SIZES:
            found = _header(self._read(place, _HEADER_BYTES))
            if found is not None and place == found.page_bytes:
                return found
        return None

    def _read(self, place: int, size: int) -> bytes:
        try:
            return os.pread(self._descriptor, size, place)
        except OSError:  # a sector that the disk cannot read
            return b""

    def page(self, number: int) -> bytes:
        """A page with a valid header of its own. Raises PageError."""
        if not 1 < number < self.pages:
            raise PageError(f"there is no page {number}")
        page = self._read(number * self.page_bytes, self.page_bytes)
        if len(page) < self.page_bytes:
            raise PageError(f"page {number} cannot be read")
        own, _, flags, lower, upper = _HEADER.unpack_from(page)
        if own != number:
            raise PageError(f"page {number} says it is {own}" if own else f"page {number} is empty")
        if flags not in (BRANCH, LEAF, LONG):
            raise PageError(f"page {number} has the flags {flags}")
        if flags != LONG and not _HEADER.size <= lower <= upper <= self.page_bytes:
            raise PageError(f"the header of page {number} is damaged")
        return page

    def long_pages(self, page: bytes) -> int:
        """How many pages a LONG page says that its value has."""
        pages: int = struct.unpack_from("<I", page, 12)[0]
        return pages

    def children(self, page: bytes) -> Iterator[int]:
        """The numbers of a BRANCH page's children."""
        for at in _places(page):
            if at + _NODE.size <= len(page):
                low, high, flags, _ = _NODE.unpack_from(page, at)
                yield low | high << 16 | flags << 32

    def rows(self, page: bytes) -> Iterator[tuple[LeafRow, range] | None]:
        """Each row of a LEAF page with the pages of its long value; None for one that cannot be read."""
        for at in _places(page):
            try:
                yield self._row(page, at)
            except (PageError, struct.error):
                yield None

    def _row(self, page: bytes, at: int) -> tuple[LeafRow, range]:
        low, high, flags, key_bytes = _NODE.unpack_from(page, at)
        size, start = low | high << 16, at + _NODE.size + key_bytes
        key = page[at + _NODE.size : start]
        if len(key) < key_bytes:
            raise PageError("a key reaches beyond its page")
        if flags & _BIG:
            first = _U64.unpack_from(page, start)[0]
            value, pages = self._long(first, size)
            return LeafRow(key, value), pages
        value = page[start : start + size]
        if len(value) < size:
            raise PageError("a value reaches beyond its page")
        tree = tree_of(value) if flags & _SUBTREE else None
        return LeafRow(key, value, tree), range(0)

    def _long(self, first: int, size: int) -> tuple[bytes, range]:
        count = (_HEADER.size - 1 + size) // self.page_bytes + 1
        if size > VALUE_BYTES_MAX or not 1 < first <= self.pages - count:
            raise PageError("a long value reaches beyond the file")
        value = self._read(first * self.page_bytes + _HEADER.size, size)
        if len(value) < size:
            raise PageError(f"page {first} or one behind it cannot be read")
        return value, range(first, first + count)


def tree_of(data: bytes) -> Tree:
    """A tree's 48 bytes. Raises PageError."""
    if len(data) != _TREE.size:
        raise PageError("a table's entry is damaged")
    fields = _TREE.unpack(data)
    return Tree(fields[7], fields[6])


def _header(page: bytes) -> Header | None:
    """The header in a page; None when it is none."""
    start = _HEADER.size
    if len(page) < _HEADER_BYTES:
        return None
    magic, version, _, _ = _META.unpack_from(page, start)
    free = _TREE.unpack_from(page, start + _META.size)
    names = _TREE.unpack_from(page, start + _META.size + _TREE.size)
    last_page, transaction = _LAST.unpack_from(page, start + _META.size + 2 * _TREE.size)
    if magic != _MAGIC or version != _VERSION or free[0] not in _PAGE_SIZES:
        return None
    return Header(free[0], Tree(free[7], free[6]), Tree(names[7], names[6]), last_page, transaction)


def _places(page: bytes) -> tuple[int, ...]:
    """Where the nodes of a page begin."""
    count = (_HEADER.unpack_from(page)[3] - _HEADER.size) // 2
    return struct.unpack_from(f"<{count}H", page, _HEADER.size)


class PageWalk:
    """Walks trees of one file; remembers which pages were seen, and what could not be followed."""

    def __init__(self, file: PageFile) -> None:
        self.file = file
        self.seen = bytearray(file.pages)
        # Pages and rows that a tree leads to and that are not there.
        self.lost_pages = 0
        self.lost_rows = 0
        self.pages_seen = 0

    def pass_over(self, pages: bytearray) -> None:
        """Take no row from the pages that are marked in `pages`."""
        number = pages.find(1)
        while number >= 0:
            self.seen[number] = 1
            number = pages.find(1, number + 1)

    def rows(self, tree: Tree) -> Iterator[LeafRow]:
        """Every row that the tree leads to, in the order of the keys where nothing is damaged."""
        waiting = [] if tree.root == NO_PAGE else [(tree.root, 0)]
        while waiting:
            number, depth = waiting.pop()
            page = self._take(number) if depth < _DEPTH_MAX else None
            if page is None:
                continue
            flags = _HEADER.unpack_from(page)[2]
            if flags == BRANCH:
                waiting += [(child, depth + 1) for child in reversed([*self.file.children(page)])]
            elif flags == LEAF:
                yield from self._leaf(page)
            else:
                self.lost_pages += 1

    def _take(self, number: int) -> bytes | None:
        try:
            page = self.file.page(number)
        except PageError:
            self.lost_pages += 1
            return None
        if self.seen[number]:
            self.lost_pages += 1  # another page points here too: one of the two is wrong
            return None
        self.seen[number] = 1
        self.pages_seen += 1
        return page

    def _leaf(self, page: bytes) -> Iterator[LeafRow]:
        for found in self.file.rows(page):
            if found is None:
                self.lost_rows += 1
                continue
            row, pages = found
            self.seen[pages.start : pages.stop] = bytes([1]) * len(pages)
            self.pages_seen += len(pages)
            yield row

    def unseen(self) -> Iterator[LeafRow]:
        """Rows of leaves to which no tree has led.

        Pages behind the first one of a long value are passed over: what lies there is what clients have sent.
        """
        inside = self._insides()
        for number in range(2, self.file.pages):
            if self.seen[number] or inside[number]:
                continue
            try:
                page = self.file.page(number)
            except PageError:
                continue
            if _HEADER.unpack_from(page)[2] == LEAF:
                self.seen[number] = 1
                self.pages_seen += 1
                yield from self._leaf(page)

    def _insides(self) -> bytearray:
        """Pages behind the first one of an unseen long value."""
        inside = bytearray(self.file.pages)
        number = 2
        while number < self.file.pages:
            length = 1 if self.seen[number] else self._length(number)
            inside[number + 1 : number + length] = bytes([1]) * (length - 1)
            number += length
        return inside

    def _length(self, number: int) -> int:
        """The pages of the long value that begins with this page; 1 when none does."""
        try:
            page = self.file.page(number)
        except PageError:
            return 1
        if _HEADER.unpack_from(page)[2] != LONG:
            return 1
        end = min(number + self.file.long_pages(page), self.file.pages)
        taken = self.seen.find(1, number, end)
        return max(1, (end if taken < 0 else taken) - number)
