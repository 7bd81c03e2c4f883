"""The identity of a store: of which cluster and member it is, and in which format.

It stands in the store several times: it cannot be told from anything else in there. A coordinator learns its cluster
from its own store (`peek_cluster_id`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

import lmdb
import msgpack

from lexicast.cluster.errors import StoreError, StoreFormatError

from ..file.damage import Ledger
from ..file.sealing import DamageError, Value, seal, unseal
from ..log.block_format import FORMAT_VERSION
from .environment import DATA_FILE, Environment
from .options import StoreOptions

# Beside the tables, for repair: a page that each commit writes anew.
IDENTITY_COPY: Final = b"identity.copy"

# Whose store this is cannot be told from anything else in it: the row stands there several times.
IDENTITY: Final = (b"identity", b"identity, again", b"identity, once more")


class Identity(NamedTuple):
    """Whose store this is, written once when it is created."""

    version: int
    cluster_id: str
    member: str
    groups: int


def peek_cluster_id(directory: Path, options: StoreOptions) -> str | None:
    """The cluster that the store in `directory` belongs to; None when there is none yet. Raises StoreError."""
    identity = peek_identity(directory, options)
    return None if identity is None else identity.cluster_id


def peek_identity(directory: Path, options: StoreOptions) -> Identity | None:
    """Whose store is in `directory`; None when there is none yet. Raises StoreError."""
    if not (directory / DATA_FILE).exists():
        return None
    environment = Environment(directory, options)
    try:
        return read_identity(environment)
    finally:
        environment.close()


def identify(environment: Environment, wanted: Identity) -> None:
    """Write `wanted` into an empty store; in another one, compare. Raises StoreFormatError when they differ."""
    found = read_identity(environment)
    if found is None or (found == wanted and environment.damage.counts.get("identity")):
        _write_identity(environment, wanted)
    elif found != wanted:
        raise StoreFormatError(
            f"{environment.directory} is the store of cluster {found.cluster_id!r}, member {found.member!r}, "
            f"{found.groups} groups; asked for cluster {wanted.cluster_id!r}, member {wanted.member!r}, "
            f"{wanted.groups} groups: use that cluster's data directory, or an empty one"
        )


def read_identity(environment: Environment) -> Identity | None:
    """Whose store this is; None when it is empty. Raises StoreFormatError when that cannot be read or is newer."""
    directory = environment.directory
    try:
        with environment.snapshot() as txn:
            rows = [(bytes(key), bytes(row)) for key, row in txn.cursor(environment.databases.identity)]
            if not rows and not txn.stat(environment.databases.log)["entries"]:
                return None
    except lmdb.Error as error:
        raise StoreFormatError(f"the store {directory} cannot be read ({error}): restore it from a backup") from None
    found = next(_identities(rows, environment.damage), None)
    if found is None:
        raise StoreFormatError(
            f"the store {directory} has lost its identity: repair it, or restore it from a backup or another member"
        )
    refuse_version(directory, found.version)
    return found


def _identities(rows: Iterable[tuple[bytes, bytes]], damage: Ledger) -> Iterator[Identity]:
    """What each sound row says; damaged ones are noted, all of them, so that they are written anew."""
    found = []
    for key, row in rows:
        try:
            found.append(identity_of(key, row))
        except DamageError as error:
            damage.note(error)
    return iter(found)


def identity_of(key: Value, row: Value) -> Identity:
    """What a stored row says. Raises DamageError."""
    data = unseal("identity", key, row)
    try:
        return Identity(*msgpack.unpackb(data))
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise DamageError("identity", -1, -1, str(error)) from None


def refuse_version(directory: Path, version: int) -> None:
    """Raise StoreFormatError when a store has another format than ours."""
    if version > FORMAT_VERSION:
        raise StoreFormatError(
            f"the store {directory} has format {version}, this lexicast reads {FORMAT_VERSION}: use the lexicast that "
            "wrote it, or a newer one"
        )
    if version < FORMAT_VERSION:
        raise StoreFormatError(
            f"the store {directory} has format {version}, from before the first release; this lexicast reads "
            f"{FORMAT_VERSION}: use the lexicast that wrote it, or move it away to start with an empty store"
        )


def _write_identity(environment: Environment, wanted: Identity) -> None:
    try:
        with environment.begin() as txn:
            txn.drop(environment.databases.identity, delete=False)
            packed = msgpack.packb(tuple(wanted))
            for key in IDENTITY:
                txn.put(key, seal("identity", key, packed), db=environment.databases.identity)
            txn.put(IDENTITY_COPY, seal("identity", IDENTITY_COPY, packed))
    except lmdb.Error as error:
        raise StoreError(f"cannot write the new store {environment.directory}: {error}") from None
