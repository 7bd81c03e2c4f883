"""A port without TLS: claimed for the cluster as long as the broker runs, open while clients may come."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from ...broker.port_claim import PortClaim, claim_port, reuse_port_socket

BACKLOG: Final = 4_096


class PlainDoor:
    """See the module's docstring. `port`: 0 before `start`."""

    def __init__(self, protocol: Callable[[], asyncio.Protocol], port_knob: str) -> None:
        """`protocol` makes what serves one connection; `port_knob`: where another port is chosen."""
        self.port = 0
        self._protocol = protocol
        self._port_knob = port_knob
        self._host = ""
        self._claim: PortClaim | None = None
        self._server: asyncio.AbstractServer | None = None

    def start(self, host: str, port: int, cluster_id: str) -> None:
        """Claim the port. Raises UnavailableError: it is in use."""
        self._claim = claim_port(host, port, cluster_id, self._port_knob)
        self._host, self.port = host, self._claim.port

    async def open(self) -> None:
        """Let clients in (again). Raises OSError."""
        if self._server is None and self._claim is not None:
            loop = asyncio.get_running_loop()
            sock = reuse_port_socket(self._host, self.port)
            self._server = await loop.create_server(self._protocol, sock=sock, backlog=BACKLOG)

    def shut(self) -> None:
        """Let nobody in; connections that stand are not touched."""
        if self._server is not None:
            self._server.close()
            self._server = None

    def close(self) -> None:
        """Let nobody in, give the port back."""
        self.shut()
        if self._claim is not None:
            self._claim.close()
