"""A table: sealed rows under short keys, read in short transactions."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from .format import seal, unseal

if TYPE_CHECKING:
    import lmdb

    Database: TypeAlias = lmdb._Database
    ReadTransaction: TypeAlias = lmdb.Transaction[memoryview]
    WriteTransaction: TypeAlias = lmdb.Transaction[bytes]
    AnyTransaction: TypeAlias = ReadTransaction | WriteTransaction
else:
    Database = ReadTransaction = WriteTransaction = AnyTransaction = object


class Table:
    """Rows of one LMDB database, each with a checksum over key and data."""

    __slots__ = ("database", "name")

    def __init__(self, name: str, database: Database) -> None:
        self.name = name
        self.database = database

    def get(self, txn: AnyTransaction, key: bytes) -> bytes | None:
        """The row under `key`, or None. Raises DamageError when it does not match its checksum."""
        value = txn.get(key, None, self.database)
        return None if value is None else unseal(self.name, key, value)

    def put(self, txn: WriteTransaction, key: bytes, data: bytes) -> None:
        """Write a row; what was under `key` is replaced."""
        txn.put(key, seal(key, data), db=self.database)

    def delete(self, txn: WriteTransaction, key: bytes) -> bool:
        """Delete a row; False when there was none."""
        return txn.delete(key, db=self.database)

    def rows(
        self, txn: AnyTransaction, prefix: bytes, after: bytes | None = None, limit: int = 1_000
    ) -> list[tuple[bytes, bytes]]:
        """Up to `limit` rows whose key starts with `prefix`, in key order, from the first key beyond `after` on."""
        found: list[tuple[bytes, bytes]] = []
        with txn.cursor(self.database) as cursor:
            there = cursor.set_range(prefix if after is None else after + b"\0")
            while there and len(found) < limit:
                key = bytes(cursor.key())
                if not key.startswith(prefix):
                    break
                found.append((key, unseal(self.name, key, cursor.value())))
                there = cursor.next()
        return found
