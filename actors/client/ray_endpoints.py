"""The endpoints of a cluster's brokers as Ray knows them, reached by their actor handles where no link is."""

from __future__ import annotations

import asyncio
import logging
import warnings
from typing import Any

import ray

from lexicast.cluster.errors import UnavailableError
from lexicast.cluster.membership import Member

from ..ray.address import RAY_CLIENT, check_ray
from ..ray.errors import error_line
from ..ray.handles import COORDINATION, NAMESPACE, ActorReference, RayCoordination, find_actor
from .known_brokers import Endpoint


class RayBrokerCalls:
    """`call_link.BrokerCalls` on a broker's actor handle."""

    def __init__(self, actor: ActorReference) -> None:
        self._actor = actor

    async def client_open(self, name: str) -> str:
        """See BrokerCalls."""
        return str(await self._actor.call("client_open", name))

    async def client_send(self, token: str, data: bytes) -> None:
        """See BrokerCalls."""
        await self._actor.call("client_send", token, data)

    async def client_receive(self, token: str, wait_s: float) -> bytes:
        """See BrokerCalls."""
        return bytes(await self._actor.call("client_receive", token, wait_s))

    async def client_close(self, token: str) -> None:
        """See BrokerCalls."""
        await self._actor.call("client_close", token)


async def ray_endpoints(address: str) -> list[Endpoint]:
    """The brokers of the lexicast cluster in the Ray at `address`; connects to it unless this process is connected.

    Raises UnavailableError: no Ray there, no lexicast in it, no broker that serves.
    """
    if not ray.is_initialized():
        await asyncio.to_thread(_join, address)
    coordination = RayCoordination(await asyncio.to_thread(find_actor, COORDINATION))
    cluster = await coordination.cluster()
    members = await coordination.members(-1, 0.0)
    if not members.brokers:
        raise UnavailableError("the cluster has no broker that serves now: try again, or see `lexicast status`")
    found = await asyncio.gather(
        *[asyncio.to_thread(_endpoint, m, cluster.cluster_id, cluster.key) for m in members.brokers.values()]
    )
    return [endpoint for endpoint in found if endpoint is not None]


def _join(address: str) -> None:
    if address.startswith(RAY_CLIENT):
        # Ray's hint at too small tasks comes after 10 MB whatever their size; ours are batches already.
        warnings.filterwarnings("ignore", "More than 10MB of messages", UserWarning, r"ray\.util\.client")
    address = check_ray(address)
    try:
        ray.init(address=address, namespace=NAMESPACE, log_to_driver=False, logging_level=logging.ERROR)
    except Exception as error:
        raise UnavailableError(f"no Ray at {address!r}: {error_line(error)}") from None


def _endpoint(member: Member, cluster_id: str, key: bytes) -> Endpoint | None:
    """A broker by its membership; None when its actor has just gone."""
    try:
        actor: Any = find_actor(member.name)
    except UnavailableError:
        return None
    return Endpoint(member.name, member.addresses, cluster_id, key, RayBrokerCalls(actor), actor.handle)
