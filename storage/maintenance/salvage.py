"""The salvage of rows: every one that can be read from an LMDB file with damaged pages, and a writer of a new file.

Rows are found in three steps: along the trees of the tables, as LMDB would; where a page is missing, in all leaves to
which no tree has led; each row is then taken on its own word (its checksum), wherever it was found. Pages of the free
list are passed over: what lies there was deleted. Where the list itself is damaged they cannot be told from those that
count, and deleted rows may come back: `free_known` says so.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import lmdb

from ..environment.options import GIB
from ..file.disk import map_bytes_possible
from .lmdb_pages import LeafRow, PageFile, PageWalk, Tree

Progress = Callable[[int, int], None]

# Bytes of one transaction of a `Writer`: what it holds in memory.
COMMIT_BYTES: Final = 32 << 20
COMMIT_ROWS: Final = 50_000
_ROW_BYTES_MIN: Final = 9
_TOLD_EACH_ROWS: Final = 512
_PAGES = struct.Struct("<Q")


def no_progress(done: int, total: int) -> None:
    """Nobody wants to know how far it is."""


class Salvage:
    """The rows of one file."""

    def __init__(self, path: Path, progress: Progress = no_progress) -> None:
        """`progress` is told (bytes looked at, bytes in all). Raises StoreFormatError (no header is left), OSError."""
        self._file = PageFile(path)
        self._progress = progress
        self._walk = PageWalk(self._file)
        header = self._file.header
        # The last commit may be missing in the trees: its rows lie in pages that were free before it.
        self.rolled_back = not self._file.both_headers
        self._free = self._free_pages(header.free)
        self.free_known = not self._damaged()
        # What lies beside the tables.
        self.words: dict[bytes, bytes] = {}
        self._trees: dict[bytes, Tree] = {}
        for row in self._walk.rows(header.names):
            if row.tree is None:
                self.words[row.key] = row.value
            else:
                self._trees[row.key] = row.tree
        self.names_known = len(self.words) + len(self._trees) == header.names.entries and not self._damaged()
        self._found: dict[str, int] = {}

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _damaged(self) -> bool:
        return bool(self._walk.lost_pages or self._walk.lost_rows)

    def _free_pages(self, tree: Tree) -> bytearray:
        free = bytearray(self._file.pages)
        for row in self._walk.rows(tree):
            for at in range(_PAGES.size, len(row.value) - _PAGES.size + 1, _PAGES.size):
                page = _PAGES.unpack_from(row.value, at)[0]
                if page < len(free):
                    free[page] = 1
        return free

    def entries(self, table: str) -> int | None:
        """How many rows the table says it has; None when that cannot be told."""
        tree = self._trees.get(table.encode())
        if tree is None:
            return None if not self.names_known else 0
        return tree.entries if tree.entries <= self._file.size // _ROW_BYTES_MIN else None

    def rows(self, table: str) -> Iterator[tuple[bytes, bytes]]:
        """The rows to which the table's tree leads; whether they are its own, and whole, is for the caller to see."""
        found = 0
        tree = self._trees.get(table.encode())
        for row in self._told(self._walk.rows(tree)) if tree is not None else ():
            found += 1
            yield row.key, row.value
        self._found[table] = found

    def strays(self, tables: Sequence[str]) -> Iterator[tuple[bytes, bytes]]:
        """Rows to which no tree has led, once `rows` has been asked for these tables; none in a file that is whole."""
        whole = self.names_known and all(self._found.get(name) == self.entries(name) for name in tables)
        if whole and not self._damaged() and not self.rolled_back:
            return
        if self.free_known and not self.rolled_back:
            self._walk.pass_over(self._free)
        for name in self._trees:
            if name.decode(errors="replace") not in self._found:
                for _ in self._walk.rows(self._trees[name]):  # of tables that nobody wants
                    pass
        for row in self._told(self._walk.unseen()):
            yield row.key, row.value

    def _told(self, rows: Iterator[LeafRow]) -> Iterator[LeafRow]:
        for at, row in enumerate(rows):
            if at % _TOLD_EACH_ROWS == 0:
                self._progress(self._walk.pages_seen * self._file.page_bytes, self._file.pages * self._file.page_bytes)
            yield row


class Writer:
    """Rows into the tables of a new file, many a transaction; nothing is durable before `close`."""

    def __init__(
        self, directory: Path, open: Callable[..., lmdb.Environment], tables: Sequence[str], size: int
    ) -> None:
        """`open` is given LMDB's options; `size`: bytes of the file that rows come from. Raises lmdb.Error."""
        map_bytes = map_bytes_possible(directory, max(64 * GIB, 2 * size))
        self._environment = open(map_size=map_bytes, sync=False, metasync=False)
        self.databases = {name: self._environment.open_db(name.encode()) for name in tables}
        self.txn = self._environment.begin(write=True, buffers=True)
        self._bytes = self._rows = 0

    def put(self, table: str | None, key: bytes, value: bytes) -> None:
        """Write a row; beside the tables when `table` is None."""
        self.txn.put(key, value, db=None if table is None else self.databases[table])
        self._count(len(key) + len(value))

    def get(self, table: str, key: bytes) -> memoryview | None:
        """The row under a key; valid until the next one is written."""
        return self.txn.get(key, None, self.databases[table])

    def delete(self, table: str, key: bytes) -> None:
        """Delete a row, if it is there."""
        self.txn.delete(key, db=self.databases[table])
        self._count(len(key))

    def rows(self, table: str) -> Iterator[tuple[bytes, memoryview]]:
        """Every row in order; rows may be written and deleted meanwhile, and values are valid until then."""
        after = b""
        while True:
            with self.txn.cursor(self.databases[table]) as cursor:
                if not (cursor.set_range(after + b"\0") if after else cursor.first()):
                    return
                after, value = bytes(cursor.key()), cursor.value()
            yield after, value

    def entries(self, table: str) -> int:
        """How many rows a table has."""
        found: int = self.txn.stat(self.databases[table])["entries"]
        return found

    def _count(self, size: int) -> None:
        self._bytes += size
        self._rows += 1
        if self._bytes >= COMMIT_BYTES or self._rows >= COMMIT_ROWS:
            self.txn.commit()
            self.txn = self._environment.begin(write=True, buffers=True)
            self._bytes = self._rows = 0

    def close(self, whole: bool) -> None:
        """Make everything durable and close; when it is not `whole`, only close."""
        try:
            if whole:
                self.txn.commit()
                self._environment.sync(True)
            else:
                with suppress(lmdb.Error):
                    self.txn.abort()
        finally:
            self._environment.close()
