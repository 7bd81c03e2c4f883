"""Wills of MQTT clients, published by the broker that serves or served them, or for the home of their session."""

from __future__ import annotations

import asyncio
import logging
from typing import Any, Final

from lexicast.cluster.blocks import RETAIN
from lexicast.cluster.errors import UnavailableError
from lexicast.cluster.properties import carried

from ..broker.coordinators import Coordinators
from ..broker.security.rights import Rights
from .codec.packets import Will
from .codec.properties import expiry_ms
from .session_state import will_of

log = logging.getLogger(__name__)

# A will that nobody but this broker has, and that is refused (a full disk), is published again after a while, which
# doubles, until it is taken or has been tried this often: some eight hours. Beyond so many they are given up.
AGAIN_FIRST_S: Final = 0.25
AGAIN_MOST_S: Final = 60.0
TRIES: Final = 500
KEPT_MAX: Final = 10_000


class WillPublisher:
    """See the module's docstring. `waiting`: wills that are not committed yet; `rights`: who may publish what."""

    def __init__(self, coordinators: Coordinators, rights: Rights) -> None:
        self._coordinators = coordinators
        self._rights = rights
        self.waiting: set[asyncio.Future[bool]] = set()
        self._kept: set[asyncio.Task[None]] = set()

    def publish(self, client_id: str, will: Will, user: str) -> asyncio.Future[bool]:
        """Publish a will of `user`; whether it was taken, or is one that its user may not publish any more."""
        future: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        if not self._rights.may_publish(user, client_id, will.topic):
            self._rights.refuse("will", user, client_id, will.topic)
            future.set_result(True)  # there is nothing left to be done about it
            return future

        def done(result: Any) -> None:
            refused = isinstance(result, str)
            if refused:
                log.warning("the will of %r is refused: %s", client_id, result)
            if not future.done():
                future.set_result(not refused)

        properties = will.properties or {}
        flags = will.qos | (RETAIN if will.retain else 0)
        try:
            self._coordinators.publish(
                will.topic,
                flags,
                [will.payload],
                self._rights.client(user, client_id).author() if will.retain else client_id,
                done,
                expiry_ms=expiry_ms(properties),
                properties=carried(properties),
            )
        except UnavailableError as error:
            done(str(error))
        self.waiting.add(future)
        future.add_done_callback(self.waiting.discard)
        return future

    def publish_kept(self, client_id: str, will: Will, user: str) -> asyncio.Task[None]:
        """Publish a will that nobody else has: again while it is refused. Done when it is stored, or given up."""
        tries = TRIES
        if len(self._kept) >= KEPT_MAX:
            log.error("the will of %r is lost where it is refused: %d wait already", client_id, KEPT_MAX)
            tries = 1
        task = asyncio.get_running_loop().create_task(self._publish_kept(client_id, will, user, tries))
        self._kept.add(task)
        task.add_done_callback(self._kept.discard)
        return task

    async def _publish_kept(self, client_id: str, will: Will, user: str, tries: int) -> None:
        wait_s = AGAIN_FIRST_S
        for _ in range(tries):
            if await self.publish(client_id, will, user):
                return
            await asyncio.sleep(wait_s)
            wait_s = min(wait_s * 2, AGAIN_MOST_S)
        log.error("the will of %r is given up: it has been refused %d times", client_id, tries)

    def close(self) -> None:
        """Publish nothing again."""
        for task in self._kept:
            task.cancel()

    async def publish_for_home(self, client_id: str, data: bytes, user: str) -> None:
        """A session's home has a will that is due. Raises UnavailableError when it is not taken, PeerError.

        A broker that starts is asked as soon as it is linked, which is before it has the rules.
        """
        if not self._rights.is_known:
            raise UnavailableError("the rules are not known here yet")
        will = will_of(data)
        if will is not None and not await self.publish(client_id, will, user):
            raise UnavailableError(f"the will of {client_id!r} was not taken")
