"""The runner of channels: each period, one question a channel for everybody who subscribes to it.

One runner of all answers (`lease`), the others stand by. A period of a channel begins at a multiple of its length since
1970, wherever the runner is. What was told, and what had been decided on and may not have been told, whoever answers
next finds in the cluster (`answers`): nothing is told twice, and nothing that was decided on is left out.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final, Protocol, TypeAlias

from lexicast.cluster.errors import LexicastError, UnavailableError

from ..spark.errors import first_line
from .answers import (
    STATES_FILTER,
    Round,
    Told,
    decided,
    new_life,
    state_topic,
    told_topic,
    unpack_round,
    unpack_told,
)
from .definitions import PREFIX, Channel, Value
from .lease import LeaseLostError

TOPICS_MAX: Final = 10_000
"""Sets of parameters of one channel that are answered."""
FORGOTTEN_S: Final = 30.0
"""What nobody has been subscribed to for so long starts anew; brokers that fail over are away for less."""
RETRY_S: Final = 2.0
TRIES_MAX: Final = 5
# Whoever has answered for so long starts with all its tries.
STEADY_S: Final = 60.0

Rows: TypeAlias = Sequence[Mapping[str, Any]]
Asked: TypeAlias = Mapping[str, Mapping[str, Mapping[str, Value]]]
"""Channel -> topic -> parameters."""
Ask: TypeAlias = Callable[[Channel, Mapping[str, Mapping[str, Value]]], Mapping[str, Rows]]
"""Of a channel and topic -> parameters, topic -> the rows of the answer now."""
Tell: TypeAlias = Callable[[str], None]


class AskingEndedError(UnavailableError):
    """What answers questions is gone, for good: this runner is of no use any more."""


class RunnerBus(Protocol):
    """What a runner needs of `ChannelBus`."""

    name: str
    channels: dict[str, Channel]

    def check_held(self) -> None:
        """Raises LeaseLostError unless this runner is the one that answers."""

    def publish(self, messages: Iterable[tuple[str, bytes]], *, retain: bool = False) -> None:
        """Publish; returns when all are stored. Raises LeaseLostError, UnavailableError."""

    def retained(self, filter: str) -> dict[str, bytes]:
        """Everything that is retained."""
        ...

    def last_messages(self, topics: Iterable[str]) -> dict[str, bytes]:
        """The last message on each topic that has one."""
        ...


class SuccessionBus(RunnerBus, Protocol):
    """And what `answer_channels` does."""

    def stand_by(self, ended: threading.Event, tell: Tell) -> bool:
        """Return once the lease may be taken, with True; False where `ended` comes first."""
        ...

    def claim(self) -> None:
        """Take the lease."""

    def release(self) -> None:
        """Give it up."""


def silent(text: str) -> None:
    """Nobody is told."""


class ChannelRunner:
    """Answers the channels, once it has the lease, under which nobody else does: see the module's docstring.

    `tell` gets one line about each answer. Whoever gets an error of `recover` or `step` takes the lease anew and makes
    another runner: what this one holds in memory may not be what is stored.
    """

    def __init__(self, bus: RunnerBus, ask: Ask, subscriptions: Callable[[], Asked], tell: Tell = silent) -> None:
        self._bus = bus
        self._ask = ask
        self._subscriptions = subscriptions
        self._tell = tell
        self._told: dict[str, Told] = {}
        self._rounds: dict[str, Round] = {}
        # Channel -> the beginning of the last period that it was looked at in.
        self._period: dict[str, float] = {}
        # Topics that nobody is subscribed to, and channels' that are not defined any more, since when.
        self._gone: dict[str, float] = {}
        self._ended = threading.Event()
        self.told: tuple[str, ...] = ()
        """The topics that the last `step` published to, a message each time it is named."""

    def recover(self) -> int:
        """Go on where the runner before was: publish what it had decided on and not published; returns how much.

        Raises LexicastError.
        """
        for topic, packed in self._bus.retained(STATES_FILTER).items():
            self._learn(told_topic(topic), packed)
        open_topics = [topic for topic, told in self._told.items() if told.pending and self._is_open(topic, told)]
        last = self._bus.last_messages(open_topics) if open_topics else {}
        messages = [(topic, each) for topic in open_topics for each in self._told[topic].unpublished(last.get(topic))]
        if messages:
            self._bus.publish(messages)
        return len(messages)

    def _learn(self, topic: str, packed: bytes) -> None:
        name = topic.removeprefix(PREFIX)
        if "/" in name:
            told = unpack_told(packed)
            if told is not None:
                self._told[topic] = told
            return
        last = unpack_round(packed)
        if last is not None:
            self._rounds[name], self._period[name] = last, last.period

    def _is_open(self, topic: str, told: Told) -> bool:
        """Whether the round in which this was decided on was not finished."""
        return told.round > self._rounds.get(_channel_of(topic), Round()).number

    def run(self, ended: threading.Event) -> None:
        """Answer every channel each period until `ended` is set. Raises LexicastError."""
        self._ended = ended
        while not ended.is_set():
            self._bus.check_held()
            self.step(time.time())
            now_s = time.time()
            periods = [channel.period_s for channel in list(self._bus.channels.values())]
            pause = min([period_s - now_s % period_s for period_s in periods], default=1.0)
            ended.wait(min(max(pause, 0.05), 1.0))

    def step(self, now_s: float) -> int:
        """Answer the channels that are due at `now_s`, in seconds since 1970; returns how many messages were published.

        Raises LexicastError: of a query that fails the others are told, and it is asked again in the next period.
        """
        channels = dict(self._bus.channels)
        self.told = ()
        due = [(each, period) for each in channels.values() if (period := self._due(each, now_s)) is not None]
        if not due:
            return 0
        asked = self._subscriptions()
        self._forget({PREFIX + name for name in channels} | {t for topics in asked.values() for t in topics}, now_s)
        published = 0
        for channel, period in due:
            self._period[channel.name] = period
            published += self._answer(channel, period, asked.get(channel.name, {}))
        return published

    def _due(self, channel: Channel, now_s: float) -> float | None:
        """The beginning of the period that is to be answered now, if one is. What a long answer has missed is left out.

        A clock that is a little behind the one before is waited for, one that was set back is not.
        """
        # Not now_s - now_s % period_s, which differs in its last bits within a period.
        period = math.floor(now_s / channel.period_s) * channel.period_s
        last = self._period.get(channel.name)
        return None if last is not None and period <= last <= period + channel.period_s else period

    def _answer(self, channel: Channel, period: float, topics: Mapping[str, Mapping[str, Value]]) -> int:
        wanted = {topic: given for topic, given in topics.items() if tuple(sorted(given)) == channel.parameters}
        if len(wanted) > TOPICS_MAX:
            self._tell(f"{channel.name}: {len(wanted):,} subscriptions, {TOPICS_MAX:,} of them are answered")
            wanted = dict(sorted(wanted.items())[:TOPICS_MAX])
        number = self._rounds.get(channel.name, Round()).number + 1
        left = {topic: given for topic, given in wanted.items() if not self._is_answered(topic, number, period)}
        started = time.monotonic()
        answers = self._answers(channel, left) if left else {}
        if answers is None or not wanted:
            return 0
        published = self._publish(answers, left, number, period)
        at = datetime.now(UTC).isoformat(timespec="milliseconds")
        self._rounds[channel.name] = Round(number, period, at, self._bus.name, len(wanted), published)
        self._bus.publish([(state_topic(channel.topic), self._rounds[channel.name].pack())], retain=True)
        rows, took = sum(map(len, answers.values())), time.monotonic() - started
        self._tell(f"{channel.name}: {len(wanted)} subscriptions, {rows} rows, {published} published, {took:.1f} s")
        return published

    def _is_answered(self, topic: str, round: int, period: float) -> bool:
        """Whether the runner before answered it in this period, and ended before the others had their answers."""
        told = self._told.get(topic)
        return told is not None and told.round >= round and told.period == period

    def _answers(self, channel: Channel, topics: Mapping[str, Mapping[str, Value]]) -> Mapping[str, Rows] | None:
        """None where the query fails: one channel's SQL must not end the others'."""
        try:
            return self._ask(channel, topics)
        except AskingEndedError:
            raise
        except Exception as error:
            # The signal that ended us ended Spark's processes as well: nobody need be told.
            if not self._ended.is_set():
                failed = "" if isinstance(error, LexicastError) else "the query failed: "
                self._tell(f"{channel.name}: {failed}{first_line(error)}")
            return None

    def _publish(self, answers: Mapping[str, Rows], topics: Iterable[str], round: int, period: float) -> int:
        """Decide, store, publish, until nothing is left (`answers`, rules 1 and 4); returns how many messages."""
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        ways = {
            topic: decided(self._told.get(topic) or new_life(), answers.get(topic, ()), round, period, now)
            for topic in topics
        }
        published = 0
        while step := {topic: told for topic, way in ways.items() if (told := next(way, None)) is not None}:
            self._bus.publish([(state_topic(topic), told.pack()) for topic, told in step.items()], retain=True)
            messages = [(topic, message) for topic, told in step.items() for message in told.pending]
            self._bus.publish(messages)
            self._told |= step
            self.told += tuple([topic for topic, _ in messages])
            published += len(messages)
            ways = {topic: ways[topic] for topic in step}
        return published

    def _forget(self, there: set[str], now_s: float) -> None:
        """Drop what is kept of subscriptions and channels that have been gone for FORGOTTEN_S."""
        kept = self._told.keys() | {PREFIX + name for name in self._rounds}
        self._gone = {topic: self._gone.get(topic, now_s) for topic in kept - there}
        old = [topic for topic, since_s in self._gone.items() if now_s - since_s >= FORGOTTEN_S]
        if old:
            self._bus.publish([(state_topic(topic), b"") for topic in old], retain=True)
        for topic in old:
            self._told.pop(topic, None)
            self._rounds.pop(topic.removeprefix(PREFIX), None)
            self._period.pop(topic.removeprefix(PREFIX), None)


def answer_channels(
    bus: SuccessionBus, make_runner: Callable[[], ChannelRunner], ended: threading.Event, tell: Tell
) -> None:
    """Stand by while another runner answers, else answer, until `ended` is set.

    Raises LexicastError: AskingEndedError at once, others when they have come again and again.
    """
    tries = 0
    while not ended.is_set():
        led_s: float | None = None
        try:
            if bus.stand_by(ended, tell):
                led_s = time.monotonic()
                _lead(bus, make_runner(), ended, tell)
        except AskingEndedError:
            raise
        except LexicastError as error:
            steady = led_s is not None and time.monotonic() - led_s > STEADY_S
            tries = 1 if steady else tries + 1
            if tries > TRIES_MAX:
                raise
            tell(f"{first_line(error)}: {'standing by' if isinstance(error, LeaseLostError) else 'trying again'}")
            ended.wait(RETRY_S)
        finally:
            bus.release()


def _lead(bus: SuccessionBus, runner: ChannelRunner, ended: threading.Event, tell: Tell) -> None:
    bus.claim()
    again = runner.recover()
    tell(
        "answering channels; Ctrl-C ends it" + (f" ({again} messages of the runner before were left)" if again else "")
    )
    runner.run(ended)


def _channel_of(topic: str) -> str:
    return topic.removeprefix(PREFIX).partition("/")[0]
