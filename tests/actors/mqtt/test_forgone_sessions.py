"""Sessions whose connection ended before their home had answered: it is told until it has heard."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from lexicast.actors.mqtt.owning import forgone_sessions
from lexicast.actors.mqtt.owning.forgone_sessions import ForgoneSessions
from lexicast.cluster.errors import LexicastError, UnavailableError

from ...support.harness import eventually


class Home:
    """Answers when the test says so."""

    def __init__(self) -> None:
        self.asked: list[tuple[Any, ...]] = []
        self.answers: list[asyncio.Future[None]] = []

    def ask(self, *what: Any) -> asyncio.Future[None]:
        self.asked.append(what)
        self.answers.append(asyncio.get_running_loop().create_future())
        return self.answers[-1]


async def test_a_home_is_told_until_it_has_heard_of_the_last_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forgone_sessions, "AGAIN_S", 0.0)
    home = Home()
    forgone = ForgoneSessions(home.ask)
    errors: list[Exception] = [TimeoutError(), UnavailableError("gone"), LexicastError("odd")]
    forgone.forgo("a", 3)
    for error in errors:
        await eventually(lambda: bool(home.answers) and not home.answers[-1].done())
        assert list(forgone.connections) == [3]
        home.answers[-1].set_exception(error)
    await eventually(lambda: len(home.asked) == 4)
    forgone.forgo("a", 5)  # while it is asked for the first one
    assert list(forgone.connections) == [3, 5]
    home.answers[-1].set_result(None)
    await eventually(lambda: len(home.asked) == 5)
    assert list(forgone.connections) == [5]
    home.answers[-1].set_result(None)
    await eventually(lambda: not list(forgone.connections))
    assert home.asked == [("session_forgo", "a", 3)] * 4 + [("session_forgo", "a", 5)]


async def test_each_session_waits_for_its_own_home() -> None:
    home = Home()
    forgone = ForgoneSessions(home.ask)
    forgone.forgo("a", 1)
    forgone.forgo("b", 2)
    await eventually(lambda: len(home.asked) == 2)
    home.answers[1].set_result(None)
    await eventually(lambda: list(forgone.connections) == [1])
    forgone.close()
    await eventually(lambda: home.answers[0].cancelled())
