"""One client of a crowd: a session that stays, a list of brokers, and nothing known but to connect again.

It connects to the next of its list at once when its connection has ended; when that is refused or takes too long, to
the one behind it, after a moment of a random length that becomes longer with each try.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from lexicast.cluster.errors import LexicastError

from .plans import PORT, Fate, stamp_of
from .session_audit import SessionAudit
from .session_connection import SessionConnection, dial_session

DIAL_S: Final = 5.0
BACK_OFF_LEAST_S: Final = 0.1
BACK_OFF_MOST_S: Final = 2.0
ERRORS: Final = (OSError, TimeoutError, LexicastError)


class CrowdClient:
    """See the module's docstring. `hit_ns` is set when the fault has struck; `ways_s`: longer ways, by host; `open_s`:
    how long it waits for CONNACK."""

    def __init__(
        self,
        name: str,
        qos: int,
        filters: list[str],
        hosts: Sequence[str],
        ways_s: dict[str, float],
        open_s: float,
        chance: random.Random,
    ) -> None:
        self.name = name
        self.fate = Fate(qos)
        self.audit = SessionAudit()
        self.hit_ns = 0
        self.connection: SessionConnection | None = None
        self._filters = filters
        self._hosts = hosts
        self._ways_s = ways_s
        self._open_s = open_s
        self._chance = chance
        self._at = 0
        self._held: set[bytes] = set()
        self._ending = False

    # -- its life

    async def begin(self) -> None:
        """Connect and subscribe, before anything happens. Raises OSError, TimeoutError, LexicastError."""
        self.connection, _ = await self._try()

    async def live(self) -> None:
        """From then on."""
        assert self.connection is not None
        while True:
            await self.connection.closed
            if self._ending:
                return
            self._has_lost(self.connection.heard_ns, time.monotonic_ns())
            self.connection = await self._connect()

    def _has_lost(self, heard_ns: int, now_ns: int) -> None:
        self.connection = None
        self.audit.lost_connection(heard_ns, now_ns)
        self.fate.losses += 1
        self.fate.lost_ns = self.fate.lost_ns or now_ns
        self._at += 1

    async def _connect(self) -> SessionConnection:
        most_s = 2 * BACK_OFF_LEAST_S
        while True:
            began_ns = time.monotonic_ns()
            try:
                connection, present = await self._try()
            except ERRORS:
                self.fate.refused += 1
                self.fate.refused_ns = self.fate.refused_ns or time.monotonic_ns()
                self._at += 1
                await asyncio.sleep(self._chance.uniform(BACK_OFF_LEAST_S, most_s))
                most_s = min(2 * most_s, BACK_OFF_MOST_S)
                continue
            if not self.fate.accepted_ns:
                self.fate.accepted_ns, self.fate.living_ns = connection.accepted_ns, began_ns
            self.fate.anew += not present
            return connection

    async def _try(self) -> tuple[SessionConnection, bool]:
        host = self._hosts[self._at % len(self._hosts)]
        way_s = self._ways_s.get(host, 0.0)
        connection: SessionConnection | None = None
        try:
            async with asyncio.timeout(DIAL_S):
                connection = await dial_session(
                    host, PORT, lambda: SessionConnection(self._on_message, self._held, way_s), way_s
                )
            async with asyncio.timeout(self._open_s):
                present = await connection.open(self.name)
                if not present:
                    await connection.subscribe_to(self._filters, self.fate.qos)
        except BaseException:
            if connection is not None:
                connection.transport.abort()
            raise
        return connection, present

    def _on_message(self, topic: bytes, payload: bytes, qos: int) -> None:
        number, sent_ns = stamp_of(payload)
        now_ns = time.monotonic_ns()
        self.audit.arrived(topic, number, sent_ns, qos, now_ns)
        if not self.fate.first_ns and 0 < self.hit_ns < sent_ns:
            self.fate.first_ns = now_ns

    # -- its end

    async def end(self) -> None:
        """Leave, and have the session forgotten where a broker is there."""
        self._ending = True
        if self.connection is None:
            return
        with suppress(*ERRORS):
            async with asyncio.timeout(self._open_s):
                await self.connection.leave()
                connection = await dial_session(
                    self._hosts[self._at % len(self._hosts)],
                    PORT,
                    lambda: SessionConnection(self._on_message, set()),
                    0.0,
                )
                await connection.open(self.name, clean=True)
                await connection.leave()

    def told(self) -> Fate:
        """What became of it."""
        fate = self.fate
        fate.counts |= {name: count for name, count in self.audit.counts.items() if count}
        fate.oldest_repeat_ns = self.audit.oldest_repeat_ns
        if self.hit_ns:
            fate.first_ns = self.audit.first_after(self.hit_ns)
        return fate
