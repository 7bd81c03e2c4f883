"""All doors of a broker for MQTT: TCP always, TLS and WebSocket where they have ports; opened and shut together."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from lexicast.cluster.config.tables import MqttConfig, TlsConfig
from lexicast.cluster.security.networks import Networks

from ...broker.port_claim import PORT_OPTION
from ...tls.door import TlsDoor
from ...tls.identity import is_encrypted
from ..websocket.line import WebSocketServices, is_websocket
from .plain_door import PlainDoor
from .proxied import proxied


class MqttDoors:
    """See the module's docstring. Those that are not there are None."""

    def __init__(
        self,
        config: MqttConfig,
        tls: TlsConfig,
        connection: Callable[[], asyncio.Protocol],
        websockets: WebSocketServices,
        transports: Callable[[], Iterable[asyncio.Transport]],
        connections: Callable[[], int],
    ) -> None:
        """`connection` makes what serves a client by TCP; `transports`: of the connections that stand, and how many
        they are."""
        self._config = config
        self._proxies = Networks(config.proxies)
        self._transports = transports
        self._connections = connections
        self.tcp = self._door(connection, PORT_OPTION)
        self.websocket = self._door(websockets.line, "mqtt.ws_port") if config.ws_port else None
        self.tls = self._encrypted(tls, connection, False, "mqtt.tls_port") if config.tls_port else None
        self.websocket_tls = self._encrypted(tls, websockets.line, True, "mqtt.wss_port") if config.wss_port else None

    def _door(self, protocol: Callable[[], asyncio.Protocol], knob: str) -> PlainDoor:
        return PlainDoor(proxied(protocol, self._proxies), knob)

    def _encrypted(
        self, tls: TlsConfig, protocol: Callable[[], asyncio.Protocol], by_websocket: bool, knob: str
    ) -> TlsDoor:
        def transports() -> list[asyncio.Transport]:
            return [t for t in self._transports() if is_encrypted(t) and is_websocket(t) == by_websocket]

        left = partial(self._connections_left, by_websocket)
        return TlsDoor(tls, protocol, transports, left, self._config.connect_timeout_s, knob, self._proxies)

    def _connections_left(self, by_websocket: bool) -> int:
        """How many more connections there may be; what shakes hands at the other door will be some."""
        other = self.tls if by_websocket else self.websocket_tls
        return self._config.connections_max - self._connections() - (0 if other is None else len(other))

    def _plain(self) -> list[PlainDoor]:
        return [self.tcp] if self.websocket is None else [self.tcp, self.websocket]

    def with_tls(self) -> list[TlsDoor]:
        """Those that encrypt."""
        return [door for door in (self.tls, self.websocket_tls) if door is not None]

    async def start(self, host: str, port: int, cluster_id: str) -> None:
        """Claim all ports; `host` and `port`: of TCP. Raises UnavailableError: one is in use."""
        config = self._config
        self.tcp.start(host, port, cluster_id)
        if self.tls is not None:
            await self.tls.start(config.tls_host or host, config.tls_port, cluster_id)
        if self.websocket is not None:
            self.websocket.start(config.ws_host or host, config.ws_port, cluster_id)
        if self.websocket_tls is not None:
            await self.websocket_tls.start(config.wss_host or host, config.wss_port, cluster_id)

    async def open(self) -> None:
        """Let clients in (again). Raises OSError."""
        for plain in self._plain():
            await plain.open()
        for encrypted in self.with_tls():
            encrypted.open()

    def shut(self) -> None:
        """Let nobody in; connections that stand are not touched."""
        for plain in self._plain():
            plain.shut()
        for encrypted in self.with_tls():
            encrypted.shut()

    async def close(self) -> None:
        """Let nobody in, give the ports back."""
        for encrypted in self.with_tls():
            await encrypted.close()
        for plain in self._plain():
            plain.close()

    def port_of(self, transport: asyncio.BaseTransport) -> int:
        """The port by which a connection came."""
        plain, encrypted = (self.websocket, self.websocket_tls) if is_websocket(transport) else (self.tcp, self.tls)
        door = encrypted if is_encrypted(transport) else plain
        return 0 if door is None else door.port

    def reload_certificates(self) -> str:
        """Take the files of [tls] as they are now; "", or why they cannot be used."""
        doors = self.with_tls()
        if not doors:
            return "it has no port for TLS (mqtt.tls_port, mqtt.wss_port)"
        return next((said for said in [door.reload() for door in doors] if said), "")

    def status(self) -> dict[str, Any]:
        """For `lexicast status`."""
        return {
            "port": self.tcp.port,
            "ws_port": 0 if self.websocket is None else self.websocket.port,
            "tls": None if self.tls is None else self.tls.status(),
            "wss": None if self.websocket_tls is None else self.websocket_tls.status(),
        }


def way_of(transport: asyncio.BaseTransport) -> str:
    """By which way a connection came, in words behind its protocol: "", " TLS", " WebSocket", " WebSocket TLS"."""
    return " WebSocket" * is_websocket(transport) + " TLS" * is_encrypted(transport)
