"""Spark in a real cluster: exactness while publishing goes on, dictionaries, SQL, a channel, and what fails.

`make test-spark` runs these: they need Spark, and take two minutes, most of it Spark's start.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import blake2b
from pathlib import Path
from typing import Any

import psutil
import pyarrow.parquet
import pytest

import lexicast
import lexicast.sync
from lexicast.actors.launch.ray_nodes import disconnect_ray
from lexicast.cluster.config.tables import CompressionConfig
from lexicast.cluster.errors import UsageError
from lexicast.compression.dictionary import Dictionary
from lexicast.raydp_jobs.channels.backend_subscriptions import channel_subscriptions
from lexicast.raydp_jobs.channels.bus import ChannelBus
from lexicast.raydp_jobs.channels.definitions import channel_topic
from lexicast.raydp_jobs.channels.example import NAME, emergencies_near_me
from lexicast.raydp_jobs.channels.questions import SparkQuestions
from lexicast.raydp_jobs.channels.runner import ChannelRunner
from lexicast.raydp_jobs.history.dataframe import export_parquet, history, history_dataset, release
from lexicast.raydp_jobs.jobs.families import current_dictionaries
from lexicast.raydp_jobs.jobs.train_dictionaries import choose_dictionaries, publish_dictionaries
from lexicast.raydp_jobs.spark.environment import join_ray, spark_session
from lexicast.raydp_jobs.spark.errors import JobFailedError, job_errors

pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(900)]

START_S = 120.0
WAIT_S = 60.0
MESSAGES = 6_000
AIRPORTS = ("JFK", "LGA", "EWR")


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < end, "it does not happen"
        time.sleep(0.05)


def flight(at: int) -> tuple[str, bytes]:
    body = {"carrier": ["AA", "B6", "DL", "UA"][at % 4], "delay": at % 97, "origin": "JFK", "time": f"2013-{at:05d}"}
    return f"flights/{AIRPORTS[at % 3]}", json.dumps(body).encode()


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("cluster")
    ready = folder / "ready.json"
    command = [sys.executable, "-m", "lexicast.actors.cli", "up", "--mqtt-port", "0", "--ready-file", str(ready)]
    log = (folder / "log").open("wb")
    process = subprocess.Popen([*command, "--data-dir", str(folder / "data")], stdout=log, stderr=log)
    try:
        end = time.monotonic() + START_S
        while not ready.exists():
            assert process.poll() is None, (folder / "log").read_text()
            assert time.monotonic() < end
            time.sleep(0.1)
        yield folder / "data"
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(START_S)
        log.close()


@pytest.fixture(scope="module")
def stored(data_dir: Path) -> int:
    with lexicast.sync.connect(data_dir=data_dir) as bus:
        bus.publish_many([flight(at) for at in range(MESSAGES)])
    return MESSAGES


@pytest.fixture
def joined(data_dir: Path) -> Iterator[None]:
    """Connected to the cluster's Ray; a process that still is when that Ray ends is ended with it."""
    join_ray(None, data_dir)
    yield
    disconnect_ray()


@pytest.mark.usefixtures("joined")
def test_the_history_as_a_dataset_and_as_parquet(stored: int, tmp_path: Path) -> None:
    """Without Spark."""
    rows = export_parquet(tmp_path / "out", "flights/JFK", columns=["offset", "payload"])
    table = pyarrow.parquet.read_table(tmp_path / "out")
    assert table.num_rows == rows == stored // 3
    with pytest.raises(UsageError, match="column"):
        history(spark, where="delay >")
    with pytest.raises(UsageError, match="holds files already"):
        export_parquet(tmp_path / "out", "flights/JFK")
    assert history_dataset("flights/JFK", columns=["offset"]).count() == rows


@pytest.fixture(scope="module")
def spark(data_dir: Path, stored: int) -> Iterator[Any]:
    with spark_session(data_dir=data_dir) as session:
        yield session


def test_ray_data_has_room_beside_spark(spark: Any, stored: int) -> None:
    """On two cores Spark's executor and Ray Data share what our actors' hundredths leave: they leave all of it."""
    assert history_dataset("flights/JFK", columns=["offset"]).count() == stored // 3


Row = tuple[int, int, int, str, bytes]


async def past(data_dir: Path, filter: str) -> dict[tuple[int, int, int], Row]:
    async with lexicast.connect(data_dir=data_dir) as bus:
        found = [message async for message in bus.history(filter)]
    rows = [(*message.position, message.topic, blake2b(message.payload).digest()) for message in found]
    return {row[:3]: row for row in rows}


def keep_publishing(data_dir: str, count: Any) -> None:
    async def run() -> None:
        async with lexicast.connect(data_dir=data_dir) as bus:
            while True:
                await bus.publish_many([flight(at) for at in range(500)])
                count.value += 500

    asyncio.run(run())


