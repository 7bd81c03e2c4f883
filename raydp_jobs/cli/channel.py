"""`lexicast channel create | list | delete | run`."""

from __future__ import annotations

from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from lexicast.actors.cli.common import AddressOption, DataDirOption, reported, run_async
from lexicast.cluster.errors import UnavailableError, UsageError
from lexicast.cluster.points_in_time import parse_duration

from ..channels.definitions import Channel, channel_topic, parse_table
from ..channels.registry import ChannelOverview, channel_overview, retain_definition
from ..spark.sql_check import check_sql
from .common import DryRunOption, ExecutorsOption, cluster, console, needs_spark

channel_app = typer.Typer(
    help="SQL over history, live state and tables, answered every period for whoever subscribes.", no_args_is_help=True
)


@channel_app.command()
@reported
def create(
    name: Annotated[str, typer.Argument(help="The channel's name.")],
    period: Annotated[str, typer.Option(help="How often it is answered, such as 10s.")],
    sql: Annotated[Path, typer.Option(help="A file with the SQL; parameters as :user.")],
    history: Annotated[
        list[str] | None, typer.Option(metavar="NAME=FILTER@WINDOW", help="A table of publications.")
    ] = None,
    state: Annotated[
        list[str] | None, typer.Option(metavar="NAME=FILTER@WINDOW", help="A table of each topic's latest publication.")
    ] = None,
    columns: Annotated[
        list[str] | None, typer.Option(metavar="NAME=FIELD TYPE, ...", help="Fields of a table's JSON payloads.")
    ] = None,
    where: Annotated[
        list[str] | None, typer.Option(metavar="NAME=CONDITION", help="Only a table's messages of which it is true.")
    ] = None,
    table: Annotated[list[str] | None, typer.Option(metavar="NAME=FILE.csv", help="A fixed table.")] = None,
    dry_run: DryRunOption = False,
    data_dir: DataDirOption = None,
    address: AddressOption = None,
) -> None:
    """Define a channel, or replace its definition; `lexicast channel run` answers it.

    lexicast channel create Near --period 10s --sql near.sql --history 'emergencies=emergencies/+@10m'
    --columns 'emergencies=id STRING, lat DOUBLE, lon DOUBLE' --table shelters=shelters.csv
    """
    typed, wheres = (dict(_pair(text) for text in some or []) for some in (columns, where))
    channel = Channel(
        name,
        _read(sql),
        parse_duration(period).total_seconds(),
        dict(parse_table(text, typed, wheres) for text in history or []),
        dict(parse_table(text, typed, wheres) for text in state or []),
        {key: _read(Path(file)) for key, file in map(_pair, table or [])},
    )
    for option, named in (("--columns", typed), ("--where", wheres)):
        if unknown := named.keys() - {*channel.history, *channel.state}:
            raise UsageError(f"{option} names {', '.join(sorted(unknown))}, which no --history or --state does")
    packed = channel.pack()
    with suppress(UnavailableError):  # without Spark here, `channel run` is who says it
        needs_spark()
        check_sql(channel.sql, [*channel.history, *channel.state, *channel.tables])
    if not dry_run:
        run_async(retain_definition(cluster(address, data_dir), channel.topic, packed))
    example = channel_topic(name, dict.fromkeys(channel.parameters, "...")).replace("%2E", ".")
    typer.echo(f"{'would be ' if dry_run else ''}created; subscribe to {example}")


def _pair(text: str) -> tuple[str, str]:
    name, equals, rest = text.partition("=")
    if not equals or not name:
        raise UsageError(f"{text!r}: write NAME=..., such as shelters=shelters.csv")
    return name, rest


def _read(file: Path) -> str:
    try:
        return file.read_text()
    except OSError as error:
        raise UsageError(f"{file}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise UsageError(f"{file} is no text file") from None


@channel_app.command("list")
@reported
def show(data_dir: DataDirOption = None, address: AddressOption = None) -> None:
    """Show the channels, when each was answered last, and who answers them."""

    async def work() -> None:
        overview = await channel_overview(cluster(address, data_dir))
        made = Table()
        for title in ("channel", "every", "tables", "topic", "answered"):
            made.add_column(title, overflow="fold")
        for channel in overview.channels:
            tables = ", ".join([*channel.history, *channel.state, *channel.tables])
            topic = channel_topic(channel.name, dict.fromkeys(channel.parameters, "..."))
            made.add_row(channel.name, f"{channel.period_s:g} s", tables, topic, _answered(overview, channel.name))
        console().print(made)
        console().print(
            f"{overview.lease.runner} answers them"
            if overview.lease.runner
            else "nobody answers them: `lexicast channel run` does",
            markup=False,
        )

    run_async(work())


def _answered(overview: ChannelOverview, name: str) -> str:
    last = overview.rounds.get(name)
    if last is None:
        return "never"
    try:
        at = f"{datetime.fromisoformat(last.at).astimezone():%Y-%m-%d %H:%M:%S}"
    except (TypeError, ValueError):
        at = "?"
    return f"{at}, {last.subscriptions} subscriptions"


@channel_app.command()
@reported
def delete(
    name: Annotated[str, typer.Argument(help="The channel's name.")],
    data_dir: DataDirOption = None,
    address: AddressOption = None,
) -> None:
    """Remove a channel's definition; its subscriptions get nothing more."""

    async def work() -> None:
        connect = cluster(address, data_dir)
        if name not in [channel.name for channel in (await channel_overview(connect)).channels]:
            raise UnavailableError(f"there is no channel {name}: `lexicast channel list` shows those there are")
        await retain_definition(connect, f"$channel/{name}", b"")
        typer.echo(f"deleted {name}; its subscriptions get nothing more")

    run_async(work())


@channel_app.command()
@reported
def run(
    seconds: Annotated[float | None, typer.Option(min=1, help="End after so long.", show_default=False)] = None,
    executors: ExecutorsOption = 1,
    data_dir: DataDirOption = None,
    address: AddressOption = None,
) -> None:
    """Answer the channels, every one in its period, until Ctrl-C.

    One runner answers; each further one, on this machine or another, stands by and takes over when the first has been
    silent for 7 s, or at once when it ends by itself. Nothing is answered twice.
    """
    needs_spark()
    from ..channels.service import run_channels

    run_channels(console(), cluster(address, data_dir), executors, seconds)
