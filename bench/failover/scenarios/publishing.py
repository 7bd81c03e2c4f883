"""The process of a scenario's publishers (started by its driver): steadily, from `go` to `finish`, to all and to each.

A publisher keeps what is not acknowledged, connects again when its connection has ended, and sends it again.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from ...peers.wire import mqtt_frame
from ...stage.parts import Orders, run_part, tell_driver
from .plans import PORT, Expected, PublishingPlan, own_topic, qos_of, shared_topic, stamped
from .session_client import BACK_OFF_LEAST_S, DIAL_S, ERRORS
from .session_connection import SessionConnection, dial_session

UNANSWERED_MAX: Final = 1_000
IDS: Final = 65_535
SETTLE_S: Final = 30.0
LOOK_S: Final = 0.02
DUP: Final = 0x08


class _Sent(NamedTuple):
    """A publication that is not acknowledged yet."""

    packet: bytes
    topic: str
    number: int


class SteadyPublisher:
    """One. `counts`: how many were published on each topic."""

    def __init__(self, name: str, qos: int, hosts: Sequence[str]) -> None:
        self._name = name
        self._qos = qos
        self._hosts = hosts
        self._at = 0
        self._sent: dict[bytes, _Sent] = {}
        self._received: set[bytes] = set()
        self._packet_id = 0
        self._connection: SessionConnection | None = None
        self.counts: Counter[str] = Counter()
        self.reconnects = -1

    async def live(self, ready: asyncio.Event) -> None:
        """For ever."""
        while True:
            try:
                connection = await self._open()
            except ERRORS:
                self._at += 1
                await asyncio.sleep(BACK_OFF_LEAST_S)
                continue
            self.reconnects += 1
            for packet_id, sent in self._sent.items():
                released = packet_id in self._received
                again = b"\x62\x02" + packet_id if released else bytes([sent.packet[0] | DUP]) + sent.packet[1:]
                connection.transport.write(again)
            self._connection = connection
            ready.set()
            await connection.closed
            self._connection = None

    async def _open(self) -> SessionConnection:
        def make() -> SessionConnection:
            return SessionConnection(lambda *_: None, set(), 0.0, self._answered, self._received.add)

        async with asyncio.timeout(DIAL_S):
            connection = await dial_session(self._hosts[self._at % len(self._hosts)], PORT, make, 0.0)
            await connection.open(self._name)
        return connection

    def _answered(self, packet_id: bytes) -> None:
        self._sent.pop(packet_id, None)
        self._received.discard(packet_id)

    def publish(self, topic: str) -> None:
        """The next one on a topic; none while too much is unanswered, or nobody is there."""
        connection = self._connection
        if connection is None or len(self._sent) >= UNANSWERED_MAX:
            return
        self._packet_id = self._packet_id % IDS + 1
        packet_id, number = self._packet_id.to_bytes(2, "big"), self.counts[topic]
        name = topic.encode()
        body = len(name).to_bytes(2, "big") + name + packet_id + stamped(number, time.monotonic_ns())
        packet = mqtt_frame(0x30 | self._qos << 1, body)
        self.counts[topic] += 1
        self._sent[packet_id] = _Sent(packet, topic, number)
        connection.transport.write(packet)

    def unanswered(self) -> dict[str, list[int]]:
        """The numbers of each topic that are not acknowledged."""
        found: dict[str, list[int]] = {}
        for sent in self._sent.values():
            found.setdefault(sent.topic, []).append(sent.number)
        return found


async def publish_steadily(plan: PublishingPlan, publishers: Sequence[SteadyPublisher], until: asyncio.Event) -> None:
    """At the plan's rates. What was missed is not made up for."""
    streams = [(rate, shared) for rate, shared in ((plan.shared_rate, True), (plan.own_rate, False)) if rate]
    now_s = time.monotonic()
    due_s, turns = [now_s for _ in streams], [0 for _ in streams]
    while not until.is_set():
        now_s = time.monotonic()
        for at, (rate, shared) in enumerate(streams):
            if now_s < due_s[at]:
                continue
            due_s[at] = max(due_s[at] + 1 / rate, now_s)
            number = turns[at] if shared else turns[at] % plan.subscribers
            publisher = number % len(publishers)
            topic = shared_topic(plan.run, publisher) if shared else own_topic(plan.run, number)
            publishers[publisher].publish(topic)
            turns[at] += 1
        await asyncio.sleep(max(0.0, min([LOOK_S, *[each - time.monotonic() for each in due_s]])))


async def run(options: argparse.Namespace) -> None:
    """The whole of it."""
    plan = PublishingPlan.read(options.plan)
    loop, finished = asyncio.get_running_loop(), asyncio.Event()
    orders = Orders(lambda: loop.call_soon_threadsafe(finished.set))
    publishers = [
        SteadyPublisher(f"{plan.run}-publisher-{number}", qos_of(number), [host, *plan.hosts])
        for number, host in enumerate(plan.hosts)
    ]
    ready = [asyncio.Event() for _ in publishers]
    lives = [asyncio.create_task(each.live(event)) for each, event in zip(publishers, ready, strict=True)]
    for event in ready:
        await event.wait()
    tell_driver(ready=True)
    await asyncio.to_thread(orders.wait_go)
    await publish_steadily(plan, publishers, finished)
    until_s = time.monotonic() + SETTLE_S
    while any(each.unanswered() for each in publishers) and time.monotonic() < until_s:  # noqa: ASYNC110  # of several
        await asyncio.sleep(LOOK_S)
    counts = sum([each.counts for each in publishers], Counter[str]())
    unanswered = {topic: numbers for each in publishers for topic, numbers in each.unanswered().items()}
    Expected(dict(counts), unanswered, sum([each.reconnects for each in publishers])).write(options.expected)
    tell_driver(settled=True)
    await asyncio.gather(*lives)  # until the driver closes this process's input


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """The options, all from the driver."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("plan", "expected"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """`python -m lexicast.bench.failover.scenarios.publishing`; returns the exit code."""
    return run_part(run(parse(argv)))


if __name__ == "__main__":
    sys.exit(main())
