"""The Ray actor around `BridgeServer`: on one node, started again elsewhere where that goes."""

from __future__ import annotations

import logging
import os
from contextlib import suppress
from typing import Any

from lexicast.cluster.bridges.definitions import BridgeDefinition, BridgeSecrets
from lexicast.cluster.bridges.hops import short_id
from lexicast.cluster.errors import LexicastError, UnavailableError
from lexicast.cluster.membership import BRIDGE, Member, Members

from ..client.connect import connect_actor
from ..loop.background import cannot_go_on, keep_going, stop_loops
from ..ray.following import follow_members
from ..ray.handles import RayCoordination
from ..ray.serving import ServingActor
from .handshake import client_id_of
from .server import BridgeServer
from .share_feed import bridge_share

log = logging.getLogger(__name__)


class BridgeActor(ServingActor):
    """One bridge."""

    def __init__(self, name: str, config: dict[str, Any], definition: BridgeDefinition, secrets: BridgeSecrets) -> None:
        self._definition = definition
        self._secrets = secrets
        self._incarnation = 0
        super().__init__(name, config)

    async def start(self) -> None:
        """Begin to serve; whether the other broker can be reached has no part in it."""
        self._coordination = RayCoordination()
        own_id = short_id((await self._coordination.cluster()).cluster_id)
        self._client = await connect_actor(client_id_of(self._definition, own_id))
        try:
            await self._register()
            self._server = BridgeServer(self._client, self._definition, self._secrets, own_id, self._is_this_one)
            self._server.start()
        except BaseException:
            await self._client.close()
            raise
        following = follow_members(self._coordination, self._is_known, self._register, self._follow)
        self._following = keep_going(following, "following the membership")

    async def _register(self) -> None:
        member = Member(self.name, 0, (), self.config.node.own_name(), os.getpid())
        self._incarnation = await self._coordination.register(BRIDGE, member)

    def _is_known(self, members: Members) -> bool:
        return self.name in members.bridges

    def _follow(self, members: Members) -> None:
        """Another one that was started for this one, when this one's node seemed lost, is the bridge from then on."""
        known = members.bridges.get(self.name)
        if known is not None and known.incarnation > self._incarnation:
            cannot_go_on(f"{self.name} runs elsewhere by now", UnavailableError(f"on {known.node}, pid {known.pid}"))

    async def _is_this_one(self) -> bool:
        """Whether the cluster takes this process for the bridge: asked before each connection to the other broker,
        which keeps one session for whoever comes with the bridge's client id."""
        with suppress(LexicastError):
            members = await self._coordination.members(-1, 0)
            known = members.bridges.get(self.name)
            return known is None or known.incarnation == self._incarnation
        return False

    def addresses(self) -> tuple[str, ...]:
        """None: it dials."""
        return ()

    def report(self) -> dict[str, Any]:
        """For `lexicast status`."""
        return {"share": bridge_share(self._definition.name), **self._server.status()}

    async def end(self) -> None:
        """Stop; what is not acknowledged goes out again when it begins anew."""
        await stop_loops(self._following)
        await self._server.stop()
        await self._client.close()
        with suppress(LexicastError):
            await self._coordination.leave(BRIDGE, self.name)
