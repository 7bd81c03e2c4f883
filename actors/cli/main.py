"""The command line: `lexicast up | down | status | pub | sub | history | config | demo`.

Exit codes: 0 fine, 1 an error (one line on stderr says what to do), 2 wrong usage, 130 Ctrl-C (`up` stops cleanly on
the first one and exits 0). Ray is loaded by `up` and `status` alone.
"""

from __future__ import annotations

import json
import os
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich.console import Console

from lexicast.cluster.config.tables import Config, default_text, load_config
from lexicast.cluster.errors import LexicastError, UsageError

from ..launch.spark_environment import prepare_spark, spark_installed
from .bus import history, pub, sub
from .common import ConfigOption, DataDirOption, SetOption, overrides, reported, run_app
from .spark import add_jobs
from .status import status
from .store import store

DOWN_TIMEOUT_S: Final = 60.0


def _installed() -> str:
    from importlib import metadata  # loads what reads mail: only where the version is told

    try:
        return metadata.version("lexicast")
    except metadata.PackageNotFoundError:
        return "(from its sources)"


app = typer.Typer(
    name="lexicast",
    help="""A publish/subscribe cluster on Ray that learns the language of its topics.

    Start one with `lexicast up`; then, elsewhere:

        lexicast sub 'flights/#' --since 10m

        lexicast pub flights/JFK '{"delay": 5}'
    """,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120},
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"lexicast {_installed()}")
        raise typer.Exit


@app.callback()
def _main(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print it.")] = False,
) -> None:
    pass


@app.command()
@reported
def up(
    data_dir: DataDirOption = None,
    mqtt_port: Annotated[int | None, typer.Option(min=0, max=65_535, help="Port for MQTT; 0: any free one.")] = None,
    brokers: Annotated[int | None, typer.Option(min=1, help="Brokers on each node.")] = None,
    coordinators: Annotated[
        int | None, typer.Option(min=1, help="Coordinators on each node; fixed when the cluster is created.")
    ] = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on for MQTT; 0.0.0.0: all.")] = None,
    address: Annotated[
        str | None, typer.Option(help="Join this Ray (auto, or HOST:PORT) instead of starting one.")
    ] = None,
    nodes: Annotated[
        int, typer.Option(min=1, help="With --address: wait till that Ray has so many nodes; each gets its share.")
    ] = 1,
    config: ConfigOption = None,
    settings: SetOption = None,
    ready_file: Annotated[
        Path | None, typer.Option(help="Write where the cluster is (JSON) to this file when it serves.")
    ] = None,
) -> None:
    """Start a cluster here and serve until Ctrl-C (or `lexicast down`).

    Everything runs on this machine, in a Ray of its own, unless --address names another one. A second Ctrl-C kills.

        lexicast up

        lexicast up --data-dir ./data --mqtt-port 0 --brokers 2
    """
    from ..launch.cluster import run_cluster  # loads Ray, which takes a second: only here

    if spark_installed():
        with suppress(LexicastError):  # without a Java for it there is no Spark, and a cluster all the same
            prepare_spark()
    if nodes > 1 and address is None:
        raise UsageError("--nodes needs --address: a Ray of its own has one node")
    given = overrides(data_dir, settings)
    for key, value in (
        ("mqtt.port", mqtt_port),
        ("node.brokers", brokers),
        ("node.coordinators", coordinators),
        ("mqtt.host", host),
    ):
        if value is not None:
            given[key] = value
    with _Screen() as screen:
        run_cluster(
            load_config(config, overrides=given),
            address,
            screen.progress,
            screen.serving,
            ready_file,
            nodes=nodes,
            warn=screen.warning,
        )


class _Screen:
    """What `up` shows: a spinner while it starts, then where to connect, then a line with its time for each event."""

    def __init__(self) -> None:
        self._console = Console(highlight=False)
        self._spinner = self._console.status("")
        self._serves = False

    def __enter__(self) -> _Screen:
        self._spinner.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._spinner.stop()

    def progress(self, text: str) -> None:
        """One step of the start, or one event."""
        if self._serves:
            self._console.print(f"{time.strftime('%H:%M:%S')} {text}", soft_wrap=True, markup=False)
        else:
            self._spinner.update(text)

    def warning(self, text: str) -> None:
        """What is dangerous: it stays to be seen."""
        self._console.print(f"! {text}", soft_wrap=True, markup=False)

    def serving(self, run: Any) -> None:
        """Everything serves."""
        self._serves = True
        self._spinner.stop()
        self._console.print(_where(run), soft_wrap=True, markup=False)


def _where(run: Any) -> str:
    """What `up` prints when everything serves."""
    default = Config().node.data_path() == Path(run.data_dir)
    mqtt = [f"mqtt://{_bracketed(host)}:{run.mqtt_port}" for host in run.mqtt_hosts]
    return "\n".join(
        [
            f"lexicast {_installed()} serves (cluster {run.cluster_id[:8]}); Ctrl-C stops it",
            f"  MQTT     {' '.join(mqtt)}",
            f"  Python   lexicast.connect({'' if default else f'data_dir={run.data_dir!r}'})",
            f"  shell    lexicast sub '#'{'' if default else f' --data-dir {run.data_dir}'}",
            f"  data     {run.data_dir}",
            f"  Ray      {run.ray_address}, namespace {run.namespace}",
        ]
    )


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host  # RFC 3986, section 3.2.2


@app.command()
@reported
def down(
    data_dir: DataDirOption = None,
    config: ConfigOption = None,
    timeout_s: Annotated[float, typer.Option("--timeout", min=0.1, help="Seconds to wait.")] = DOWN_TIMEOUT_S,
) -> None:
    """Stop the cluster that `lexicast up` runs on a data folder; returns when it has stopped."""
    from ..launch.files import stop_up

    folder = load_config(config, overrides=overrides(data_dir, None)).node.data_path()
    pid = stop_up(folder, timeout_s)
    typer.echo(f"stopped (process {pid})")


@app.command("config")
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


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []})
@reported
def demo(context: typer.Context) -> None:
    """Replay real flight events through a cluster and show what arrived and in how many bytes (--help: options)."""
    # In this process's place, so that Ctrl-C and SIGTERM reach it and it can stop what it has started.
    os.execv(sys.executable, [sys.executable, "-m", "lexicast.bench.demo", *context.args])


app.command()(status)
app.command()(pub)
app.command()(sub)
app.command()(history)
add_jobs(app)
app.add_typer(store)


def main() -> None:
    """The entry point."""
    sys.exit(run_app(app, sys.argv[1:] or ["--help"]))


if __name__ == "__main__":
    main()
