"""Whether what nodes say of themselves in the failover drills is true: the judge, and the prober that asks."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lexicast.bench.failover.truth import prober
from lexicast.bench.failover.truth.judging import (
    ALARM,
    DEAD,
    READY,
    SERVED_S,
    UNASKED,
    UNREADY,
    UNTOLD,
    WELL,
    CanaryRound,
    DrillRecord,
    Judgement,
    Limits,
    NodeAnswers,
    TimeSpan,
    judge,
    outages,
    without_numbers,
)
from lexicast.bench.failover.truth.prober import Canary, NewEvents, http_get, json_of, keep_asking, page_told

LIMITS = Limits(ready_s=3.0, unready_s=2.0, page_s=4.0)
STANDING = "broker-0: 3 things that are always so"
KILLED = DrillRecord(
    "broker_kill",
    "m0",
    ("broker-0",),
    quiet_s=10.0,
    hit_s=20.0,
    struck_s=20.0,
    over_s=20.0,
    whole_s=30.0,
    until_s=40.0,
    killed=True,
    known=frozenset({without_numbers(STANDING)}),
)
PAUSED = replace(KILLED, kind="broker_pause", over_s=28.0, killed=False)
CUT = replace(PAUSED, kind="cut_both", whole_node=True, names=("m0", "broker-0", "coordinator-0"))


def node(
    out: Sequence[TimeSpan] = (),
    *,
    ready_lag_s: float = 0.0,
    ready_late_s: float = 0.0,
    tells: Sequence[tuple[float, float, str]] = (),
    every_s: float = 0.25,
) -> NodeAnswers:
    """A node that serves but in `out`, says so late, serves `ready_late_s` before it says so, and whose page says the
    words of `tells` from when till when."""
    found = NodeAnswers()
    for step in range(int(60 / every_s)):
        now_s = step * every_s
        serves = not any(each.from_s <= now_s < each.to_s for each in out)
        ready = not any(each.from_s + ready_lag_s <= now_s < each.to_s + ready_late_s for each in out)
        found.note(["live", now_s, now_s + 0.01, 200])
        found.note(["ready", now_s, now_s + 0.01, 200 if ready else 503])
        found.note(["canary", now_s, now_s + 0.01, serves])
        wrong = [STANDING, *[text for from_s, to_s, text in tells if from_s <= now_s < to_s]]
        found.note(["page", now_s, now_s + 0.01, {"wrong": wrong, "off": []}])
    found.note(["events", 22.0, 22.1, ["broker-0 has started again"]])
    return found


def lies(judged: Judgement) -> list[str]:
    """What kinds of lies were told, each once, in their order."""
    return list(dict.fromkeys([lie.what for lie in judged.lies]))


def judged(record: DrillRecord, **nodes: NodeAnswers) -> Judgement:
    """By the limits of these tests."""
    return judge(record, nodes, LIMITS)


def test_who_says_what_is_so_tells_no_lies() -> None:
    out = [TimeSpan(20.0, 22.0)]
    found = judged(KILLED, m0=node(out, ready_lag_s=1.0, ready_late_s=1.5), m1=node())
    assert found.lies == []
    assert 1.0 <= found.ready_false_s <= 1.3
    assert found.unready_false_s == 0.0


def test_ready_too_long_after_it_could_serve_is_a_lie() -> None:
    found = judged(CUT, m0=node([TimeSpan(20.0, 28.0)], ready_lag_s=5.0, tells=[(20.5, 28.5, "coordination is away")]))
    assert lies(found) == [READY]
    assert 5.0 <= found.ready_false_s <= 5.3


def test_not_ready_too_long_after_it_can_serve_again_is_a_lie() -> None:
    found = judged(KILLED, m0=node([TimeSpan(20.0, 22.0)], ready_late_s=7.0))
    assert lies(found) == [UNREADY]
    assert 4.5 <= found.unready_false_s <= 5.3


def test_not_ready_where_nothing_is_amiss_is_a_lie_before_the_fault_at_once() -> None:
    said = node()
    said.ready[50] = said.ready[50]._replace(status=503)
    assert lies(judged(KILLED, m0=said)) == [UNREADY]
    said = node()
    said.ready[100] = said.ready[100]._replace(status=503)
    assert lies(judged(KILLED, m0=said)) == []


def test_a_node_that_is_drained_is_not_ready_and_serves() -> None:
    drained = replace(PAUSED, kind="node_drain", names=("m0",), drains=True)
    said = node(tells=[(20.5, 28.0, "m0 draining")])
    for at, each in enumerate(said.ready):
        if 20.5 < each.asked_s < 28.5:
            said.ready[at] = each._replace(status=503)
    assert judged(drained, m0=said).lies == []
    assert lies(judged(drained, m1=said)) == [UNREADY]


def test_nothing_answers_where_the_node_is_down_and_nowhere_else() -> None:
    said = node([TimeSpan(20.0, 29.0)])
    for answers in (said.live, said.ready):
        answers[:] = [each._replace(status=0) if 20.0 <= each.asked_s < 31.0 else each for each in answers]
    said.pages[:] = [each._replace(wrong=None) if 20.0 <= each.asked_s < 31.0 else each for each in said.pages]
    assert judged(CUT, m0=said).lies == []
    assert lies(judged(replace(CUT, node="m1"), m0=said)) == [DEAD, WELL]


def test_the_page_has_to_name_what_is_kept_away() -> None:
    tells = [(23.0, 28.5, "broker-0 has not served for 3 s")]
    found = judged(PAUSED, m1=node(tells=tells))
    assert (found.lies, round(found.page_false_s)) == ([], 3)
    tells = [(25.0, 28.5, "broker-0 has not served for 3 s")]
    assert lies(judged(PAUSED, m1=node(tells=tells))) == [WELL]
    assert lies(judged(PAUSED, m1=node(tells=[(20.5, 28.5, "something else is wrong")]))) == [WELL]
    tells = [(23.0, 26.0, "broker-0 is away"), (27.0, 28.5, "broker-0 is away")]
    assert lies(judged(PAUSED, m1=node(tells=tells))) == [WELL]


def test_the_page_of_what_is_cut_off_need_not_name_itself_and_may_not_say_that_all_is_well() -> None:
    out = [TimeSpan(20.0, 28.0)]
    assert judged(CUT, m0=node(out, tells=[(22.0, 28.5, "coordination does not serve")])).lies == []
    assert lies(judged(CUT, m0=node(out))) == [WELL]


def test_while_a_message_is_late_no_page_says_that_all_is_well() -> None:
    late = replace(KILLED, late=(TimeSpan(20.0, 27.0),))
    assert lies(judged(late, m1=node())) == [WELL]
    assert lies(judged(late, m1=node(tells=[(24.0, 27.0, "3 topic groups wait for coordinator-0")]))) == []


def test_the_page_goes_on_about_nothing() -> None:
    assert lies(judged(KILLED, m1=node(tells=[(15.0, 15.3, "m2 is away")]))) == [ALARM]
    found = judged(KILLED, m1=node(tells=[(20.0, 33.0, "broker-0 is away")]))
    assert (found.lies, round(found.page_stale_s)) == ([], 3)
    assert lies(judged(KILLED, m1=node(tells=[(20.0, 35.0, "broker-0 is away")]))) == [ALARM]
    known = replace(KILLED, known=KILLED.known | {without_numbers("m2 is away")})
    assert judged(known, m1=node(tells=[(0.0, 40.0, "m2 is away")])).lies == []


def test_of_a_process_that_was_killed_the_events_tell() -> None:
    said = node()
    said.events.clear()
    assert lies(judged(KILLED, m1=said)) == [UNTOLD]
    assert judged(replace(KILLED, names=()), m1=said).lies == []


def test_who_was_not_asked_has_not_told_the_truth() -> None:
    said = node()
    said.ready[:] = [each for each in said.ready if each.asked_s < 25.0]
    assert lies(judged(KILLED, m1=said)) == [UNASKED]
    assert lies(judged(KILLED, m1=NodeAnswers())) == [UNTOLD, UNASKED]


@given(
    st.floats(20.0, 24.0),
    st.floats(0.0, 9.0),
    st.floats(0.0, 6.0),
    st.floats(0.0, 6.0),
    st.sampled_from((0.1, 0.25, 0.5)),
)
def test_lies_are_what_lasts_longer_than_it_may(
    begun_s: float, lasted_s: float, lag_s: float, late_s: float, every_s: float
) -> None:
    """The judge is wrong by no more than the time between two questions, and one more."""
    said = node([TimeSpan(begun_s, begun_s + lasted_s)], ready_lag_s=lag_s, ready_late_s=late_s, every_s=every_s)
    found, slack_s = judged(replace(KILLED, until_s=50.0), m0=said), 2 * every_s + 0.05
    ready_s = min(lag_s, max(0.0, lasted_s - SERVED_S))
    assert abs(found.ready_false_s - ready_s) <= slack_s
    if ready_s > LIMITS.ready_s + slack_s:
        assert READY in lies(found)
    if ready_s < LIMITS.ready_s - slack_s:
        assert READY not in lies(found)
    unready_s = late_s - LIMITS.unready_s if lag_s < lasted_s - slack_s else 0.0
    if unready_s > LIMITS.unready_s + slack_s:
        assert UNREADY in lies(found)
    if late_s < LIMITS.unready_s - slack_s:
        assert UNREADY not in lies(found)


@given(st.lists(st.tuples(st.floats(0.01, 3.0), st.booleans()), max_size=30))
def test_outages_are_apart_in_order_and_hold_every_round_that_was_not_served(of: list[tuple[float, bool]]) -> None:
    rounds, now_s = [], 0.0
    for took_s, served in of:
        rounds.append(CanaryRound(now_s, now_s + took_s, served))
        now_s += took_s + 0.25
    found = outages(rounds)
    assert all(one.to_s <= other.from_s for one, other in pairwise(found))
    for each in rounds:
        inside = any(span.from_s <= each.asked_s and each.answered_s <= span.to_s for span in found)
        assert inside or (each.served and each.answered_s - each.asked_s <= 1.0)


# -- the prober


Served = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def serving(answer: Served) -> AsyncIterator[int]:
    """A server that answers whoever connects, until that one is gone; its port."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await answer(reader, writer)
        except (EOFError, OSError):
            pass
        finally:
            writer.transport.abort()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        await asyncio.sleep(0.05)  # what was aborted is gone


