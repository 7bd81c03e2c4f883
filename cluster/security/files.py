"""The files of security as a cluster has them: their content, under a version. Pure.

`lexicast up` reads them, and `lexicast security reload` reads them anew; the coordination server keeps them, brokers
follow. Which of them there are is decided by the configuration that `up` was given, and a broker knows that
configuration by itself: what it has not got it takes for unknown, never for absent (`lacking`), and lets nobody in.

Versions grow with every change; after the coordination server's registry was lost the next one is beyond all that were
given, since it follows the clock. 0: nothing is known.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Final, NamedTuple

from ..config.tables import SecurityConfig
from ..errors import ConfigError
from .acl_file import AclRule, parse_acl
from .likenesses import NO_LIKENESS, Likenesses, likenesses
from .passwords import PASSWORDS_BYTES_MAX, Passwords, read_passwords
from .tokens import TokenKey, read_token_keys

# Of each file: what the coordination server's registry has room for, twice.
FILE_BYTES_MAX: Final = PASSWORDS_BYTES_MAX
# By the fields of SecurityFiles, how people call them; their knobs are in `wanted`.
TITLES: Final = {"passwords": "password file", "rules": "acl file", "token_keys": "key file of tokens"}


class SecurityFiles(NamedTuple):
    """The content of each file; None: the cluster has none of that kind."""

    version: int
    passwords: bytes | None = None
    rules: bytes | None = None
    token_keys: bytes | None = None

    def given(self) -> dict[str, bytes]:
        """Those that there are, by their fields."""
        return {kind: data for kind in TITLES if (data := getattr(self, kind)) is not None}


NOTHING_KNOWN: Final = SecurityFiles(0)


class SecurityContents(NamedTuple):
    """What stands in them; None where there is no such file."""

    passwords: Passwords | None
    rules: list[AclRule] | None
    token_keys: list[TokenKey] | None = None
    likenesses: Likenesses = NO_LIKENESS


def wanted(config: SecurityConfig) -> dict[str, str]:
    """The files that a configuration names: their paths, by the fields of SecurityFiles."""
    named = {"passwords": config.password_file, "rules": config.acl_file, "token_keys": config.jwt_key_file}
    return {kind: path for kind, path in named.items() if path}


def lacking(config: SecurityConfig, files: SecurityFiles) -> list[str]:
    """What the cluster is to have by its configuration, and is not known, in words."""
    return [TITLES[kind] for kind in wanted(config) if getattr(files, kind) is None]


def contents(files: SecurityFiles) -> SecurityContents:
    """What stands in the files. Raises ConfigError, which names the file and the line."""
    for kind, title in TITLES.items():
        data = getattr(files, kind)
        if data is not None and len(data) > FILE_BYTES_MAX:
            raise ConfigError(f"the {title} has {len(data):,} bytes: at most {FILE_BYTES_MAX:,} are taken")
    passwords = None if files.passwords is None else _passwords(files.passwords)
    rules = None if files.rules is None else _rules(files.rules)
    token_keys = None if files.token_keys is None else _token_keys(files.token_keys)
    return SecurityContents(passwords, rules, token_keys, likenesses(passwords or {}))


def _passwords(data: bytes) -> Passwords:
    try:
        return read_passwords(data)
    except ConfigError as error:
        raise ConfigError(f"the password file, {error}") from None


def _rules(data: bytes) -> list[AclRule]:
    try:
        return parse_acl(rules_text(data))
    except ConfigError as error:
        raise ConfigError(f"the acl file, {error}") from None


def _token_keys(data: bytes) -> list[TokenKey]:
    try:
        return read_token_keys(data)
    except ConfigError as error:
        raise ConfigError(f"the key file of tokens, {error}") from None


def rules_text(data: bytes) -> str:
    """The acl file as text. Raises ConfigError."""
    if len(data) > FILE_BYTES_MAX:
        raise ConfigError(f"it has {len(data):,} bytes: at most {FILE_BYTES_MAX:,} are taken")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise ConfigError(f"line {data.count(10, 0, error.start) + 1}: it is not UTF-8") from None


def file_digest(data: bytes) -> bytes:
    """By which a file is known."""
    return blake2b(data, digest_size=16).digest()


def changes(before: SecurityContents, after: SecurityContents) -> list[str]:
    """What is different, in words; empty where nothing is."""
    told = _changed_users(before.passwords or {}, after.passwords or {})
    if before.rules != after.rules:
        old, new = before.rules or [], after.rules or []
        told.append(f"rules: {len(new):,}, where there were {len(old):,}")
    old_keys, new_keys = ({key.fingerprint for key in side.token_keys or ()} for side in (before, after))
    if old_keys != new_keys:
        told.append(f"keys of tokens: {len(new_keys - old_keys)} added, {len(old_keys - new_keys)} removed")
    return told


def _changed_users(before: Passwords, after: Passwords) -> list[str]:
    counts = {
        "added": len(after.keys() - before.keys()),
        "removed": len(before.keys() - after.keys()),
        "with another password": sum([before[user] != after[user] for user in before.keys() & after.keys()]),
    }
    told = ", ".join([f"{count:,} {what}" for what, count in counts.items() if count])
    return [f"users: {told}"] if told else []
