"""Sealed records: a link's bytes, encrypted so that none is read, changed, repeated, moved or left out unnoticed. Pure.

    record     length of the rest (4 bytes, big endian), ciphertext of 1 to RECORD_BYTES_MAX bytes, tag (16 bytes)
    cipher     AES-256-GCM (NIST SP 800-38D); nonce: the record's number under its key, from 0
    keys       each direction's own. After RECORDS_A_KEY records the next one follows from the last by HMAC-SHA256, and
               that is forgotten: by then 64 GiB at most were encrypted under it (the bounds of RFC 8446, section 5.5,
               hold for 2^24.5 records of 16 KiB, six times that)

The number is not sent: a record that is repeated, moved or taken out does not open, nor does any after it. The length
is not covered by itself: with another one other bytes are taken for the record, and they do not open. What was cut off
at the end is noticed as the end of the link, which its users take for a loss whatever its cause (`link`).

Secrets come from `key_agreement`.
"""

from __future__ import annotations

import hmac
from typing import TYPE_CHECKING, Final

from ..errors import AuthenticationError, PeerError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

LENGTH_BYTES: Final = 4
TAG_BYTES: Final = 16
NONCE_BYTES: Final = 12
# As much as is decrypted before any of it can be used; twice as much would be 2% faster, and half 3% slower.
RECORD_BYTES_MAX: Final = 64 * 1024
RECORDS_A_KEY: Final = 1 << 20


class _Keys:
    """The keys of one direction, one after the other."""

    def __init__(self, secret: bytes, records_a_key: int) -> None:
        self._secret = secret
        self._records_a_key = records_a_key
        self._number = 0
        self.cipher = self._next()

    def _next(self) -> AESGCM:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # 20 ms: only where links are encrypted

        cipher = AESGCM(hmac.digest(self._secret, b"lexicast key", "sha256"))
        self._secret = hmac.digest(self._secret, b"lexicast secret", "sha256")
        return cipher

    def nonce(self) -> bytes:
        """Of the record that is next."""
        if self._number == self._records_a_key:
            self.cipher, self._number = self._next(), 0
        return self._number.to_bytes(NONCE_BYTES, "big")

    def went(self) -> None:
        """That one went well."""
        self._number += 1


class Sealer:
    """Seals what one side sends. `secret`: 32 bytes that nothing else was ever sealed with."""

    def __init__(self, secret: bytes, records_a_key: int = RECORDS_A_KEY) -> None:
        self._keys = _Keys(secret, records_a_key)

    def seal(self, data: bytes) -> bytes:
        """The records of `data`, one behind the other."""
        if len(data) <= RECORD_BYTES_MAX:
            return b"".join(self._record(data)) if data else b""
        view = memoryview(data)
        parts: list[bytes] = []
        for at in range(0, len(data), RECORD_BYTES_MAX):
            parts += self._record(view[at : at + RECORD_BYTES_MAX])
        return b"".join(parts)

    def _record(self, plain: bytes | memoryview) -> tuple[bytes, bytes]:
        keys = self._keys
        nonce = keys.nonce()
        sealed = keys.cipher.encrypt(nonce, plain, None)
        keys.went()
        return len(sealed).to_bytes(LENGTH_BYTES, "big"), sealed


class Opener:
    """Opens what the other side's `Sealer` has sealed, however its bytes come. Holds one read, and a record's part."""

    def __init__(self, secret: bytes, records_a_key: int = RECORDS_A_KEY) -> None:
        from cryptography.exceptions import InvalidTag

        self._wrong_tag = InvalidTag
        self._keys = _Keys(secret, records_a_key)
        self._held = bytearray()
        # So many bytes are there when what is held has become a record.
        self._wanted = LENGTH_BYTES
        self._broken = False

    def open(self, data: bytes) -> list[bytes]:
        """What was sealed, as far as whole records have come.

        Raises AuthenticationError: a record is not the one that the holder of the secret sealed next; PeerError: none
        is so long. After either nothing is opened any more.
        """
        if self._broken:
            raise AuthenticationError("a record before this one did not open")
        if self._held:
            self._held += data
            if len(self._held) < self._wanted:
                return []
            data = bytes(self._held)
            self._held.clear()
        plain: list[bytes] = []
        view, at = memoryview(data), 0
        while (size := self._size(view[at : at + LENGTH_BYTES])) <= len(view) - at:
            plain.append(self._opened(view[at + LENGTH_BYTES : at + size]))
            at += size
        self._held += view[at:]
        self._wanted = size
        return plain

    def _size(self, begins: memoryview) -> int:
        """Of the record that begins so; before its length is there, of that."""
        if len(begins) < LENGTH_BYTES:
            return LENGTH_BYTES
        length = int.from_bytes(begins, "big")
        if not TAG_BYTES < length <= RECORD_BYTES_MAX + TAG_BYTES:
            self._broken = True
            raise PeerError(f"no record has {length} bytes")
        return LENGTH_BYTES + length

    def _opened(self, sealed: memoryview) -> bytes:
        keys = self._keys
        nonce = keys.nonce()  # first: the cipher may be another one from then on
        try:
            plain = keys.cipher.decrypt(nonce, sealed, None)
        except self._wrong_tag:
            self._broken = True
            raise AuthenticationError(
                "what came is not what the peer sent: it was changed, repeated, moved or left out on the way"
            ) from None
        keys.went()
        return plain
