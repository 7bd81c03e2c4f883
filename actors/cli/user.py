"""`lexicast user add | passwd | remove | list | test`: the users of a password file, as Mosquitto's."""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import stat
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated, Any, Final, TypeAlias

import typer

from lexicast.cluster.config.tables import load_config
from lexicast.cluster.errors import ConfigError, StoreError, UsageError
from lexicast.cluster.files import FILE_MODE, write_whole
from lexicast.cluster.security.passwords import (
    ARGON2ID,
    KINDS,
    PASSWORDS_BYTES_MAX,
    SALT_BYTES,
    SHA512,
    Passwords,
    check_user,
    hash_password,
    parse_hash,
    read_passwords,
    with_user,
    without_user,
)

from .common import ConfigOption, SetOption, overrides, reported
from .parameters import QuickCommand, QuickGroup

# 128 bits: nobody guesses them, however fast the hash is.
SECRET_BYTES: Final = 16

user = typer.Typer(
    cls=QuickGroup,
    help="""The users of a password file (security.password_file), as `mosquitto_passwd` writes them.

    Changes reach a cluster that serves by `lexicast security reload`.""",
    no_args_is_help=True,
    rich_markup_mode=None,
)

FileOption: TypeAlias = Annotated[
    Path | None, typer.Option("--file", help="The password file; else security.password_file.", show_default=False)
]
NameArgument: TypeAlias = Annotated[str, typer.Argument(metavar="NAME", help="The user's name.")]
HashOption: TypeAlias = Annotated[
    str, typer.Option("--hash", help=f"How passwords are hashed: {', '.join(KINDS)}. Mosquitto 2.0 knows no argon2id.")
]
GenerateOption: TypeAlias = Annotated[
    bool, typer.Option("--generate", help="Make a secret of 128 bits and print it, instead of asking for a password.")
]


@user.command(cls=QuickCommand)
@reported
def add(
    name: NameArgument,
    generate: GenerateOption = False,
    hashed: HashOption = ARGON2ID,
    file: FileOption = None,
    config: ConfigOption = None,
    settings: SetOption = None,
) -> None:
    """Add a user. The password is asked for, or is a line of the standard input; never an argument, which others see.

    --generate is for devices: the secret is printed once, and stored with one fast hash, since nobody can guess it.
    Thousands that log in at once cost a broker nothing then; a password that people choose takes 30 ms of a core.

        lexicast user add ada

        lexicast user add sensor-17 --generate > sensor-17.secret

        pass show mqtt/ada | lexicast user add ada
    """
    _give_password(_path(file, config, settings), name, generate, hashed, is_new=True)


@user.command(cls=QuickCommand)
@reported
def passwd(
    name: NameArgument,
    generate: GenerateOption = False,
    hashed: HashOption = ARGON2ID,
    file: FileOption = None,
    config: ConfigOption = None,
    settings: SetOption = None,
) -> None:
    """Give a user another password, asked for as by `add`. Whoever is logged in with the old one is disconnected by the
    next `lexicast security reload`."""
    _give_password(_path(file, config, settings), name, generate, hashed, is_new=False)


@user.command(cls=QuickCommand)
@reported
def remove(
    name: NameArgument, file: FileOption = None, config: ConfigOption = None, settings: SetOption = None
) -> None:
    """Remove a user. Its clients are disconnected by the next `lexicast security reload`, and its sessions may be ended
    by whoever takes over a client id."""
    path = _path(file, config, settings)
    with _edited(path) as data:
        if name not in read_passwords(bytes(data)):
            raise UsageError(f"there is no user {name!r} in {path}")
        data[:] = without_user(bytes(data), name)


@user.command("list", cls=QuickCommand)
@reported
def list_users(
    as_json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
    file: FileOption = None,
    config: ConfigOption = None,
    settings: SetOption = None,
) -> None:
    """List the users and how their passwords are hashed."""
    path = _path(file, config, settings)
    found = {name: parse_hash(written).kind for name, written in _read(path).items()}
    if as_json:
        typer.echo(json.dumps(found, indent=1))
        return
    width = max([len(name) for name in found], default=0)
    for name, kind in found.items():
        typer.echo(f"{name:{width}}  {kind}")
    counts = ", ".join([f"{count:,} {kind}" for kind, count in sorted(Counter(found.values()).items())])
    typer.echo(f"{len(found):,} users in {path}{f' ({counts})' if counts else ''}", err=True)


@user.command("test", cls=QuickCommand)
@reported
def try_password(
    name: NameArgument, file: FileOption = None, config: ConfigOption = None, settings: SetOption = None
) -> None:
    """Say whether a password, asked for as by `add`, is the user's; exit code 1 where it is not."""
    path = _path(file, config, settings)
    written = _read(path).get(name)
    password = _asked(name, confirm=False)
    if written is None or not parse_hash(written).verify(password):
        raise StoreError(f"that is not the password of a user {name!r} in {path}")
    typer.echo(f"{name} may log in")


