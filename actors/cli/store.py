"""`lexicast store check | repair | compact | backup | stats DIR`: the maintenance of the files of a store.

DIR is the directory with the store's data file in it: a coordinator's, below the cluster's data folder, or that of a
stand-alone DualDB. Checking, backing up and counting may run while it is in use.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, TypeAlias

import typer
from rich.console import Console
from rich.filesize import decimal
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from .common import ERROR, reported

if TYPE_CHECKING:
    from lexicast.storage.maintenance.check import CheckReport, Damage

# Damages of one table that are printed one by one.
TOLD_MAX: Final = 20

store = typer.Typer(name="store", help="Check, repair, compact, back up and count a store.", no_args_is_help=True)

DirectoryArgument: TypeAlias = Annotated[Path, typer.Argument(metavar="DIR", help="The directory of one store.")]
JsonOption: TypeAlias = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def _by_table(damages: list[Damage]) -> dict[str, list[Damage]]:
    found: dict[str, list[Damage]] = {}
    for damage in damages:
        found.setdefault(damage.table, []).append(damage)
    return found


def _tell(report: CheckReport, what: str, as_json: bool) -> None:
    if as_json:
        found = {"blocks": report.blocks, "records": report.records, "rows": report.rows}
        typer.echo(json.dumps({**found, "damages": [damage._asdict() for damage in report.damages]}))
        return
    for damages in _by_table(report.damages).values():
        shown = damages if len(damages) <= TOLD_MAX else [*damages[: TOLD_MAX - 1], damages[-1]]
        for damage in shown:
            typer.echo(str(damage))
        if len(damages) > len(shown):
            typer.echo(f"{damages[0].table}: and {len(damages) - len(shown)} more (--json lists them)")
    counted = f"{report.blocks} blocks, {report.records} records, {report.rows} rows {what}"
    typer.echo(f"{counted}; {len(report.damages)} damaged")


@store.command()
@reported
def check(directory: DirectoryArgument, as_json: JsonOption = False) -> None:
    """Walk everything and compare every checksum. Also while the store is in use. Exit code 1: something is damaged."""
    from lexicast.storage.maintenance import directory as maintenance

    report = maintenance.check(directory)
    _tell(report, "checked", as_json)
    if not report.sound:
        raise typer.Exit(ERROR)


@store.command()
@reported
def repair(directory: DirectoryArgument, as_json: JsonOption = False) -> None:
    """Rewrite a stopped store with all that is undamaged, and clear its poison.

    What is lost is told, by kind and number. It takes as much room as the old file has, which stays beside the new one
    (*.before-repair): delete it when you are content.
    """
    from lexicast.storage.maintenance import directory as maintenance

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("repairing")
        report = maintenance.repair(directory, lambda done, total: progress.update(task, completed=done, total=total))
    _tell(report, "kept", as_json)
    if not as_json:
        old = f"{maintenance.data_file(directory)}{maintenance.BEFORE_REPAIR}"
        typer.echo(f"the old file is {old}: delete it when you are content")


@store.command()
@reported
def compact(directory: DirectoryArgument) -> None:
    """Rewrite a stopped store without its free pages, so that its file is as small as what it holds."""
    from lexicast.storage.maintenance import directory as maintenance

    before, after = maintenance.compact(directory)
    typer.echo(f"{decimal(before)} before, {decimal(after)} now")


@store.command()
@reported
def backup(
    directory: DirectoryArgument,
    target: Annotated[Path, typer.Argument(metavar="TARGET", help="An empty or new directory for the copy.")],
) -> None:
    """Copy the store as it is at one moment. Also while it is in use; its file may grow meanwhile."""
    from lexicast.storage.maintenance import directory as maintenance

    typer.echo(f"{decimal(maintenance.backup(directory, target))} in {target}")


@store.command()
@reported
def stats(directory: DirectoryArgument, as_json: JsonOption = False) -> None:
    """Count rows and bytes of each table. Also while the store is in use."""
    from lexicast.storage.maintenance import directory as maintenance

    found = maintenance.stats(directory)
    if as_json:
        typer.echo(json.dumps({**found._asdict(), "tables": [table._asdict() for table in found.tables]}))
        return
    table = Table(title=f"{found.kind}, file {decimal(found.file_bytes)}, in use {decimal(found.used_bytes)}")
    table.add_column("table")
    table.add_column("rows", justify="right")
    table.add_column("bytes", justify="right")
    for each in found.tables:
        table.add_row(each.name, f"{each.rows:,}", decimal(each.bytes))
    console = Console(highlight=False)
    console.print(table)
    if found.poisoned:
        console.print("an I/O error has poisoned this store: check it, then `lexicast store repair` clears that")
