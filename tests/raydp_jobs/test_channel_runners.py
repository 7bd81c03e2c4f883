"""Runners of channels as processes beside real brokers: killed in the middle, held up, two at a time.

What they ask is a counter instead of Spark, so that nothing but lexicast itself is needed.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import lexicast
import lexicast.sync
from lexicast.raydp_jobs.channels import bus as bus_module
from lexicast.raydp_jobs.channels.bus import ChannelBus
from lexicast.raydp_jobs.channels.definitions import Channel, channel_topic
from lexicast.raydp_jobs.channels.lease import LEASE_TOPIC, LeaseLostError
from lexicast.raydp_jobs.channels.registry import channel_overview, retain_definition

from ..support.mqtt_harness import Served, served

ROOT = Path(__file__).resolve().parents[2]
WAIT_S = 60.0
PERIOD_S = 1.0
SILENT_S = 1.5
CHANNEL = Channel("Count", "SELECT * FROM t WHERE x = :n", PERIOD_S)
TOPICS = [channel_topic("Count", {"n": at}) for at in range(40)]
SCRIPT = """
import json, os, signal, sys, threading, time
from lexicast.raydp_jobs.channels import bus, lease
from lexicast.raydp_jobs.channels.bus import ChannelBus
from lexicast.raydp_jobs.channels.definitions import parse_topic
from lexicast.raydp_jobs.channels.runner import ChannelRunner, answer_channels

folder, name, dies_at, began_s, silent_s = sys.argv[1], sys.argv[2], sys.argv[3], float(sys.argv[4]), float(sys.argv[5])
topics = json.loads(sys.argv[6])
lease.TAKE_OVER_S = bus.TAKE_OVER_S = silent_s
bus.BEAT_S = silent_s / 5
left = 2