async def test_an_answer_has_its_status_and_what_does_not_answer_has_none() -> None:
    async def unavailable(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 503 Service Unavailable\r\nA: b\r\n\r\n{}")
        writer.write_eof()
        await reader.read()

    async with serving(unavailable) as port:
        assert await http_get(port, "/health/ready", 5.0) == (503, b"{}")
    assert await http_get(port, "/health/ready", 5.0) == (0, b"")


async def test_events_are_those_that_have_come_since_and_a_new_console_begins_anew(monkeypatch: Any) -> None:
    lists = [[3, 2, 1], [], [4], None, [1]]
    asked = []

    async def answered(port: int, path: str, timeout_s: float) -> tuple[int, bytes]:
        asked.append(int(path.partition("after=")[2].partition("&")[0]))
        numbers = lists[len(asked) - 1]
        if numbers is None:
            return 0, b""
        return 200, json.dumps({"rows": [{"number": number, "text": f"{number}"} for number in numbers]}).encode()

    monkeypatch.setattr(prober, "http_get", answered)
    events = NewEvents(1)
    told = [await events.ask() for _ in lists]
    assert told == [[["3", "2", "1"]], [[]], [["4"]], [[]], [["1"]]]
    assert asked == [0, 3, 3, 4, 0]


async def test_what_is_no_whole_answer_is_none() -> None:
    async def half(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b'HTTP/1.1 200 OK\r\n\r\n{"rows": [')

    async with serving(half) as port:
        assert await json_of(port, "/api/v1/status") is None


async def test_who_says_nothing_is_waited_for_no_longer_than_that() -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    async with serving(silent) as port:
        assert await http_get(port, "/health/live", 0.05) == (0, b"")


def test_of_the_page_what_is_wrong_and_what_does_not_serve() -> None:
    status: dict[str, Any] = {
        "cluster": {"coordination": False},
        "warnings": ["w"],
        "nodes": [{"name": "m0", "state": "serves"}, {"name": "m1", "state": "away"}],
        "actors": [{"name": "broker-1", "state": "does not answer"}],
        "node": {"reasons": ["r"]},
    }
    told = page_told(status)
    assert told == {"wrong": ["r", "w"], "off": ["m1 away", "broker-1 does not answer", "coordination does not answer"]}


@pytest.mark.parametrize(("answers", "told"), [(8, [[True], [True]]), (6, [[True], [False]]), (0, [[False], [False]])])
async def test_the_canary_knows_whether_all_was_acknowledged(answers: int, told: list[list[bool]]) -> None:
    async def broker(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connect = await reader.readexactly(2)
        await reader.readexactly(connect[1])
        writer.write(b"\x20\x02\x00\x00")
        for _ in range(answers):
            head = await reader.readexactly(2)
            body = await reader.readexactly(head[1])
            at = 2 + int.from_bytes(body[:2], "big")
            writer.write(b"\x40\x02" + body[at : at + 2])
            await writer.drain()

    async with serving(broker) as port:
        canary = Canary("m0", "127.0.0.1", port)
        assert [await canary.ask() for _ in told] == told
        canary.close()


async def test_each_answer_is_a_line_that_the_judge_reads() -> None:
    out, asked = io.StringIO(), asyncio.Event()

    async def ask() -> list[Any]:
        asked.set()
        return [200]

    task = asyncio.create_task(keep_asking("ready", ask, 60.0, out))
    await asked.wait()
    await asyncio.sleep(0)
    task.cancel()
    said = NodeAnswers()
    said.note(json.loads(out.getvalue()))
    assert [each.status for each in said.ready] == [200]
