"""The process that answers questions in SQL: started with the first of them, ended when nobody has asked for a while.

It stands above the actors (`raydp_jobs.jobs.page_questions`), which therefore cannot import it, and Spark has the time
and the memory of a process of its own. One question at a time; one that takes too long ends with the process.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple

from lexicast.cluster.errors import LimitError, UnavailableError, UsageError

from ..shared_answer import SharedAnswer

log = logging.getLogger(__name__)

# Spark's start takes 13 to 35 s on two cores; the process itself gives up after 180 s.
START_S: Final = 200.0
ANSWER_S: Final = 60.0
# For the next question Spark is there still; for its CPU and memory somebody else may wait.
IDLE_S: Final = 120.0
# After that long it has not ended by itself, and is killed.
END_S: Final = 10.0
LINE_BYTES_MAX: Final = 4 << 20
AVAILABLE_FRESH_S: Final = 30.0


class SqlProgram(NamedTuple):
    """What is started: `prepare` raises UnavailableError where it cannot be, in words that say what is missing; it
    takes a moment, and may be called in a thread."""

    command: Sequence[str]
    environment: Mapping[str, str] | None
    prepare: Callable[[], None]


def _nothing() -> None:
    raise UnavailableError("this console answers no questions in SQL")


NO_SQL: Final = SqlProgram((), None, _nothing)


class SqlProcess:
    """See the module's docstring."""

    def __init__(self, program: SqlProgram) -> None:
        self._program = program
        self._process: asyncio.subprocess.Process | None = None
        self._is_busy = False
        self._idle: asyncio.TimerHandle | None = None
        self._ending: set[asyncio.Task[None]] = set()
        self._why_not = SharedAnswer(self._missing, AVAILABLE_FRESH_S)

    async def why_not(self) -> str:
        """What is missing; "": nothing."""
        return await self._why_not.get()

    async def _missing(self) -> str:
        try:
            await asyncio.to_thread(self._program.prepare)
        except UnavailableError as error:
            return str(error)
        return ""

    @property
    def is_running(self) -> bool:
        """Whether the next question finds it started."""
        return self._process is not None and self._process.returncode is None

    async def ask(self, question: dict[str, Any]) -> dict[str, Any]:
        """The answer. Raises LimitError (somebody else's question is being answered), UsageError (it is wrong),
        UnavailableError (nothing to answer it with, it failed, it took too long)."""
        if missing := await self.why_not():
            raise UnavailableError(missing)
        if self._is_busy:
            raise LimitError("another question in SQL is being answered: one at a time")
        self._is_busy = True
        if self._idle is not None:
            self._idle.cancel()
        try:
            told = await self._answer(question)
        except BaseException:
            self._end()
            raise
        finally:
            self._is_busy = False
        self._idle = asyncio.get_running_loop().call_later(IDLE_S, self._end)
        if "error" in told:
            raise (UsageError if told.get("usage") else UnavailableError)(told["error"])
        return told

    async def _answer(self, question: dict[str, Any]) -> dict[str, Any]:
        limit_s = ANSWER_S if self.is_running else START_S + ANSWER_S
        try:
            async with asyncio.timeout(limit_s):
                process = await self._started()
                assert process.stdin is not None and process.stdout is not None  # noqa: PT018 - both are pipes
                process.stdin.write(json.dumps(question).encode() + b"\n")
                await process.stdin.drain()
                line = await process.stdout.readline()
        except TimeoutError:
            raise UnavailableError(
                f"no answer within {limit_s:.0f} s, and Spark was ended: name a shorter time or fewer topics"
            ) from None
        except (OSError, ValueError) as error:  # ValueError: a line that is too long
            raise UnavailableError(f"the process that answers questions in SQL fails ({error})") from None
        if not line:
            raise UnavailableError("Spark has ended instead of answering: the log of this console says why")
        told: dict[str, Any] = json.loads(line)
        return told

    async def _started(self) -> asyncio.subprocess.Process:
        if not self.is_running:
            self._process = await asyncio.create_subprocess_exec(
                *self._program.command,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                env=self._program.environment,
                limit=LINE_BYTES_MAX,
            )
            log.info("questions in SQL: process %d started", self._process.pid)
        assert self._process is not None
        return self._process

    def _end(self) -> None:
        """Have it end; `close` waits for that."""
        process, self._process = self._process, None
        if process is not None and process.returncode is None:
            ending = asyncio.get_running_loop().create_task(_ended(process))
            self._ending.add(ending)
            ending.add_done_callback(self._ending.discard)

    async def close(self) -> None:
        """Answer nothing any more."""
        if self._idle is not None:
            self._idle.cancel()
        self._end()
        if self._ending:
            await asyncio.wait(self._ending)


async def _ended(process: asyncio.subprocess.Process) -> None:
    with suppress(ProcessLookupError):
        process.terminate()
        try:
            async with asyncio.timeout(END_S):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()