class Dying(ChannelBus):
    def publish(self, messages, *, retain=False):
        global left
        messages = list(messages)
        step = "answers" if not retain else "round" if messages[0][0].count("/") == 1 else "states"
        if messages and step == dies_at:
            left -= 1
            if not left:
                if messages[: len(messages) // 2]:
                    super().publish(messages[: len(messages) // 2], retain=retain)
                os.kill(os.getpid(), signal.SIGKILL)
        if messages:
            super().publish(messages, retain=retain)

def ask(channel, asked):
    return {topic: [{"id": at} for at in range(int(10 * (time.time() - began_s)))] for topic in asked}

def subscriptions():
    return {"Count": {topic: parse_topic(topic)[1] for topic in topics}}

def tell(text):
    print(text, flush=True)

ended = threading.Event()
signal.signal(signal.SIGTERM, lambda *_: ended.set())
with Dying({"data_dir": folder}, name) as here:
    answer_channels(here, lambda: ChannelRunner(here, ask, subscriptions, tell), ended, tell)
"""
# What the cluster holds is asked for in a process of its own: an LMDB file is opened once in each.
SUBSCRIBED = """
import json, sys
from pathlib import Path
from lexicast.storage.log_scanner import LogScanner
with LogScanner(Path(sys.argv[1])) as scanner:
    print(json.dumps([each for group in range(int(sys.argv[2])) for each in scanner.subscriptions(group)]))
"""


def until(true: Callable[[], bool], what: str = "it") -> None:
    end = time.monotonic() + WAIT_S
    while not true():
        assert time.monotonic() < end, f"{what} does not happen"
        time.sleep(0.02)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Served]:
    with served(brokers=2) as running:
        yield running


@pytest.fixture(scope="module")
def data_dir(cluster: Served, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `lexicast up` would have written about the cluster."""
    folder = tmp_path_factory.mktemp("data")
    info = cluster.run(cluster.cluster.coordination.cluster())
    brokers = {f"broker-{at}": cluster.broker(at).sockets.addresses for at in range(2)}
    run = {"ray_address": "", "cluster_id": info.cluster_id, "brokers": brokers}
    (folder / "run.json").write_text(json.dumps(run))
    (folder / "cluster.key").write_bytes(info.key)
    return folder


class Runner:
    """A runner's process; `dies_at`: the step in whose middle it kills itself, the second time."""

    def __init__(self, folder: Path, data_dir: Path, name: str, began_s: float, dies_at: str = "") -> None:
        self._log = folder / name
        arguments = [str(data_dir), name, dies_at, str(began_s), str(SILENT_S), json.dumps(TOPICS)]
        environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-c", SCRIPT, *arguments], stdout=log, stderr=log, env=environment
            )

    @property
    def said(self) -> str:
        """All that it has said."""
        return self._log.read_text()

    def says(self, text: str, times: int = 1) -> None:
        """Return once it has said so."""

        def said() -> bool:
            assert self.process.poll() in (None, -signal.SIGKILL), self.said
            return self.said.count(text) >= times

        end = time.monotonic() + WAIT_S
        while not said():
            assert time.monotonic() < end, f"{self._log.name} does not say {text!r}: {self.said}"
            time.sleep(0.02)

    def killed(self) -> None:
        """Return once it has been."""
        assert self.process.wait(WAIT_S) == -signal.SIGKILL, self.said

    def end(self) -> None:
        """As SIGTERM does."""
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(WAIT_S) == 0, self.said


@pytest.fixture
def run(data_dir: Path, tmp_path: Path) -> Iterator[Callable[..., Runner]]:
    """Starts runners, which are gone after the test."""
    runners: list[Runner] = []
    began_s = time.time()

    def start(name: str, dies_at: str = "") -> Runner:
        runners.append(Runner(tmp_path, data_dir, name, began_s, dies_at))
        return runners[-1]

    asyncio.run(retain_definition({"data_dir": data_dir}, CHANNEL.topic, CHANNEL.pack()))
    yield start
    for each in runners:
        with suppress(ProcessLookupError):
            each.process.kill()
        each.process.wait()


def check_answers(data_dir: Path) -> None:
    """Each answer of each subscription once, in order, and nothing left out."""
    with lexicast.sync.connect(data_dir=data_dir) as bus:
        answers: dict[str, list[dict[str, Any]]] = {topic: [] for topic in TOPICS}
        for message in bus.history(TOPICS):
            answers[message.topic].append(json.loads(message.payload))
    for topic, messages in answers.items():
        names = [message["answer"].split(".") for message in messages]
        assert [number for _, number in names] == [str(at + 1) for at in range(len(names))], topic
        assert len({life for life, _ in names}) == 1
        rows = [row["id"] for message in messages for row in message["rows"]]
        assert rows == list(range(len(rows))), topic
        assert len(rows) > 20


def test_runners_are_killed_in_the_middle_and_others_go_on(run: Callable[..., Runner], data_dir: Path) -> None:
    """REAPS, section II: what is left of a period is made good, nothing comes twice, to subscribers of any broker."""
    addresses = json.loads((data_dir / "run.json").read_text())["brokers"].values()
    key = (data_dir / "cluster.key").read_bytes()
    buses = [lexicast.sync.connect(f"link:{address[0]}", key=key) for address in addresses]
    with buses[0] as one, buses[1] as other, one.subscribe(TOPICS[0]) as here, other.subscribe(TOPICS[0]) as there:
        runner = run("a:1", "states")
        for name, dies_at in (("b:1", "answers"), ("c:1", "round"), ("d:1", "")):
            runner.says("answering channels")
            follower = run(name, dies_at)
            follower.says("answers the channels: standing by")
            runner.killed()
            runner = follower
        runner.says("answering channels")
        runner.says("published", 2)

        # one that is held up comes back and is refused
        late = runner
        follower = run("e:1")
        follower.says("answers the channels: standing by")
        late.process.send_signal(signal.SIGSTOP)
        follower.says("published", 2)
        late.process.send_signal(signal.SIGCONT)
        late.says("e:1")  # "has taken over", or "answers the channels" where it notices its own silence first
        late.says(": standing by", 2)

        # one that ends by itself is followed at once
        before = late.said.count("answering channels")
        follower.end()
        ended_s = time.monotonic()
        late.says("answering channels", before + 1)
        assert time.monotonic() - ended_s < SILENT_S + 2.5
        late.says("published", 3)
        idle = run("f:1")
        idle.says("d:1 answers the channels: standing by")
        idle.end()
        late.end()
        check_answers(data_dir)

        with lexicast.sync.connect(data_dir=data_dir) as bus:
            stored = [message.payload for message in bus.history(TOPICS[0])]
        for subscription in (here, there):
            got = iter(subscription)
            assert [next(got).payload for _ in stored] == stored

    overview = asyncio.run(channel_overview({"data_dir": data_dir}))
    assert [channel.name for channel in overview.channels] == ["Count"]
    assert overview.rounds["Count"].subscriptions == len(TOPICS)
    assert overview.lease.runner == "", "nobody answers now"


def test_who_has_lost_the_lease_publishes_nothing(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where it has not heard of the other one: the groups refuse it."""
    monkeypatch.setattr(bus_module, "HEARD_S", 0.0)
    connect = {"data_dir": data_dir}
    with ChannelBus(connect, "x:1") as one, ChannelBus(connect, "y:1") as other:
        one.claim()
        one.publish([("$channel/Held/n=1", b"1")])
        monkeypatch.setattr(one, "learn", lambda topic, payload: None)
        other.claim()
        topics = [f"$channel/Held/n={at}" for at in range(200)]
        with pytest.raises(LeaseLostError, match="was replaced by"):
            one.publish([(topic, b"late") for topic in topics])
        other.publish([("$channel/Held/n=1", b"2")])
        with lexicast.sync.connect(data_dir=data_dir) as bus:
            assert [message.payload for message in bus.history(topics)] == [b"1", b"2"]
        with pytest.raises(LeaseLostError):
            one.publish([("$channel/Held/n=1", b"3")])
        one.release()
        assert other.watch.highest.runner == "y:1", "who is deposed does not end the other's lease"
        other.publish([("$channel/Held/n=1", b"4")])


def test_without_the_lease_nothing_is_published(data_dir: Path) -> None:
    with ChannelBus({"data_dir": data_dir}) as bus, pytest.raises(LeaseLostError, match="does not answer"):
        bus.publish([("$channel/Held/n=1", b"1")])


def test_everything_retained_is_read_and_each_topics_last_message(data_dir: Path) -> None:
    topics = [f"$channel-state/Many/n={at}" for at in range(2_500)]
    with ChannelBus({"data_dir": data_dir}) as bus:
        bus.claim()
        bus.publish([(topic, topic.encode()) for topic in topics], retain=True)
        found = bus.retained("$channel-state/Many/+")
        assert found == {topic: topic.encode() for topic in topics}
        bus.publish([(topic, b"last") for topic in topics[:1_500]])
        assert bus.last_messages([*topics[:1_500], "$channel/Many/none"]) == dict.fromkeys(topics[:1_500], b"last")
        bus.publish([(topic, b"") for topic in topics], retain=True)
        assert not any(bus.retained("$channel-state/Many/+").values())


def test_identical_subscriptions_are_one_as_long_as_anybody_has_it(cluster: Served, data_dir: Path) -> None:
    """REAPS, section II: front-end subscriptions of one broker, and of several, are one back-end subscription."""
    topic = channel_topic("Shared", {"user": "ann"})
    store = cluster.cluster.folder / "coordinator-0"
    groups = cluster.run(cluster.cluster.coordination.cluster()).groups

    def subscribed() -> int:
        command = [sys.executable, "-c", SUBSCRIBED, str(store), str(groups)]
        environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
        done = subprocess.run(command, capture_output=True, text=True, env=environment, check=True, timeout=WAIT_S)
        return [each for each in json.loads(done.stdout) if each.startswith("$channel/")].count(topic)

    addresses = json.loads((data_dir / "run.json").read_text())["brokers"].values()
    key = (data_dir / "cluster.key").read_bytes()
    one, again, other = [
        lexicast.sync.connect(f"link:{address[0]}", key=key) for address in [*addresses, next(iter(addresses))]
    ]
    with one, again, other, ChannelBus({"data_dir": data_dir}) as runner:
        runner.claim()
        subscriptions = [bus.subscribe(topic).__enter__() for bus in (one, again, other)]
        until(lambda: subscribed() == 1, "one subscription")
        runner.publish([(topic, b"1")])
        assert [next(iter(each)).payload for each in subscriptions] == [b"1"] * 3
        subscriptions.pop(0).__exit__(None, None, None)
        assert subscribed() == 1
        runner.publish([(topic, b"2")])
        assert [next(iter(each)).payload for each in subscriptions] == [b"2"] * 2
        for each in subscriptions:
            each.__exit__(None, None, None)
        until(lambda: subscribed() == 0, "nobody's subscription is none")


def test_the_lease_tells_who_answers(data_dir: Path) -> None:
    with ChannelBus({"data_dir": data_dir}, "z:1") as bus:
        bus.claim()
        overview = asyncio.run(channel_overview({"data_dir": data_dir}))
        assert overview.lease.runner == "z:1"
        assert bus.retained(LEASE_TOPIC)[LEASE_TOPIC]
