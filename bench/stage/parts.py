"""Parts of a driver in processes of their own: lines of JSON from a part, lines of orders to it.

A part tells `ready`, then waits for `go <monotonic ns>`; `finish` asks it to come to its end. The end of its input
means that the driver has died: the part ends at once, so nothing is left behind.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
import threading
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Self

import uvloop

from lexicast.cluster.errors import LexicastError, PeerError

from .servers import log_tail

START_TIMEOUT_S = 60.0
END_TIMEOUT_S = 60.0
# A part ends by itself when its input is closed.
STOP_S = 10.0
LINE_BYTES_MAX = 1 << 20


def tell_driver(**fields: Any) -> None:
    """A part tells its driver something."""
    sys.stdout.write(json.dumps(fields) + "\n")
    sys.stdout.flush()


def run_part(work: Coroutine[Any, Any, None]) -> int:
    """All that a part does; its exit code. What goes wrong is one line."""
    try:
        uvloop.run(work)
    except LexicastError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


class Orders:
    """A part's side: the orders that come in, read by a thread, which calls `on_finish` at the order to finish."""

    def __init__(self, on_finish: Callable[[], object] = lambda: None) -> None:
        self._on_finish = on_finish
        self.finished = threading.Event()
        self._go = threading.Event()
        self._start_ns = 0
        threading.Thread(target=self._read, daemon=True).start()

    def wait_go(self) -> int:
        """Waits for the start; returns when it is (monotonic ns)."""
        self._go.wait()
        return self._start_ns

    def _read(self) -> None:
        for line in sys.stdin:
            order, _, argument = line.strip().partition(" ")
            if order == "go":
                self._start_ns = int(argument)
                self._go.set()
            elif order == "finish":
                self.finished.set()
                self._on_finish()
        os._exit(3)


class Part:
    """The driver's side of one part. `state` holds the newest of everything it has told; `on_told` gets each line."""

    def __init__(
        self,
        name: str,
        module: str,
        arguments: Sequence[str],
        log: Path,
        on_told: Callable[[dict[str, Any]], None] = lambda told: None,
    ) -> None:
        self.name = name
        self.state: dict[str, Any] = {}
        self._on_told = on_told
        self._command = [sys.executable, "-m", module, *arguments]
        self._log = log
        self._process: asyncio.subprocess.Process | None = None
        self._reading: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()

    async def start(self) -> None:
        """Starts the process, in a session of its own: a Ctrl-C at the terminal is the driver's alone."""
        creating = asyncio.ensure_future(self._create())
        try:
            self._process = await asyncio.shield(creating)
        except asyncio.CancelledError:
            self._process = await creating  # so that `stop` knows what it has to end
            raise
        self._reading = asyncio.create_task(self._read())

    async def _create(self) -> asyncio.subprocess.Process:
        with self._log.open("wb") as log:
            return await asyncio.create_subprocess_exec(
                *self._command,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                start_new_session=True,
                limit=LINE_BYTES_MAX,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            )

    async def _read(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            # What is no JSON is a library's chatter.
            with contextlib.suppress(ValueError):
                told = json.loads(line)
                self.state |= told
                self._on_told(told)
            self._changed.set()
        await self._process.wait()
        self._changed.set()

    async def wait_for(self, key: str, timeout_s: float = START_TIMEOUT_S) -> Any:
        """What it tells as `key`. Raises `PeerError` when it dies first or takes too long."""
        try:
            async with asyncio.timeout(timeout_s):
                while key not in self.state:
                    self.require_alive()
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            raise PeerError(
                f"{self.name} did not tell {key!r} within {timeout_s:.0f} s: {log_tail(self._log, 3)}"
            ) from None
        return self.state[key]

    def require_alive(self) -> None:
        """Raises `PeerError`, with the end of what it wrote to stderr, when it has ended."""
        if self._reading is not None and self._reading.done():
            assert self._process is not None
            raise PeerError(f"{self.name} ended with code {self._process.returncode}: {log_tail(self._log, 3)}")

    def order(self, text: str) -> None:
        """Gives it an order."""
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.write(text.encode() + b"\n")

    async def stop(self) -> None:
        """Closes its input, which ends it; kills it where that does not."""
        if self._process is None:
            return
        if self._process.stdin is not None:
            self._process.stdin.close()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._process.wait(), STOP_S)
        if self._process.returncode is None:
            self._process.kill()
            await self._process.wait()
        if self._reading is not None:
            await self._reading


class Stage:
    """The parts of one run, with their logs in `folder`; an async context manager that stops them all."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        await self._stack.__aenter__()
        return self

    async def __aexit__(self, *unused: object) -> None:
        await self._stack.aclose()

    def part(
        self,
        name: str,
        module: str,
        arguments: Sequence[str],
        on_told: Callable[[dict[str, Any]], None] = lambda told: None,
    ) -> Part:
        """A part that is not started yet."""
        made = Part(name, module, arguments, self._folder / f"{name}.log", on_told)
        self._stack.push_async_callback(made.stop)
        return made
