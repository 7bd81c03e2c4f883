"""`bridges.toml` and the files that it names, read: by `lexicast up` before anything starts, by `lexicast bridge
check`."""

from __future__ import annotations

from pathlib import Path
from typing import Final, TypeAlias

from lexicast.cluster.bridges.definitions import (
    FILE_BYTES_MAX,
    BridgeDefinition,
    BridgeSecrets,
    read_definitions,
)
from lexicast.cluster.errors import ConfigError

SECRET_BYTES_MAX: Final = 1024 * 1024

# Each bridge and the content of its files.
Bridges: TypeAlias = tuple[tuple[BridgeDefinition, BridgeSecrets], ...]


def read_bridges(path: str) -> Bridges:
    """What `path` says; nothing where it is empty. Paths in it are as from its own folder.

    Raises ConfigError: what is wrong in which bridge, or why a file cannot be read.
    """
    if not path:
        return ()
    file = Path(path).expanduser()
    data = _read(file, 4 * FILE_BYTES_MAX)
    try:
        definitions = read_definitions(data.decode())
    except UnicodeDecodeError:
        raise ConfigError(f"{file}: it is no text in UTF-8") from None
    except ConfigError as error:
        raise ConfigError(f"{file}: {error}") from None
    return tuple([(definition, _secrets(file, definition)) for definition in definitions])


def _secrets(file: Path, definition: BridgeDefinition) -> BridgeSecrets:
    found = {}
    for field, path in definition.files().items():
        where = file.parent / Path(path).expanduser()
        try:
            found[field.removesuffix("_file")] = _read(where, SECRET_BYTES_MAX)
        except ConfigError as error:
            raise ConfigError(f"{file}: [{definition.name}]: {field}: {error}") from None
    if "password" in found:
        found["password"] = found["password"].rstrip(b"\r\n")
    return BridgeSecrets(**found)


def _read(file: Path, bytes_max: int) -> bytes:
    try:
        with file.open("rb") as opened:
            data = opened.read(bytes_max + 1)
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error.strerror}") from None
    if len(data) > bytes_max:
        raise ConfigError(f"{file} has more than {bytes_max:,} bytes")
    return data
