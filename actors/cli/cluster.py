"""`lexicast up` and `lexicast down`."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich.console import Console

from lexicast.cluster.config.tables import Config, load_config
from lexicast.cluster.errors import LexicastError, UsageError

from ..launch.spark_environment import prepare_spark, spark_installed
from ..status.installed import installed_version
from .common import ConfigOption, DataDirOption, SetOption, overrides, reported

DOWN_TIMEOUT_S: Final = 60.0


@reported
def up(
    data_dir: DataDirOption = None,
    mqtt_port: Annotated[int | None, typer.Option(min=0, max=65_535, help="Port for MQTT; 0: any free one.")] = None,
    brokers: Annotated[int | None, typer.Option(min=1, help="Brokers on each node.")] = None,
    coordinators: Annotated[
        int | None,
        typer.Option(min=1, help="Coordinators on each node; those that a cluster has are started too."),
    ] = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on for MQTT; 0.0.0.0: all.")] = None,
    page: Annotated[
        int | None, typer.Option(min=0, max=65_535, metavar="PORT", help="Port for metrics and the page; 0: none.")
    ] = None,
    address: Annotated[
        str | None, typer.Option(help="Join this Ray (auto, or HOST:PORT) instead of starting one.")
    ] = None,
    nodes: Annotated[
        int, typer.Option(min=1, help="With --address: wait till that Ray has so many nodes; each gets its share.")
    ] = 1,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Start although strangers on other machines may do everything.")
    ] = False,
    config: ConfigOption = None,
    settings: SetOption = None,
    ready_file: Annotated[
        Path | None, typer.Option(help="Write where the cluster is (JSON) to this file when it serves.")
    ] = None,
) -> None:
    """Start a cluster here and serve until Ctrl-C (or `lexicast down`).

    Everything runs on this machine, in a Ray of its own, unless --address names another one. A second Ctrl-C kills.

        lexicast up --data-dir ./data --mqtt-port 0 --brokers 2
    """
    from ..launch.cluster import run_cluster  # loads Ray, which takes a second: only here

    if spark_installed():
        with suppress(LexicastError):  # without a Java for it there is no Spark, and a cluster all the same
            prepare_spark()
    if nodes > 1 and address is None:
        raise UsageError("--nodes needs --address: a Ray of its own has one node")
    options = {
        "mqtt.port": mqtt_port,
        "node.brokers": brokers,
        "node.coordinators": coordinators,
        "mqtt.host": host,
        "http.port": page,
        "security.insecure": insecure or None,
    }
    given = overrides(data_dir, settings) | {key: value for key, value in options.items() if value is not None}
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
    mqtt = _urls("mqtt", run.mqtt_hosts, run.mqtt_port)
    tls = _urls("mqtts", run.mqtt_tls_hosts, run.mqtt_tls_port)
    web = _urls("ws", run.mqtt_ws_hosts, run.mqtt_ws_port) + _urls("wss", run.mqtt_wss_hosts, run.mqtt_wss_port)
    return "\n".join(
        [
            f"lexicast {installed_version()} serves (cluster {run.cluster_id[:8]}); Ctrl-C stops it",
            f"  MQTT     {' '.join(mqtt)}",
            *([f"  with TLS {' '.join(tls)}"] if tls else []),
            *([f"  browsers {' '.join(web)}"] if web else []),
            *([f"  page     {' '.join(run.pages)}"] if run.pages else []),
            f"  Python   lexicast.connect({'' if default else f'data_dir={run.data_dir!r}'})",
            f"  shell    lexicast sub '#'{'' if default else f' --data-dir {run.data_dir}'}",
            f"  data     {run.data_dir}",
            f"  Ray      {run.ray_address}, namespace {run.namespace}",
        ]
    )


def _urls(scheme: str, hosts: list[str], port: int) -> list[str]:
    path = "/mqtt" if scheme in ("ws", "wss") else ""
    return [f"{scheme}://{_bracketed(host)}:{port}{path}" for host in hosts]


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host  # RFC 3986, section 3.2.2


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
