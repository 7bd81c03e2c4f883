"""The files of [tls]: what is wrong with one is said in words, and a bad new file changes nothing."""

from __future__ import annotations

import os
import ssl
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import pytest
from cryptography.hazmat.primitives.serialization import Encoding

from lexicast.actors.tls.certificates import check_before_start, look, with_whole_paths
from lexicast.actors.tls.development_certificates import DevelopmentAuthority, check_names
from lexicast.actors.tls.identity import certified_user
from lexicast.actors.tls.material import TlsMaterial, server_context
from lexicast.cluster.config.tables import Config, TlsConfig
from lexicast.cluster.errors import AuthenticationError, ConfigError, UsageError

from ...support.certificates import authority

NOW = datetime.now(UTC)
DER: Final = Encoding.DER


@pytest.fixture
def made(tmp_path: Path) -> DevelopmentAuthority:
    return authority(tmp_path / "tls", "sensor")


def knobs(made: DevelopmentAuthority, **others: str) -> TlsConfig:
    own = {"certificate": str(made.path("server", "crt")), "key": str(made.path("server", "key"))}
    return TlsConfig(**{**own, **others})  # type: ignore[arg-type] # all of these are texts


def asking(made: DevelopmentAuthority, **others: str) -> TlsConfig:
    return knobs(made, client_certificates="required", client_ca=str(made.path("ca", "crt")), **others)


def test_good_files_are_good(made: DevelopmentAuthority) -> None:
    revoked = made.issue_client("lost")
    list_ = made.revoke([revoked])
    looked = check_before_start(asking(made, crl=str(list_)), NOW)
    assert looked.warnings == ()
    assert looked.revoked == {(revoked.issuer.public_bytes(), revoked.serial_number)}
    assert timedelta(364) < looked.until - NOW < timedelta(366)
    assert looked.overdue(NOW) == []
    context = server_context(asking(made, crl=str(list_)))
    assert context.verify_mode == ssl.CERT_REQUIRED
    assert context.minimum_version == ssl.TLSVersion.TLSv1_2
    assert context.options & ssl.OP_NO_RENEGOTIATION
    assert context.options & ssl.OP_NO_COMPRESSION


def test_what_is_wrong_is_said(made: DevelopmentAuthority, tmp_path: Path) -> None:
    other = authority(tmp_path / "other")
    empty, locked = tmp_path / "empty", tmp_path / "locked.key"
    empty.write_bytes(b"")
    command = ["openssl", "pkey", "-in", made.path("server", "key"), "-aes256", "-passout", "pass:x", "-out", locked]
    subprocess.run([str(part) for part in command], check=True, capture_output=True)
    for config, says in (
        (knobs(made, certificate="/nowhere/x.crt"), r"tls.certificate = '/nowhere/x.crt' cannot be read: No such file"),
        (knobs(made, certificate=str(empty)), r"tls.certificate = '.*empty' holds no certificate in PEM form"),
        (knobs(made, key="/nowhere/x.key"), r"tls.key = '/nowhere/x.key' cannot be read: No such file"),
        (knobs(made, key=str(made.path("server", "crt"))), r"tls.key = '.*server.crt' holds no private key in PEM"),
        (knobs(made, key=str(locked)), r"tls.key = '.*locked.key' is encrypted, .*openssl pkey"),
        (knobs(made, key=str(other.path("server", "key"))), r"tls.key = .* does not belong to tls.certificate = "),
        (asking(made, crl=str(empty)), r"tls.crl = '.*empty' holds no revocation list in PEM form"),
        (asking(made, crl=str(other.revoke([]))), r"tls.crl = .* is by 'CN=.*', which is none of tls.client_ca"),
    ):
        with pytest.raises(ConfigError, match=says):
            look(config)


def test_a_key_that_others_can_read_is_warned_of(made: DevelopmentAuthority) -> None:
    made.path("server", "key").chmod(0o644)
    assert [warning.split(":")[0] for warning in look(knobs(made)).warnings] == [
        f"tls.key = '{made.path('server', 'key')}' can be read by every user of this machine"
    ]


def test_an_expired_certificate_is_said_with_its_date(made: DevelopmentAuthority) -> None:
    made.issue_server(["localhost"], days=-2, name="old")
    config = knobs(made, certificate=str(made.path("old", "crt")), key=str(made.path("old", "key")))
    date = (NOW - timedelta(days=2)).strftime("%Y-%m-%d")
    with pytest.raises(ConfigError, match=rf"tls.certificate = .* expired on {date}"):
        check_before_start(config, NOW)
    assert [said.startswith(f"tls.certificate expired on {date}") for said in look(config).overdue(NOW)] == [True]
    with pytest.raises(ConfigError, match=r"is valid from .* on: look at this machine's clock"):
        check_before_start(knobs(made), NOW - timedelta(days=30))


def test_what_expires_soon_is_warned_of(made: DevelopmentAuthority) -> None:
    list_ = made.revoke([], days=300)
    looked = look(asking(made, crl=str(list_)))
    assert looked.overdue(NOW) == []
    assert looked.overdue(NOW + timedelta(days=299)) == []
    overdue = looked.overdue(NOW + timedelta(days=352))
    date = (NOW + timedelta(days=300)).strftime("%Y-%m-%d")
    assert [said[:40] for said in overdue] == [
        f"tls.certificate expires on {looked.until:%Y-%m-%d %H}",
        f"tls.crl was to be renewed by {date} "[:40],
    ]


