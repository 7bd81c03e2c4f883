"""`lexicast config`: the configuration in effect."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from lexicast.cluster.config.tables import default_text, load_config

from .common import ConfigOption, SetOption, overrides, reported


@reported
def show_config(
    config: ConfigOption = None,
    settings: SetOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
    documented: Annotated[bool, typer.Option(help="The documented lexicast.toml with all defaults instead.")] = False,
) -> None:
    """Print the configuration in effect: defaults, lexicast.toml, environment, --set.

    lexicast config --documented > lexicast.toml

    LEXICAST_MQTT__PORT=1884 lexicast config
    """
    if documented:
        typer.echo(default_text(), nl=False)
        return
    plain = load_config(config, overrides=overrides(None, settings)).as_dict()
    typer.echo(json.dumps(plain, indent=1) if as_json else _toml(plain))


def _toml(plain: dict[str, dict[str, Any]]) -> str:
    # every value is a bool, number, text or list of texts: JSON writes those as TOML does
    tables = [
        "\n".join([f"[{table}]", *[f"{key} = {json.dumps(value, ensure_ascii=False)}" for key, value in keys.items()]])
        for table, keys in plain.items()
    ]
    return "\n\n".join(tables)
