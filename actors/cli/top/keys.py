"""Keys of a terminal, one by one as they are pressed, and the terminal as it was when that is over."""

from __future__ import annotations

import asyncio
import os
import termios
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

READ_BYTES: Final = 64
ESCAPE: Final = b"\x1b"


@contextmanager
def keys(terminal: int, pressed: Callable[[str], None]) -> Iterator[None]:
    """While it is entered, `pressed` is told of each key of this file descriptor, where that is a terminal; Ctrl-C and
    Ctrl-Z are signals as ever. Within an event loop."""
    if not os.isatty(terminal):
        yield
        return
    loop, before = asyncio.get_running_loop(), termios.tcgetattr(terminal)

    def read() -> None:
        try:
            data = os.read(terminal, READ_BYTES)
        except OSError:
            data = b""
        if not data:  # it has been hung up
            loop.remove_reader(terminal)
        if not data.startswith(ESCAPE):  # an arrow, say: several bytes, none of which was meant
            for key in data.decode(errors="replace"):
                pressed(key)

    tty.setcbreak(terminal, termios.TCSANOW)
    loop.add_reader(terminal, read)
    try:
        yield
    finally:
        loop.remove_reader(terminal)
        termios.tcsetattr(terminal, termios.TCSANOW, before)
