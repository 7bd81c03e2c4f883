"""What a broker shows and asks in TLS handshakes, made of the files of [tls] and made anew when these change.

A context is never changed: who connects from then on gets the new one, connections that stand keep theirs. Files that
cannot be used change nothing (the old context stays, `problem` says why), so a renewal that goes wrong costs nothing
before the old certificate expires; nor does one that is half done, whose certificate and key are of two pairs for a
moment: the other file changes too, and all are looked at again.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final, NoReturn

from lexicast.cluster.config.tables import TlsConfig
from lexicast.cluster.errors import AuthenticationError, ConfigError

from .certificates import TlsFiles, look, signature
from .identity import issuer_and_number

log = logging.getLogger(__name__)

_MINIMUM: Final = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}
_ASKED: Final = {"no": ssl.CERT_NONE, "optional": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}


def server_context(config: TlsConfig) -> ssl.SSLContext:
    """A context of these files. Raises ConfigError.

    No tickets in TLS 1.3: two writes more a connect, keys that other brokers do not have, and whoever resumes is not
    asked for its certificate again. Clients choose the cipher: those without AES in hardware put ChaCha20 first.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = _MINIMUM[config.minimum]
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
    context.options &= ~ssl.OP_CIPHER_SERVER_PREFERENCE
    context.num_tickets = 0
    try:
        context.load_cert_chain(config.certificate, config.key, _no_passphrase)
        context.verify_mode = _ASKED[config.client_certificates]
        if config.client_certificates != "no":
            context.load_verify_locations(config.client_ca)
        if config.crl:
            context.load_verify_locations(config.crl)
            context.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF
    except (OSError, ValueError) as error:  # also ssl.SSLError
        raise ConfigError(f"the files of [tls] cannot be used: {error}") from None
    return context


def _no_passphrase() -> NoReturn:
    """OpenSSL would ask at the terminal."""
    raise ValueError("tls.key is encrypted")


class TlsMaterial:
    """See the module's docstring. `context` is None while there never were files that can be used."""

    def __init__(self, config: TlsConfig) -> None:
        self._config = config
        self.context: ssl.SSLContext | None = None
        self.looked: TlsFiles | None = None
        self.problem = ""
        self.taken = 0
        self._signature: tuple[Any, ...] | None = None

    def reload(self) -> bool:
        """Take the files as they are now; whether they can be used."""
        self._signature = signature(self._config)  # before they are read: what changes meanwhile is seen next time
        try:
            self.looked, self.context = look(self._config), server_context(self._config)
        except ConfigError as error:
            if self.problem != str(error):
                log.error("%s", error)
            self.problem = str(error)
            return False
        self.problem = ""
        self.taken += 1
        return True

    def follow(self) -> bool:
        """Take the files if they are other ones by now; whether new ones were taken."""
        return signature(self._config) != self._signature and self.reload()

    def is_revoked(self, transport: asyncio.BaseTransport) -> bool:
        """Whether the client of a connection has shown a certificate that is revoked by now. (OpenSSL asks in the
        handshake, of who connects.) One that cannot be read may be any of them."""
        revoked = frozenset[tuple[bytes, int]]() if self.looked is None else self.looked.revoked
        try:
            return bool(revoked) and issuer_and_number(transport) in revoked
        except AuthenticationError:
            return True

    def status(self, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> dict[str, Any]:
        """{"until_s", "taken", "warnings"}: see `TlsFiles`; `taken` counts how often files were."""
        warnings = [self.problem + "; the old ones are used on" * (self.context is not None)] if self.problem else []
        until_s = 0.0
        if self.looked is not None:
            warnings += [*self.looked.overdue(now()), *self.looked.warnings]
            until_s = self.looked.until.timestamp()
        return {"until_s": until_s, "taken": self.taken, "warnings": warnings}
