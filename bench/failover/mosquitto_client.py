"""The drills' clients: `mosquitto_pub` and `mosquitto_sub`, driven by what they say of themselves (`-d`).

They know one broker each. So a script goes round them that starts the next process with the next broker of the list,
and the same client id, when one is not answered for KEEP_ALIVE_S, or has lost its connection, and gives a publisher's
process again what was not acknowledged. (mosquitto_pub 2.0.11 that has lost a connection while it reads lines connects
again, and sends nothing any more.)
"""

from __future__ import annotations

import asyncio
import re
import signal
import time
from contextlib import suppress
from typing import Final

from .audit import Audit, Party, topic
from .brokers import AGAIN_S, FILTER, KEEP_ALIVE_S, SESSION_S, TURN_S, WHERE, Brokers, DrillPace, TaskClient

PROGRAMS: Final = ("mosquitto_pub", "mosquitto_sub", "stdbuf")
# A publisher that has no answer for so long goes to another broker.
ANSWER_S: Final = 4.0
# The least that mosquitto_sub takes is 5 s: a connection whose other end is silent is noticed after that.
LEAST_KEEP_ALIVE_S: Final = 5
# One that says nothing itself for so long connects again to a machine that is not there, which it does not tell.
SILENCE_S: Final = LEAST_KEEP_ALIVE_S + ANSWER_S
_RECEIVED: Final = re.compile(r"received PUBLISH \(d(\d), q\d, r\d, m\d+, '")
_SENT: Final = re.compile(r"sending PUBLISH \(d\d, q\d, r\d, m(\d+),")
_ANSWERED: Final = re.compile(r"received (?:PUBACK|PUBCOMP) \(Mid: (\d+)")


class MosquittoClient(TaskClient):
    """One of the two programs, again and again. A publisher has one topic: it takes a line a message."""

    def __init__(self, party: Party, audit: Audit, pace: DrillPace | None, brokers: Brokers) -> None:
        super().__init__(party, audit, pace, brokers)
        # A process's: when it said something that wants an answer; and a publisher's packets.
        self._asked_s = 0.0
        self._said_s = 0.0
        self._lost = False
        self._open = 0  # publications that are not answered
        self._answered_s = 0.0
        self._dup = False
        self._fed: list[int] = []
        self._numbers: dict[int, int] = {}

    def command(self) -> list[str]:
        """The program that serves the next broker of the list, and its arguments."""
        name, qos = self.party.name, str(self.party.qos)
        where = ["-h", self._brokers.host, "-p", str(self._brokers.port), "-i", name, "-q", qos, "-d"]
        where += ["-k", str(LEAST_KEEP_ALIVE_S)]
        if self._pace is None:
            if self.party.where:
                where += ["-V", "5", "-x", str(SESSION_S), "-D", "subscribe", "user-property", WHERE, self.party.where]
            return ["stdbuf", "-oL", "mosquitto_sub", *where, "-c", "-t", FILTER]
        return ["stdbuf", "-oL", "mosquitto_pub", *where, "-c", "-l", "-t", topic(name, 0)]

    async def _run(self) -> None:
        while True:
            process = await asyncio.create_subprocess_exec(
                *self.command(),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.DEVNULL,
            )
            reading = asyncio.create_task(self._read(process))
            try:
                await self._serve(process, reading)
            finally:
                with suppress(ProcessLookupError):
                    process.send_signal(signal.SIGTERM)
                try:
                    async with asyncio.timeout(KEEP_ALIVE_S):
                        await reading
                except TimeoutError:
                    process.kill()
                    await process.wait()
                self._next_broker()
            await asyncio.sleep(AGAIN_S)

    async def _serve(self, process: asyncio.subprocess.Process, reading: asyncio.Task[None]) -> None:
        """One process; returns when it has ended, or is to."""
        unanswered = self._audit.unanswered(self.party.name) if self._pace is not None else []
        self._fed, self._numbers, self._asked_s, self._lost = [], {}, time.monotonic(), False
        self._said_s = time.monotonic()
        self._open, self._answered_s = 0, 0.0
        if self._pace is not None:
            self._audit.resent(self.party.name, unanswered)
        while not (reading.done() or self._going_home):
            if self._lost or self.is_silent(time.monotonic()):
                return
            if self._pace is not None and self._brokers.at:
                for number in unanswered:
                    self._feed(process, number)
                unanswered = []
                if self._pace.due(self.party.name, time.monotonic()):
                    self._feed(process, self._audit.publish(self.party.name, time.monotonic())[0])
            await asyncio.sleep(TURN_S)

    def is_silent(self, now_s: float) -> bool:
        """Whether the broker owes an answer for too long, or the program says nothing."""
        asked = bool(self._asked_s) and now_s > self._asked_s + KEEP_ALIVE_S
        return asked or now_s > self._said_s + SILENCE_S or (self._open > 0 and now_s > self._answered_s + ANSWER_S)

    def _feed(self, process: asyncio.subprocess.Process, number: int) -> None:
        assert process.stdin is not None
        if not self._open:
            self._answered_s = time.monotonic()
        self._open += 1
        self._fed.append(number)
        with suppress(ConnectionError):
            process.stdin.write(self._audit.messages.payload(self.party.name, number) + b"\n")

    async def _read(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        async for line in process.stdout:
            self.said(line.decode(errors="replace").rstrip("\n"))
        await process.wait()

    def said(self, line: str) -> None:
        """One line of what the program says."""
        self._said_s = time.monotonic()
        if not line.startswith("Client "):
            payload = line.encode()  # or something else that the program says
            if self._pace is None and self._audit.messages.read(payload) is not None:
                self._audit.arrived(self.party.name, payload, time.monotonic(), dup=self._dup)
        elif "sending CONNECT" in line or "sending PINGREQ" in line:
            self._asked_s = time.monotonic()
            if "CONNECT" in line:
                self._lost = bool(self._brokers.at)
                self._brokers.at = ""
                if self._pace is None:
                    self._audit.connected(self.party.name)
        elif "received CONNACK (0)" in line:
            self._brokers.at, self._asked_s = self._brokers.host, 0.0
            if self._pace is not None:
                self._ready.set()
        elif "received PINGRESP" in line:
            self._asked_s = 0.0
        elif "received SUBACK" in line:
            self._ready.set()
        elif (found := _RECEIVED.search(line)) is not None:
            self._dup = found[1] == "1"
        elif (found := _SENT.search(line)) is not None:
            if len(self._numbers) < len(self._fed) and int(found[1]) not in self._numbers:
                self._numbers[int(found[1])] = self._fed[len(self._numbers)]
        elif (found := _ANSWERED.search(line)) is not None and int(found[1]) in self._numbers:
            self._open, self._answered_s = self._open - 1, time.monotonic()
            self._audit.acknowledged(self.party.name, self._numbers[int(found[1])])
