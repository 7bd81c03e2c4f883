"""The common part of the commands: options, the way errors are told, and how a cluster is found."""

from __future__ import annotations

import asyncio
import errno
import functools
import logging
import os
import signal
import stat
import sys
import warnings
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated, Any, Final, NoReturn, ParamSpec, TypeAlias

import typer
from typer.exceptions import TyperException

from lexicast.cluster.config.tables import load_config
from lexicast.cluster.errors import ConfigError, LexicastError, NotAuthorizedError, UsageError

from ..status.printable import printable

P = ParamSpec("P")

ERROR, USAGE, INTERRUPTED, TERMINATED = 1, 2, 130, 128 + signal.SIGTERM
# What a write to the output fails with, and nothing else that a command does: files of its own carry their names.
OUTPUT_ERRORS: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
STDOUT: Final = 1

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
            with _output():
                command(*args, **kwargs)
        except LexicastError as error:
            _complain(one_line(error))
            raise typer.Exit(USAGE if isinstance(error, UsageError) else ERROR) from None
        except KeyboardInterrupt:
            raise typer.Exit(INTERRUPTED) from None

    return run


def _complain(text: str) -> None:
    with suppress(OSError):  # nobody can be told that nobody can be told
        typer.echo(f"lexicast: {text}", err=True)


@contextmanager
def _output() -> Iterator[None]:
    """Whatever cannot be written to stdout ends the command: quietly where the reader has gone, else with one line.

    Raises typer.Exit.
    """
    try:
        yield
        sys.stdout.flush()
    except OSError as error:
        gone = isinstance(error, BrokenPipeError)
        if not gone and (error.errno not in OUTPUT_ERRORS or error.filename is not None):
            raise
        with suppress(OSError, ValueError):  # what is still buffered would fail again when Python ends
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if not gone:
            _complain(f"cannot write the output: {error.strerror}")
        raise typer.Exit(0 if gone else ERROR) from None


def one_line(error: BaseException) -> str:
    """The error's message without line breaks, as it can be shown: it may quote others."""
    return printable(" ".join(str(error).split())) or type(error).__name__


def run_async(work: Coroutine[Any, Any, None]) -> None:
    """Run a command's coroutine; Ctrl-C cancels it and comes out as KeyboardInterrupt.

    It ends as soon as nobody reads stdout any more, not with its next message. Raises BrokenPipeError then.
    """
    asyncio.run(_while_read(work))


async def _while_read(work: Coroutine[Any, Any, None]) -> None:
    loop, gone = asyncio.get_running_loop(), asyncio.Event()
    # Of a pipe's end for writing epoll tells one thing: that the other end has been closed.
    watched = stat.S_ISFIFO(os.fstat(STDOUT).st_mode)
    if watched:
        loop.add_reader(STDOUT, gone.set)
    tasks = [asyncio.ensure_future(work), asyncio.ensure_future(gone.wait())]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if tasks[0].done():
            tasks[0].result()
        else:
            raise BrokenPipeError
    finally:
        if watched:
            loop.remove_reader(STDOUT)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


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
    """The arguments for `lexicast.connect`, of an operator. Raises UsageError for both at once, ConfigError,
    NotAuthorizedError: the address is one at which users log in."""
    if address is not None and data_dir is not None:
        raise UsageError("give --address or --data-dir, not both")
    if address is not None and address.startswith("link:"):
        raise NotAuthorizedError.for_operators("this command")
    if address is not None:
        return {"address": address}
    return {"data_dir": load_config(overrides=overrides(data_dir, None)).node.data_path()}


def run_app(app: typer.Typer, arguments: Sequence[str]) -> int:
    """Run a command line; its exit code. Wrong usage is told in one line, as every other error."""
    signal.signal(signal.SIGTERM, _terminate)
    _speak_as_the_command()
    try:
        with _output():
            code = app(list(arguments), prog_name="lexicast", standalone_mode=False)
    except TyperException as error:
        context = getattr(error, "ctx", None)
        command = "lexicast" if context is None else context.command_path
        message = " ".join(error.format_message().split()).removesuffix(".")
        _complain(f"{message} (see `{command} --help`)")
        return error.exit_code
    except typer.Exit as ended:
        return ended.exit_code
    except typer.Abort:
        return INTERRUPTED
    return code if isinstance(code, int) else 0


def _terminate(_number: int, _frame: object) -> NoReturn:
    """SIGTERM ends a command as Ctrl-C does: what it has begun is put away."""
    sys.exit(TERMINATED)


def _speak_as_the_command() -> None:
    """Warnings, of the log's too, are lines of the command's like its errors, and name no module."""
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("lexicast: %(message)s"))
    logging.getLogger("lexicast").addHandler(handler)

    def show(message: Warning | str, *_: object, **__: object) -> None:
        _complain(" ".join(str(message).split()))

    warnings.showwarning = show
