"""`lexicast doctor`: the examination as lines for people, or as JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.table import Table
from rich.text import Text

from lexicast.cluster.config.tables import Config, load_config
from lexicast.cluster.errors import ConfigError

from ..cli.common import ERROR, ConfigOption, DataDirOption, SetOption, one_line, overrides, reported
from ..status.read_console import ReadConsole
from .examination import Examination, examine
from .findings import OK, PROBLEM, WARNING, Finding, counted_states, worst_first

STYLES: Final = {PROBLEM: "bold red", WARNING: "bold yellow", OK: "green"}


@reported
def doctor(
    data_dir: DataDirOption = None,
    config: ConfigOption = None,
    settings: SetOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
) -> None:
    """Say what is wrong with this machine, the configuration and the cluster here, and what to do about it.

    It needs no cluster, starts nothing and changes nothing. Exit code 0: nothing is wrong, or only warnings; 1: there
    are problems.

    lexicast doctor

    lexicast doctor --data-dir /srv/lexicast --config lexicast.toml

    lexicast doctor --json | jq '.findings[] | select(.state != "ok")'
    """
    known, wrong = _configuration(config, data_dir, settings)
    found = worst_first([*wrong, *examine(Examination(known).parts())])
    if as_json:
        told = [finding._asdict() for finding in found]
        typer.echo(json.dumps({"counts": counted_states(found), "findings": told}, indent=1))
    else:
        ReadConsole(highlight=False).print(_table(found), _summary(found), sep="\n")
    if counted_states(found)[PROBLEM]:
        raise typer.Exit(ERROR)


def _configuration(
    path: Path | None, data_dir: Path | None, settings: list[str] | None
) -> tuple[Config, list[Finding]]:
    """The configuration, and a finding about it; where it is wrong the defaults are examined, in the same folder."""
    try:
        given = overrides(data_dir, settings)
        return load_config(path, overrides=given), [Finding("configuration", OK, "it can be read and understood")]
    except ConfigError as error:
        where = overrides(data_dir, None)
        to_do = "mend it (`lexicast config --documented` explains each knob); the defaults were examined instead"
        return Config().replaced(**{key.replace(".", "__"): value for key, value in where.items()}), [
            Finding("configuration", PROBLEM, one_line(error), to_do)
        ]


def _table(findings: Sequence[Finding]) -> Table:
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for finding in findings:
        what = Text(finding.is_so)
        if finding.to_do:
            what.append(f"\n-> {finding.to_do}", style="bold")
        table.add_row(Text(finding.state, style=STYLES[finding.state]), Text(finding.check), what)
    return table


def _summary(findings: Sequence[Finding]) -> Text:
    counts = counted_states(findings)
    wrong = [f"{counts[state]} {state}{'' if counts[state] == 1 else 's'}" for state in (PROBLEM, WARNING)]
    return Text(f"\n{', '.join(wrong)}, {counts[OK]} fine", style="bold")
