"""Entries that move from one coordinator to another keep their order, however the old one answered their batches."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

from lexicast.actors.broker.coordinator_events import CoordinatorEvents
from lexicast.actors.broker.coordinators import Coordinators
from lexicast.actors.broker.engine import BrokerEngine
from lexicast.actors.broker.pipelines.pipeline import Pipeline
from lexicast.actors.link.link import Link, LinkUser
from lexicast.actors.link.sockets import listen
from lexicast.cluster.clock import SystemClock
from lexicast.cluster.config.tables import Config
from lexicast.cluster.membership import Member
from lexicast.cluster.positions import topic_group
from lexicast.cluster.protocol.messages import ACK, LEADS, PUBLISH, REQUEST, TAKEN

from ...support.harness import eventually

KEY, CLUSTER = b"k" * 32, "moved"
GROUPS = 2
TOPICS = {topic_group(topic, GROUPS): topic for topic in [b"%d" % i for i in range(20)]}
MOVES, STAYS = 0, 1


class ScriptedCoordinator:
    """What is published to it, and answers as a test has them; `takes`: says at once that it has placed a batch."""

    def __init__(self, leads: dict[int, int], takes: bool = True) -> None:
        self.leads = leads
        self.takes = takes
        self.links: list[Link] = []
        self.batches: list[tuple[int, list[Any]]] = []

    def opened(self, link: Link) -> LinkUser:
        self.links.append(link)
        return self

    def on_message(self, link: Link, message: tuple[Any, ...]) -> None:
        if message[0] == PUBLISH:
            self.batches.append((message[1], list(message[2])))
            if self.takes:
                link.send((TAKEN, message[1]))
        elif message[0] == REQUEST:
            answers: dict[str, Any] = {"serve": {"heads": {}, "leads": self.leads}, "resume_groups": {"heads": {}}}
            link.reply(message[1], None, answers.get(message[2]))

    def on_close(self, link: Link, error: Exception | None) -> None:
        pass

    def on_writable(self, link: Link) -> None:
        pass

    def bodies(self, group: int) -> list[bytes]:
        return [entry[3] for _, entries in self.batches for entry in entries if entry[0] == group]


def test_entries_that_were_answered_in_another_order_than_sent_move_in_the_order_sent() -> None:
    asyncio.run(_two_batches_answered_backwards(moved_while_the_first_is_under_way=False))


def test_entries_under_way_move_before_those_of_a_later_batch_that_was_answered() -> None:
    asyncio.run(_two_batches_answered_backwards(moved_while_the_first_is_under_way=True))


@asynccontextmanager
async def _linked(old: ScriptedCoordinator, new: ScriptedCoordinator) -> AsyncIterator[Coordinators]:
    """A broker whose links to both stand; it takes the old one for the leader of all."""
    engine = BrokerEngine("broker-0", 1, GROUPS, Config(), SystemClock())
    events = CoordinatorEvents(engine, {}, lambda pipeline: None, lambda: None)

    def make(member: Member) -> Pipeline:
        return Pipeline(
            events,
            member,
            ("broker", "broker-0", 1),
            (KEY, CLUSTER),
            producer=b"broker-0",
            window_batches=2,
            batch_bytes_max=4096,
            queue_bytes_max=65536,
        )

    with tempfile.TemporaryDirectory(prefix="lexicast-") as folder:
        members, servers = [], []
        for name, who in (("old", old), ("new", new)):
            server, address = await listen(f"unix:{Path(folder, name)}", KEY, CLUSTER, who.opened, {})
            servers.append(server)
            members.append(Member(name, 1, (address,), "", 0, ()))
        engine.coordinators.follow(members, make, dict.fromkeys(range(GROUPS), "old"))
        for pipeline in engine.coordinators.pipelines.values():
            await pipeline.wait_linked()
        yield engine.coordinators
        await engine.close()
        for server in servers:
            server.close()


async def _two_batches_answered_backwards(moved_while_the_first_is_under_way: bool) -> None:
    """The first batch also holds an entry of a group that stays, and waits for its commit; the second does not."""
    old, new = ScriptedCoordinator({MOVES: 1, STAYS: 1}), ScriptedCoordinator({})
    results: list[Any] = []
    async with _linked(old, new) as coordinators:

        def publish(group: int, payload: bytes) -> None:
            coordinators.publish(TOPICS[group], 1, [payload], "origin", results.append)

        publish(MOVES, b"first")
        publish(STAYS, b"stays")
        await eventually(lambda: len(old.batches) == 1)
        publish(MOVES, b"second")
        await eventually(lambda: len(old.batches) == 2)
        (first, entries), (second, _) = old.batches
        assert {entry[0] for entry in entries} == {MOVES, STAYS}

        link = old.links[0]
        link.send((ACK, second, [()]))
        first_answer = (ACK, first, [() if entry[0] == MOVES else ((1, 1, 7),) for entry in entries])
        if not moved_while_the_first_is_under_way:
            link.send(first_answer)
            await eventually(lambda: len(results) == 1)
        new.links[0].send((LEADS, {MOVES: 2}))
        await eventually(lambda: len(new.bodies(MOVES)) == 2)
        assert new.bodies(MOVES) == [b"first", b"second"]
        if moved_while_the_first_is_under_way:
            link.send(first_answer)
            await eventually(lambda: len(results) == 1)
        assert results == [((1, 1, 7),)]
        for tag, found in new.batches:
            new.links[0].send((ACK, tag, [((1, 2, at),) for at, _ in enumerate(found)]))
        await eventually(lambda: len(results) == 3)


async def test_what_waited_behind_entries_that_move_is_sent_then() -> None:
    """Two batches of a group that moves take up the window; nothing is published that would go on with the rest."""
    old, new = ScriptedCoordinator({MOVES: 1, STAYS: 1}, takes=False), ScriptedCoordinator({})
    async with _linked(old, new) as coordinators:
        for number in (b"1", b"2"):
            coordinators.publish(TOPICS[MOVES], 1, [number], "origin")
            await eventually(partial(lambda number: old.bodies(MOVES)[-1:] == [number], number))
        coordinators.publish(TOPICS[STAYS], 1, [b"waits"], "origin")
        await asyncio.sleep(0.01)
        assert old.bodies(STAYS) == []
        new.links[0].send((LEADS, {MOVES: 2}))
        await eventually(lambda: old.bodies(STAYS) == [b"waits"])
        assert new.bodies(MOVES) == [b"1", b"2"]
