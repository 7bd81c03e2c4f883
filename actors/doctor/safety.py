"""Certificates, keys and the files of [security], judged. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final, NamedTuple, TypeAlias

from lexicast.cluster.errors import ConfigError
from lexicast.cluster.security.passwords import PBKDF2, SHA512, parse_hash

from ..tls.certificates import TlsFiles, day
from .findings import OK, PROBLEM, WARNING, Finding

# With so many left Let's Encrypt's clients renew: whatever should have done it has not.
RENEWED_BEFORE: Final = timedelta(days=30)
# OWASP's cheat sheet wants 210,000; mosquitto_passwd writes 101 by default, which a graphics card tries by the million.
PBKDF2_ITERATIONS_MIN: Final = 10_000


# A bridge, and until when its certificates hold, by their fields: "ca", "certificate".
BridgeFiles: TypeAlias = tuple[str, Mapping[str, datetime]]


class KeptFile(NamedTuple):
    """A file and its rights. `is_secret`: who can read it can do what its owner can."""

    path: str
    mode: int
    is_secret: bool


def certificate_findings(looked: TlsFiles | str | None, now: datetime) -> Iterator[Finding]:
    """`looked`: the files of [tls], why `lexicast up` does not take them, or None: none are configured."""
    if looked is None:
        yield Finding("certificates", OK, "none: no TLS is configured")
        return
    if isinstance(looked, str):
        yield Finding("certificates", PROBLEM, looked, "mend it; brokers take new files by themselves")
        return
    if looked.until - now < RENEWED_BEFORE:
        yield _expiring("certificates", "tls.certificate", looked.until, now)
    else:
        yield Finding("certificates", OK, f"tls.certificate holds until {day(looked.until)} and matches its key")
    if looked.crl_until is not None and now > looked.crl_until:
        so = f"tls.crl was to be renewed by {day(looked.crl_until)}: no client certificate is taken"
        yield Finding("certificates", PROBLEM, so, "renew it")
    for warning in looked.warnings:
        if warning not in looked.rights:  # `rights_findings` tells of those
            yield Finding("certificates", WARNING, warning, "see docs/security.md")


def password_findings(passwords: Mapping[str, str]) -> Iterator[Finding]:
    """`passwords`: users and their hashes as they are written."""
    hashes = {name: parse_hash(written) for name, written in passwords.items()}
    weak = [n for n, each in hashes.items() if each.kind == PBKDF2 and each.iterations < PBKDF2_ITERATIONS_MIN]
    fast = [name for name, each in hashes.items() if each.kind == SHA512]
    if weak:
        so = f"{len(weak):,} users ({_some(weak)}) have hashes that passwords are guessed by fast ($7$, few iterations)"
        yield Finding("passwords", WARNING, so, "`lexicast user passwd NAME` gives a password a slow hash")
    told = f"{len(hashes):,} users"
    if fast:
        told += f"; {len(fast):,} with one fast hash ($6$), which is for generated secrets alone"
    yield Finding("passwords", OK, told)


def security_findings(read: Sequence[str] | ConfigError | None) -> Iterator[Finding]:
    """`read`: what should not be so with the files of [security], why they are not taken, None: none are configured."""
    if read is None:
        yield Finding("security", OK, "no users and no rules are configured")
        return
    if isinstance(read, ConfigError):
        yield Finding("security", PROBLEM, str(read), "mend it, then `lexicast security reload`")
        return
    for warning in read:
        yield Finding("security", WARNING, warning, "mend it, then `lexicast security reload`")
    if not read:
        yield Finding("security", OK, "the files of [security] can be read and understood")


def bridge_findings(read: Sequence[BridgeFiles] | ConfigError, now: datetime) -> Iterator[Finding]:
    """`read`: the bridges of bridge.file with what it names, or what is wrong with one."""
    if isinstance(read, ConfigError):
        yield Finding("bridges", PROBLEM, str(read), "mend it, and see `lexicast bridge check`; `lexicast up` reads it")
        return
    dates = [(f"{name}'s {field}", until) for name, found in read for field, until in found.items()]
    soon = [_expiring("bridges", what, until, now) for what, until in dates if until - now < RENEWED_BEFORE]
    yield from soon
    if not soon:
        names = ", ".join([name for name, _ in read])
        yield Finding("bridges", OK, f"{names}: all that they name can be read" if read else "none are configured")


def _expiring(check: str, what: str, until: datetime, now: datetime) -> Finding:
    """Of a certificate that has expired, or will soon."""
    if until < now:
        return Finding(check, PROBLEM, f"{what} expired on {day(until)}", "renew it")
    return Finding(check, WARNING, f"{what} expires on {day(until)}, in {(until - now).days} days", "renew it")


def rights_findings(files: Sequence[KeptFile]) -> Iterator[Finding]:
    """Who else can read and write the files that decide who may do what."""
    found = [finding for file in files if (finding := _rights_finding(file)) is not None]
    yield from found
    if files and not found:
        yield Finding("rights", OK, f"nobody else can write {len(files)} files of security, or read the secret ones")


def _rights_finding(file: KeptFile) -> Finding | None:
    if file.mode & 0o002:
        so = f"every user of this machine may write {file.path}"
        return Finding("rights", PROBLEM, so, f"chmod o-w {file.path}, and look at what stands in it")
    if file.is_secret and file.mode & 0o004:
        return Finding("rights", PROBLEM, f"every user of this machine can read {file.path}", f"chmod o-r {file.path}")
    return None


def _some(names: Sequence[str], most: int = 3) -> str:
    return ", ".join([repr(name) for name in names[:most]]) + (", ..." if len(names) > most else "")
