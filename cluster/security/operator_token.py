"""The token that makes whoever holds it an operator, over HTTP."""

from __future__ import annotations

from hashlib import blake2b


def operator_token(cluster_key: bytes) -> str:
    """Made from the cluster's key, which nobody finds from it (BLAKE2b, keyed)."""
    return blake2b(b"http operator", key=cluster_key[:64], digest_size=24).hexdigest()
