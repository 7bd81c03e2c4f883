"""Slow hashes, off the event loop: a few threads, a bounded number that wait for them.

The threads are nicer than the loop, so that thousands who log in at once hold nobody up. Who has left meanwhile is not
verified. No address (of IPv6: network, `party`) has more than its share of the places, so that one of them cannot keep
all others out.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Final

from lexicast.cluster.errors import LimitError
from lexicast.cluster.security.back_off import party
from lexicast.cluster.security.passwords import PasswordHash

NICENESS: Final = 10
# An address may have one in so many of the places.
SHARE: Final = 4


class Hashing:
    """See the module's docstring. `waiting`: passwords that are verified or wait for that."""

    def __init__(self, threads: int, waiting_max: int) -> None:
        self._threads = threads
        self._waiting_max = waiting_max
        self._pool: ThreadPoolExecutor | None = None
        self._of_address: Counter[str] = Counter()
        self.waiting = 0

    def verify(
        self, of: PasswordHash, password: bytes, address: str, is_wanted: Callable[[], bool]
    ) -> asyncio.Future[bool]:
        """Whether it is the password; False as well where it is not wanted any more. Raises LimitError: all places are
        taken."""
        address, most = party(address), max(1, self._waiting_max // SHARE)
        if self.waiting >= self._waiting_max or self._of_address[address] >= most:
            raise LimitError("too many passwords wait to be verified")
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._threads, "passwords", initializer=_be_nice)
        self.waiting += 1
        self._of_address[address] += 1

        def work() -> bool:
            return is_wanted() and of.verify(password)

        future = asyncio.get_running_loop().run_in_executor(self._pool, work)
        future.add_done_callback(lambda _: self._done(address))
        return future

    def _done(self, address: str) -> None:
        self.waiting -= 1
        self._of_address[address] -= 1
        if not self._of_address[address]:
            del self._of_address[address]

    def close(self) -> None:
        """Verify nothing more."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)


def _be_nice() -> None:
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)