def test_a_bad_new_file_keeps_the_old_one_and_a_good_one_is_taken(made: DevelopmentAuthority) -> None:
    material, certificate = TlsMaterial(knobs(made)), made.path("server", "crt")
    assert material.reload()
    assert material.status()["warnings"] == []
    before, text = material.context, certificate.read_bytes()
    assert not material.follow()  # nothing has changed
    certificate.write_bytes(b"rubbish")
    assert not material.follow()
    assert material.context is before
    (said,) = material.status()["warnings"]
    assert "holds no certificate in PEM form" in said
    assert said.endswith("; the old ones are used on")
    certificate.write_bytes(text)
    os.utime(certificate, (1, 1))
    assert material.follow()
    assert material.context is not before
    assert material.status()["warnings"] == []
    assert material.taken == 2


def test_a_key_of_a_kind_that_is_not_known_changes_nothing(made: DevelopmentAuthority) -> None:
    """A broker looks at files by itself: whatever a parser raises of them must not end it."""
    material, names = TlsMaterial(knobs(made)), [str(made.path("server", kind)) for kind in ("key", "crt")]
    assert material.reload()
    before = material.context
    curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:secp224k1", "-nodes", "-subj", "/CN=x"]
    command = ["openssl", "req", "-x509", *curve, "-keyout", names[0], "-out", names[1]]
    subprocess.run(command, check=True, capture_output=True)
    assert not material.follow()
    assert material.context is before
    assert "cannot be used" in material.problem


class Shown:
    """A transport whose client has shown a certificate, and its TLS object."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def get_extra_info(self, name: str) -> Shown | None:
        return self if name == "ssl_object" else None

    def getpeercert(self, binary: bool = False) -> Any:
        return self._data if binary else {"subject": ()}


def test_whose_certificate_cannot_be_read_may_be_anybody_who_is_revoked(made: DevelopmentAuthority) -> None:
    lost, other = made.issue_client("lost"), made.issue_client("other")
    list_ = made.revoke([lost])
    shown: list[Any] = [Shown(data) for data in (lost.public_bytes(DER), other.public_bytes(DER), b"rubbish")]
    material = TlsMaterial(asking(made, crl=str(list_)))
    assert material.reload()
    assert [material.is_revoked(each) for each in shown] == [True, False, True]
    with pytest.raises(AuthenticationError, match="cannot be read"):
        certified_user(shown[2], asking(made, user_from="subject"))


@pytest.mark.parametrize(
    ("hosts", "clients"),
    [(["h\u00f6st"], []), (["x" * 65], []), ([""], []), (["a"], ["a/b"]), (["a"], ["ca"]), (["a"], ["\udcff"])],
)
def test_names_of_which_there_can_be_no_certificate(hosts: list[str], clients: list[str]) -> None:
    check_names(["a", "192.0.2.1", "::1"], ["sensor"])
    with pytest.raises(UsageError):
        check_names(hosts, clients)


def test_a_renewal_in_two_steps_is_taken_when_it_is_done(made: DevelopmentAuthority) -> None:
    """Certificate and key are of two pairs for a moment."""
    material = TlsMaterial(knobs(made))
    material.reload()
    made.issue_server(["localhost"], name="next")
    made.path("next", "crt").replace(made.path("server", "crt"))
    assert not material.follow()
    assert "does not belong" in material.problem
    assert not material.follow()  # looked at no more before something changes
    made.path("next", "key").replace(made.path("server", "key"))
    assert material.follow()
    assert not material.problem


def test_without_files_there_is_no_context(made: DevelopmentAuthority) -> None:
    material = TlsMaterial(knobs(made, certificate="/nowhere"))
    assert not material.reload()
    assert material.context is None
    assert "the old ones" not in material.status()["warnings"][0]


def test_nothing_is_overwritten_and_all_is_private(made: DevelopmentAuthority) -> None:
    with pytest.raises(UsageError, match="exists already: nothing is overwritten"):
        DevelopmentAuthority(made.folder).create()
    again = DevelopmentAuthority(made.folder).open()
    with pytest.raises(UsageError, match="exists already"):
        again.issue_client("sensor")
    again.issue_client("other")
    modes = {path.name: path.stat().st_mode & 0o777 for path in made.folder.iterdir()}
    assert set(modes) == {f"{name}.{kind}" for name in ("ca", "server", "sensor", "other") for kind in ("crt", "key")}
    assert set(modes.values()) == {0o600}


@pytest.mark.parametrize("name", ["", "..", "../../x", "a\0b", "server", "ca", "x" * 65])
def test_a_client_name_is_no_path(made: DevelopmentAuthority, name: str) -> None:
    with pytest.raises(UsageError):
        made.issue_client(name)
    assert len(list(made.folder.iterdir())) == 6


def test_actors_get_whole_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/elsewhere")
    given = Config().replaced(tls__certificate="a.crt", tls__key="~/a.key")
    config = with_whole_paths(given).tls
    assert (config.certificate, config.key, config.crl) == (str(tmp_path / "a.crt"), "/elsewhere/a.key", "")
