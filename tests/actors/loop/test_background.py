"""A loop that an actor lives by never ends in silence, and one that cannot start is tried again."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lexicast.actors.loop.background import EXIT_CODE, LoopEndedError, end_process_on, keep_going
from lexicast.actors.ray import serving
from lexicast.actors.ray.serving import ServingActor
from lexicast.cluster.config.tables import Config
from lexicast.cluster.errors import LexicastError, StoreFormatError, UnavailableError, UsageError
from lexicast.cluster.positions import topic_group

from ...support.harness import GROUPS, Cluster, eventually
from ...support.mqtt_harness import Raw, close_clients


async def test_a_loop_that_ends_is_told_to_who_runs_the_process() -> None:
    told: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context["exception"]))

    async def fails() -> None:
        raise KeyError("unforeseen")

    async def returns() -> None:
        """At once."""

    async def lives() -> None:
        await asyncio.Event().wait()

    for work in (fails(), returns()):
        await asyncio.wait([keep_going(work, "a loop")])
    stopped = keep_going(lives(), "another")
    await asyncio.sleep(0)
    stopped.cancel()
    await asyncio.wait([stopped])
    assert [type(error) for error in told] == [LoopEndedError, LoopEndedError]
    assert isinstance(told[0].__cause__, KeyError)


async def test_an_actor_ends_with_its_loop_and_with_nothing_else() -> None:
    ended: list[int] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(end_process_on("broker-0", ended.append))

    async def fails() -> None:
        raise KeyError("unforeseen")

    loop.call_exception_handler({"message": "a socket broke", "exception": OSError("broken")})
    assert ended == []
    await asyncio.wait([keep_going(fails(), "a loop")])
    assert ended == [EXIT_CODE]


async def test_the_loops_of_coordinator_and_broker_are_kept(tmp_path: Path) -> None:
    """Whichever of them meets a defect, the process that it runs in learns of it."""
    told: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(str(context.get("exception"))))

    def defect(*_: Any) -> Any:
        raise KeyError("unforeseen")

    async with Cluster(tmp_path, config=Config().replaced(broker__session_save_s=0.01)) as cluster:
        coordinator = await cluster.start_coordinator()
        broker = await cluster.start_broker("broker-0")
        coordinator.server.led.tell_heads = defect  # type: ignore[assignment]  # a defect
        coordinator.server.led.committer.tick = defect  # type: ignore[method-assign]  # a defect
        broker.mqtt.sessions.round = defect  # type: ignore[method-assign]  # a defect
        broker.engine.coordinators.pipelines["coordinator-0"]._open = defect  # type: ignore[method-assign]  # a defect
        broker._apply = defect  # type: ignore[assignment]  # a defect
        await cluster.coordination.leave("broker", "nobody")
        await cluster.coordination.register("sampler", (await cluster.coordination.members(-1, 0)).brokers["broker-0"])
        for link in list(coordinator.server._links):
            link.abort()
        await eventually(lambda: len(told) >= 5, "five loops")
    for what in ("housekeeping", "telling brokers", "saving sessions", "link to coordinator-0", "the membership"):
        assert any(what in line for line in told), what


class Starting(ServingActor):
    """An actor whose start fails so often, in these ways."""

    failures: list[Exception]

    async def start(self) -> None:
        if self.failures:
            raise self.failures.pop(0)

    async def end(self) -> None:
        """Nothing to end."""

    def addresses(self) -> tuple[str, ...]:
        """None."""
        return ()

    def report(self) -> dict[str, Any]:
        """Nothing but that it serves."""
        return {"serves": True}


@pytest.fixture
def collector() -> Iterator[None]:
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)
    gc.unfreeze()


def starting(*failures: Exception) -> Starting:
    """Such an actor, constructed as Ray does."""

    class Actor(Starting):
        """These failures."""

    Actor.failures = list(failures)
    return Actor("coordinator-0", Config().as_dict())


@pytest.mark.usefixtures("collector")
async def test_a_start_that_failed_for_what_may_pass_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "RETRY_FIRST_S", 0.01)
    loop = asyncio.get_running_loop()
    failures = [UnavailableError("no coordinator yet"), OSError("no space left"), TimeoutError(), KeyError("a defect")]
    actor = starting(*failures)
    with pytest.raises(UnavailableError, match="is starting"):
        await actor.status()
    with pytest.raises(UnavailableError, match="no coordinator yet"):
        await actor.ready()
    until = loop.time() + 60
    while loop.time() < until:
        try:
            assert (await actor.status()) == {"serves": True}
            break
        except LexicastError:
            await asyncio.sleep(0.001)
    assert not actor.failures
    assert (await actor.ready())["addresses"] == []
    await actor.stop()
    with pytest.raises(UnavailableError, match="has stopped"):
        await actor.ready()
    loop.set_exception_handler(None)


@pytest.mark.parametrize("lasting", [StoreFormatError("another cluster's store"), UsageError("no such coordinator")])
async def test_a_start_that_failed_for_what_lasts_is_not_tried_again(lasting: LexicastError) -> None:
    actor = starting(lasting)
    with pytest.raises(type(lasting)):
        await actor.ready()
    await asyncio.wait([actor._starting])
    with pytest.raises(type(lasting)):
        await actor.status()
    asyncio.get_running_loop().set_exception_handler(None)


async def test_an_actor_that_is_stopped_between_two_tries_tries_no_more() -> None:
    actor = starting(UnavailableError("not yet"))
    with pytest.raises(UnavailableError):
        await actor.ready()
    await actor.stop()
    assert actor._starting.cancelled()
    asyncio.get_running_loop().set_exception_handler(None)


async def test_a_home_that_hangs_holds_up_the_saves_of_its_own_sessions_alone(tmp_path: Path) -> None:
    """Else all sessions would go on from long ago, with as many repeats, wherever their broker died meanwhile."""
    names = ("coordinator-0", "coordinator-1")
    config = Config().replaced(broker__session_save_s=0.01)
    async with Cluster(tmp_path, coordinators=names, config=config) as cluster:
        servers = [(await cluster.start_coordinator(name)).server for name in names]
        broker = await cluster.start_broker("broker-0")
        clients = []
        for server in servers:
            client_id = next(f"c{i}" for i in range(100) if topic_group(b"c%d" % i, GROUPS) in server.sequencer.groups)
            client = await Raw.connect(broker.mqtt.port, client_id, _17=3_600)
            await client.subscribe("a/#", qos=1)
            clients.append(client_id)
        good, hung = [broker.mqtt.sessions.owners[client_id].session for client_id in clients]

        async def never(*_: Any) -> None:
            await asyncio.get_running_loop().create_future()

        servers[1].requests.later["session_save"] = never
        engine = broker.engine
        for number in range(3):
            engine.coordinators.publish(b"a/b", 1, [b"%d" % number], "tester")
            await eventually(lambda: good.sent > number, "a delivery")  # noqa: B023 - within the round of the loop
            await eventually(lambda: good.sent_saved == good.sent, "a save", wait_s=20)
        assert hung.sent_saved < hung.sent
        await close_clients()
