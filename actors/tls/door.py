"""A door of a broker for MQTT over TLS, or of a console: its port, what it shows of itself, who is let through.

The files are looked at once a minute, so that what renews certificates need tell nobody; `reload` does it at once.
Connections that stand are touched by neither, but for those whose client's certificate is on a revocation list by now.
Where the files cannot be used the door stays shut, and all else of the broker serves.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, Final

from lexicast.cluster.config.tables import TlsConfig
from lexicast.cluster.errors import UnavailableError
from lexicast.cluster.security.networks import NO_NETWORKS, Networks

from ..broker.port_claim import TLS_PORT_KNOB, PortClaim, claim_port, reuse_port_socket
from ..loop.background import keep_going, stop_loops
from .acceptor import TlsAcceptor
from .handshake_line import HandshakeLine
from .material import TlsMaterial

log = logging.getLogger(__name__)

LOOK_S: Final = 60.0


class TlsDoor:
    """See the module's docstring. `protocol` makes what serves one connection."""

    def __init__(
        self,
        config: TlsConfig,
        protocol: Callable[[], asyncio.Protocol],
        transports: Callable[[], Iterable[asyncio.Transport]],
        connections_left: Callable[[], int],
        timeout_s: float,
        port_knob: str = TLS_PORT_KNOB,
        proxies: Networks = NO_NETWORKS,
    ) -> None:
        """`transports`: of the connections that stand; `connections_left`: how many more there may be; `timeout_s`: for
        a handshake; `port_knob`: where another port is chosen; `proxies`: see `TlsAcceptor`."""
        self.material = TlsMaterial(config)
        self.failures: Counter[str] = Counter()
        self.port = 0
        self._config = config
        self._protocol = protocol
        self._transports = transports
        self._connections_left = connections_left
        self._timeout_s = timeout_s
        self._port_knob = port_knob
        self._proxies = proxies
        self._host = ""
        self._claim: PortClaim | None = None
        self._acceptor: TlsAcceptor | None = None
        self._open = False
        self._following: asyncio.Task[None] | None = None

    async def start(self, host: str, port: int, cluster_id: str) -> None:
        """Claim the port and read the files; `open` lets clients in. Raises UnavailableError: the port is in use."""
        self._claim = claim_port(host, port, cluster_id, self._port_knob)
        self._host, self.port = host, self._claim.port
        self.material.reload()
        self._following = keep_going(self._follow(), "looking at the files of [tls]")

    def open(self) -> None:
        """Let clients in (again), once there are files that can be used. Raises OSError."""
        self._open = True
        if self._acceptor is not None or self._claim is None or self.material.context is None:
            return
        self._acceptor = TlsAcceptor(
            reuse_port_socket(self._host, self.port),
            lambda: self.material.context,
            self._protocol,
            self._has_room,
            HandshakeLine(self._config.handshakes_max, self._config.handshakes_per_address_max),
            self._timeout_s,
            self.failures,
            self._proxies,
        )
        self._acceptor.start()

    def _has_room(self) -> bool:
        return self._connections_left() > len(self)

    def __len__(self) -> int:
        """Connections whose handshake is not done."""
        return 0 if self._acceptor is None else len(self._acceptor)

    def shut(self) -> None:
        """Let nobody in; connections that stand are not touched."""
        self._open = False
        if self._acceptor is not None:
            self._acceptor.close()
            self._acceptor = None

    def reload(self) -> str:
        """Take the files as they are now; "", or why they cannot be used (then the old ones are on)."""
        self._taken(self.material.reload())
        return self.material.problem

    async def _follow(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            self._taken(self.material.follow())

    def _taken(self, taken: bool) -> None:
        """New files were taken."""
        if not taken:
            return
        for transport in list(self._transports()):
            if self.material.is_revoked(transport):
                self.failures["revoked since it connected"] += 1
                transport.abort()
        if self._open:
            with suppress(
                UnavailableError, OSError
            ):  # the port is ours: what goes wrong here goes wrong at the next look
                self.open()

    async def close(self) -> None:
        """Let nobody in, give the port back."""
        self.shut()
        if self._following is not None:
            await stop_loops(self._following)
        if self._claim is not None:
            self._claim.close()

    def status(self) -> dict[str, Any]:
        """For `lexicast status`."""
        return {
            "port": self.port,
            "handshakes": len(self),
            "failed": dict(self.failures),
            **self.material.status(),
        }
