"""A runner that dies anywhere, and another one that goes on: each answer once, in order (REAPS, section II).

The cluster is a model: what is retained, a log a topic, and which term may publish. Runners are the real ones.
"""

from __future__ import annotations

import json
import random
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lexicast.cluster.errors import LexicastError, UnavailableError
from lexicast.raydp_jobs.channels import runner as runner_module
from lexicast.raydp_jobs.channels.answers import STATES_FILTER, Told, told_topic, unpack_told
from lexicast.raydp_jobs.channels.definitions import Channel, channel_topic, parse_topic
from lexicast.raydp_jobs.channels.lease import LeaseLostError
from lexicast.raydp_jobs.channels.runner import (
    FORGOTTEN_S,
    AskingEndedError,
    ChannelRunner,
    answer_channels,
)

PERIOD_S = 5.0
CHANNEL = Channel("Near", "SELECT * FROM t WHERE x = :user", PERIOD_S)
TOPICS = tuple(channel_topic("Near", {"user": user}) for user in ("ann", "bob", "cyd"))
Answers = Mapping[str, set[int]]


class Killed(BaseException):
    """SIGKILL."""


class World:
    """What the cluster holds, what is true in each period (answers by topic), and which period it is."""

    def __init__(self, periods: Sequence[Answers] = (), seed: int = 0) -> None:
        self.periods = periods
        self.at = 0
        self.random = random.Random(seed)
        self.retained: dict[str, bytes] = {}
        self.log: dict[str, list[bytes]] = defaultdict(list)
        self.decisions: dict[str, list[Told]] = defaultdict(list)
        self.term = 0
        self.subscribed = list(TOPICS)
        self.asked: list[tuple[str, ...]] = []

    def store(self, topic: str, payload: bytes, retain: bool) -> None:
        if not retain:
            self.log[topic].append(payload)
            return
        self.retained[topic] = payload
        told = unpack_told(payload) if topic.count("/") == 2 else None
        if told is not None:
            self.decisions[told_topic(topic)].append(told)

    def runner(self, bus: Bus) -> ChannelRunner:
        """A runner that is told what is true."""

        def ask(channel: Channel, topics: Mapping[str, Any]) -> dict[str, list[dict[str, int]]]:
            self.asked.append(tuple(topics))
            return {topic: [{"id": each} for each in sorted(self.periods[self.at][topic])] for topic in topics}

        def subscriptions() -> dict[str, dict[str, dict[str, Any]]]:
            return {"Near": {topic: (parse_topic(topic) or ("", {}))[1] for topic in self.subscribed}}

        return ChannelRunner(bus, ask, subscriptions)

    def play(self, steps: int | None = None, end: Callable[[], None] | None = None) -> None:
        """A runner takes over and answers until the last period; see `Bus`."""
        runner = self.runner(Bus(self, steps, end))
        runner.recover()
        while self.at < len(self.periods):
            runner.step(self.at * PERIOD_S)
            self.at += 1

    def told(self, topic: str) -> list[int]:
        """The rows that subscribers of the topic got, in order."""
        return [row["id"] for message in self.log[topic] for row in json.loads(message)["rows"]]

    def check(self) -> None:
        """Every answer that was decided on is in the log, once, in order; and no period was answered twice."""
        for topic, decisions in self.decisions.items():
            names = [json.loads(message)["answer"] for message in self.log[topic]]
            assert names == [f"{decisions[-1].life}.{at + 1}" for at in range(decisions[-1].number)], topic
            assert self.log[topic] == [message for told in decisions for message in told.pending]
            periods = [told.period for told in decisions]
            assert len(set(periods)) == len(periods), f"{topic}: a period was answered twice: {periods}"


class Bus:
    """`ChannelBus` over the model. After `steps` messages `end` is called: it raises, or comes back later."""

    name = "a:1"

    def __init__(self, world: World, steps: int | None = None, end: Callable[[], None] | None = None) -> None:
        self._world = world
        self._steps = steps
        self._end = end
        self.channels = {"Near": CHANNEL}
        self.claim()

    def check_held(self) -> None:
        if self.term != self._world.term:
            raise LeaseLostError("b:2 has taken over")

    def publish(self, messages: Iterable[tuple[str, bytes]], *, retain: bool = False) -> None:
        """In any order but a topic's own: topics lie in groups, and groups at many coordinators."""
        by_topic: dict[str, list[bytes]] = defaultdict(list)
        for topic, payload in messages:
            by_topic[topic].append(payload)
        while by_topic:
            topic = self._world.random.choice(sorted(by_topic))
            self._tick()
            self._world.store(topic, by_topic[topic].pop(0), retain)
            if not by_topic[topic]:
                del by_topic[topic]

    def _tick(self) -> None:
        if self._steps == 0 and self._end is not None:
            end, self._end = self._end, None
            end()
        if self._steps is not None:
            self._steps = max(0, self._steps - 1)
        self.check_held()

    def retained(self, filter: str) -> dict[str, bytes]:
        assert filter == STATES_FILTER
        return dict(self._world.retained)

    def last_messages(self, topics: Iterable[str]) -> dict[str, bytes]:
        return {topic: self._world.log[topic][-1] for topic in topics if self._world.log[topic]}

    def stand_by(self, ended: threading.Event, tell: Callable[[str], None]) -> bool:
        return not ended.is_set()

    def claim(self) -> None:
        self._world.term += 1
        self.term = self._world.term

    def release(self) -> None:
        """Whoever comes next takes a higher term."""


