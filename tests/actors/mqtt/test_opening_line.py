"""The line of newcomers: a few at a time in the order in which they came, and nobody holds the others up."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from lexicast.actors.broker.server import BrokerServer
from lexicast.actors.mqtt import opening_line
from lexicast.actors.mqtt.codec.packets import V5, Connect
from lexicast.actors.mqtt.opening_line import PACE_LEAST, PACE_MOST, OpeningLine, OpeningPace

from ...support.harness import Cluster, eventually
from ...support.mqtt_harness import Raw, close_clients, unique


class Newcomers:
    """Openings that take as long as the test lets them; in which order they began."""

    def __init__(self) -> None:
        self.began: list[int] = []
        self._over: dict[int, asyncio.Event] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self.line = OpeningLine(self.spawn)

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def come(self, *numbers: int) -> None:
        for number in numbers:
            self._over[number] = asyncio.Event()
            self.line.enter(partial(self._open, number))

    async def _open(self, number: int) -> None:
        self.began.append(number)
        await self._over[number].wait()
        if number == 0:
            raise OSError("the first one's home is gone")

    def over(self, *numbers: int) -> None:
        for number in numbers:
            self._over[number].set()

    async def leave(self) -> None:
        self.line.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


async def few_turns() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_newcomers_are_opened_a_few_at_a_time_in_the_order_in_which_they_came(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(opening_line, "LOOK_S", 60.0)
    monkeypatch.setattr(opening_line, "PLACE_S", 60.0)
    newcomers = Newcomers()
    newcomers.come(*range(PACE_LEAST + 3))
    await few_turns()
    assert newcomers.began == list(range(PACE_LEAST))
    assert len(newcomers.line) == 3
    newcomers.over(0, 7)
    await few_turns()
    assert newcomers.began == list(range(PACE_LEAST + 2))
    newcomers.line.close()
    newcomers.over(*range(1, PACE_LEAST))
    await few_turns()
    assert newcomers.began == list(range(PACE_LEAST + 2)), "nothing is opened once it is closed"
    await newcomers.leave()


@pytest.mark.parametrize("knob", ["PLACE_S", "LOOK_S"])
async def test_who_waits_long_does_not_hold_others_up_and_a_loop_that_is_in_time_takes_more(
    monkeypatch: pytest.MonkeyPatch, knob: str
) -> None:
    for each in ("PLACE_S", "LOOK_S"):
        monkeypatch.setattr(opening_line, each, 0.001 if each == knob else 60.0)
    monkeypatch.setattr(opening_line, "LATE_S", 60.0)
    newcomers = Newcomers()
    newcomers.come(*range(PACE_MOST))
    await eventually(lambda: len(newcomers.began) == PACE_MOST, "all to be opened though none is done")
    assert newcomers.began == list(range(PACE_MOST))
    await newcomers.leave()


def test_the_pace_follows_how_late_the_loop_is() -> None:
    pace = OpeningPace()
    assert pace.places == PACE_LEAST
    for _ in range(100):
        pace.look(0.0)
    assert pace.places == PACE_MOST
    pace.look(0.1)
    assert PACE_LEAST <= pace.places < PACE_MOST
    for _ in range(100):
        pace.look(0.1)
    assert pace.places == PACE_LEAST


async def test_a_client_that_has_left_while_it_waited_gets_no_session(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opening_line, "PACE_LEAST", 1)
    monkeypatch.setattr(opening_line, "PACE_MOST", 1)
    monkeypatch.setattr(opening_line, "PLACE_S", 60.0)
    async with Cluster(tmp_path) as cluster:
        coordinator = await cluster.start_coordinator()
        broker = await cluster.start_broker("broker-0")
        assert isinstance(broker, BrokerServer)
        names = [unique("line") for _ in range(3)]
        coordinator.disk.hold()
        clients = []
        for number, name in enumerate(names):
            clients.append(await Raw.open(broker.mqtt.port))
            clients[-1].send(Connect(V5, name, False, properties={17: 600}))
            await eventually(_waiting(broker, number), "it to be in the line")
        clients[1].abort()
        await eventually(lambda: len(broker.mqtt.connections) == 2, "the broker to see that it has left")
        coordinator.disk.release()
        await eventually(lambda: len(broker.mqtt.sessions.owners) == 2, "the others to be served")
        assert set(broker.mqtt.sessions.owners) == {names[0], names[2]}
        groups = range(coordinator.server.store.groups)
        known = {session.client_id for group in groups for session in coordinator.server.store.tables.sessions(group)}
        assert names[1] not in known
        await close_clients()


def _waiting(broker: BrokerServer, count: int) -> Callable[[], bool]:
    return lambda: len(broker.mqtt._services.openings) == count
