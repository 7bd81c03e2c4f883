"""`lexicast security import mosquitto.conf`: a configuration of lexicast's that lets in whom Mosquitto let in."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from lexicast.cluster.config.tables import Config
from lexicast.cluster.errors import ConfigError
from lexicast.cluster.security.files import rules_text
from lexicast.cluster.security.mosquitto_conf import CONF_BYTES_MAX, carried_over

from .common import reported


def mosquitto_text(file: Path) -> str:
    """What a mosquitto.conf says. Raises ConfigError."""
    try:
        with file.open("rb") as opened:
            data = opened.read(4 * CONF_BYTES_MAX)
    except OSError as error:
        raise ConfigError(f"{file}: {error.strerror}") from None
    try:
        return rules_text(data)
    except ConfigError as error:
        raise ConfigError(f"{file}: {error}") from None


@reported
def import_mosquitto(
    file: Annotated[Path, typer.Argument(metavar="MOSQUITTO.CONF", help="Mosquitto's configuration.")],
) -> None:
    """Print a lexicast.toml with Mosquitto's listeners, certificates, users and rules, and what is not carried over.

    The password file and the acl file are used as they are, where they lie.

        lexicast security import /etc/mosquitto/mosquitto.conf > lexicast.toml
    """
    text = mosquitto_text(file)
    try:
        found = carried_over(text)
        tables = found.tables.items()
        Config().replaced(**{f"{name}__{key}": said for name, table in tables for key, said in table.items()})
    except ConfigError as error:
        raise ConfigError(f"{file}: {error}") from None
    typer.echo(found.toml(), nl=False)
    for each in found.left:
        typer.echo(f"not carried over: line {each.line}, {each.text}: {each.why}", err=True)
