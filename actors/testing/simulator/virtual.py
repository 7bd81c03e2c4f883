"""Time and processes without either: an event loop whose clock jumps from one event to the next, and processes that are
sets of callbacks in it.

Theory of operation. Whatever a process starts (tasks, timers, callbacks of futures) inherits its context, so the loop
knows whose each callback is. A process that has been killed performs none of them any more, wherever it stood: that is
a crash. One that is stopped performs them later, in order: that is SIGSTOP, or a node without CPU. Neither needs the
help of the code that runs in it.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from contextvars import Context, ContextVar, copy_context
from functools import partial
from typing import Any, TypeVar

AnyHandle = TypeVar("AnyHandle", bound=asyncio.Handle)


class Standstill(AssertionError):
    """Nothing will ever happen any more."""


class SimProcess:
    """One process, on a node. `context`: what runs in it is a part of it."""

    def __init__(self, name: str, node: str) -> None:
        self.name = name
        self.node = node
        self.alive = True
        # What its disk takes beside what any disk takes.
        self.disk_s = 0.0
        self._held: list[tuple[Context, Callable[..., Any], tuple[Any, ...]]] | None = None
        self.context = Context()
        self.context.run(PROCESS.set, self)

    def do(self, work: Callable[..., Any], *arguments: Any) -> Any:
        """Have `work` done as a part of this process, now; later, and without an answer, where it is stopped."""
        return self.context.copy().run(self.perform, work, *arguments) if self.alive else None

    def perform(self, work: Callable[..., Any], *arguments: Any) -> Any:
        """What the loop does with each callback of this process."""
        if self._held is not None:
            self._held.append((copy_context(), work, arguments))
            return None
        return work(*arguments)

    @property
    def stopped(self) -> bool:
        """Whether it performs nothing now."""
        return self._held is not None

    def stop(self) -> None:
        """Perform nothing until `go_on`."""
        if self._held is None:
            self._held = []

    def kill(self) -> None:
        """Perform nothing any more."""
        self.alive = False
        self.stop()

    def go_on(self) -> None:
        """Do what has gathered."""
        if not self.alive:
            return
        held, self._held = self._held or [], None
        for context, work, arguments in held:
            asyncio.get_running_loop().call_soon(work, *arguments, context=context)


PROCESS: ContextVar[SimProcess | None] = ContextVar("PROCESS", default=None)
# What belongs to no process: wires, and the story itself.
NOBODY = Context()


class SimLoop(asyncio.BaseEventLoop):
    """An event loop whose time passes only when nothing is left to do now; work for threads is done here, later."""

    def __init__(self, choose: random.Random) -> None:
        super().__init__()
        self._now = 0.0
        self._choose = choose
        self._selector = self
        # What threads have been given and have not done: its timer, whose it is, and the work.
        self.calls: dict[Any, tuple[asyncio.TimerHandle, SimProcess | None, Callable[[], Any]]] = {}
        self.errors: list[str] = []
        # A process that is dead refers to its tasks no more, and an event loop only weakly.
        self.tasks: list[asyncio.Task[Any]] = []
        self.set_task_factory(self._new_task)
        self.set_exception_handler(lambda _, context: self.errors.append(_described(context)))

    def _new_task(self, loop: asyncio.AbstractEventLoop, work: Any, **options: Any) -> asyncio.Task[Any]:
        self.tasks.append(asyncio.Task(work, loop=loop, **options))
        return self.tasks[-1]

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

    # What is performed for a process is performed by it.

    def call_soon(  # type: ignore[override]  # asyncio's are generic in the callback's arguments
        self, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        made = OfProcess(callback, context)
        return made.handled(super().call_soon(made, *args, context=context))

    def call_soon_threadsafe(  # type: ignore[override]  # as above
        self, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        made = OfProcess(callback, context)
        return made.handled(super().call_soon_threadsafe(made, *args, context=context))

    def call_at(  # type: ignore[override]  # as above
        self, when: float, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        made = OfProcess(callback, context)
        return made.handled(super().call_at(when, made, *args, context=context))

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

        process = PROCESS.get()
        delay = self._choose.choice([0.0005, 0.002, 0.01, 0.1]) * self._choose.random()
        delay += process.disk_s if process is not None else 0.0
        self.calls[future] = (self.call_later(delay, work), process, partial(func, *arguments))
        return future

    def abandoned(self, process: SimProcess) -> list[Callable[[], Any]]:
        """What the threads of a process that has been killed had been given: it is done no more, unless the caller does
        it."""
        found = []
        for future, (handle, owner, work) in list(self.calls.items()):
            if owner is process:
                handle.cancel()
                del self.calls[future]
                found.append(work)
        return found


class OfProcess:
    """A callback, which the process does that has made it, or whose context is given; late, unless it is cancelled
    by then."""

    __slots__ = ("_handle", "_process", "_work")

    def __init__(self, work: Callable[..., Any], context: Context | None) -> None:
        self._work = work
        self._process = PROCESS.get() if context is None else context.get(PROCESS)
        self._handle: asyncio.Handle | None = None

    def handled(self, handle: AnyHandle) -> AnyHandle:
        """The event loop's handle of it."""
        self._handle = handle
        return handle

    def __call__(self, *arguments: Any) -> None:
        if self._process is None:
            self._work(*arguments)
        else:
            self._process.perform(self._do, *arguments)

    def _do(self, *arguments: Any) -> None:
        if self._handle is None or not self._handle.cancelled():
            self._work(*arguments)


def _described(context: dict[str, Any]) -> str:
    """What an event loop's exception handler is told."""
    error = context.get("exception")
    return f"{context.get('message')}: {error!r}" if error is not None else str(context.get("message"))
