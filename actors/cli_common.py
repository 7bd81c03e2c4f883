"""What the commands share: options, the way errors are told, and how a cluster is found."""

from __future__ import annotations

import asyncio
import functools
import os
import sys
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Annotated, Any, ParamSpec, TypeAlias

import typer
from typer.exceptions import TyperException

from lexicast.cluster.config import load
from lexicast.cluster.errors import ConfigError, LexicastError, UsageError

P = ParamSpec("P")

ERROR, USAGE, INTERRUPTED = 1, 2, 130

DataDirOption: TypeAlias = Annotated[
    Path | None, typer.Option(help="The cluster's data folder (node.data_dir).", show_default=False)
]
AddressOption: TypeAlias = Annotated[
    str | None,
    typer.Option(help="A Ray cluster (auto, HOST:PORT, ray://HOST:PORT) instead of a data folder.", show_default=False),
]
ConfigOption: TypeAlias = Annotated[
    Path | None,
    typer.Option(help="The configuration file; else LEXICAST_CONFIG, else ./lexicast.toml.", show_default=False),
]
SetOption: TypeAlias = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="TABLE.KEY=VALUE", help="Override one knob; may be repeated.", show_default=False),
]


def reported(command: Callable[P, None]) -> Callable[P, None]:
    """`command` with its errors as one line on stderr and an exit code, never a traceback for what was foreseen."""

    @functools.wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            command(*args, **kwargs)
        except LexicastError as error:
            typer.echo(f"lexicast: {one_line(error)}", err=True)
            raise typer.Exit(USAGE if isinstance(error, UsageError) else ERROR) from None
        except KeyboardInterrupt:
            raise typer.Exit(INTERRUPTED) from None
        except BrokenPipeError:
            # who read our output has gone: nothing to tell, and nothing to flush at exit
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())

    return run


def one_line(error: BaseException) -> str:
    """The error's message without line breaks."""
    return " ".join(str(error).split()) or type(error).__name__


def run_async(work: Coroutine[Any, Any, None]) -> None:
    """Run a command's coroutine; Ctrl-C cancels it and comes out as KeyboardInterrupt."""
    asyncio.run(work)


def overrides(data_dir: Path | None, settings: list[str] | None) -> dict[str, Any]:
    """--data-dir and --set as dotted keys. Raises ConfigError."""
    given: dict[str, Any] = {} if data_dir is None else {"node.data_dir": str(data_dir)}
    for setting in settings or []:
        key, equals, value = setting.partition("=")
        if not equals:
            raise ConfigError(f"--set {setting}: write TABLE.KEY=VALUE, such as --set mqtt.port=1884")
        given[key.strip()] = value
    return given


def find_cluster(address: str | None, data_dir: Path | None) -> dict[str, Any]:
    """The arguments for `lexicast.connect`. Raises UsageError for both at once, ConfigError."""
    if address is not None and data_dir is not None:
        raise UsageError("give --address or --data-dir, not both")
    if address is not None:
        return {"address": address}
    return {"data_dir": load(overrides=overrides(data_dir, None)).node.data_path()}


def run_app(app: typer.Typer, arguments: Sequence[str]) -> int:
    """Run a command line; its exit code. Wrong usage is told in one line, as every other error."""
    try:
        code = app(list(arguments), prog_name="lexicast", standalone_mode=False)
    except TyperException as error:
        context = getattr(error, "ctx", None)
        command = "lexicast" if context is None else context.command_path
        message = " ".join(error.format_message().split()).removesuffix(".")
        typer.echo(f"lexicast: {message} (see `{command} --help`)", err=True)
        return error.exit_code
    except typer.Abort:
        return INTERRUPTED
    return code if isinstance(code, int) else 0