def kill() -> None:
    raise Killed


def all_topics(*ids: int) -> Answers:
    return {topic: set(ids) for topic in TOPICS}


PERIODS: list[Answers] = [
    {TOPICS[0]: {1, 2}, TOPICS[1]: {1}, TOPICS[2]: set()},
    {TOPICS[0]: {2, 3}, TOPICS[1]: set(), TOPICS[2]: {7}},
    {TOPICS[0]: {1, 3}, TOPICS[1]: {1}, TOPICS[2]: {7}},
]
ONCE = {TOPICS[0]: [1, 2, 3, 1], TOPICS[1]: [1, 1], TOPICS[2]: [7]}


def test_without_a_failure_new_rows_are_told() -> None:
    world = World(PERIODS)
    world.play()
    world.check()
    assert {topic: world.told(topic) for topic in TOPICS} == ONCE
    assert [len(each) for each in world.asked] == [3, 3, 3]


def killed(world: World, steps: int | None) -> bool:
    """Whether a runner was, before it came to the end."""
    try:
        world.play(steps, kill)
    except Killed:
        return True
    return False


@pytest.mark.parametrize("seed", range(5))
def test_a_runner_may_be_killed_at_any_step(seed: int) -> None:
    """Whoever goes on in the same period leaves nothing untold and tells nothing twice."""
    steps = 0
    while killed(world := World(PERIODS, seed), steps):
        world.play()
        world.check()
        assert {topic: world.told(topic) for topic in TOPICS} == ONCE, f"killed after {steps} messages"
        steps += 1
    assert steps > 15


def test_whoever_was_answered_before_the_end_is_not_asked_for_again_in_that_period() -> None:
    world = World([all_topics(1, 2)])
    assert killed(world, 2), "two of the three states are stored"
    before = {told_topic(topic) for topic in world.retained}
    world.periods = [all_topics(8, 9)]
    world.play()
    assert world.asked[-1] == tuple([topic for topic in TOPICS if topic not in before])
    world.check()


@st.composite
def stories(draw: st.DrawFn) -> tuple[World, list[int]]:
    """What is true in each period, and after how many messages each runner in turn is killed."""
    answers = st.fixed_dictionaries(dict.fromkeys(TOPICS, st.sets(st.integers(1, 4))))
    world = World(draw(st.lists(answers, min_size=1, max_size=5)), draw(st.integers(0, 99)))
    return world, draw(st.lists(st.integers(0, 12), max_size=6))


@given(stories())
def test_runners_may_be_killed_again_and_again(story: tuple[World, list[int]]) -> None:
    """Also while they make good what others left: as if one runner had answered all the time."""
    world, kills = story
    for steps in [*kills, None]:
        killed(world, steps)
    world.check()
    for topic in TOPICS:
        rows, expected = set[int](), list[int]()
        for now in world.periods:
            expected += sorted(now[topic] - rows)
            rows = now[topic]
        assert world.told(topic) == expected


@pytest.mark.parametrize("seed", range(5))
def test_two_runners_at_once_do_no_harm(seed: int) -> None:
    """One is held up at any step, another one takes over and goes on, and then the first one wakes."""
    for steps in range(16):
        world = World(PERIODS, seed)
        with pytest.raises(LeaseLostError):
            world.play(steps, world.play)
        world.check()
        assert {topic: world.told(topic) for topic in TOPICS} == ONCE, f"held up after {steps} messages"


def test_a_period_is_answered_once_whoever_answers() -> None:
    world = World(PERIODS[:1])
    world.play()
    world.periods, world.at = [all_topics(99)], 0
    runner = world.runner(Bus(world))
    runner.recover()
    assert runner.step(PERIOD_S - 0.1) == 0, "another runner's clock, and the same period"
    assert runner.step(-1.0) == 0, "a clock that is a little behind"
    assert len(world.asked) == 1
    assert runner.step(PERIOD_S) == 3
    assert runner.step(-20 * PERIOD_S) == 0, "a clock that was set back asks again; there is nothing new"
    assert len(world.asked) == 3