@contextmanager
def publishing(data_dir: Path) -> Iterator[Any]:
    context = multiprocessing.get_context("spawn")
    count = context.Value("Q", 0)
    process = context.Process(target=keep_publishing, args=(str(data_dir), count), daemon=True)
    process.start()
    try:
        until(lambda: count.value > 0)
        yield count
    finally:
        process.terminate()
        process.join()


def test_the_rows_are_the_stores_publications_while_publishing_goes_on(spark: Any, data_dir: Path) -> None:
    with publishing(data_dir) as published:
        acknowledged = published.value + MESSAGES
        frame = history(spark, "flights/#")
        rows = [
            (row.group, row.epoch, row.offset, row.topic, blake2b(bytes(row.payload)).digest())
            for row in frame.select("group", "epoch", "offset", "topic", "payload").collect()
        ]
        before = published.value
        until(lambda: published.value > before)
    assert frame.count() == len(rows) >= acknowledged
    release(frame)
    got = {row[:3]: row for row in rows}
    assert len(got) == len(rows), "a publication came twice"
    everything = asyncio.run(past(data_dir, "flights/#"))
    ends: dict[int, int] = {}
    for group, _, offset in got:
        ends[group] = max(ends.get(group, 0), offset)
    assert got == {position: row for position, row in everything.items() if position[2] <= ends[position[0]]}
    assert len(everything) > len(got), "nothing was published meanwhile: the test shows nothing"


def test_payloads_become_typed_columns(spark: Any, data_dir: Path) -> None:
    inferred = history(spark, "flights/JFK", schema="json")
    types = dict(inferred.dtypes)
    assert types["carrier"] == "string"
    assert types["delay"] == "bigint"
    assert types["time"] == "timestamp"
    assert types["payload_time"] == "string", "a field that is called as a column gets a prefix"
    given = history(spark, "flights/JFK", columns=["offset", "payload"], schema="delay INT, nothing STRING")
    assert given.columns == ["offset", "payload", "delay", "nothing"]
    assert {type(row.delay) for row in given.take(10)} == {int}
    assert history(spark, "nowhere/#").count() == 0
    late = history(spark, "flights/JFK", schema="delay INT", where="delay > 10")
    assert late.count() == given.where("delay > 10").count()
    for frame in (inferred, given):
        release(frame)


def test_wrong_arguments_are_told(spark: Any) -> None:
    with pytest.raises(UsageError, match="put 'payload' among the columns"):
        history(spark, columns=["topic"], schema="json")
    with pytest.raises(UsageError, match="write 'json', or as in"):
        history(spark, "flights/JFK", schema="carrier STRNG")


def test_a_question_in_sql_and_one_that_is_wrong(spark: Any, data_dir: Path, stored: int) -> None:
    frame = history(spark, "flights/#", schema="carrier STRING, delay INT")
    frame.createOrReplaceTempView("history")
    (row,) = spark.sql("SELECT max(delay) m, count(DISTINCT carrier) n FROM history").collect()
    assert (row.m, row.n) == (96, 4)
    with pytest.raises(UsageError, match="nonsense") as raised, job_errors():
        spark.sql("SELECT nonsense FROM history")
    assert "\n" not in str(raised.value)
    release(frame)


def test_a_job_that_fails_says_so_in_one_line_and_leaves_the_cluster_alone(spark: Any, data_dir: Path) -> None:
    def fail(batches: Any) -> Any:
        raise ValueError("this batch is cursed")

    with pytest.raises(JobFailedError, match="ValueError: this batch is cursed") as raised, job_errors():
        spark.range(10).mapInPandas(fail, "id LONG").count()
    assert "\n" not in str(raised.value)
    with lexicast.sync.connect(data_dir=data_dir) as bus:
        bus.publish("still/there", b"")
    assert spark.range(10).count() == 10


def test_two_jobs_at_a_time(spark: Any, data_dir: Path) -> None:
    """Spark has one in this process; a command starts another in the same Ray."""
    command = [sys.executable, "-m", "lexicast.actors.cli", "spark", "sql", "SELECT count(*) n FROM history", "--json"]
    options = ["--filter", "flights/JFK", "--data-dir", str(data_dir)]
    told = subprocess.run([*command, *options], capture_output=True, text=True, timeout=600, check=False)
    assert told.returncode == 0, told.stderr
    assert json.loads(told.stdout)["n"] >= MESSAGES // 3
    assert spark.range(10).count() == 10


