"""Ports for programs that cannot pick one and tell it: each is given once, until the process that asked has ended.

Drivers and tests run beside each other, and between the choice of a port and the bind seconds pass. So the numbers are
locked, byte by byte, in a file that all processes of the user share, and they are such as nobody else takes by itself:
below Ray's and below those that lexicast takes for port 0, and none that browsers refuse (WHATWG, Fetch, 2.9).
"""

from __future__ import annotations

import fcntl
import os
import tempfile
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Final

from lexicast.actors.broker.port_claim import check_free
from lexicast.cluster.errors import UnavailableError
from lexicast.cluster.files import open_lock

LOOPBACK: Final = "127.0.0.1"
PORTS: Final = range(6_700, 8_000)


def free_port() -> int:
    """A port of loopback that nobody has, and that nobody else is given. Raises UnavailableError: all are."""
    locks, given = _locks(os.getpid())
    for port in PORTS:
        if port in given:
            continue
        with suppress(BlockingIOError, UnavailableError):
            fcntl.lockf(locks, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
            given.add(port)
            check_free(LOOPBACK, port)
            return port
    raise UnavailableError(f"no port from {PORTS.start} to {PORTS.stop - 1} is free")


@cache
def _locks(pid: int) -> tuple[int, set[int]]:
    """The file, and what has been given; of one process: a fork inherits neither the locks nor what it may give."""
    return open_lock(Path(tempfile.gettempdir()) / f"lexicast-ports-{os.getuid()}.lock", os.O_NOFOLLOW), set()
