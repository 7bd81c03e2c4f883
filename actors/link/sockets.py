"""The sockets of links: listening at an address, and dialling one."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from lexicast.cluster.errors import LexicastError, UnavailableError
from lexicast.cluster.files import FILE_MODE
from lexicast.cluster.protocol.heartbeat import Beats
from lexicast.cluster.security.addresses import is_loopback

from .handshake import DiallerLink, ListenerLink
from .link import BEATS, Link, LinkUser

# From the first packet to an open link; the handshake's own limit is for who was dialled.
DIAL_TIMEOUT_S = 5.0
SOCKET_BUFFER_BYTES = 1024 * 1024
BACKLOG = 4096


async def listen(
    address: str,
    key: bytes,
    cluster_id: str,
    opened: Callable[[Link], LinkUser | None],
    info: dict[str, Any],
    beats: Beats = BEATS,
    links: str = "auto",
) -> tuple[asyncio.AbstractServer, str]:
    """Listen for links. `address`: "unix:PATH" or "tcp:HOST:PORT" (port 0: any). Returns (server, real address).

    `links`: which are encrypted, see `encrypts_links`.

    Keep the server object: uvloop closes a server that nobody holds (FACTS.md).
    """
    loop = asyncio.get_running_loop()
    encrypted = encrypts_links(address, links)

    def make() -> ListenerLink:
        return ListenerLink(key, cluster_id, opened, info, beats, encrypted)

    scheme, _, rest = address.partition(":")
    if scheme == "unix":
        with suppress(FileNotFoundError):
            Path(rest).unlink()  # noqa: ASYNC240  # a local unlink, once at start
        server: asyncio.AbstractServer = await loop.create_unix_server(make, rest, backlog=BACKLOG)
        Path(rest).chmod(FILE_MODE)  # noqa: ASYNC240  # local, once at start
        return server, address
    host, _, port = rest.rpartition(":")
    server = await loop.create_server(make, host, int(port), backlog=BACKLOG)
    real = server.sockets[0].getsockname()[1]
    return server, f"tcp:{host}:{real}"


def encrypts_links(address: str, links: str) -> bool:
    """Whether links to `address` are. `links` (security.links): "auto" those that can come from other machines,
    "encrypted" all, "plain" none."""
    if links != "auto":
        return links == "encrypted"
    scheme, _, rest = address.partition(":")
    return scheme != "unix" and not is_loopback(rest.rpartition(":")[0].strip("[]"))


async def dial(
    address: str,
    key: bytes,
    cluster_id: str,
    hello: tuple[str, str, int],
    opened: Callable[[Link], LinkUser | None],
    beats: Beats = BEATS,
    timeout_s: float = DIAL_TIMEOUT_S,
) -> Link:
    """Open a link to `address` as (role, name, incarnation).

    Raises OSError (TimeoutError, a subclass: it is not open within `timeout_s`), AuthenticationError or PeerError.
    """

    def make() -> DiallerLink:
        return DiallerLink(key, cluster_id, hello, opened, beats)

    try:
        async with asyncio.timeout(timeout_s):
            link = await _connected(address, make)
            try:
                return await link.wait_open()
            except BaseException:  # a dial that its caller gives up must not open afterwards
                link.abort()
                raise
    except TimeoutError:
        raise TimeoutError(f"{address} has not answered within {timeout_s:.1f} s") from None


async def dial_any(
    addresses: tuple[str, ...],
    key: bytes,
    cluster_id: str,
    hello: tuple[str, str, int],
    opened: Callable[[Link], Any],
    beats: Beats = BEATS,
    timeout_s: float = DIAL_TIMEOUT_S,
) -> Link:
    """Dial the first of `addresses` that answers. Raises the last one's OSError, PeerError or AuthenticationError."""
    failure: Exception = UnavailableError("there is no address to dial")
    for address in addresses:
        try:
            return await dial(address, key, cluster_id, hello, opened, beats, timeout_s)
        except (OSError, LexicastError) as error:
            failure = error
    raise failure


async def _connected(address: str, make: Callable[[], DiallerLink]) -> DiallerLink:
    """A link whose socket is connected."""
    loop = asyncio.get_running_loop()
    scheme, _, rest = address.partition(":")
    if scheme != "unix":
        host, _, port = rest.rpartition(":")
        _, link = await loop.create_connection(make, host, int(port))
        return link
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.setblocking(False)
    for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
        sock.setsockopt(socket.SOL_SOCKET, option, SOCKET_BUFFER_BYTES)
    try:
        await loop.sock_connect(sock, rest)
    except BaseException:
        sock.close()
        raise
    _, link = await loop.create_unix_connection(make, sock=sock)
    return link
