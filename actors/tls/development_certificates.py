"""Certificates to try TLS with: an authority of one's own, a server's certificate, clients', a revocation list.

ECDSA with P-256, which every device knows and costs a handshake least. Nothing is overwritten, and every file is its
owner's alone. This is for a laptop and for tests: the authority's key lies beside what it signs.
"""

from __future__ import annotations

import ipaddress
import secrets
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from lexicast.cluster.errors import UsageError
from lexicast.cluster.files import create_file, make_folder
from lexicast.cluster.security.authors import can_be_user

DAYS: Final = 365
# Clocks of devices are minutes off.
BEFORE: Final = timedelta(hours=1)
NAME_MAX: Final = 64  # of a common name, RFC 5280 (ub-common-name)
CA, SERVER = "ca", "server"


class DevelopmentAuthority:
    """An authority, new or as it lies in a folder: it issues certificates whose files are NAME.crt and NAME.key there.

    Raises UsageError where a file exists already, or cannot be written.
    """

    def __init__(self, folder: Path, now: datetime | None = None) -> None:
        self.folder = folder
        self._now = datetime.now(UTC) if now is None else now
        self._key: ec.EllipticCurvePrivateKey
        self._certificate: x509.Certificate

    def path(self, name: str, kind: str) -> Path:
        """Of the file of `name`'s certificate ("crt") or key ("key"), or the list ("ca", "crl")."""
        return self.folder / f"{name}.{kind}"

    def create(self, days: int = 10 * DAYS) -> DevelopmentAuthority:
        """Make it: ca.crt and ca.key."""
        self._key = ec.generate_private_key(ec.SECP256R1())
        name = _name(f"lexicast development authority {secrets.token_hex(4)}")  # clients may trust several
        usage = x509.KeyUsage(
            digital_signature=True,
            content_commitment=False,
            key_encipherment=False,
            data_encipherment=False,
            key_agreement=False,
            key_cert_sign=True,
            crl_sign=True,
            encipher_only=False,
            decipher_only=False,
        )
        builder = self._builder(name, name, self._key.public_key(), days)
        builder = builder.add_extension(x509.BasicConstraints(True, None), True).add_extension(usage, True)
        self._certificate = builder.sign(self._key, hashes.SHA256())
        self._write(CA, self._certificate, self._key)
        return self

    def open(self) -> DevelopmentAuthority:
        """Take it as it lies in the folder. Raises UsageError where it does not."""
        try:
            key = serialization.load_pem_private_key(self.path(CA, "key").read_bytes(), None)
            self._certificate = x509.load_pem_x509_certificate(self.path(CA, "crt").read_bytes())
        except (OSError, ValueError) as error:
            raise UsageError(f"{self.folder} holds no authority that `lexicast cert make` made ({error})") from None
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise UsageError(f"{self.path(CA, 'key')} is no key that `lexicast cert make` made")
        self._key = key
        return self

    def issue_server(self, hosts: Sequence[str], days: int = DAYS, name: str = SERVER) -> x509.Certificate:
        """For a server that is reached by these names and addresses."""
        return self._issue(name, _name(hosts[0]), days, ExtendedKeyUsageOID.SERVER_AUTH, _hosts(hosts))

    def issue_client(self, name: str, days: int = DAYS) -> x509.Certificate:
        """For the client whose common name `name` is."""
        return self._issue(name, _client(name), days, ExtendedKeyUsageOID.CLIENT_AUTH, [])

    def revoke(self, certificates: Iterable[x509.Certificate], days: int = DAYS) -> Path:
        """Write the list of these as ca.crl, in place of the one that is there."""
        builder = x509.CertificateRevocationListBuilder().issuer_name(self._certificate.subject)
        builder = builder.last_update(self._now - BEFORE).next_update(self._now + timedelta(days=days))
        for each in certificates:
            one = x509.RevokedCertificateBuilder().serial_number(each.serial_number)
            builder = builder.add_revoked_certificate(one.revocation_date(self._now - BEFORE).build())
        path = self.path(CA, "crl")
        path.unlink(missing_ok=True)
        with create_file(path) as file:
            file.write(builder.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
        return path

    def _issue(
        self, name: str, subject: x509.Name, days: int, purpose: x509.ObjectIdentifier, names: list[x509.GeneralName]
    ) -> x509.Certificate:
        key = ec.generate_private_key(ec.SECP256R1())
        builder = self._builder(subject, self._certificate.subject, key.public_key(), days)
        builder = builder.add_extension(x509.BasicConstraints(False, None), True)
        builder = builder.add_extension(x509.ExtendedKeyUsage([purpose]), False)
        if names:
            builder = builder.add_extension(x509.SubjectAlternativeName(names), False)
        certificate = builder.sign(self._key, hashes.SHA256())
        self._write(name, certificate, key)
        return certificate

    def _builder(
        self, subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, days: int
    ) -> x509.CertificateBuilder:
        until = self._now + timedelta(days=days)
        begins = min(self._now - BEFORE, until - BEFORE)  # of one that has expired already, for tests
        builder = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(key)
        builder = builder.serial_number(x509.random_serial_number()).not_valid_before(begins).not_valid_after(until)
        builder = builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(key), False)
        authority = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        return builder.add_extension(authority, False)

    def _write(self, name: str, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> None:
        private = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        try:
            make_folder(self.folder)
            for kind, data in (("key", private), ("crt", certificate.public_bytes(serialization.Encoding.PEM))):
                with create_file(self.path(name, kind)) as file:
                    file.write(data)
        except FileExistsError as error:
            raise UsageError(f"{error.filename} exists already: nothing is overwritten") from None
        except OSError as error:
            raise UsageError(f"{self.path(name, 'key')} cannot be written: {error.strerror}") from None


def check_names(hosts: Sequence[str], clients: Iterable[str]) -> None:
    """Raises UsageError where there can be no certificate of one: to be known before there is an authority, whose files
    would be in the way of a second try."""
    _name(hosts[0])
    _hosts(hosts)
    for client in clients:
        _client(client)


def _hosts(hosts: Iterable[str]) -> list[x509.GeneralName]:
    found: list[x509.GeneralName] = []
    for host in hosts:
        try:
            found.append(x509.IPAddress(ipaddress.ip_address(host)))
        except ValueError:
            found.append(_dns(host))
    return found


def _client(name: str) -> x509.Name:
    if not name or "/" in name or "\0" in name or name in (CA, SERVER, ".", ".."):
        raise UsageError(f"{name!r} cannot be a client's name here: it names its files")
    return _name(name)


def _name(common_name: str) -> x509.Name:
    if not 0 < len(common_name) <= NAME_MAX or not can_be_user(common_name):
        raise UsageError(f"{common_name!r} is no common name: 1 to {NAME_MAX} characters")
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _dns(host: str) -> x509.DNSName:
    try:
        return x509.DNSName(host)
    except ValueError:
        raise UsageError(f"{host!r} is neither a host's name nor an address") from None
