"""`lexicast bridge`: look at a bridges.toml, make one of a mosquitto.conf."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from lexicast.cluster.bridges.definitions import read_definitions
from lexicast.cluster.bridges.mosquitto_bridges import carried_bridges
from lexicast.cluster.errors import ConfigError, UsageError

from ..bridge.remote_link import tls_context
from ..launch.bridge_files import read_bridges
from .common import reported
from .mosquitto_import import mosquitto_text
from .parameters import QuickCommand, QuickGroup

bridge = typer.Typer(
    cls=QuickGroup,
    help="Bridges to other MQTT brokers (bridge.file). What they do: `lexicast status`.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@bridge.callback()
def _group() -> None:
    pass


@bridge.command(cls=QuickCommand)
@reported
def check(
    file: Annotated[Path, typer.Argument(metavar="BRIDGES.TOML", help="The file that bridge.file is to name.")],
) -> None:
    """Say what each bridge would do, or what is wrong with it; passwords and certificates are read too.

    lexicast bridge check bridges.toml
    """
    found = read_bridges(str(file))
    if not found:
        raise UsageError(f"{file}: there is no bridge in it: begin with [NAME]")
    for definition, secrets in found:
        tls_context(definition, secrets)
        told = f", as {definition.user}" if definition.user else ""
        secure = "mqtts" if definition.tls else "mqtt"
        typer.echo(f"{definition.name}: {secure}://{definition.remote_name}, MQTT {definition.protocol}{told}")
        for topic in definition.topic:
            here, there = topic.local_side().filter, topic.remote_side().filter
            arrow = {"out": "->", "in": "<-", "both": "<->"}[topic.direction]
            typer.echo(f"  {here} {arrow} {there}, QoS {topic.qos}")


@bridge.command("import", cls=QuickCommand)
@reported
def import_mosquitto(
    file: Annotated[Path, typer.Argument(metavar="MOSQUITTO.CONF", help="Mosquitto's configuration.")],
) -> None:
    """Print a bridges.toml with the bridges of a mosquitto.conf, and what is not carried over.

    Certificates are used where they lie; a password goes into a file of its own, which you name as password_file.

        lexicast bridge import /etc/mosquitto/mosquitto.conf > bridges.toml
    """
    text = mosquitto_text(file)
    try:
        found = carried_bridges(text)
        read_definitions(found.toml())
    except ConfigError as error:
        raise ConfigError(f"{file}: {error}") from None
    if not found.bridges:
        raise UsageError(f"{file}: there is no bridge in it (`connection NAME`)")
    typer.echo(found.toml(), nl=False)
    for each in found.left:
        typer.echo(f"not carried over: line {each.line}, {each.text}: {each.why}", err=True)
