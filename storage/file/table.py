"""A table: sealed rows under short keys, read in short transactions. A damaged row is as if it were not there."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

from .damage import Ledger
from .sealing import DamageError, seal, unseal

if TYPE_CHECKING:
    import lmdb

    Database: TypeAlias = lmdb._Database
    ReadTransaction: TypeAlias = lmdb.Transaction[memoryview]
    WriteTransaction: TypeAlias = lmdb.Transaction[bytes]
    AnyTransaction: TypeAlias = ReadTransaction | WriteTransaction
else:
    Database = ReadTransaction = WriteTransaction = AnyTransaction = object

Form = Callable[[bytes, bytes], object]

# No key of a table that is asked for its last one is longer.
_KEY_BYTES_MAX = 32


class Table:
    """Rows of one LMDB database, each with a checksum over key and data.

    `form(key, row)` gives what a row says, or raises DamageError for one of another form than the table's. What it or
    the checksum refuses is noted in `ledger` and not returned: who reads a row need not fear that it cannot be read.
    """

    __slots__ = ("_form", "_ledger", "database", "name")

    def __init__(self, name: str, database: Database, form: Form, ledger: Ledger) -> None:
        self.name = name
        self.database = database
        self._form = form
        self._ledger = ledger

    def get(self, txn: AnyTransaction, key: bytes) -> bytes | None:
        """The row under `key`; None when there is none, or a damaged one."""
        value = txn.get(key, None, self.database)
        return None if value is None else self._sound(key, value)

    def parsed(self, txn: AnyTransaction, key: bytes) -> Any:
        """What `form` makes of the row under `key`; None when there is none, or a damaged one."""
        value = txn.get(key, None, self.database)
        if value is None:
            return None
        try:
            return self._form(key, unseal(self.name, key, value))
        except DamageError as error:
            self._ledger.note(error)
            return None

    def damaged(self, txn: AnyTransaction, key: bytes) -> bool:
        """There is a row under `key`, and it is damaged."""
        value = txn.get(key, None, self.database)
        return value is not None and self._sound(key, value) is None

    def is_sound(self, key: bytes, value: bytes | memoryview) -> bool:
        """A stored row is not damaged; where it is, that is noted."""
        return self._sound(key, value) is not None

    def _sound(self, key: bytes, value: bytes | memoryview) -> bytes | None:
        try:
            row = unseal(self.name, key, value)
            self._form(key, row)
        except DamageError as error:
            self._ledger.note(error)
            return None
        return row

    def put(self, txn: WriteTransaction, key: bytes, data: bytes) -> None:
        """Write a row; what was under `key` is replaced."""
        txn.put(key, seal(self.name, key, data), db=self.database)

    def delete(self, txn: WriteTransaction, key: bytes) -> bool:
        """Delete a row; False when there was none."""
        return txn.delete(key, db=self.database)

    def rows(
        self, txn: AnyTransaction, prefix: bytes, after: bytes | None = None, limit: int = 1_000
    ) -> list[tuple[bytes, bytes]]:
        """Up to `limit` rows whose key starts with `prefix`, in key order, from the first key beyond `after` on.

        Fewer than `limit` only when there are no more.
        """
        found: list[tuple[bytes, bytes]] = []
        with txn.cursor(self.database) as cursor:
            there = cursor.set_range(prefix if after is None else after + b"\0")
            while there and len(found) < limit:
                key = bytes(cursor.key())
                if not key.startswith(prefix):
                    break
                row = self._sound(key, cursor.value())
                if row is not None:
                    found.append((key, row))
                there = cursor.next()
        return found

    def last_key(self, txn: AnyTransaction, prefix: bytes) -> bytes | None:
        """The last key that starts with `prefix` and whose row is sound."""
        with txn.cursor(self.database) as cursor:
            there = cursor.set_range(prefix + b"\xff" * _KEY_BYTES_MAX)
            there = cursor.prev() if there else cursor.last()
            while there:
                key = bytes(cursor.key())
                if self._sound(key, cursor.value()) is not None:
                    return key if key.startswith(prefix) else None
                there = cursor.prev()
        return None
