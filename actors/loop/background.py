"""Loops that an actor lives by: one that ends is an actor that ends.

A coordinator that no longer tells heads, or a broker that no longer follows the membership, would go on answering as
if all were well. So such a loop is started by `keep_going`; it runs until it is cancelled, and where it ends in any
other way the event loop's exception handler gets a LoopEndedError. Actors under Ray have set `end_process_on` as that
handler: the process ends, at once and saying why, and Ray starts it again. Elsewhere (tests, a client's program) it is
logged.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Coroutine
from typing import Any, Final

log = logging.getLogger(__name__)

EXIT_CODE: Final = 70


class LoopEndedError(RuntimeError):
    """A loop that was to run for ever has ended; its cause is what ended it."""


def keep_going(work: Coroutine[Any, Any, None], what: str) -> asyncio.Task[None]:
    """Run `work`, which ends by being cancelled and in no other way; `what` names it. Keep the task."""
    loop = asyncio.get_running_loop()
    task = loop.create_task(work, name=what)

    def ended(task: asyncio.Task[None]) -> None:
        if task.cancelled():
            return
        cause = task.exception()
        error = LoopEndedError(f"{what} has ended: {cause!r}" if cause else f"{what} has ended")
        error.__cause__ = cause
        loop.call_exception_handler({"message": str(error), "exception": error, "task": task})

    task.add_done_callback(ended)
    return task


def cannot_go_on(what: str, cause: BaseException) -> None:
    """What an actor lives by has ended otherwise than as a loop: the same happens."""
    error = LoopEndedError(f"{what}: {cause}")
    error.__cause__ = cause
    asyncio.get_running_loop().call_exception_handler({"message": str(error), "exception": error})


async def stop_loops(*tasks: asyncio.Task[None]) -> None:
    """Cancel them; returns when they have ended, however."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def end_process_on(name: str, end: Callable[[int], Any] = os._exit) -> Callable[[asyncio.AbstractEventLoop, Any], None]:
    """An exception handler for the event loop of actor `name`: ends the process when one of its loops has ended."""

    def handle(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if not isinstance(error, LoopEndedError):
            loop.default_exception_handler(context)
            return
        log.critical("%s ends, since it cannot serve without this: %s", name, error, exc_info=error.__cause__)
        end(EXIT_CODE)

    return handle
