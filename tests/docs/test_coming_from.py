"""docs/coming-from.md as it stands there, at a real cluster: its programs are run and print what is under them, and so
is each call in its tables."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import lexicast
import lexicast.sync
from lexicast.actors.client.address import ADDRESS_VARIABLE

from ..support.mqtt_harness import HOST, Served, served

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "coming-from.md").read_text(encoding="utf-8")
GIVE_UP_S = 60.0


@pytest.fixture(scope="module")
def cluster() -> Iterator[Served]:
    with served() as running:
        yield running


@pytest.fixture(autouse=True)
def found_here(cluster: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """`lexicast.connect()` without an address, as the programs say it, finds this cluster."""
    monkeypatch.setenv(ADDRESS_VARIABLE, f"link:tcp:{HOST}:{cluster.port}")


def programs() -> list[tuple[str, str]]:
    """Each Python block of the page and what it prints."""
    found = re.findall(r"^```(\w+)\n(.*?)^```$", PAGE, re.M | re.S)
    assert [kind for kind, _ in found] == ["python", "text"] * (len(found) // 2)
    return [(found[at][1], found[at + 1][1]) for at in range(0, len(found), 2)]


@pytest.mark.parametrize(("program", "output"), programs())
def test_programs_print_what_is_under_them(program: str, output: str, capsys: pytest.CaptureFixture[str]) -> None:
    exec(compile(program, "coming-from.md", "exec"), {"__name__": "__main__"})
    assert capsys.readouterr().out == output


class Table(NamedTuple):
    """A table of idioms: whose, and the calls that stand beside them."""

    title: str
    calls: tuple[str, ...]


def tables() -> list[Table]:
    """Those with a column for lexicast."""
    section = PAGE[PAGE.index("## Their idioms") : PAGE.index("## Errors")]
    found = []
    for rows in re.findall(r"(?:^\|.*\|\n)+", section, re.M):
        head, _, *lines = [line.strip("|").split(" | ") for line in rows.splitlines()]
        spans = [span for line in lines for span in re.findall(r"`([^`]+)`", line[1])]
        calls = tuple([span for span in spans if "(" in span])
        found.append(Table(" | ".join(head).strip(), calls))
    return found


BLOCKING, *AWAITED = tables()


def test_all_tables_are_found() -> None:
    assert [len(table.calls) >= 5 for table in (BLOCKING, *AWAITED)] == [True] * 4
    assert BLOCKING.title.endswith("lexicast.sync")


def runnable(call: str) -> str:
    """A coroutine function of the names that the page uses; it returns what an expression gives."""
    head = "async def run(bus, topic, payload, message, request, subscription, jobs, handle):\n    "
    try:
        compile(f"{head}return {call}", "coming-from.md", "exec")
    except SyntaxError:
        return head + call
    return f"{head}return {call}"


async def ended(made: object) -> None:
    """What a call has made comes to its end."""
    if isinstance(made, asyncio.Task):
        made.cancel()
        await asyncio.gather(made, return_exceptions=True)
    elif isinstance(made, lexicast.Subscription):
        async with made:
            pass


@asynccontextmanager
async def names(bus: lexicast.Client, group: str) -> AsyncIterator[dict[str, Any]]:
    """What a line of a table is about; the topic has a retained message, and the subscriptions a message each."""
    topic = "a/b"
    await bus.publish(topic, "0", retain=True)
    jobs = await bus.subscribe("a/#", group=group, manual_ack=True).__aenter__()
    requests, adders = bus.subscribe("asked", since="now"), bus.subscribe("add", since="now")
    async with bus.subscribe("a/#") as subscription, requests, adders:
        asking = asyncio.create_task(bus.request("asked", "?"))
        request = await anext(requests)
        adding = asyncio.create_task(adders.call(lambda message: bus.reply(message, "5")))
        await bus.publish_many([(topic, "1"), (topic, "2")])
        yield {
            "topic": topic,
            "payload": b"1",
            "message": await anext(jobs),
            "request": request,
            "subscription": subscription,
            "jobs": jobs,
            "handle": lambda message: None,
        }
    for task in (asking, adding):
        await ended(task)


@pytest.mark.parametrize("table", AWAITED, ids=lambda table: table.title.split()[0])
async def test_calls_of_the_tables_work(table: Table) -> None:
    for number, call in enumerate(table.calls):
        group = f"{table.title.split()[0]}-{number}"
        async with (
            asyncio.timeout(GIVE_UP_S),
            lexicast.connect(give_up_s=GIVE_UP_S) as bus,
            names(bus, group) as given,
        ):
            space: dict[str, Any] = {"asyncio": asyncio, "lexicast": lexicast}
            exec(runnable(call), space)
            try:
                await ended(await space["run"](bus, **given))
            except Exception as error:
                raise AssertionError(f"{call}: {error!r}") from error


def test_calls_of_the_blocking_table_work() -> None:
    handled = threading.Event()
    with (
        lexicast.sync.connect(give_up_s=GIVE_UP_S) as bus,
        bus.subscribe("a/#", group="blocking", manual_ack=True) as jobs,
    ):
        bus.publish("a/b", "kept", retain=True)
        space = {"bus": bus, "topic": "a/b", "payload": b"1", "jobs": jobs, "message": next(jobs)}
        space["handle"] = lambda message: handled.set()
        for call in BLOCKING.calls:
            exec(call if "=" in call.partition("(")[0] else f"made = {call}", space)
            made = space.pop("made", None)
            if isinstance(made, lexicast.sync.SyncSubscription):
                assert handled.wait(GIVE_UP_S), call
                made.close()
                handled.clear()