def test_dictionaries_from_the_history_are_published_and_used(spark: Any, data_dir: Path) -> None:
    connect = {"data_dir": data_dir}
    with lexicast.sync.connect(data_dir=data_dir) as bus:
        words = [f"kettle {at % 13} boils over at {at % 7} degrees".encode() for at in range(400)]
        bus.publish_many([("kettles/k/state", word) for word in words])
    choices = choose_dictionaries(spark, connect, CompressionConfig(families=("kettles/+/state",)), "kettles/#")
    (choice,) = choices
    assert choice.family == b"kettles/+/state"
    assert choice.dictionary is not None
    assert choice.proposed_percent > choice.current_percent
    assert asyncio.run(publish_dictionaries(connect, [choice.dictionary])) == 1

    def announced() -> bool:
        return asyncio.run(current_dictionaries(connect)).get(choice.family) == choice.dictionary

    until(announced)
    asyncio.run(publish_with(data_dir, choice.dictionary, "kettles/k/state", words[0]))
    frame = history(spark, "kettles/#", columns=["offset", "payload", "dictionary"])
    last = frame.orderBy("offset").collect()[-1]
    assert bytes(last.payload) == words[0]
    assert last.dictionary is not None, "with this dictionary, or a newer one of the sampling broker's"
    release(frame)


def test_emergencies_near_me(spark: Any, data_dir: Path) -> None:
    """REAPS, section II: subscribers move, emergencies happen, shelters stand; only what is new is told."""
    channel = emergencies_near_me(period_s=5)
    here, far = '{"lat": 33.6432, "lon": -117.8200}', '{"lat": 34.9, "lon": -118.9}'
    with lexicast.sync.connect(data_dir=data_dir) as bus, ChannelBus({"data_dir": data_dir}) as runners:
        bus.publish(channel.topic, channel.pack(), retain=True)
        until(lambda: NAME in runners.channels)
        bus.publish_many([("locations/ann", here), ("locations/bob", far)])
        topics = {user: channel_topic(NAME, {"user": user, "km": 5}) for user in ("ann", "bob")}
        with (
            bus.subscribe(topics["ann"]) as ann,
            bus.subscribe(topics["ann"]) as ann_again,
            bus.subscribe(topics["bob"]) as bob,
        ):
            until(lambda: set(channel_subscriptions().get(NAME, {})) == set(topics.values()))
            lines: list[str] = []
            questions = SparkQuestions(spark)
            runners.claim()
            runner = ChannelRunner(runners, questions.ask, channel_subscriptions, lines.append)
            bus.publish("emergencies/fire", '{"id": "e1", "kind": "fire", "lat": 33.65, "lon": -117.82}')
            assert runner.step(0.0) == 1, lines
            (row,) = json.loads(next(iter(ann)).payload)["rows"]
            assert (row["id"], row["shelter"]) == ("e1", "Anteater Recreation Center")
            assert json.loads(next(iter(ann_again)).payload)["rows"] == [row]
            assert runner.step(4.9) == 0, "it is not due"
            assert runner.step(5.0) == 0, "nothing is new"
            bus.publish("locations/bob", here)
            assert runner.step(10.0) == 1, lines
            assert [row["id"] for row in json.loads(next(iter(bob)).payload)["rows"]] == ["e1"]
            assert len(lines) == 3, lines
            assert questions.answered_at_once
        until(lambda: not channel_subscriptions().get(NAME))
        bus.publish(channel.topic, b"", retain=True)
        until(lambda: NAME not in runners.channels)


async def publish_with(data_dir: Path, dictionary: Dictionary, topic: str, payload: bytes) -> None:
    """Publish once the client has been told of the dictionary."""
    async with lexicast.connect(data_dir=data_dir) as bus:
        await bus.status()  # the broker has announced what it holds before it answers
        assert {held.family: held.created_us >= dictionary.created_us for held in bus.dictionaries()}[dictionary.family]
        await bus.publish(topic, payload)


def executors() -> list[psutil.Process]:
    """Spark's executors on this machine: Java workers of Ray that run one."""
    found = []
    for process in psutil.process_iter(["name", "cmdline"]):
        if process.info["name"] == "java" and "DefaultWorker" in " ".join(process.info["cmdline"] or []):
            found.append(process)
    return sorted(found, key=lambda process: process.pid)


def test_a_job_survives_its_executors_death(spark: Any, data_dir: Path, stored: int) -> None:
    frame = history(spark, "flights/#", columns=["payload"]).repartition(16)

    def slow(batches: Any) -> Any:
        for batch in batches:
            time.sleep(0.25)
            yield batch

    counted: list[int] = []
    job = threading.Thread(target=lambda: counted.append(frame.mapInPandas(slow, frame.schema).count()))
    tracker = spark.sparkContext.statusTracker()
    job.start()

    def under_way() -> bool:
        stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
        return any(stage is not None and stage.numCompletedTasks > 1 for stage in stages)

    until(under_way)
    executors()[-1].kill()  # the last: the first is Spark's master in Ray
    job.join(WAIT_S * 2)
    assert not job.is_alive()
    assert counted == [frame.count()]
    assert counted[0] >= stored
