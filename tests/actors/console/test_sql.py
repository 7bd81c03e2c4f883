"""Questions in SQL as a console passes them on: to a process of its own, by operators, bounded. (What Spark answers:
`tests.raydp_jobs.test_page_questions`.)
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from lexicast.actors.console.sql import program
from lexicast.actors.console.sql.program import SqlProgram
from lexicast.cluster.errors import UnavailableError
from lexicast.cluster.security.operator_token import operator_token

from ...support.console import Asking, asking, console
from ...support.harness import Cluster, eventually
from .test_visitors import ACL, ADA, EVE, files, secured

__all__ = ["files", "secured"]

ANSWERER = """
import json, os, sys, time
for line in sys.stdin:
    question = json.loads(line)
    said = question["statement"]
    if said == "hang":
        time.sleep(600)
    if said == "die":
        sys.exit(3)
    if said == "long":
        print("x" * 5_000_000, flush=True)
    answer = {"columns": ["pid", "asked"], "rows": [[os.getpid(), question]], "more": False}
    wrong = {"usage": {"error": "nonsense", "usage": True}, "fails": {"error": "no room", "usage": False}}
    print(json.dumps(wrong.get(said, answer)), flush=True)
"""
PATH = "/api/v1/sql"


def there() -> None:
    """Nothing is missing."""


PROGRAM = SqlProgram((sys.executable, "-c", ANSWERER), None, there)


def missing() -> None:
    """As where Spark is not installed."""
    raise UnavailableError("Spark is not installed: pip install it")


@pytest.fixture
async def ask(tmp_path: Path) -> AsyncIterator[Asking]:
    async with Cluster(tmp_path) as cluster:
        await cluster.start_coordinator()
        await cluster.start_broker("broker-0")
        async with console(cluster, sql=PROGRAM) as server, asking(server) as someone:
            yield someone


async def answer(ask: Asking, statement: str = "SELECT 1", **more: Any) -> tuple[int, dict[str, Any]]:
    """(pid of who answered, what it was asked)."""
    told = await ask.post(PATH, {"statement": statement, **more})
    ((pid, asked),) = told["rows"]
    return pid, asked


async def test_one_process_answers_one_question_after_the_other(ask: Asking) -> None:
    assert await ask.get(PATH) == {"available": True, "why_not": "", "running": False}
    pid, asked = await answer(ask)
    nothing = {"until": None, "where": None, "schema": None, "reader": None}
    assert asked == {"statement": "SELECT 1", "filter": "#", "since": "1h", "limit": 100} | nothing
    assert (await ask.get(PATH))["running"] is True
    assert "nonsense" in (await ask.post(PATH, {"statement": "usage"}, status=400))["error"]
    assert "no room" in (await ask.post(PATH, {"statement": "fails"}, status=503))["error"]
    given: dict[str, Any] = {
        "filter": "a/+",
        "since": "7d",
        "until": "1h",
        "where": "n > 1",
        "schema": "json",
        "limit": 7,
    }
    again, asked = await answer(ask, **given)
    assert (again, asked) == (pid, {"statement": "SELECT 1", "reader": None} | given)


@pytest.mark.parametrize("statement", ["hang", "die", "long"])
async def test_what_does_not_answer_is_ended_and_the_next_question_is_answered(
    ask: Asking, statement: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, _ = await answer(ask)
    with monkeypatch.context() as patch:
        if statement == "hang":
            patch.setattr(program, "ANSWER_S", 0.2)
        await ask.post(PATH, {"statement": statement}, status=503)
    second, _ = await answer(ask)
    assert second != first
    await eventually(lambda: not psutil.pid_exists(first))


async def test_one_question_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with Cluster(tmp_path) as cluster:
        await cluster.start_coordinator()
        await cluster.start_broker("broker-0")
        async with console(cluster, sql=PROGRAM) as server, asking(server) as ask:
            pid, _ = await answer(ask)
            monkeypatch.setattr(program, "ANSWER_S", 3.0)
            hanging = asyncio.create_task(ask.post(PATH, {"statement": "hang"}, status=503))
            await eventually(lambda: server._sql._is_busy)
            assert "one at a time" in (await ask.post(PATH, {"statement": "SELECT 1"}, status=429))["error"]
            assert "no answer within 3 s" in (await hanging)["error"]
            await eventually(lambda: not psutil.pid_exists(pid))


async def test_a_question_ends_with_whoever_asked_it(tmp_path: Path) -> None:
    """Who left the page's view had Spark compute on, and everybody else refused meanwhile."""
    async with Cluster(tmp_path) as cluster:
        await cluster.start_coordinator()
        await cluster.start_broker("broker-0")
        async with console(cluster, sql=PROGRAM) as server, asking(server) as ask:
            pid, _ = await answer(ask)
            leaving = asyncio.create_task(ask.post(PATH, {"statement": "hang"}))
            await eventually(lambda: server._sql._is_busy)
            leaving.cancel()
            await eventually(lambda: not server._sql._is_busy)
            await eventually(lambda: not psutil.pid_exists(pid))
            second, _ = await answer(ask)
            assert second != pid


