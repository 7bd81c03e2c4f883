"""The event loop of a blocking client, in a thread of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

from lexicast.cluster.errors import UnavailableError

T = TypeVar("T")


class LoopThread:
    """An event loop in a thread of its own (daemonic: a program that forgets to close may still end).

    The loop runs there from its first to its last round: the caller's thread may run a loop itself, as a notebook's
    does, and a thread runs one at a time.
    """

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self.stopping = False
        self._thread = threading.Thread(target=self._run, name="lexicast-client", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._loop.run_forever()
            self._loop.run_until_complete(self._finish())
        finally:
            self._loop.close()

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Run `work` there and wait for it; cancelled there when this wait is interrupted."""
        if not self._thread.is_alive():
            work.close()
            raise UnavailableError("the client is closed")
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def stop(self) -> None:
        """End loop and thread."""
        self.stopping = True
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()

    async def _finish(self) -> None:
        """What a cancelled call left behind ends before its loop does."""
        left = asyncio.all_tasks() - {asyncio.current_task()}
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        await self._loop.shutdown_asyncgens()
