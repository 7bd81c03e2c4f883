"""The requests that one side of a link has sent and that are not answered yet."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Final, TypeAlias

from lexicast.cluster.errors import PeerError, UnavailableError, remote_error

log = logging.getLogger(__name__)

REQUESTS_MAX: Final = 100_000

# done(error, result)
OnReply: TypeAlias = Callable[[Exception | None, Any], None]


class OpenRequests:
    """Whom to tell of each answer, by the request's number. `peer`, wherever it is given, is for people."""

    def __init__(self) -> None:
        self._open: dict[int, OnReply] = {}
        self._next = 1

    def add(self, done: OnReply, method: str, limit_s: float, peer: str) -> int | None:
        """The number of a new request, which fails after `limit_s`; None: there are too many, as `done` was told."""
        if len(self._open) >= REQUESTS_MAX:
            done(UnavailableError("too many open requests"), None)
            return None
        number = self._next
        self._next += 1
        timer = asyncio.get_running_loop().call_later(limit_s, self._unanswered, number, method, limit_s, peer)

        def answered(error: Exception | None, result: Any) -> None:
            timer.cancel()
            done(error, result)

        self._open[number] = answered
        return number

    def _unanswered(self, number: int, method: str, limit_s: float, peer: str) -> None:
        done = self._open.pop(number, None)
        if done is not None:
            done(UnavailableError(f"{peer or 'the peer'} has not answered {method} for {limit_s:.1f} s"), None)

    def replied(self, message: tuple[Any, ...], peer: str) -> None:
        """A REPLY has come. Raises what `done` raises, after it was told that the answer cannot be used."""
        _, number, error, result = message
        done = self._open.pop(number, None)
        if done is None:
            return  # it came too late
        if error is not None:
            done(remote_error(error), None)
            return
        try:
            done(None, result)
        except Exception as bad:
            # Whoever waits for it must not wait for ever.
            done(PeerError(f"the answer of {peer or 'the peer'} cannot be used: {bad!r}"), None)
            raise

    def end(self, error: Exception, peer: str) -> None:
        """The link has ended: every request fails."""
        waiting, self._open = self._open, {}
        for done in waiting.values():
            try:
                done(error, None)
            except Exception:  # the others are to hear of it too
                log.exception("whoever waited for %s could not be told that the link ended", peer or "a peer")
