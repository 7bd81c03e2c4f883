"""`lexicast top`: live in a terminal, page after page over a pipe, or once."""

from __future__ import annotations

import asyncio
import json
import logging
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Annotated, Final

import typer
from rich.console import Console
from rich.live import Live
from rich.text import Text

from lexicast.cluster.errors import LexicastError, UsageError

from ...client.address import resolver
from ...status.read_console import ReadConsole
from ..common import AddressOption, DataDirOption, find_cluster, one_line, reported, run_async
from ..status import cluster_snapshot
from .figures import TopFigures
from .keys import keys
from .screen import View, screen
from .sections import ORDERS, Figures

INTERVAL_S: Final = 2.0
STDIN: Final = 0


@reported
def top(
    once: Annotated[bool, typer.Option("--once", help="Print it once, without keys, and end.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Once, as JSON.")] = False,
    interval: Annotated[
        float, typer.Option("--interval", "-i", min=0.5, max=3_600.0, help="Seconds from look to look.")
    ] = INTERVAL_S,
    sort: Annotated[str, typer.Option("--sort", help=f"By {', '.join(ORDERS)}.")] = View().order,
    data_dir: DataDirOption = None,
    address: AddressOption = None,
) -> None:
    """Show what is wrong, and what is busy: brokers, leaders, topics, families, clients that are behind.

    Keys: n, c, m, b sort by name, clients, messages, bytes; 1 to 6 show one table, 0 all; q ends it.

    lexicast top

    lexicast top --once --sort bytes

    lexicast top --json | jq '.topics[:3]'
    """
    if sort not in ORDERS:
        raise UsageError(f"--sort {sort}: give one of {', '.join(ORDERS)}")
    found = find_cluster(address, data_dir)
    resolve = resolver(found.get("address"), found.get("data_dir"), None)
    figures = TopFigures(resolve, partial(cluster_snapshot, resolve, found))
    run_async(_once(figures, sort, as_json) if once or as_json else _follow(figures, sort, interval))


async def _once(figures: TopFigures, order: str, as_json: bool) -> None:
    await figures.now()  # where there is no cluster, that is told at once
    async with figures:
        await figures.sampled()
        now = await figures.now()
    if as_json:
        typer.echo(json.dumps(now, indent=1, default=str))
    else:
        _print(_console(), now, View(order))


async def _follow(figures: TopFigures, order: str, interval_s: float) -> None:
    console, first = _console(), await figures.now()
    async with figures:
        if sys.stdout.isatty() and not console.is_dumb_terminal:
            await _Shown(figures, console, first, View(order), interval_s).run()
        else:
            await _print_each(figures, console, first, View(order), interval_s)


def _console() -> Console:
    return ReadConsole(highlight=False)


async def _print_each(figures: TopFigures, console: Console, now: Figures, view: View, interval_s: float) -> None:
    """For whoever reads a pipe: one look after the other, with an empty line between."""
    wrong = ""
    while True:
        _print(console, now, view, wrong)
        console.print()
        sys.stdout.flush()
        await asyncio.sleep(interval_s)
        try:
            now, wrong = await figures.now(), ""
        except LexicastError as error:
            wrong = one_line(error)


def _print(console: Console, now: Figures, view: View, wrong: str = "") -> None:
    for line in screen(now, view, console.width, None, wrong):
        line.rstrip()  # nothing is to be filled
        console.print(line, no_wrap=True, overflow="crop")


@contextmanager
def _nothing_logged() -> Iterator[None]:
    """A client's words on links that break would stand amid the screen, which tells of them itself."""
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)


class _Shown:
    """What a terminal shows, until somebody ends it."""

    def __init__(self, figures: TopFigures, console: Console, first: Figures, view: View, interval_s: float) -> None:
        self._figures = figures
        self._console = console
        self._now = first
        self._view: View | None = view
        self._interval_s = interval_s
        self._wrong = ""
        self._changed = asyncio.Event()

    async def run(self) -> None:
        """Until `q`."""
        with (
            _nothing_logged(),
            Live(console=self._console, screen=True, auto_refresh=False) as live,
            keys(STDIN, self._pressed),
            self._resized(),
        ):
            looking = asyncio.create_task(self._look())
            looking.add_done_callback(lambda _: self._changed.set())
            try:
                while (view := self._view) is not None and not looking.done():
                    self._changed.clear()
                    width, height = self._console.size
                    lines = screen(self._now, view, width, height, self._wrong)
                    live.update(Text("\n", no_wrap=True, overflow="crop").join(lines), refresh=True)
                    await self._changed.wait()
                if looking.done():
                    looking.result()
            finally:
                looking.cancel()
                await asyncio.gather(looking, return_exceptions=True)

    def _pressed(self, key: str) -> None:
        if self._view is not None:
            self._view = self._view.pressed(key)
        self._changed.set()

    @contextmanager
    def _resized(self) -> Iterator[None]:
        """Drawn anew where the terminal has another size."""
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGWINCH, self._changed.set)
        try:
            yield
        finally:
            loop.remove_signal_handler(signal.SIGWINCH)

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(self._interval_s)
            try:
                self._now, self._wrong = await self._figures.now(), ""
            except LexicastError as error:  # it may come back: whoever looks wants to see that
                self._wrong = one_line(error)
            self._changed.set()
