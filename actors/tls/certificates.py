"""The files of the table [tls], looked at before they are used: what is wrong with one is said in words, with the date.

OpenSSL says of a key that belongs to another certificate `KEY_VALUES_MISMATCH`, of one that is encrypted nothing (it
asks the terminal), and of an expired certificate nothing at all: its clients find out. Here `look` says it, to
`lexicast up` before anything starts, and to brokers when they take new files. (`cryptography` is loaded where needed.)
"""

from __future__ import annotations

import stat
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from lexicast.cluster.config.tables import Config, TlsConfig
from lexicast.cluster.errors import ConfigError

if TYPE_CHECKING:
    from cryptography import x509

FILE_BYTES_MAX: Final = 16 * 1024 * 1024
# Of these and more, something should have renewed the certificate: Let's Encrypt's clients do it with 30 days left.
EXPIRES_SOON: Final = timedelta(days=14)
_LIST: Final = b"-----BEGIN X509 CRL-----"
_PRIVATE_KEY: Final = b"PRIVATE KEY-----"
_ENCRYPTED: Final = (b"ENCRYPTED PRIVATE KEY-----", b"Proc-Type: 4,ENCRYPTED")


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """What the files say. `until`: the certificate's last second; `crl_until`: when the lists are to be renewed, if
    there are any; `revoked`: issuers (DER) and serial numbers in them; `warnings`: what should not be so, `rights`
    among them: who else can read what."""

    until: datetime
    crl_until: datetime | None
    revoked: frozenset[tuple[bytes, int]]
    warnings: tuple[str, ...]
    rights: tuple[str, ...] = ()

    def overdue(self, now: datetime) -> list[str]:
        """What has expired, or will soon, in words."""
        said = []
        if now > self.until:
            said.append(f"tls.certificate expired on {day(self.until)}: clients refuse it")
        elif now > self.until - EXPIRES_SOON:
            said.append(f"tls.certificate expires on {day(self.until)}, in {(self.until - now).days} days: renew it")
        if self.crl_until is not None and now > self.crl_until:
            said.append(
                f"tls.crl was to be renewed by {day(self.crl_until)}: no client certificate is taken until it is"
            )
        return said


def look(config: TlsConfig) -> TlsFiles:
    """Look at all files. Raises ConfigError with what is wrong with one; that something has expired is not."""
    try:
        return _look(config)
    except ConfigError:
        raise
    except Exception as error:  # a broker lives on: what a parser raises is up to the file (an unknown curve, say)
        raise ConfigError(f"the files of [tls] cannot be used: {error or type(error).__name__}") from None


def _look(config: TlsConfig) -> TlsFiles:
    certificates = _certificates(config.certificate, "tls.certificate")
    _check_key(config, certificates[0])
    crl_until, revoked = None, frozenset[tuple[bytes, int]]()
    if config.client_certificates != "no":
        authorities = _certificates(config.client_ca, "tls.client_ca")
        if config.crl:
            crl_until, revoked = _revoked(config.crl, authorities)
    rights = tuple(_readable_by_others(config.key))
    warnings = (*rights, *_nameless(certificates[0]))
    return TlsFiles(certificates[0].not_valid_after_utc, crl_until, revoked, warnings, rights)


def check_before_start(config: TlsConfig, now: datetime) -> TlsFiles:
    """For `lexicast up`: what nobody would want to start with is wrong too. Raises ConfigError."""
    looked = look(config)
    if now > looked.until:
        raise ConfigError(f"tls.certificate = '{config.certificate}' expired on {day(looked.until)}: renew it")
    begins = _certificates(config.certificate, "tls.certificate")[0].not_valid_before_utc
    if now < begins:
        raise ConfigError(
            f"tls.certificate = '{config.certificate}' is valid from {day(begins)} on: look at this machine's clock"
        )
    return looked


def with_whole_paths(config: Config) -> Config:
    """The configuration for actors, whose current folder is another one."""
    named = {key: getattr(config.tls, key) for key in ("certificate", "key", "client_ca", "crl")}
    return config.replaced(**{f"tls__{key}": str(Path(p).expanduser().absolute()) for key, p in named.items() if p})


