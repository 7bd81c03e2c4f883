"""Ray's errors come out in lexicast's words, whatever class they are of, and `lexicast up` survives all of them."""

from __future__ import annotations

import asyncio
import inspect
from typing import Any

import pytest
import ray.exceptions

from lexicast.actors.launch.health import Health, keep_watching
from lexicast.actors.ray import handles
from lexicast.actors.ray.errors import RAY_ERRORS, may_pass, meaning, ray_errors, translated
from lexicast.actors.ray.handles import ActorGoneError, ActorReference, find_actor
from lexicast.cluster.errors import AuthenticationError, LexicastError, StoreFormatError, UnavailableError

from ...support.harness import eventually

ERRORS = {
    name: cls
    for name, cls in vars(ray.exceptions).items()
    if inspect.isclass(cls) and issubclass(cls, BaseException) and cls.__module__ == "ray.exceptions"
}


def made(cls: type[BaseException]) -> BaseException:
    """One of that class, whatever its constructor takes."""
    error = cls.__new__(cls)
    Exception.__init__(error, "line one\nline two")
    if isinstance(error, ray.exceptions.RayTaskError):
        error.cause = ValueError("x")
    return error


def inside(cause: Exception) -> ray.exceptions.RayTaskError:
    """What a caller gets for `cause`, raised in an actor."""
    task_error: Any = ray.exceptions.RayTaskError
    failed: ray.exceptions.RayTaskError = task_error("status", "Traceback\nof the actor", cause).as_instanceof_cause()
    return failed


def test_every_error_of_the_installed_ray_has_a_meaning() -> None:
    """A class that a new Ray brings is to be thought about; one that has gone is to go from the table."""
    assert RAY_ERRORS.keys() == ERRORS.keys()


@pytest.mark.parametrize("cls", ERRORS.values(), ids=ERRORS.keys())
def test_each_is_translated_to_one_line(cls: type[BaseException]) -> None:
    error = made(cls)
    told = translated(error, "coordinator-0.status")
    assert type(told) in (UnavailableError, AuthenticationError)
    assert "\n" not in str(told)
    assert str(told).startswith("coordinator-0.status: ")
    assert meaning(error) is RAY_ERRORS[cls.__name__]


@pytest.mark.parametrize("error", [ConnectionError("ray client is gone"), RuntimeError("shut down"), TimeoutError()])
def test_what_ray_raises_beside_its_own_classes_is_translated_too(error: Exception) -> None:
    with pytest.raises(UnavailableError), ray_errors("x"):
        raise error


def test_what_an_actor_raises_on_purpose_comes_out_as_it_is_and_its_defects_do_not() -> None:
    meant = StoreFormatError("not a store")
    assert translated(inside(meant)) is meant
    assert not may_pass(inside(meant))
    defect = translated(inside(AttributeError("no attribute '_calls'")), "broker-0.client_open")
    assert type(defect) is UnavailableError
    assert "no attribute '_calls'" in str(defect)
    assert "broker-0.client_open" in str(defect)


class Handle:
    """An actor whose method raises these, one after the other, then answers."""

    def __init__(self, *errors: BaseException) -> None:
        self.errors = list(errors)
        self.status = self

    async def remote(self) -> str:
        if self.errors:
            raise self.errors.pop(0)
        return "serves"


async def test_a_call_raises_nothing_but_lexicast_errors() -> None:
    for cls in ERRORS.values():
        with pytest.raises(LexicastError):
            await ActorReference("a", Handle(made(cls))).call("status")


async def test_a_call_is_tried_again_while_that_may_help(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handles, "RETRY_FIRST_S", 0.001)
    passing = [made(cls) for name, cls in ERRORS.items() if RAY_ERRORS[name].passes]
    assert await ActorReference("a", Handle(*passing)).call_retried("status") == "serves"
    for name in ("ActorUnschedulableError", "NodeDiedError"):
        with pytest.raises(UnavailableError, match="gone"):
            await ActorReference("a", Handle(made(ERRORS[name]))).call_retried("status")
    unavailable = [made(ray.exceptions.ActorUnavailableError) for _ in range(1_000)]
    with pytest.raises(UnavailableError, match="has not answered for 0 s"):
        await ActorReference("a", Handle(*unavailable)).call_retried("status", retry_s=0.05)


def test_an_actor_that_ray_does_not_know_is_told_from_a_ray_that_cannot_be_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def raising(error: Exception) -> Any:
        def get_actor(*_: Any, **__: Any) -> Any:
            raise error

        return get_actor

    monkeypatch.setattr(ray, "get_actor", raising(ValueError("Failed to look up actor")))
    with pytest.raises(ActorGoneError):
        find_actor("broker-0")
    monkeypatch.setattr(ray, "get_actor", raising(ConnectionError("GCS is away")))
    with pytest.raises(UnavailableError, match="GCS is away") as raised:
        find_actor("broker-0")
    assert not isinstance(raised.value, ActorGoneError)


async def test_up_survives_whatever_it_watches() -> None:
    told: list[str] = []
    raised: list[BaseException] = [*map(made, ERRORS.values()), KeyError("brokers"), UnavailableError("away")]
    left = list(raised)

    async def look() -> None:
        if left:
            raise left.pop(0)
        await asyncio.sleep(0.001)

    watching = asyncio.create_task(keep_watching(look, told.append, retry_s=0.0))
    await eventually(lambda: not left)
    assert not watching.done()
    watching.cancel()
    assert told[-1] == "away; trying on"


async def test_what_lasts_is_told_once() -> None:
    told: list[str] = []
    looks = 0

    async def look() -> None:
        nonlocal looks
        looks += 1
        raise UnavailableError(f"coordination has not answered for {looks} s")

    watching = asyncio.create_task(keep_watching(look, told.append, retry_s=0.0))
    await eventually(lambda: looks >= 50)
    watching.cancel()
    assert told == ["coordination has not answered for 1 s; trying on"]


async def test_health_is_told_when_it_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lexicast.actors.launch.health.HEALTH_PERIOD_S", 0.0)
    told: list[str] = []
    answers: list[Any] = [["5 sessions lag"], UnavailableError("away"), ["7 sessions lag"], [], []]

    async def snapshot() -> dict[str, Any]:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return {"warnings": answer}

    health = Health(snapshot, told.append)
    while answers:
        await health.look()
    assert told == ["5 sessions lag", "no longer: 5 sessions lag"]
