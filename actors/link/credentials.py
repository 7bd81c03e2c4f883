"""Whom a client logs in as: a user with a password, or whom a token or a certificate names.

Secrets are looked at anew with each connection, so that a program goes on where its token is renewed: give a function,
or in the environment a file.

    LEXICAST_USER            the user's name
    LEXICAST_PASSWORD_FILE   a file whose first line is the password
    LEXICAST_TOKEN_FILE      the same for a token
    LEXICAST_CA_FILE         certificates of those who vouch for brokers; else the system's
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeAlias

from lexicast.cluster.errors import ConfigError, UsageError
from lexicast.cluster.protocol.messages import SECRET_BYTES_MAX

from .user_handshake import LoginClaim

USER_VARIABLE: Final = "LEXICAST_USER"
PASSWORD_VARIABLE: Final = "LEXICAST_PASSWORD_FILE"
TOKEN_VARIABLE: Final = "LEXICAST_TOKEN_FILE"
CA_VARIABLE: Final = "LEXICAST_CA_FILE"

# A password or token, or what gives it.
Secret: TypeAlias = str | bytes | Callable[[], str | bytes]
# A file of certificates, or a context with whatever a program wants of TLS.
Tls: TypeAlias = str | os.PathLike[str] | ssl.SSLContext


@dataclass(frozen=True, slots=True)
class Credentials:
    """See the module's docstring. `context`: how brokers are known."""

    user: str | None = None
    secret: Callable[[], bytes] | None = field(default=None, repr=False)
    tls: Tls | None = None
    _contexts: list[ssl.SSLContext] = field(default_factory=list, repr=False, compare=False)

    def claim(self, client_id: str) -> LoginClaim:
        """What is said to a broker. Raises UsageError, ConfigError: there is no secret now."""
        return LoginClaim(client_id, self.user, None if self.secret is None else self.secret())

    def context(self) -> ssl.SSLContext:
        """For TLS; the same for all connections. Raises ConfigError: the file cannot be used."""
        if isinstance(self.tls, ssl.SSLContext):
            return self.tls
        if not self._contexts:
            try:
                self._contexts.append(ssl.create_default_context(cafile=self.tls))
            except (OSError, ValueError) as error:
                raise ConfigError(f"the certificates of {self.tls} cannot be used: {error}") from None
        return self._contexts[0]


def credentials(user: str | None, password: Secret | None, token: Secret | None, tls: Tls | None) -> Credentials | None:
    """Of what a program gives; None: it gives nothing. Raises UsageError: some of it does not go together."""
    if password is not None and token is not None:
        raise UsageError("give password or token, not both")
    if password is not None and not user:
        raise UsageError("a password goes with a user: give user='NAME'")
    if user is not None and password is None and token is None:
        raise UsageError(f"user {user!r}: give password or token too")
    given = token if password is None else password
    if user is None and given is None and tls is None:
        return None
    return Credentials(user, None if given is None else lambda: _bytes(given), tls)


def from_environment(environment: Mapping[str, str]) -> Credentials | None:
    """Those that the environment names; None: it names none. Raises UsageError as `credentials`."""
    user = environment.get(USER_VARIABLE) or None
    password, token = environment.get(PASSWORD_VARIABLE), environment.get(TOKEN_VARIABLE)
    return credentials(
        user,
        secret_of_file(password) if password else None,
        secret_of_file(token) if token else None,
        environment.get(CA_VARIABLE) or None,
    )


def secret_of_file(path: str | os.PathLike[str]) -> Callable[[], bytes]:
    """The first line of a file, read each time."""

    def read() -> bytes:
        try:
            lines = Path(path).read_bytes().splitlines()
        except OSError as error:
            raise ConfigError(f"{path} cannot be read: {error.strerror}") from None
        if not lines or not lines[0]:
            raise ConfigError(f"{path} has no first line: a password or token stands there")
        return lines[0]

    return read


def _bytes(given: Secret) -> bytes:
    found = given() if callable(given) else given
    if not isinstance(found, str | bytes):
        raise UsageError(f"a password or token is text or bytes, not {type(found).__name__}")
    secret = found.encode(errors="surrogateescape") if isinstance(found, str) else found
    if not 0 < len(secret) <= SECRET_BYTES_MAX:
        raise UsageError(f"a password or token has 1 to {SECRET_BYTES_MAX:,} bytes, not {len(secret):,}")
    return secret
