"""The positions that a call of `publish` or `publish_many` waits for, filled in as groups acknowledge."""

from __future__ import annotations

import asyncio

from lexicast.cluster.errors import LexicastError, NotAuthorizedError, PublishRefusedError
from lexicast.cluster.positions import Position


class PublishManyRefusedError(PublishRefusedError):
    """Some publications of a `publish_many` were refused; `positions` has the others' (None: refused)."""

    def __init__(self, message: str, positions: list[Position | None]) -> None:
        super().__init__(message)
        self.positions = positions


class AwaitedPositions:
    """One call's publications: `left` of them are not settled yet; `future` is who waits (None: nobody does).

    `since_s` is the event loop's time of the call.
    """

    __slots__ = ("error", "future", "left", "positions", "since_s")

    def __init__(self, count: int, future: asyncio.Future[list[Position]] | None, since_s: float) -> None:
        self.since_s = since_s
        self.positions: list[Position | None] = [None] * count
        self.left = count
        self.future = future
        self.error: str | None = None

    def finish(self) -> None:
        """All are settled."""
        if self.future is None or self.future.done():
            return
        if self.error is None:
            self.future.set_result(self.positions)  # type: ignore[arg-type]  # without an error none is missing
        elif len(self.positions) == 1:
            self.future.set_exception(_refusal(self.error))
        else:
            refused = self.positions.count(None)
            self.future.set_exception(
                PublishManyRefusedError(
                    f"{refused} of {len(self.positions)} publications refused: {self.error}", self.positions
                )
            )

    def fail(self, error: LexicastError) -> None:
        """Whoever waits gets `error`."""
        if self.future is not None and not self.future.done():
            self.future.set_exception(error)


def _refusal(reason: str) -> LexicastError:
    """The error of one publication, by what the broker says of it."""
    named, _, message = reason.partition(": ")
    return NotAuthorizedError(message) if named == NotAuthorizedError.__name__ else PublishRefusedError(reason)


async def gather_positions(calls: list[AwaitedPositions]) -> list[Position]:
    """The positions of all, in order. Raises once all are settled, for all refusals together."""
    positions: list[Position | None] = []
    refusals: list[str] = []
    try:
        for awaited in calls:
            assert awaited.future is not None
            try:
                await awaited.future
            except (PublishRefusedError, NotAuthorizedError):
                refusals.append(awaited.error or "")
            positions += awaited.positions
    finally:
        forget_positions(calls)
    if refusals:
        refused = positions.count(None)
        raise PublishManyRefusedError(f"{refused} of {len(positions)} publications refused: {refusals[0]}", positions)
    return positions  # type: ignore[return-value]  # without refusals none is missing


def forget_positions(calls: list[AwaitedPositions]) -> None:
    """Nobody waits for these any more."""
    for awaited in calls:
        if awaited.future is not None and not awaited.future.cancel() and not awaited.future.cancelled():
            awaited.future.exception()  # looked at: asyncio would complain of it otherwise