# -- the file


def _path(file: Path | None, config: Path | None, settings: list[str] | None) -> Path:
    """The password file. Raises UsageError where none is named."""
    named = file or load_config(config, overrides=overrides(None, settings)).security.password_file
    if not named:
        raise UsageError("which password file? Give --file, or set security.password_file in the configuration")
    return Path(named).expanduser().absolute()


def _read(path: Path) -> Passwords:
    return _parsed(path, _content(path))


def _content(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(PASSWORDS_BYTES_MAX + 1)
    except OSError as error:
        raise StoreError(f"cannot read {path}: {error.strerror}") from None


def _parsed(path: Path, data: bytes) -> Passwords:
    try:
        return read_passwords(data)
    except ConfigError as error:
        raise ConfigError(f"{path}, {error}") from None


@contextmanager
def _edited(path: Path, create: bool = False) -> Iterator[bytearray]:
    """The content of a file, which is what is left of it then, at once; `create`: made where it is missing. Others who
    edit it by this command wait: nothing that takes time is to be done meanwhile. Where it fails there is no file that
    was not there. Raises StoreError, ConfigError."""
    path = path.resolve()
    is_new = create and not path.exists()
    with _locked(path, os.O_CREAT if create else 0):
        try:
            before = _content(path)
            _parsed(path, before)
            data = bytearray(before)
            yield data
            _parsed(path, bytes(data))
            was = path.stat()
            write_whole(path, bytes(data))
            _belongs_as(path, was)
        except BaseException as error:
            if is_new and not path.stat().st_size:
                path.unlink()
            if isinstance(error, OSError):
                raise StoreError(f"cannot write {path}: {error.strerror}") from None
            raise


def _belongs_as(path: Path, was: os.stat_result) -> None:
    """Who could read the file (the cluster's user, Mosquitto's group) still can. Where it is not ours to give away it
    is ours alone. Raises OSError."""
    with suppress(PermissionError):
        os.chown(path, was.st_uid, was.st_gid)
        path.chmod(stat.S_IMODE(was.st_mode))


@contextmanager
def _locked(path: Path, flags: int) -> Iterator[None]:
    """A lock on the file that has this name, also where another one had it a moment ago."""
    while True:
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | flags, FILE_MODE)
        except OSError as error:
            raise StoreError(f"cannot write {path}: {error.strerror}") from None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            if path.exists() and os.path.samestat(os.fstat(descriptor), path.stat()):
                yield
                return
        finally:
            os.close(descriptor)


# -- the password


def _give_password(path: Path, name: str, generate: bool, kind: str, is_new: bool) -> None:
    """Write a user, `is_new` or one that is there, with a password; one that is made here is printed."""
    _check_is_new(_read(path) if path.exists() or not is_new else {}, path, name, is_new)
    row, secret = _made_row(name, generate, kind)  # asked for, and hashed, before others are made to wait
    with _edited(path, create=is_new) as data:
        _check_is_new(read_passwords(bytes(data)), path, name, is_new)
        data[:] = with_user(bytes(data), name, row)
    if secret:
        typer.echo(secret)


def _check_is_new(users: Passwords, path: Path, name: str, is_new: bool) -> None:
    if (name in users) == is_new:
        raise UsageError(
            f"{name!r} is a user already: `lexicast user passwd` gives another password"
            if is_new
            else f"there is no user {name!r} in {path}: `lexicast user add`"
        )


def _made_row(name: str, generate: bool, kind: str) -> tuple[str, str]:
    """A password's row, and the password where it was made here."""
    if kind not in KINDS:
        raise UsageError(f"--hash {kind}: write one of {', '.join(KINDS)}")
    check_user(name)  # before a password is asked for
    secret = secrets.token_urlsafe(SECRET_BYTES) if generate else ""
    password, kind = (secret.encode(), SHA512) if generate else (_asked(name, confirm=True), kind)
    return hash_password(password, secrets.token_bytes(SALT_BYTES[kind]), kind).text(), secret


def _asked(name: str, confirm: bool) -> bytes:
    """A password from the terminal, else the first line of the standard input. Raises UsageError for an empty one."""
    if sys.stdin.isatty():
        said: Any = typer.prompt(f"Password of {name}", hide_input=True, confirmation_prompt=confirm)
        password = str(said).encode(errors="surrogateescape")  # as it was typed
    else:
        password = sys.stdin.buffer.readline().rstrip(b"\r\n")
    if not password:
        raise UsageError("an empty password is none: give one at the prompt, or as a line of the standard input")
    return password
