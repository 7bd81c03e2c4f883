"""The manifest of a stand-alone DualDB: which runs count, up to which operation they go, and the store's time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

import msgpack

from lexicast.cluster.errors import StoreFormatError

from ..file.sealing import DamageError, Value, seal, unseal
from ..file.table import AnyTransaction, Database, WriteTransaction

# 2: with a journal beside it, of which an older lexicast would know nothing.
DUAL_VERSION: Final = 2
MANIFEST: Final = b"manifest"
TOMBSTONES: Final = b"graves"


class RunRow(NamedTuple):
    """A run as the manifest names it."""

    number: int
    level: int
    segments: int


@dataclass
class Manifest:
    """What counts besides the batches: operations before `flushed` lie in `runs`, or had expired."""

    flushed: int = 0
    now_us: int = -(2**63)
    until_us: int = -(2**63)
    next_run: int = 1
    runs: list[RunRow] = field(default_factory=list)
    dropped: list[int] = field(default_factory=list)
    # That of the row it was read from; 0 where there was none.
    version: int = 0


def read_manifest(txn: AnyTransaction, meta: Database, directory: Path) -> Manifest:
    """The manifest; a fresh one in an empty store. Raises StoreFormatError."""
    row = txn.get(MANIFEST, None, meta)
    return Manifest() if row is None else unpack_manifest(row, directory)


def unpack_manifest(row: Value, directory: Path) -> Manifest:
    """The manifest in a row. Raises StoreFormatError."""
    try:
        version, flushed, now_us, until_us, next_run, runs, dropped = msgpack.unpackb(unseal("meta", MANIFEST, row))
        if version > DUAL_VERSION:
            raise StoreFormatError(
                f"the DualDB {directory} has format {version}, this lexicast reads up to {DUAL_VERSION}: use the "
                "lexicast that wrote it, or a newer one"
            )
        return Manifest(flushed, now_us, until_us, next_run, [RunRow(*run) for run in runs], list(dropped), version)
    except (DamageError, ValueError, TypeError) as error:
        raise StoreFormatError(f"the manifest of the DualDB {directory} is damaged ({error}): repair it") from None


def write_manifest(txn: WriteTransaction, meta: Database, manifest: Manifest) -> None:
    """Store the manifest."""
    txn.put(MANIFEST, pack_manifest(manifest), db=meta)


def mark_version(begin: Callable[[], WriteTransaction], meta: Database, manifest: Manifest) -> None:
    """See to it that a lexicast that does not know this version refuses the store."""
    if manifest.version < DUAL_VERSION:
        with begin() as txn:
            write_manifest(txn, meta, manifest)
        manifest.version = DUAL_VERSION


def pack_manifest(m: Manifest) -> bytes:
    """The inverse of `unpack_manifest`."""
    fields = (DUAL_VERSION, m.flushed, m.now_us, m.until_us, m.next_run, [tuple(run) for run in m.runs], m.dropped)
    return seal("meta", MANIFEST, msgpack.packb(fields))
