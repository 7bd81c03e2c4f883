"""`lexicast page`: where operators look, the token that lets them in, and what Prometheus and Grafana take."""

from __future__ import annotations

from importlib import resources
from typing import Annotated, Final

import typer

from lexicast.cluster.errors import UnavailableError, UsageError
from lexicast.cluster.security.operator_token import operator_token

from ..client.address import KEY_FILE, read_run
from .common import DataDirOption, find_cluster, reported

FILES: Final = {"alerts": "alerts.yml", "grafana": "grafana.json", "scrape": "scrape.yml"}


@reported
def page(
    token: Annotated[bool, typer.Option("--token", help="The token that lets its holder in as an operator.")] = False,
    alerts: Annotated[bool, typer.Option("--alerts", help="Rules of Prometheus: what to be told of.")] = False,
    grafana: Annotated[bool, typer.Option("--grafana", help="A dashboard of Grafana, to be imported.")] = False,
    scrape: Annotated[bool, typer.Option("--scrape", help="How Prometheus finds and asks the consoles.")] = False,
    data_dir: DataDirOption = None,
) -> None:
    """Print where the cluster's page is; or what to look at it with.

    lexicast page

    lexicast page --token > lexicast.token

    lexicast page --alerts > alerts.yml
    """
    wanted = [name for name, is_wanted in (("alerts", alerts), ("grafana", grafana), ("scrape", scrape)) if is_wanted]
    if len(wanted) + token > 1:
        raise UsageError("give one of --token, --alerts, --grafana, --scrape")
    if wanted:
        folder = resources.files("lexicast.actors.console").joinpath("prometheus")
        typer.echo(folder.joinpath(FILES[wanted[0]]).read_text(), nl=False)
        return
    data = find_cluster(None, data_dir)["data_dir"]
    run = read_run(data)
    if token:
        try:
            typer.echo(operator_token((data / KEY_FILE).read_bytes()))
        except OSError as error:
            raise UnavailableError(f"the cluster's key cannot be read ({error.strerror}): run as its user") from None
        return
    if not run.get("pages"):
        raise UnavailableError("this cluster has no page: start it with `lexicast up --page 18080`")
    for address in run["pages"]:
        typer.echo(address)
