"""The secrets of an encrypted link: X25519 (RFC 7748) with keys that are thrown away, and the cluster's key. Pure.

    HKDF-SHA256 (RFC 5869) of the shared secret; salt: the cluster's key; info: what was heard, HELLO the last of it
    (`link_proofs`)

Both are needed to read a link: who learns the cluster's key later reads nothing of what went before (the key pairs are
gone), and who has the key and only listens nothing at all. Every link has secrets of its own, one for each direction.
"""

from __future__ import annotations

from typing import Final

from ..errors import PeerError
from .link_proofs import Heard
from .sealed_records import Opener, Sealer

PRIVATE_BYTES: Final = 32
PUBLIC_BYTES: Final = 32
SECRET_BYTES: Final = 32


class KeyAgreement:
    """One side's key pair, for one link. `private`: PRIVATE_BYTES at random, that nobody has used or will use."""

    def __init__(self, private: bytes) -> None:
        from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey  # only where links are encrypted

        self._private = X25519PrivateKey.from_private_bytes(private)
        self.public = self._private.public_key().public_bytes_raw()

    def agree(self, public: object, key: bytes, heard: Heard) -> tuple[bytes, bytes]:
        """(the dialler's secret, the listener's), of `public`, the peer's, and `key`, the cluster's.

        Raises PeerError: that is no public key.
        """
        from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey
        from cryptography.hazmat.primitives.hashes import SHA256
        from cryptography.hazmat.primitives.kdf.hkdf import HKDF

        try:
            if type(public) is not bytes:
                raise ValueError("not bytes")
            shared = self._private.exchange(X25519PublicKey.from_public_bytes(public))
        except ValueError as error:  # also the few with which every secret would be the same (RFC 7748, section 6.1)
            raise PeerError(f"the peer's public key cannot be used: {error}") from None
        info = b"lexicast link secrets" + heard.digest()
        secrets = HKDF(algorithm=SHA256(), length=2 * SECRET_BYTES, salt=key, info=info).derive(shared)
        return secrets[:SECRET_BYTES], secrets[SECRET_BYTES:]

    def dialler(self, public: object, key: bytes, heard: Heard) -> tuple[Sealer, Opener]:
        """What the dialler seals and opens with. Raises as `agree`."""
        own, peers = self.agree(public, key, heard)
        return Sealer(own), Opener(peers)

    def listener(self, public: object, key: bytes, heard: Heard) -> tuple[Sealer, Opener]:
        """The same of the listener."""
        peers, own = self.agree(public, key, heard)
        return Sealer(own), Opener(peers)
