"""The Ray actor around `BrokerServer`; its `client_*` methods carry links of clients that cannot reach its sockets."""

from __future__ import annotations

from typing import Any

from lexicast.cluster.clock import SystemClock

from ..link.call_link import CallLinks
from ..link.run_directory import run_directory
from ..ray.handles import RayCoordination
from ..ray.serving import ServingActor
from ..status.over_ray import ask_actor
from .server import BrokerServer


class BrokerActor(ServingActor):
    """One broker of this node."""

    async def start(self) -> None:
        """Begin to serve."""
        run_dir = run_directory(self.config)
        coordination, clock = RayCoordination(), SystemClock()
        self._server = await BrokerServer.start(self.name, self.config, coordination, clock, run_dir, ask_actor)
        cluster, clients, greeting = self._server.cluster, self._server.clients, self._server.sockets.greeting
        encrypted = self.config.security.links != "plain"  # Ray carries them anywhere
        self._calls = CallLinks(cluster.key, cluster.cluster_id, clients.opened, greeting, encrypted=encrypted)

    def addresses(self) -> tuple[str, ...]:
        """Link addresses."""
        return self._server.sockets.addresses

    def mqtt_port(self) -> int:
        """The MQTT port."""
        return self._server.mqtt.port

    def report(self) -> dict[str, Any]:
        """For `lexicast status`."""
        return self._server.status()

    async def end(self) -> None:
        """Stop serving."""
        self._calls.close_all()
        await self._server.stop()

    async def audience(self, family: bytes, topics: tuple[bytes, ...]) -> tuple[int, int]:
        """See `ClientPort.audience`. Raises UnavailableError while it starts."""
        self.check_serving()
        return self._server.clients.audience(family, topics)

    async def client_open(self, name: str) -> str:
        """See `CallLinks.open`. Raises UnavailableError while it starts: a client tries again."""
        self.check_serving()
        return self._calls.open(name)

    async def client_send(self, token: str, data: bytes) -> None:
        """See `CallLinks.send`."""
        self.check_serving()
        await self._calls.send(token, data)

    async def client_receive(self, token: str, wait_s: float) -> bytes:
        """See `CallLinks.receive`."""
        self.check_serving()
        return await self._calls.receive(token, wait_s)

    async def client_close(self, token: str) -> None:
        """See `CallLinks.close`."""
        self.check_serving()
        self._calls.close(token)
