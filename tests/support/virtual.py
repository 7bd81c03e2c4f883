"""Time and wires without either: an event loop whose clock a test moves, and links whose bytes it delays and cuts."""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable
from typing import Any

from lexicast.actors.link.link import Link

WIRE_BYTES_MAX = 4_096


class Standstill(AssertionError):
    """Nothing will ever happen any more."""


class SimLoop(asyncio.BaseEventLoop):
    """An event loop whose time passes only when nothing is left to do now; work for threads is done here, later."""

    def __init__(self, choose: random.Random) -> None:
        super().__init__()
        self._now = 0.0
        self._choose = choose
        self._selector = self
        self.calls: dict[Any, tuple[asyncio.TimerHandle, Callable[..., Any], tuple[Any, ...]]] = {}
        self.errors: list[str] = []
        self.set_exception_handler(lambda _, context: self.errors.append(repr(context)))

    def time(self) -> float:
        return self._now

    def select(self, timeout: float | None) -> list[Any]:
        """What a selector would do: wait."""
        if timeout is None:
            raise Standstill("nothing will ever happen any more")
        self._now += timeout
        return []

    def _process_events(self, events: list[Any]) -> None:
        """There are none."""

    def _write_to_self(self) -> None:
        """No other thread is to be woken by."""

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *arguments: Any) -> asyncio.Future[Any]:  # type: ignore[override]  # of a future that is a coroutine's too
        """Do it after a disk's delay."""
        future = self.create_future()

        def work() -> None:
            self.calls.pop(future, None)
            if future.done():
                return  # given up
            try:
                result = func(*arguments)
            except Exception as error:
                future.set_exception(error)
            else:
                future.set_result(result)

        delay = self._choose.choice([0.0005, 0.002, 0.01, 0.1]) * self._choose.random()
        self.calls[future] = (self.call_later(delay, work), func, arguments)
        return future


class Wire(asyncio.Transport):
    """One side of a link: what is written arrives later, in order, in pieces; or never, once a side is cut."""

    def __init__(self, loop: SimLoop, choose: random.Random, link: Link) -> None:
        super().__init__()
        self._loop, self._choose, self._link = loop, choose, link
        self.peer: Wire = self
        self._clear_at = 0.0
        self._on_way = 0
        self._line: deque[bytes] = deque()  # timers of the same time go off in any order, bytes must not
        self._held: list[bytes] = []
        self._reading, self._paused, self.cut = True, False, False

    def write(self, data: bytes) -> None:  # type: ignore[override]  # only bytes are ever written
        if self.cut:
            return
        at = self._choose.randint(0, len(data))
        for piece in (data[:at], data[at:]):
            delay = self._choose.choice([0.0, 0.0001, 0.001, 0.02]) * self._choose.random()
            self._clear_at = max(self._clear_at, self._loop.time() + delay)
            self._on_way += len(piece)
            self._line.append(piece)
            self._loop.call_at(self._clear_at, lambda: self.peer.arrive(self._line.popleft()))
        if self._on_way > WIRE_BYTES_MAX and not self._paused:
            self._paused = True
            self._link.pause_writing()

    def arrive(self, piece: bytes) -> None:
        """Bytes of the peer are here."""
        self._held.append(piece)
        while self._held and self._reading and not self.cut:
            taken = self._held.pop(0)
            self.peer.taken(len(taken))
            self._link.data_received(taken)

    def taken(self, size: int) -> None:
        """The peer has taken bytes."""
        self._on_way -= size
        if self._paused and self._on_way <= WIRE_BYTES_MAX // 4 and not self.cut:
            self._paused = False
            self._link.resume_writing()

    def pause_reading(self) -> None:
        self._reading = False

    def resume_reading(self) -> None:
        self._reading = True
        self._loop.call_soon(self.arrive, b"")

    def is_reading(self) -> bool:
        return self._reading

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """WIRE_BYTES_MAX holds."""

    def get_write_buffer_size(self) -> int:
        return self._on_way

    def abort(self) -> None:
        """Cut: this side knows at once; the other a little later, and may still get what is on the way, or not."""
        if not self.cut:
            self.cut = True
            self._loop.call_soon(self._link.connection_lost, None)
            late = self._clear_at if self._choose.random() < 0.5 else 0.0
            self._loop.call_at(max(late, self._loop.time() + 0.03 * self._choose.random()), self.peer.lost)

    close = abort

    def lost(self) -> None:
        """The other side was cut."""
        if not self.cut:
            self.cut = True
            self._link.connection_lost(None)
