"""What tests of attacks have in common: a healthy client beside them, how much a process has grown, a blow."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import socket
from contextlib import suppress
from pathlib import Path

from .mqtt_harness import HOST, WAIT_S, Raw

KIB, MIB = 1 << 10, 1 << 20


def anonymous_bytes() -> int:
    """This process's own memory (RssAnon): the broker's and the test's."""
    (line,) = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("RssAnon")]
    return int(line.split()[1]) * KIB


class Growth:
    """The process may grow by `most` bytes."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._before = anonymous_bytes()

    def check(self) -> None:
        """Fails when it has grown more. What is garbage, and what glibc keeps of it, is given back first: on a busy
        machine that is as much again."""
        if anonymous_bytes() - self._before > self._most:
            gc.collect()
            ctypes.CDLL(None).malloc_trim(0)
        grown = anonymous_bytes() - self._before
        assert grown <= self._most, f"grown by {grown / MIB:.1f} MiB"


async def healthy(port: int) -> Raw:
    """A client that hears itself."""
    client = await Raw.connect(port)
    await client.subscribe(client_topic(client), qos=1)
    return client


def client_topic(client: Raw) -> str:
    """The topic that nobody else uses."""
    return f"healthy/{id(client)}"


async def round_trip(client: Raw) -> None:
    """The client's publication comes back to it."""
    await client.nothing(client, client_topic(client))


async def strike(port: int, data: bytes) -> None:
    """Send it on a connection of its own, say that nothing more comes, and wait until the broker has closed."""
    loop = asyncio.get_running_loop()
    with socket.socket() as sock:
        sock.setblocking(False)
        await loop.sock_connect(sock, (HOST, port))
        async with asyncio.timeout(WAIT_S):
            with suppress(OSError):  # it may have closed already
                await loop.sock_sendall(sock, data)
                sock.shutdown(socket.SHUT_WR)
                while await loop.sock_recv(sock, 65_536):
                    pass
