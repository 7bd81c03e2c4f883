"""The commands `lexicast spark`, `channel` and `export`: run as `python -m lexicast.raydp_jobs.cli`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from lexicast.actors.cli.common import (
    AddressOption,
    ConfigOption,
    DataDirOption,
    SetOption,
    overrides,
    reported,
    run_app,
)
from lexicast.cluster.config.tables import load_config

from .channel import channel_app
from .common import (
    WIDTH,
    DryRunOption,
    ExecutorsOption,
    FilterOption,
    PictureOption,
    SinceOption,
    UntilOption,
    WhereOption,
    check_picture,
    cluster,
    console,
    needs_arrow,
    needs_spark,
)

app = typer.Typer(
    name="lexicast",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": WIDTH},
)
spark_app = typer.Typer(help="Jobs over the history, in Spark on the cluster's Ray.", no_args_is_help=True)
app.add_typer(spark_app, name="spark")
app.add_typer(channel_app, name="channel")


@spark_app.command("train-dictionaries")
@reported
def train_dictionaries(
    filter: FilterOption = "#",
    since: SinceOption = "beginning",
    until: UntilOption = None,
    subscribers: Annotated[int, typer.Option(min=1, help="Subscribers that a dictionary has to reach.")] = 1,
    picture: PictureOption = None,
    dry_run: DryRunOption = False,
    executors: ExecutorsOption = 1,
    data_dir: DataDirOption = None,
    address: AddressOption = None,
    config: ConfigOption = None,
    settings: SetOption = None,
) -> None:
    """Train every family's dictionary on its history; publish those that beat the current ones by more than they cost.

    lexicast spark train-dictionaries --dry-run --picture families.png
    """
    check_picture(picture)
    needs_spark()
    from ..history.reading import check_question
    from ..jobs import train_dictionaries as job

    check_question(filter, since, until)
    compression = load_config(config, overrides=overrides(None, settings)).compression
    found = cluster(address, data_dir)
    job.train_dictionaries(
        console(), found, compression, filter, since, until, subscribers, executors, picture, dry_run
    )


@spark_app.command("train-regression")
@reported
def train_regression(
    filter: FilterOption = "#",
    since: SinceOption = "beginning",
    until: UntilOption = None,
    picture: PictureOption = None,
    dry_run: DryRunOption = False,
    executors: ExecutorsOption = 1,
    data_dir: DataDirOption = None,
    address: AddressOption = None,
    config: ConfigOption = None,
    settings: SetOption = None,
) -> None:
    """Fit PREDICT's regression (after how many messages to look again) to the history of all families.

    lexicast spark train-regression --dry-run --picture residuals.png
    """
    check_picture(picture)
    needs_spark()
    from ..history.reading import check_question
    from ..jobs import train_regression as job

    check_question(filter, since, until)
    compression = load_config(config, overrides=overrides(None, settings)).compression
    found = cluster(address, data_dir)
    job.train_regression(console(), found, compression, filter, since, until, executors, picture, dry_run)


@spark_app.command("sql")
@reported
def sql(
    query: Annotated[str, typer.Argument(help="Spark SQL over the table `history`.")],
    filter: FilterOption = "#",
    since: SinceOption = "beginning",
    until: UntilOption = None,
    schema: Annotated[
        str | None,
        typer.Option(help="Payloads as columns: 'json', or such as 'carrier STRING, delay INT'.", show_default=False),
    ] = None,
    where: WhereOption = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="At most so many rows.")] = 100,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a row.")] = False,
    dry_run: DryRunOption = False,
    executors: ExecutorsOption = 1,
    data_dir: DataDirOption = None,
    address: AddressOption = None,
) -> None:
    """Answer a question in SQL about the past.

    lexicast spark sql 'SELECT topic, count(*) n FROM history GROUP BY topic ORDER BY n DESC'

    lexicast spark sql 'SELECT carrier, avg(delay) FROM history GROUP BY carrier' -f 'flights/#' --schema json
    """
    needs_spark()
    from ..history.reading import check_question
    from ..jobs.sql import TABLE, answer_question
    from ..spark.sql_check import check_sql

    check_question(filter, since, until, where=where)
    found = cluster(address, data_dir)
    check_sql(query, [TABLE])
    answer_question(console(), found, query, filter, since, until, schema, where, limit, as_json, executors, dry_run)


@app.command()
@reported
def export(
    folder: Annotated[Path, typer.Argument(help="A new or empty folder; gets parquet files.")],
    filter: FilterOption = "#",
    since: SinceOption = "beginning",
    until: UntilOption = None,
    columns: Annotated[
        str | None, typer.Option(help="Comma-separated; all by default: topic,time,payload,...", show_default=False)
    ] = None,
    where: WhereOption = None,
    expired: Annotated[bool, typer.Option(help="Also publications whose expiry has passed.")] = False,
    data_dir: DataDirOption = None,
    address: AddressOption = None,
) -> None:
    """Write the history as parquet files (needs neither Spark nor Java, only pyarrow).

    lexicast export flights/ --filter 'flights/#' --since 1d
    """
    needs_arrow()
    from ..history.reading import check_question
    from ..jobs.export import export_history

    names = None if columns is None else [name.strip() for name in columns.split(",")]
    check_question(filter, since, until, names, where)
    export_history(console(), cluster(address, data_dir), folder, filter, since, until, names, where, expired)


def main() -> None:
    """The entry point."""
    sys.exit(run_app(app, sys.argv[1:] or ["--help"]))


if __name__ == "__main__":
    main()
