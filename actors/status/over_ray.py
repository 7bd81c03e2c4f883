"""Actors' status asked over Ray, and what becomes of one that does not answer."""

from __future__ import annotations

import asyncio
from typing import Any, Final

import ray.exceptions

from lexicast.cluster.errors import UnavailableError

from ..ray.errors import may_pass, translated
from ..ray.handles import COORDINATION, ActorGoneError, ActorReference, find_actor
from ..ray.serving import LASTING
from .report import GONE, HANGS, MEND_IT, NODE_GONE, STARTS_AGAIN, TRIES_AGAIN, MissingError, gather

CALL_TIMEOUT_S: Final = 5.0


async def snapshot() -> dict[str, Any]:
    """See `report.gather`. Raises UnavailableError when the coordination server does not answer."""
    coordination = await asyncio.to_thread(find_actor, COORDINATION)
    said = await coordination.call_retried("status", timeout_s=CALL_TIMEOUT_S, retry_s=CALL_TIMEOUT_S)
    return await gather(said, lambda _, name: ask_actor(name))


async def ask_actor(name: str, timeout_s: float = CALL_TIMEOUT_S) -> dict[str, Any]:
    """What the actor says about itself. Raises MissingError, which says what becomes of it."""
    try:
        actor = await asyncio.to_thread(find_actor, name)
    except ActorGoneError:
        raise MissingError("Ray knows no such actor any more", GONE) from None
    except UnavailableError as error:
        raise MissingError(str(error), HANGS) from None
    try:
        answer: dict[str, Any] = await _call(actor, timeout_s)
    except Exception as error:
        raise MissingError(str(translated(error)), fate_of(error)) from None
    return answer


async def _call(actor: ActorReference, timeout_s: float) -> Any:
    async with asyncio.timeout(timeout_s):
        return await actor.handle.status.remote()


def fate_of(error: BaseException) -> str:
    """What becomes of an actor whose call raised this."""
    if isinstance(error, ray.exceptions.RayTaskError):  # it runs, and says why it does not serve
        return MEND_IT if isinstance(error.cause, LASTING) else TRIES_AGAIN
    if isinstance(error, TimeoutError):
        return HANGS
    if isinstance(error, ray.exceptions.ActorUnschedulableError | ray.exceptions.NodeDiedError):
        return NODE_GONE
    if isinstance(error, ray.exceptions.ActorDiedError):
        # with restarts without end Ray gives an actor up only where it cannot place it any more
        return NODE_GONE if "node" in str(error).lower() else GONE
    return STARTS_AGAIN if may_pass(error) else GONE
