"""Following the membership, as actors without listeners do: who serves now, and whether they are known themselves."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from lexicast.cluster.errors import LexicastError
from lexicast.cluster.membership import Coordination, Members

log = logging.getLogger(__name__)

MEMBERS_WAIT_S: Final = 5.0
RETRY_S: Final = 0.2


async def follow_members(
    coordination: Coordination,
    knows: Callable[[Members], bool],
    register: Callable[[], Awaitable[object]],
    take: Callable[[Members], None],
    due: Callable[[], Awaitable[None]] | None = None,
) -> None:
    """`take` the members, now and whenever they change, until cancelled. `knows`: whether the follower is one of them;
    a coordination server that has lost its registry does not, and is told by `register` again. `due`: returns when
    it is to be asked again, for who hears of changes from others; None: at once."""
    version = -1
    while True:
        if due is not None:
            await due()
        try:
            members = await coordination.members(version, MEMBERS_WAIT_S)
            if not knows(members):
                await register()
        except LexicastError as error:
            log.debug("membership: %s", error)
            await asyncio.sleep(RETRY_S)
            continue
        version = members.version
        take(members)
