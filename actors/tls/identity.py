"""Who a client is by the certificate that it has shown in its handshake.

OpenSSL has verified it by then: signature, dates, revocation. What a name is must be beyond doubt, since it is a
user's: one common name, no more and no less (the first of several is what whoever asks for a certificate wrote first).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from lexicast.cluster.config.tables import TlsConfig
from lexicast.cluster.errors import AuthenticationError
from lexicast.cluster.security.authors import can_be_user

if TYPE_CHECKING:
    from cryptography import x509

T = TypeVar("T")


def certified_user(transport: asyncio.BaseTransport, config: TlsConfig) -> str:
    """The user whom the connection's certificate names by `tls.user_from`; "": none was asked for, or none shown.

    Raises AuthenticationError: the certificate names nobody.
    """
    if config.user_from == "no" or (shown := _shown(transport)) is None:
        return ""
    name = _common_name(shown.getpeercert()) if config.user_from == "cn" else _subject(shown.getpeercert(True))
    if not can_be_user(name):
        raise AuthenticationError("the client's certificate has no name that can be a user's")
    return name


def issuer_and_number(transport: asyncio.BaseTransport) -> tuple[bytes, int] | None:
    """Who has issued the client's certificate (DER), and its serial number; None where it has shown none.

    Raises AuthenticationError: it cannot be read.
    """
    if (shown := _shown(transport)) is None:
        return None
    return _read(shown.getpeercert(True), lambda found: (found.issuer.public_bytes(), found.serial_number))


def is_encrypted(transport: asyncio.BaseTransport) -> bool:
    """Whether the connection came by TLS."""
    return transport.get_extra_info("cipher") is not None


def _shown(transport: asyncio.BaseTransport) -> Any:
    """The TLS object of a connection whose client has shown a certificate, else None."""
    shown = transport.get_extra_info("ssl_object")
    return shown if shown is not None and shown.getpeercert() else None


def _common_name(certificate: dict[str, Any]) -> str:
    names = [value for part in certificate.get("subject", ()) for key, value in part if key == "commonName"]
    if len(names) != 1:
        raise AuthenticationError(f"the client's certificate has {len(names)} common names, not one")
    return str(names[0])


def _subject(data: bytes) -> str:
    return _read(data, lambda found: found.subject.rfc4514_string())


def _read(data: bytes, ask: Callable[[x509.Certificate], T]) -> T:
    """What is asked of a certificate. OpenSSL takes more than this parser does, which raises what it likes, and some of
    it only when it is asked."""
    from cryptography import x509  # only where lists and whole subjects are looked at

    try:
        return ask(x509.load_der_x509_certificate(data))
    except Exception as error:
        raise AuthenticationError(f"the client's certificate cannot be read: {error}") from None