@given(st.floats(1.0, 1_000.0), st.integers(1, 10**9), st.floats(0.001, 0.999), st.floats(0.001, 0.999))
def test_a_period_has_one_beginning(period_s: float, number: int, one: float, other: float) -> None:
    world = World([all_topics(1)])
    bus = Bus(world)
    bus.channels["Near"] = replace(CHANNEL, period_s=period_s)
    runner = world.runner(bus)
    runner.step((number + min(one, other)) * period_s)
    runner.step((number + max(one, other)) * period_s)
    assert len(world.asked) == 1
    runner.step((number + 1.001) * period_s)
    assert len(world.asked) == 2


def test_what_nobody_wants_any_more_is_forgotten_after_a_while() -> None:
    world = World([all_topics(1)])
    bus = Bus(world)
    runner = world.runner(bus)
    assert runner.step(0.0) == 3
    world.subscribed.remove(TOPICS[0])
    runner.step(PERIOD_S)
    world.subscribed.append(TOPICS[0])
    assert runner.step(2 * PERIOD_S) == 0, "its broker has failed over"
    world.subscribed.remove(TOPICS[0])
    for at in range(3, 4 + int(FORGOTTEN_S / PERIOD_S)):
        runner.step(at * PERIOD_S)
    assert not world.retained["$channel-state/Near/user=ann"]
    assert world.retained["$channel-state/Near/user=bob"]
    world.subscribed.append(TOPICS[0])
    assert runner.step(100 * PERIOD_S) == 1, "it starts anew"
    del bus.channels["Near"]
    bus.channels["Far"] = Channel("Far", "SELECT 1", PERIOD_S)
    runner.step(101 * PERIOD_S)
    runner.step(110 * PERIOD_S)
    assert not world.retained["$channel-state/Near"]


def test_a_query_that_fails_is_told_and_ends_nothing() -> None:
    lines: list[str] = []
    world = World()
    bus = Bus(world)
    bus.channels["Bad"] = Channel("Bad", "SELECT 1", PERIOD_S)

    def ask(channel: Channel, topics: Mapping[str, Any]) -> dict[str, list[dict[str, int]]]:
        if channel.name == "Bad":
            raise ValueError("no such column")
        return {topic: [{"id": 1}] for topic in topics}

    def subscriptions() -> dict[str, dict[str, dict[str, Any]]]:
        return {"Bad": {"$channel/Bad/": {}}, "Near": {TOPICS[0]: {"user": "ann"}}}

    runner = ChannelRunner(bus, ask, subscriptions, lines.append)
    assert runner.step(0.0) == 1
    assert "Bad: the query failed: no such column" in lines
    assert runner.told == (TOPICS[0],)


# Succession


def test_who_loses_the_lease_stands_by_and_answers_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner_module, "RETRY_S", 0.0)
    world, ended, lines = World(), threading.Event(), list[str]()
    bus = Bus(world)
    runs = 0

    def subscriptions() -> dict[str, dict[str, dict[str, Any]]]:
        nonlocal runs
        runs += 1
        if runs == 1:
            world.term += 1  # another runner, which took this one for dead
        else:
            ended.set()
        return {"Near": {TOPICS[0]: {"user": "ann"}}}

    def ask(channel: Channel, topics: Mapping[str, Any]) -> dict[str, list[dict[str, int]]]:
        return {topic: [{"id": 1}] for topic in topics}

    answer_channels(bus, lambda: ChannelRunner(bus, ask, subscriptions, lines.append), ended, lines.append)
    assert lines[:3] == [
        "answering channels; Ctrl-C ends it",
        "b:2 has taken over: standing by",
        "answering channels; Ctrl-C ends it",
    ]
    assert world.told(TOPICS[0]) == [1]


@pytest.mark.parametrize(
    ("error", "tries"), [(AskingEndedError("Spark is gone"), 1), (UnavailableError("no broker"), 6)]
)
def test_what_does_not_pass_ends_the_runner(monkeypatch: pytest.MonkeyPatch, error: LexicastError, tries: int) -> None:
    monkeypatch.setattr(runner_module, "RETRY_S", 0.0)
    world = World()
    bus = Bus(world)
    tried = 0

    def subscriptions() -> dict[str, dict[str, dict[str, Any]]]:
        nonlocal tried
        tried += 1
        raise error

    def make_runner() -> ChannelRunner:
        return ChannelRunner(bus, lambda channel, topics: {}, subscriptions)

    with pytest.raises(type(error), match=str(error)):
        answer_channels(bus, make_runner, threading.Event(), lambda text: None)
    assert tried == tries