async def test_it_ends_when_nobody_asks_any_more(ask: Asking, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program, "IDLE_S", 0.05)
    pid, _ = await answer(ask)
    await eventually(lambda: not psutil.pid_exists(pid))
    assert (await ask.get(PATH))["running"] is False


async def test_it_ends_with_the_console(tmp_path: Path) -> None:
    async with Cluster(tmp_path) as cluster:
        await cluster.start_coordinator()
        await cluster.start_broker("broker-0")
        async with console(cluster, sql=PROGRAM) as server, asking(server) as ask:
            pid, _ = await answer(ask)
        assert not psutil.pid_exists(pid)


async def test_what_is_missing_is_said(tmp_path: Path) -> None:
    async with Cluster(tmp_path) as cluster:
        await cluster.start_coordinator()
        await cluster.start_broker("broker-0")
        async with console(cluster, sql=PROGRAM._replace(prepare=missing)) as server, asking(server) as ask:
            why = "Spark is not installed: pip install it"
            assert await ask.get(PATH) == {"available": False, "why_not": why, "running": False}
            assert (await ask.post(PATH, {"statement": "SELECT 1"}, status=503))["error"] == why


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({}, "statement"),
        ({"statement": " "}, "statement"),
        ({"statement": "SELECT 1", "limit": 1_001}, "1,000"),
        ({"statement": "SELECT 1", "limit": 0}, "limit"),
        ({"statement": "SELECT 1", "filter": "a/#/b"}, "#"),
        ({"statement": "SELECT 1", "user": "root"}, "user"),
    ],
)
async def test_what_is_wrong_with_a_question_is_said_before_anything_is_started(
    ask: Asking, body: dict[str, Any], words: str
) -> None:
    assert words in (await ask.post(PATH, body, status=400))["error"]
    assert (await ask.get(PATH))["running"] is False


async def test_operators_ask_by_their_own_rules(secured: tuple[Cluster, Asking]) -> None:
    cluster, ask = secured
    key = (await cluster.coordination.cluster()).key
    assert "operators" in (await ask.post(PATH, {"statement": "SELECT 1"}, status=403, headers=EVE))["error"]
    assert "operators" in (await ask.get(PATH, status=403, headers=EVE))["error"]
    async with console(cluster, http__operators=("ada",), sql=PROGRAM) as server, asking(server) as other:
        told = await other.post(PATH, {"statement": "SELECT 1", "filter": "work/#"}, headers=ADA)
        assert told["rows"][0][1]["reader"] == ["ada", "console", ACL]
        refused = {"statement": "SELECT 1", "filter": "work/shut/#"}
        assert "rules" in (await other.post(PATH, refused, status=403, headers=ADA))["error"]
        bearer = {"Authorization": f"Bearer {operator_token(key)}"}
        told = await other.post(PATH, {"statement": "SELECT 1"}, headers=bearer)
        assert told["rows"][0][1]["reader"] is None
