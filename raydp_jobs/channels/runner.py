"""The runner of channels: each period, one Spark query a channel for everybody who subscribes to it.

The parameters of all subscriptions are a table, which the channel's SQL is joined with (LATERAL): a thousand
subscriptions cost one query. Spark can take the SQL apart that way where parameters stand in WHERE or HAVING alone;
else each set of parameters is asked for itself.

After a restart of the runner, answers start anew: what is true then is published once more.
"""

from __future__ import annotations

import asyncio
import json
import logging
import signal
import threading
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import ray
from rich.console import Console

import lexicast
from lexicast.cluster.errors import LexicastError
from lexicast.storage.log_scanner import LogScanner

from ..history.dataframe import history, release
from ..history.reading import Place, get, on_node_of, places
from ..spark.environment import spark_session
from ..spark.errors import first_line, job_errors
from .definitions import (
    DEFINITIONS_FILTER,
    PREFIX,
    Channel,
    PublicationTable,
    Value,
    inlined,
    new_rows,
    parse_topic,
    same_types,
    unpack_channel,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

log = logging.getLogger(__name__)

T = TypeVar("T")

CHANNELS_MAX: Final = 1_000
TOPICS_MAX: Final = 10_000
"""Sets of parameters of one channel that are answered."""
ROWS_MAX: Final = 100_000
"""Rows of one channel's answer in one period, over all subscriptions."""
ROWS_A_MESSAGE: Final = 500
CALL_TIMEOUT_S: Final = 60.0

_PARAMETERS: Final = "__parameters"
_TOPIC: Final = "__topic"
_COLUMNS: Final = ("topic", "time", "publisher", "payload")


def subscribed(place: Place) -> list[str]:
    """The channel topics that brokers are subscribed to in one store; runs on its node."""
    with LogScanner(Path(place.directory)) as scanner:
        filters = [filter for group in place.committed for filter in scanner.subscriptions(group)]
    return sorted({filter for filter in filters if filter.startswith(PREFIX) and filter.count("/") == 2})


def channel_subscriptions() -> dict[str, dict[str, dict[str, Value]]]:
    """Channel -> topic -> parameters, of every back-end subscription in the cluster."""
    remote = ray.remote(num_cpus=0)(subscribed)
    refs = [remote.options(scheduling_strategy=on_node_of(place)).remote(place) for place in places()]
    found: dict[str, dict[str, dict[str, Value]]] = {}
    for topic in {topic for ref in refs for topic in get(ref)}:
        parsed = parse_topic(topic)
        if parsed is not None:
            found.setdefault(parsed[0], {})[topic] = parsed[1]
    return found


class ChannelBus:
    """A client in a thread of its own, since Spark blocks this one: the definitions as they change, and publishing."""

    def __init__(self, connect: Mapping[str, Any]) -> None:
        self._connect = dict(connect)
        self.channels: dict[str, Channel] = {}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._following: Future[None] | None = None

    def __enter__(self) -> ChannelBus:
        self._thread.start()
        try:
            self._client = self._wait(self._open())
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, *unused: object) -> None:
        if self._following is not None:
            self._following.cancel()
        with suppress(LexicastError):
            self._wait(self._client.close())
        self._end()

    def _end(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(CALL_TIMEOUT_S)

    async def _open(self) -> lexicast.Client:
        client = await lexicast.connect(**self._connect, client_id="channels").open()
        definitions = client.subscribe(DEFINITIONS_FILTER)
        await definitions.__aenter__()
        self._following = asyncio.run_coroutine_threadsafe(self._follow(definitions), self._loop)
        return client

    async def _follow(self, definitions: lexicast.Subscription) -> None:
        async for message in definitions:
            self.learn(message.topic, message.payload)

    def learn(self, topic: str, payload: bytes) -> None:
        """A definition, or with an empty payload its end."""
        name = topic.removeprefix(PREFIX)
        if not payload:
            self.channels.pop(name, None)
            return
        try:
            channel = unpack_channel(payload)
            if channel.name == name and (name in self.channels or len(self.channels) < CHANNELS_MAX):
                self.channels[name] = channel
        except LexicastError as error:
            log.warning("%s: %s", topic, error)

    def publish(self, messages: Iterable[tuple[str, bytes]]) -> None:
        """Publish; returns when all are acknowledged. Raises LexicastError."""
        self._wait(self._client.publish_many(list(messages), qos=1))


class ChannelRunner:
    """Answers the channels; `tell` gets one line about each answer."""

    def __init__(self, spark: SparkSession, bus: ChannelBus, tell: Callable[[str], None] = lambda text: None) -> None:
        self._spark = spark
        self._bus = bus
        self._tell = tell
        self._due: dict[str, float] = {}
        self._before: dict[str, set[str]] = {}
        self._ended = threading.Event()
        self.answered_at_once = True
        """Whether the last answer was one query for all subscriptions."""
        self.told: tuple[str, ...] = ()
        """The topics that the last `step` published to, a message each time it is named."""

    def run(self, ended: threading.Event) -> None:
        """Answer every channel each period until `ended` is set. Raises LexicastError when the cluster is gone."""
        self._ended = ended
        while not ended.is_set():
            started = time.monotonic()
            self.step(started)
            pause = min([at - time.monotonic() for at in self._due.values()], default=1.0)
            ended.wait(min(max(pause, 0.05), 1.0))

    def step(self, now: float) -> int:
        """Answer the channels that are due at `now` (monotonic seconds); returns how many messages were published."""
        channels = dict(self._bus.channels)
        for gone in self._due.keys() - channels.keys():
            del self._due[gone]
        self.told = ()
        due = [channel for name, channel in channels.items() if self._due.get(name, now) <= now]
        if not due:
            return 0
        asked = channel_subscriptions()
        topics = {topic for of_channel in asked.values() for topic in of_channel}
        self._before = {topic: rows for topic, rows in self._before.items() if topic in topics}
        published = 0
        for channel in due:
            # from when it was due, not from when it was answered; what a long answer has missed is left out
            at = self._due.get(channel.name, now)
            self._due[channel.name] = at + channel.period_s * max(1, -(-(now - at) // channel.period_s))
            published += self._answer(channel, asked.get(channel.name, {}))
        return published

    def _answer(self, channel: Channel, topics: Mapping[str, dict[str, Value]]) -> int:
        wanted = {topic: given for topic, given in topics.items() if tuple(sorted(given)) == channel.parameters}
        if not wanted:
            return 0
        if len(wanted) > TOPICS_MAX:
            self._tell(f"{channel.name}: {len(wanted):,} subscriptions, {TOPICS_MAX:,} of them are answered")
            wanted = dict(sorted(wanted.items())[:TOPICS_MAX])
        started = time.monotonic()
        try:
            answers = self.ask(channel, wanted)
        except LexicastError as error:
            self._tell(f"{channel.name}: {first_line(error)}")
            return 0
        except Exception as error:
            if self._ended.is_set():
                return 0  # the signal that ended us ended Spark's processes as well
            # One channel's SQL must not end the others'.
            self._tell(f"{channel.name}: the query failed: {first_line(error)}")
            return 0
        messages = self._messages(answers, wanted)
        self._bus.publish(messages)
        self.told += tuple([topic for topic, _ in messages])
        rows = sum(map(len, answers.values()))
        took = time.monotonic() - started
        self._tell(f"{channel.name}: {len(wanted)} subscriptions, {rows} rows, {len(messages)} published, {took:.1f} s")
        return len(messages)

    def _messages(
        self, answers: Mapping[str, Sequence[Mapping[str, Any]]], wanted: Iterable[str]
    ) -> list[tuple[str, bytes]]:
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        messages = []
        for topic in wanted:
            fresh, self._before[topic] = new_rows(answers.get(topic, ()), self._before.get(topic, set()))
            for at in range(0, len(fresh), ROWS_A_MESSAGE):
                body = {"time": now, "rows": fresh[at : at + ROWS_A_MESSAGE]}
                messages.append((topic, json.dumps(body).encode()))
        return messages

    def ask(self, channel: Channel, topics: Mapping[str, Mapping[str, Value]]) -> dict[str, list[dict[str, Any]]]:
        """Topic -> the rows of the answer now. Raises what Spark raises."""
        frames = self._views(channel)
        try:
            return self._asked_at_once(channel, topics)
        finally:
            for frame in frames:
                release(frame)

    def _asked_at_once(
        self, channel: Channel, topics: Mapping[str, Mapping[str, Value]]
    ) -> dict[str, list[dict[str, Any]]]:
        from pyspark.errors import AnalysisException

        names = channel.parameters
        typed = same_types(list(topics.values()), names)
        rows = [(topic, *[given[name] for name in names]) for topic, given in zip(topics, typed, strict=True)]
        self._spark.createDataFrame(rows, [_TOPIC, *names]).createOrReplaceTempView(_PARAMETERS)
        sql = inlined(channel.sql, _PARAMETERS)
        joined = f"SELECT {_PARAMETERS}.{_TOPIC}, __answer.* FROM {_PARAMETERS}, LATERAL ({sql}) AS __answer"
        try:
            found = self._spark.sql(joined).limit(ROWS_MAX).collect()
            self.answered_at_once = True
        except AnalysisException:
            self.answered_at_once = False
            return self._asked_one_by_one(channel, topics)
        answers: dict[str, list[dict[str, Any]]] = {}
        for row in found:
            values = row.asDict(recursive=True)
            answers.setdefault(values.pop(_TOPIC), []).append(values)
        return answers

    def _asked_one_by_one(
        self, channel: Channel, topics: Mapping[str, Mapping[str, Value]]
    ) -> dict[str, list[dict[str, Any]]]:
        answers = {}
        for topic, given in topics.items():
            rows = self._spark.sql(channel.sql, args=dict(given)).limit(ROWS_MAX).collect()
            answers[topic] = [row.asDict(recursive=True) for row in rows]
        return answers

    def _views(self, channel: Channel) -> list[DataFrame]:
        """Make the channel's tables; the frames to be released after the answer."""
        frames = []
        for name, source in channel.history.items():
            frames.append(self._source(source))
            frames[-1].createOrReplaceTempView(name)
        for name, source in channel.state.items():
            frames.append(self._source(source))
            latest(frames[-1]).createOrReplaceTempView(name)
        for name, text in channel.tables.items():
            static_table(self._spark, text).createOrReplaceTempView(name)
        return frames

    def _source(self, source: PublicationTable) -> DataFrame:
        return history(
            self._spark,
            source.filter,
            since=timedelta(seconds=source.window_s),
            columns=[*_COLUMNS, "offset"],
            schema=source.columns or None,
        )


def run_channels(console: Console, connect: Mapping[str, Any], executors: int, seconds: float | None) -> None:
    """`lexicast channel run`: answer until Ctrl-C or SIGTERM, or for `seconds`. Raises LexicastError."""
    ended = threading.Event()
    with (
        job_errors(),
        console.status("starting Spark") as spinner,
        spark_session(**connect, executors=executors) as spark,
    ):
        spinner.stop()
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: ended.set())
        if seconds is not None:
            timer = threading.Timer(seconds, ended.set)
            timer.daemon = True
            timer.start()
        with ChannelBus(connect) as bus:
            console.print("answering channels; Ctrl-C ends it")
            ChannelRunner(spark, bus, tell=lambda text: console.print(text, markup=False)).run(ended)


def latest(rows: DataFrame) -> DataFrame:
    """Of each topic its last publication (a topic's offsets ascend, and it lies in one group)."""
    from pyspark.sql import functions as f

    whole = f.struct(*[f.col(name) for name in rows.columns])
    return rows.groupBy("topic").agg(f.max_by(whole, "offset").alias("last")).select("last.*")


def static_table(spark: SparkSession, text: str) -> DataFrame:
    """A table from CSV with a header; types are inferred."""
    from pyspark.sql import DataFrame

    strings = spark.createDataFrame([(line,) for line in text.splitlines() if line.strip()], "value STRING")
    encoder = spark._jvm.org.apache.spark.sql.Encoders.STRING()
    reader = spark._jsparkSession.read().option("header", "true").option("inferSchema", "true")
    return DataFrame(reader.csv(getattr(strings._jdf, "as")(encoder)), spark)
