"""The command line: `lexicast up | down | status | top | doctor | node | pub | sub | history`, and others beside it.

Exit codes: 0 fine, 1 an error (one line on stderr says what to do), 2 wrong usage, 130 Ctrl-C (`up` stops cleanly on
the first one and exits 0). Of the commands only the one that is asked for is loaded, and Ray by `up` and `status`
alone.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from importlib import import_module
from typing import Annotated, Any, Final

import typer

from ..status.installed import installed_version
from .common import run_app
from .parameters import QuickCommand, QuickGroup
from .programs import PASSED_ON

# What each command is, loaded when it is asked for: the function behind it, or an app of its own.
COMMANDS: Final[dict[str, Callable[[], Any]]] = {
    "up": lambda: import_module("lexicast.actors.cli.cluster").up,
    "down": lambda: import_module("lexicast.actors.cli.cluster").down,
    "bridge": lambda: import_module("lexicast.actors.cli.bridge").bridge,
    "cert": lambda: import_module("lexicast.actors.cli.cert").cert,
    "config": lambda: import_module("lexicast.actors.cli.configuration").show_config,
    "doctor": lambda: import_module("lexicast.actors.doctor.command").doctor,
    "demo": lambda: import_module("lexicast.actors.cli.programs").demo,
    "node": lambda: import_module("lexicast.actors.cli.node").node,
    "status": lambda: import_module("lexicast.actors.cli.status").status,
    "top": lambda: import_module("lexicast.actors.cli.top.command").top,
    "pub": lambda: import_module("lexicast.actors.cli.bus").pub,
    "sub": lambda: import_module("lexicast.actors.cli.bus").sub,
    "history": lambda: import_module("lexicast.actors.cli.bus").history,
    "trace": lambda: import_module("lexicast.actors.tracing.command").trace,
    "family": lambda: import_module("lexicast.actors.cli.family").family,
    "page": lambda: import_module("lexicast.actors.cli.page").page,
    "spark": lambda: import_module("lexicast.actors.cli.programs").spark,
    "channel": lambda: import_module("lexicast.actors.cli.programs").channel,
    "export": lambda: import_module("lexicast.actors.cli.programs").export,
    "acl": lambda: import_module("lexicast.actors.cli.acl").acl,
    "recover": lambda: import_module("lexicast.actors.cli.recover").recover,
    "store": lambda: import_module("lexicast.actors.cli.store").store,
    "user": lambda: import_module("lexicast.actors.cli.user").user,
    "security": lambda: import_module("lexicast.actors.cli.security").security,
}
PROGRAMS: Final = ("demo", "spark", "channel", "export")


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"lexicast {installed_version()}")
        raise typer.Exit


def _main(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print it.")
    ] = False,
) -> None:
    pass


def command_line(names: Iterable[str] = COMMANDS) -> typer.Typer:
    """`lexicast` with these of its commands."""
    app = typer.Typer(
        name="lexicast",
        cls=QuickGroup,
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
    app.callback()(_main)
    for name in names:
        command = COMMANDS[name]()
        if isinstance(command, typer.Typer):
            app.add_typer(command, name=name)
        else:
            settings = PASSED_ON if name in PROGRAMS else None
            app.command(name, cls=QuickCommand, context_settings=settings)(command)
    return app


def main() -> None:
    """The entry point."""
    arguments = sys.argv[1:] or ["--help"]
    asked = arguments[0]
    sys.exit(run_app(command_line([asked] if asked in COMMANDS else COMMANDS), arguments))


if __name__ == "__main__":
    main()
