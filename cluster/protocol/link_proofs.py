"""What the two sides of a link prove to each other: that they hold the cluster's key, and that both heard the same.

A proof is an HMAC, under the cluster's key, over everything that was said before it (the transcript): who dials, as
what, whether the link is encrypted, and the public keys from which its keys follow. So whoever stands between the two
and passes the proofs on has to pass all else on as it is, the public keys too, and then cannot read what follows
(SIGMA: Krawczyk, CRYPTO 2003, section 5, with a shared key in the place of signatures). Pure.
"""

from __future__ import annotations

import hashlib
import hmac
from typing import Any, Final

import msgpack

PROOF_BYTES: Final = 32
# Which of the two proves: neither's proof is of use as the other's.
DIALLER: Final = b"dialler"
LISTENER: Final = b"listener"


class Heard:
    """All that was said on one link so far, in order, by both sides: its hash."""

    def __init__(self) -> None:
        self._hash = hashlib.sha256(b"lexicast link")

    def add(self, *message: Any) -> None:
        """It was said, or heard. What counts are its fields, however they were packed on the way."""
        self._hash.update(msgpack.packb(message))

    def digest(self) -> bytes:
        """32 bytes."""
        return self._hash.digest()


def proof(key: bytes, side: bytes, heard: Heard) -> bytes:
    """What a holder of the cluster's key says to what was heard; `side`: DIALLER or LISTENER."""
    return hmac.digest(key, side + heard.digest(), "sha256")


def is_proof(given: bytes, key: bytes, side: bytes, heard: Heard) -> bool:
    """Whether `given` is that."""
    return hmac.compare_digest(given, proof(key, side, heard))