def signature(config: TlsConfig) -> tuple[Any, ...]:
    """What changes when one of the files does."""
    found: list[Any] = []
    for path in (config.certificate, config.key, config.client_ca, config.crl):
        try:
            told = Path(path).stat() if path else None
        except OSError as error:
            found.append(error.errno)
            continue
        found.append(told and (told.st_mtime_ns, told.st_size, told.st_ino))
    return tuple(found)


def day(time: datetime) -> str:
    """A date for people."""
    return time.astimezone(UTC).strftime("%Y-%m-%d %H:%M UTC")


def _read(path: str, knob: str) -> bytes:
    try:
        with Path(path).open("rb") as file:
            data = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise ConfigError(f"{knob} = '{path}' cannot be read: {error.strerror}") from None
    if len(data) > FILE_BYTES_MAX:
        raise ConfigError(f"{knob} = '{path}' has more than {FILE_BYTES_MAX} bytes: it is no such file")
    return data


def _certificates(path: str, knob: str) -> list[x509.Certificate]:
    from cryptography import x509  # 50 ms, and OpenSSL once more: only where there is TLS

    try:
        return x509.load_pem_x509_certificates(_read(path, knob))
    except ValueError as error:
        raise ConfigError(f"{knob} = '{path}' holds no certificate in PEM form ({error})") from None


def _check_key(config: TlsConfig, certificate: x509.Certificate) -> None:
    """Raises ConfigError: it cannot be used, or is another certificate's."""
    from cryptography.hazmat.primitives import serialization

    path, data = config.key, _read(config.key, "tls.key")
    if any(mark in data for mark in _ENCRYPTED):
        raise ConfigError(
            f"tls.key = '{path}' is encrypted, and nobody can be asked for its passphrase: write it without "
            "(`openssl pkey -in OLD -out NEW`), readable by the user of the cluster alone"
        )
    if _PRIVATE_KEY not in data:
        raise ConfigError(f"tls.key = '{path}' holds no private key in PEM form")
    try:
        public = serialization.load_pem_private_key(data, None).public_key()
    except (ValueError, TypeError) as error:
        raise ConfigError(f"tls.key = '{path}' holds no private key that can be used ({error})") from None
    form = serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    if public.public_bytes(*form) != certificate.public_key().public_bytes(*form):
        raise ConfigError(
            f"tls.key = '{path}' does not belong to tls.certificate = '{config.certificate}' (of a chain the server's "
            "own certificate comes first)"
        )


def _revoked(path: str, authorities: list[x509.Certificate]) -> tuple[datetime | None, frozenset[tuple[bytes, int]]]:
    """When the lists of the file are to be renewed, and whom they name. Raises ConfigError."""
    from cryptography import x509

    data = _read(path, "tls.crl")
    try:
        lists = [x509.load_pem_x509_crl(_LIST + each) for each in data.split(_LIST)[1:]]
    except ValueError as error:
        raise ConfigError(f"tls.crl = '{path}' cannot be read ({error})") from None
    if not lists:
        raise ConfigError(f"tls.crl = '{path}' holds no revocation list in PEM form")
    for found in lists:
        if not any(_is_by(found, each) for each in authorities):
            raise ConfigError(
                f"tls.crl = '{path}' is by '{found.issuer.rfc4514_string()}', which is none of tls.client_ca"
            )
    due = [found.next_update_utc for found in lists if found.next_update_utc is not None]
    named = frozenset([(found.issuer.public_bytes(), each.serial_number) for found in lists for each in found])
    return min(due, default=None), named


def _is_by(found: x509.CertificateRevocationList, authority: x509.Certificate) -> bool:
    try:
        return found.issuer == authority.subject and found.is_signature_valid(authority.public_key())  # type: ignore[arg-type] # keys that sign nothing are a TypeError
    except TypeError:
        return False


def _readable_by_others(path: str) -> list[str]:
    if Path(path).stat().st_mode & stat.S_IROTH:
        return [f"tls.key = '{path}' can be read by every user of this machine: `chmod o-r` it"]
    return []


def _nameless(certificate: x509.Certificate) -> list[str]:
    from cryptography import x509

    try:
        certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    except (x509.ExtensionNotFound, ValueError):
        return ["tls.certificate names no host (subjectAltName): most clients refuse it"]
    return []
