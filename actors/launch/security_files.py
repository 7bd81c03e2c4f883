"""The files of the table [security], read: by `lexicast up` before anything starts, by `lexicast security reload`."""

from __future__ import annotations

import stat
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from lexicast.cluster.config.tables import Config
from lexicast.cluster.errors import ConfigError
from lexicast.cluster.security.files import FILE_BYTES_MAX, TITLES, SecurityContents, SecurityFiles, contents, wanted
from lexicast.cluster.security.tokens import check_fit

KNOBS: Final = {
    "passwords": "security.password_file",
    "rules": "security.acl_file",
    "token_keys": "security.jwt_key_file",
}
# Secrets: others who read a password file can guess at passwords.
SECRET: Final = ("passwords", "token_keys")


class UnreadableError(ConfigError):
    """A file cannot be read here; what stands in it is not known."""


class SecurityOnDisk(NamedTuple):
    """What was read (of version 0: not given to a cluster yet), and what should not be so, in words; `rights`
    among that: who else can read what."""

    files: SecurityFiles
    contents: SecurityContents
    warnings: tuple[str, ...]
    rights: tuple[str, ...]


def with_whole_security_paths(config: Config) -> Config:
    """The same with paths that mean the same in whatever folder: those of [security] as they are from here."""
    whole = {
        KNOBS[kind].replace(".", "__"): str(Path(path).expanduser().absolute())
        for kind, path in wanted(config.security).items()
    }
    return config.replaced(**whole) if whole else config


def read_security(paths: Mapping[str, str], algorithms: Sequence[str] = ()) -> SecurityOnDisk:
    """Read the files, by the fields of SecurityFiles. `algorithms`: those of tokens that are taken; none: that is not
    known. Raises UnreadableError, ConfigError: what is wrong in which line."""
    found, rights = {}, list[str]()
    for kind, path in paths.items():
        found[kind], said = _read(kind, path)
        rights += said
    files, warnings = SecurityFiles(0, **found), list(rights)
    try:
        read = contents(files)
        if algorithms and read.token_keys is not None:
            idle = check_fit(read.token_keys, algorithms)
            warnings += [f"{KNOBS['token_keys']} = '{paths['token_keys']}': {each}" for each in idle]
        return SecurityOnDisk(files, read, tuple(warnings), tuple(rights))
    except ConfigError as error:
        raise ConfigError(_with_paths(str(error), paths)) from None


def _with_paths(text: str, paths: Mapping[str, str]) -> str:
    """A complaint about "the password file", with its path."""
    for kind, title in TITLES.items():
        text = text.replace(f"the {title},", f"{KNOBS[kind]} = '{paths.get(kind, '')}',", 1)
    return text


def _read(kind: str, path: str) -> tuple[bytes, list[str]]:
    knob = KNOBS[kind]
    try:
        mode = Path(path).stat().st_mode
        if not stat.S_ISREG(mode):
            raise UnreadableError(f"{knob} = '{path}' is no file")
        with Path(path).open("rb") as file:
            data = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise UnreadableError(f"{knob} = '{path}' cannot be read: {error.strerror}") from None
    others = bool(mode & stat.S_IROTH) and kind in SECRET
    return data, [f"{knob} = '{path}' can be read by every user of this machine: `chmod o-r` it"] if others else []
