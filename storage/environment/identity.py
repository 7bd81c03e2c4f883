"""Whose store a directory holds, before it is opened: a coordinator learns its cluster from its own store."""

from __future__ import annotations

from pathlib import Path

from .environment import DATA_FILE, Environment, read_identity
from .options import StoreOptions


def peek_cluster_id(directory: Path, options: StoreOptions) -> str | None:
    """The cluster that the store in `directory` belongs to; None when there is none yet. Raises StoreError."""
    if not (directory / DATA_FILE).exists():
        return None
    environment = Environment(directory, options)
    try:
        identity = read_identity(environment)
    finally:
        environment.close()
    return None if identity is None else identity.cluster_id
