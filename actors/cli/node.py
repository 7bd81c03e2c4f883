"""`lexicast node list | drain NAME | remove NAME`: the nodes of a cluster that serves.

A node is drained before it is stopped: others take over what its coordinators lead and hold, and its clients go to
other brokers. Removed is one that will not come back, so that others make the copies that it had.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Annotated, Any, Final, TypeAlias

import typer
from rich.console import Console
from rich.table import Table

from lexicast.cluster.errors import UnavailableError

from ..client.address import resolver
from ..client.known_brokers import Resolve
from ..status.nodes import DRAINED, NodeReport, node_reports
from ..status.over_link import ask_any_broker
from ..status.read_console import ReadConsole
from .common import AddressOption, DataDirOption, find_cluster, one_line, reported, run_async

LOOK_S: Final = 0.5

node = typer.Typer(name="node", help="The nodes of a cluster: list, drain, remove.", no_args_is_help=True)

NameArgument: TypeAlias = Annotated[str, typer.Argument(metavar="NAME", help="A node, as `lexicast node list` has it.")]
Ask: TypeAlias = Callable[..., Awaitable[Any]]


def _asking(address: str | None, data_dir: Any) -> Ask:
    found = find_cluster(address, data_dir)
    return partial(_ask, resolver(found.get("address"), found.get("data_dir"), None))


async def _ask(resolve: Resolve, method: str, *arguments: Any) -> Any:
    return await ask_any_broker(await resolve(), method, *arguments)


async def _reports(ask: Ask) -> dict[str, NodeReport]:
    now = await ask("cluster")
    if "error" in now["coordination"]:
        raise UnavailableError(f"the coordination server does not answer ({now['coordination']['error']}): try again")
    return node_reports(now)


@node.command("list")
@reported
def list_nodes(
    as_json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
    data_dir: DataDirOption = None,
    address: AddressOption = None,
) -> None:
    """List the nodes: what is on each, whether it serves, is being drained, or is away."""
    run_async(_list(_asking(address, data_dir), as_json))


async def _list(ask: Ask, as_json: bool) -> None:
    reports = await _reports(ask)
    if as_json:
        typer.echo(json.dumps({name: report._asdict() for name, report in reports.items()}, indent=1))
        return
    table = Table("node", "state", "location", "coordinators", "brokers", "leads", "copies", "clients", box=None)
    for name, report in reports.items():
        counts = [f"{count:,}" for count in (report.leads, report.copies, report.clients)]
        members = [", ".join(report.coordinators), ", ".join(report.brokers)]
        table.add_row(name, report.state, report.location, *members, *counts)
    ReadConsole(highlight=False).print(table)


@node.command()
@reported
def drain(
    name: NameArgument,
    undo: Annotated[bool, typer.Option("--undo", help="Have it serve again.")] = False,
    wait: Annotated[bool, typer.Option(help="Return when it is drained, not at once.")] = True,
    data_dir: DataDirOption = None,
    address: AddressOption = None,
) -> None:
    """Move what a node leads, holds and serves to the others, before its maintenance.

    No client sees an error of it: publications and deliveries go on, and those that are connected there find another
    broker. Ctrl-C stops waiting, not the draining. A drained node may be stopped; it serves again when it comes back,
    or with --undo.

        lexicast node drain machine-2

        lexicast node drain machine-2 --undo
    """
    run_async(_drain(_asking(address, data_dir), name, undo, wait))


async def _drain(ask: Ask, name: str, undo: bool, wait: bool) -> None:
    await ask("node_drain", name, not undo)
    if undo:
        typer.echo(f"{name} serves again; groups come back to it within a minute")
        return
    if not wait:
        typer.echo(f"{name} is being drained: `lexicast node list` shows how far it is")
        return
    console = Console(highlight=False, stderr=True)
    try:
        with console.status(f"draining {name}") as shown:
            while True:
                try:
                    report = (await _reports(ask)).get(name)
                except UnavailableError as error:  # the broker that was asked may have been drained: another one tells
                    shown.update(f"draining {name} ({one_line(error)})")
                else:
                    if report is None or report.state == DRAINED:
                        break
                    shown.update(
                        f"draining {name}: leads {report.leads:,} topic groups, has {report.copies:,} copies, "
                        f"{report.clients:,} clients"
                    )
                await asyncio.sleep(LOOK_S)
    except asyncio.CancelledError:
        typer.echo(f"{name} is being drained on; `lexicast node drain {name} --undo` has it serve again", err=True)
        raise
    typer.echo(f"{name} is drained: it may be stopped")


@node.command()
@reported
def remove(name: NameArgument, data_dir: DataDirOption = None, address: AddressOption = None) -> None:
    """Forget a node that will not come back, or that is drained; what still runs there is stopped.

    Others make the copies that it had. It is refused while the node has what nobody else has.

        lexicast node remove machine-2
    """
    run_async(_remove(_asking(address, data_dir), name))


async def _remove(ask: Ask, name: str) -> None:
    await ask("node_remove", name)
    typer.echo(f"{name} is none of the cluster's any more")
