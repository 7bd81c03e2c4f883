"""What sampling brokers take over while they run: dictionaries, and PREDICT's regression from the history."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lexicast.actors.client.client import Client
from lexicast.actors.sampling import server as sampling
from lexicast.actors.sampling.announcements import CLOCKS_APART_US, Announcements
from lexicast.actors.sampling.server import SamplingServer
from lexicast.cluster.clock import ManualClock, SystemClock
from lexicast.cluster.errors import UsageError
from lexicast.cluster.topics.names import MODEL_TOPIC, dictionary_topic
from lexicast.compression.codecs import DEFLATE_PRESET
from lexicast.compression.dictionary import Dictionary
from lexicast.compression.maintenance import Due, Maintenance
from lexicast.compression.predict import HISTORY, Predict
from lexicast.compression.regression import (
    MODEL_BYTES_MAX,
    OBSERVATIONS_MAX,
    MessageCountModel,
    PublishedModel,
    pack_model,
    unpack_model,
)
from lexicast.compression.substring_repository import Features
from lexicast.compression.training import fulfil

from ...support.first_samples import FirstSamples
from ...support.harness import eventually
from ...support.sampling_harness import Sampled, publish, reading, sampled

WAIT_S = 90.0
FAMILY = b"devices/+/telemetry"
NOW_US = 1_700_000_000_000_000
ALWAYS_150 = [[float(at), float(at * at), 150.0] for at in range(10)]


async def soon(true: Callable[[], bool], what: str) -> None:
    await eventually(true, what, wait_s=WAIT_S)


# -- the published form


@given(
    st.lists(
        st.tuples(st.floats(0, 1e6), st.floats(0, 1e6), st.floats(1, 1e9)).map(list),
        min_size=6,
        max_size=OBSERVATIONS_MAX,
    ),
    st.integers(0, 2**62),
)
def test_a_regression_comes_back(rows: list[list[float]], created_us: int) -> None:
    model = unpack_model(pack_model(rows, created_us, [1.0, 2.0, 3.0]))
    assert model.created_us == created_us
    assert [[*features, messages] for features, messages in model.observations] == rows


def test_many_observations_are_thinned_out_evenly() -> None:
    rows = [[float(at), 1.0, 100.0] for at in range(10_000)]
    model = unpack_model(pack_model(rows, NOW_US, [0.0]))
    assert len(model.observations) == OBSERVATIONS_MAX
    assert model.observations[0][0].mean_deviation == 0
    assert model.observations[-1][0].mean_deviation == 9_999


def forged(**changes: Any) -> bytes:
    body = json.loads(pack_model(ALWAYS_150, NOW_US, [0.0]))
    return json.dumps(body | changes).encode()


BAD = [
    b"",
    b"{",
    b"[]",
    b"null",
    b"\xff",
    b"[" * 60_000,
    b" " * (MODEL_BYTES_MAX + 1),
    forged(version=2),
    forged(created_us=-1),
    forged(created_us="now"),
    forged(observations=ALWAYS_150[:5]),
    forged(observations=ALWAYS_150 * 7),
    forged(observations=[[1.0, 2.0]] * 10),
    forged(observations=[[1.0, 2.0, float("nan")]] * 10),
    forged(observations=[[1.0, 2.0, 0.0]] * 10),
    forged(observations=[[-1.0, 2.0, 100.0]] * 10),
    forged(observations=[[1.0, 2.0, 1e300]] * 10),
    forged(observations=[[1.0, 2.0, "many"]] * 10),
    forged(observations=[[1.0, 2.0, 10**400]] * 10),
]


@pytest.mark.parametrize("payload", BAD, ids=range(len(BAD)))
def test_what_is_no_regression_says_so_in_one_line(payload: bytes) -> None:
    with pytest.raises(UsageError, match="regression") as raised:
        unpack_model(payload)
    assert "\n" not in str(raised.value)


@given(st.binary(max_size=200) | st.text(max_size=100).map(str.encode))
def test_garbage_is_no_regression(payload: bytes) -> None:
    with pytest.raises(UsageError):
        unpack_model(payload)


# -- borrowing


def borrowed(messages: float = 150.0) -> list[tuple[Features, float]]:
    return [(Features(deviation, score), messages) for deviation, score, _ in ALWAYS_150]


def test_a_borrowed_regression_predicts_until_there_are_own_observations_enough() -> None:
    model = MessageCountModel()
    assert model.predict(Features(1, 2)) is None
    model.warm(borrowed())
    assert model.predict(Features(1, 2)) == pytest.approx(150)
    assert model.predict(Features(0, 0)) is None, "nothing is known of the family yet"
    for at in range(6):
        assert model.bootstrapping
        model.record(Features(at, at * at), 4_000)
    assert not model.bootstrapping
    assert model.predict(Features(1, 2)) == pytest.approx(4_000)


def test_borrowed_observations_are_not_handed_on() -> None:
    model = MessageCountModel()
    model.warm(borrowed())
    assert model.state() == []


def learned(messages: int, algorithm: Predict) -> Predict:
    """After so many messages of one language, its dictionaries made."""
    for number in range(messages):
        algorithm.observe(reading(number % 5, number), number)
        due = algorithm.due()
        if due is not None:
            algorithm.adopt(fulfil(due, family=b"f", now_us=number))
    return algorithm


def test_predict_starts_from_a_regression_that_is_there_or_comes() -> None:
    cold = learned(520, Predict(first=HISTORY[-1]))
    assert cold.state()["count"] > 300
    warm = Predict(first=HISTORY[-1])
    warm.warm(borrowed())
    assert learned(520, warm).state()["count"] == pytest.approx(150)
    cold.warm(borrowed())
    assert cold.state()["count"] == pytest.approx(150)
    assert cold.messages_until_look == warm.messages_until_look == pytest.approx(130, abs=1)


def test_a_regression_that_comes_late_has_the_dictionary_looked_at_next() -> None:
    algorithm = learned(900, Predict(first=HISTORY[-1]))
    assert algorithm.messages_until_look > 50
    algorithm.warm(borrowed())
    assert algorithm.messages_until_look == 1


def test_a_family_that_knows_itself_leaves_a_regression_alone() -> None:
    algorithm = learned(520, Predict(first=HISTORY[-1]))
    state = algorithm.state() | {"model": [[float(at), float(at * at), 4_000.0] for at in range(6)]}
    algorithm.restore(state, algorithm.current)
    before = algorithm.state()
    algorithm.warm(borrowed())
    assert algorithm.state() == before


# -- which are taken


def others(clock: ManualClock) -> tuple[Announcements, list[PublishedModel]]:
    taken: list[PublishedModel] = []
    nobody: Any = None
    return Announcements(nobody, clock, lambda dictionary, packed_bytes: None, taken.append), taken


def test_bad_forged_and_older_regressions_are_left_alone_with_one_line_each(caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock(NOW_US)
    follower, taken = others(clock)
    follower.learn_model(pack_model(ALWAYS_150, NOW_US, [0.0]))
    assert len(taken) == 1
    with caplog.at_level(logging.WARNING):
        for payload in BAD:
            follower.learn_model(payload)
        follower.learn_model(pack_model(ALWAYS_150[1:], NOW_US - 1, [0.0]))
        follower.learn_model(pack_model(ALWAYS_150, NOW_US + CLOCKS_APART_US + 1, [0.0]))
    assert len(caplog.records) == len(BAD) + 2
    assert all("$sdc-model/predict is left alone: " in record.getMessage() for record in caplog.records)
    follower.learn_model(pack_model(ALWAYS_150, NOW_US, [0.0]))
    assert len(caplog.records) == len(BAD) + 2, "the one in use, once more, is worth no line"
    assert len(taken) == 1
    follower.learn_model(pack_model(ALWAYS_150[1:], NOW_US + 1, [0.0]))
    assert [model.created_us for model in taken] == [NOW_US, NOW_US + 1]


# -- with brokers


def from_500() -> Maintenance:
    return Predict(first=HISTORY[-1])


def count_of(sampler: SamplingServer) -> float:
    algorithm = sampler.maintenance_of(FAMILY)
    assert isinstance(algorithm, Predict)
    return float(algorithm.state()["count"])


async def publish_model(bus: Client, created_us: int) -> None:
    await bus.publish(MODEL_TOPIC.decode(), pack_model(ALWAYS_150, created_us, [0.0]), qos=1, retain=True)


async def learn(there: Sampled, bus: Client, messages: int) -> None:
    """Publish so many, enough for one look, and wait for the dictionary."""
    await publish(bus, "devices/{}/telemetry", messages)
    await soon(lambda: there.dictionary(b"devices/1000001/telemetry") is not None, "a dictionary")


async def test_predict_starts_from_the_regression_that_is_retained(tmp_path: Path) -> None:
    created_us = SystemClock().time_us()
    async with sampled(tmp_path) as there, there.client("publisher") as bus:
        await bus.publish(MODEL_TOPIC.decode(), b"no regression", qos=1, retain=True)
        async with there.sampler(make=from_500) as sampler:
            await publish_model(bus, created_us)
            await soon(lambda: sampler.status()["regression_of_us"] == created_us, "the regression")
        async with there.sampler(make=from_500) as sampler:
            await soon(lambda: sampler.status()["regression_of_us"] == created_us, "the regression")
            await learn(there, bus, 520)
            await soon(lambda: sampler.published == 1 and count_of(sampler) == pytest.approx(150), "its MC")


async def test_a_regression_that_is_published_meanwhile_is_used_at_once(tmp_path: Path) -> None:
    created_us = SystemClock().time_us()
    async with sampled(tmp_path) as there, there.client("publisher") as bus, there.sampler(make=from_500) as sampler:
        await learn(there, bus, 520)
        await soon(lambda: sampler.published == 1 and count_of(sampler) > 300, "MC.base")
        await publish_model(bus, created_us)
        await soon(lambda: count_of(sampler) == pytest.approx(150), "the regression's MC")


class Asked(FirstSamples):
    """`FirstSamples` that remembers with which dictionaries it compared."""

    def __init__(self) -> None:
        super().__init__()
        self.compared: list[Dictionary | None] = []

    def due(self) -> Due | None:
        found = super().due()
        if found is not None:
            self.compared.append(found.current)
        return found


def from_history(created_us: int) -> Dictionary:
    """A dictionary as a job over the history publishes it."""
    content = b"".join(reading(at % 5, 7_000 + at) for at in range(60))
    return Dictionary(FAMILY, DEFLATE_PRESET, content, created_us, samples=60)


async def test_a_dictionary_from_the_history_becomes_the_familys(tmp_path: Path) -> None:
    async with sampled(tmp_path) as there, there.client("publisher") as bus, there.sampler(make=Asked) as sampler:
        await learn(there, bus, 60)
        await soon(lambda: sampler.published == 1, "its own dictionary")
        algorithm = sampler.maintenance_of(FAMILY)
        assert isinstance(algorithm, Asked)
        before = sampler.status()["families"][FAMILY.decode()]["dictionary_bytes"]
        foreign = from_history(SystemClock().time_us())
        packed = foreign.pack()
        await bus.publish(dictionary_topic(FAMILY).decode(), packed, qos=1, retain=True)
        await soon(lambda: sampler.status()["dictionaries_taken_over"] == 1, "taking over")
        told = sampler.status()["families"][FAMILY.decode()]
        assert told["dictionary"] == f"{foreign.id:016x}"
        assert told["dictionary_bytes"] == before + len(packed)
        assert algorithm.current == foreign
        await bus.publish(dictionary_topic(FAMILY).decode(), packed, qos=1, retain=True)
        start, looks = 1_000, len(algorithm.compared)
        while len(algorithm.compared) == looks:
            await publish(bus, "devices/{}/telemetry", 50, start)
            start += 50
        assert algorithm.compared[-1] == foreign, "what comes next has to be better than this one"
        assert sampler.taken_over == 1


async def test_a_successor_goes_on_from_what_was_taken_over(tmp_path: Path) -> None:
    async with sampled(tmp_path) as there, there.client("publisher") as bus:
        async with there.sampler() as first, bus.subscribe("$sampling/#") as states:
            await learn(there, bus, 60)
            foreign = from_history(SystemClock().time_us())
            await bus.publish(dictionary_topic(FAMILY).decode(), foreign.pack(), qos=1, retain=True)
            await soon(lambda: first.taken_over == 1, "taking over")
            async with asyncio.timeout(WAIT_S):
                async for message in states:
                    if "%2B" in message.topic and msgpack.unpackb(message.payload)[1] == foreign.id:
                        break
        async with there.sampler() as second:
            await publish(bus, "devices/{}/telemetry", 1, 5_000)
            await soon(lambda: second.maintenance_of(FAMILY) is not None, "the family")
            algorithm = second.maintenance_of(FAMILY)
            assert isinstance(algorithm, Predict)
            assert algorithm.current == foreign
            assert algorithm.state()["seen"] > 1, "it goes on from the first one's state"
            assert second.taken_over == 0


async def test_what_is_published_while_it_trains_is_not_superseded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    training, go_on = threading.Event(), threading.Event()

    def slowly(due: Due, *, family: bytes, now_us: int) -> Dictionary | None:
        training.set()
        go_on.wait(WAIT_S)
        return fulfil(due, family=family, now_us=now_us)

    monkeypatch.setattr(sampling, "fulfil", slowly)
    async with sampled(tmp_path) as there, there.client("publisher") as bus, there.sampler(make=Asked) as sampler:
        try:
            await publish(bus, "devices/{}/telemetry", 60)
            await soon(training.is_set, "a training")
            foreign = from_history(SystemClock().time_us())
            await bus.publish(dictionary_topic(FAMILY).decode(), foreign.pack(), qos=1, retain=True)
            await soon(lambda: there.dictionary(b"devices/1000001/telemetry") == foreign, "the broker has it")
            await soon(lambda: sampler._kept[FAMILY].announced is not None, "the sampling broker knows of it")
        finally:
            go_on.set()
        await soon(lambda: sampler.taken_over == 1, "taking over")
        assert sampler.published == 0
        assert there.dictionary(b"devices/1000001/telemetry") == foreign


async def test_an_older_dictionary_or_a_damaged_one_changes_nothing(tmp_path: Path) -> None:
    async with sampled(tmp_path) as there, there.client("publisher") as bus, there.sampler(make=Asked) as sampler:
        await learn(there, bus, 60)
        await soon(lambda: sampler.published == 1, "its own dictionary")
        topic = dictionary_topic(FAMILY).decode()
        await bus.publish(topic, from_history(1).pack(), qos=1)
        await bus.publish(topic, b"no dictionary", qos=1)
        newer = from_history(SystemClock().time_us())
        await bus.publish(topic, newer.pack(), qos=1, retain=True)
        await soon(lambda: sampler.taken_over >= 1, "taking over")
        assert sampler.taken_over == 1
        assert sampler.status()["families"][FAMILY.decode()]["dictionary"] == f"{newer.id:016x}"
