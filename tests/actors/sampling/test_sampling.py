"""Sampling brokers: shares, ring, CPU budget, what they learn, opt-out, successors; over real links and stores.

DESIGN.md, "Sampling broker"; the SIGKILL of a sampling broker under Ray is in `test_sampling_ray`.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

import lexicast
import lexicast.mqtt as mqtt
from lexicast.actors.broker.python_clients.sample_stream import heads_of_runs
from lexicast.actors.broker.server import BrokerServer
from lexicast.actors.sampling.budget import BURST_PERIODS, PERIOD_S, UNIT_BYTES, CpuBudget, Shares
from lexicast.actors.sampling.ring import Ring
from lexicast.actors.sampling.server import SamplingServer
from lexicast.actors.sampling.siblings import SAMPLES
from lexicast.cluster.blocks import FIRST_DICTIONARY, RAW, Block, Meta, Run, pack_meta
from lexicast.cluster.errors import LexicastError
from lexicast.cluster.selection import offsets_of, select
from lexicast.cluster.topics.names import dictionary_topic
from lexicast.compression.dictionary import Dictionary, unpack_dictionary
from lexicast.compression.predict import Predict
from lexicast.compression.training import fulfil

from ...support.first_samples import FirstSamples
from ...support.harness import eventually
from ...support.sampling_harness import Sampled, publish, reading, sampled

WAIT_S = 60.0


# -- shares


def test_a_family_below_its_share_is_followed_whatever_a_flood_does() -> None:
    shares = Shares(400)  # 100 a period
    now_s, followed, flooded = 100.0, 0, 0
    for period in range(100):
        for step in range(10):
            at = now_s + period * PERIOD_S + step * PERIOD_S / 10
            flooded += shares.take(b"flood", 5_000, 100, at)
            followed += shares.take(b"devices/%d/t" % (1_000_000 + step), 1, 100, at)
    assert followed == 1_000
    assert 8_500 <= flooded <= 100 * 100 + BURST_PERIODS * 100 - followed


def test_a_family_that_begins_finds_room_beside_a_flood() -> None:
    shares = Shares(400)
    shares.take(b"flood", 5_000, 100, 0.0)
    for period in range(1, 50):
        flooded = shares.take(b"flood", 5_000, 100, period * PERIOD_S)
    assert 100 <= flooded <= 102
    assert shares.take(b"new", 50, 100, 49.5 * PERIOD_S) == 50


def test_long_messages_count_as_several() -> None:
    shares = Shares(40)  # 10 a period, 200 at first
    assert shares.take(b"a", 100, 5 * UNIT_BYTES, 0.0) == 20
    assert shares.take(b"b", 100, 5 * UNIT_BYTES, 0.0) == 20
    assert shares.spent(PERIOD_S / 2)
    assert not shares.spent(PERIOD_S)
    assert shares.take(b"a", 100, 5 * UNIT_BYTES, PERIOD_S) == 1


@given(
    st.lists(
        st.tuples(st.sampled_from([b"a", b"b", b"c/1234567"]), st.integers(1, 500), st.integers(0, 9_000)), max_size=60
    )
)
def test_no_burst_takes_more_than_is_saved_up_and_one_message(asked: list[tuple[bytes, int, int]]) -> None:
    shares, units, largest = Shares(200), 0, 1
    for topic, records, size in asked:
        cost = 1 + max(0, size - 1) // UNIT_BYTES
        largest = max(largest, cost)
        taken = shares.take(topic, records, size, 1.0)
        assert 0 <= taken <= records
        units += taken * cost
    assert units < 50 * BURST_PERIODS + largest


def test_training_beyond_the_burst_waits_for_its_share_of_a_core() -> None:
    budget = CpuBudget(5.0, 0.0, burst_s=2.0)
    budget.charge(1.5, 0.0)
    assert budget.wait_s(0.0) == 0
    budget.charge(1.5, 0.0)
    assert budget.wait_s(0.0) == pytest.approx(20.0)
    assert budget.wait_s(10.0) == pytest.approx(10.0)
    assert budget.wait_s(21.0) == 0
    assert budget.wait_s(1e6) == 0
    budget.charge(3.0, 1e6)
    assert budget.wait_s(1e6) == pytest.approx(20.0)  # idle time is saved up to the burst, not for ever


# -- the ring

FAMILIES = [b"family/%d/+" % number for number in range(2_000)]


def test_the_ring_divides_families_about_evenly() -> None:
    ring = Ring([f"sampling-{i}" for i in range(4)])
    shares = dict.fromkeys(ring.members, 0)
    for family in FAMILIES:
        shares[ring.owner(family)] += 1
    assert all(250 < share < 900 for share in shares.values())


def test_a_member_that_goes_moves_only_its_own_families() -> None:
    before, after = Ring(["a", "b", "c"]), Ring(["a", "c"])
    assert all(before.owner(f) == after.owner(f) for f in FAMILIES if before.owner(f) != "b")
    assert {after.owner(f) for f in FAMILIES if before.owner(f) == "b"} == {"a", "c"}


# -- parts of blocks


def block_of(runs: list[tuple[int, int]], seed: int) -> Block:
    """Runs of (skip, count) with payloads of random length."""
    dice = random.Random(seed)
    payloads = [dice.randbytes(dice.randrange(20)) for _, count in runs for _ in range(count)]
    made = tuple(Run(skip, at, 1, RAW, 0, None, -1, count) for at, (skip, count) in enumerate(runs))
    meta = Meta(tuple(b"t%d" % at for at in range(len(runs))), made, (), (), (), ())
    lengths = b"".join(len(payload).to_bytes(4, "little") for payload in payloads)
    last = 99 + sum(skip + count for skip, count in runs)
    return Block(3, 1, 100, last, 5, 0, pack_meta(meta), lengths, b"".join(payloads), meta)


@given(st.data())
def test_heads_of_runs_is_what_a_selection_of_the_same_records_gives(data: st.DataObject) -> None:
    runs = data.draw(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 6)), min_size=1, max_size=6))
    counts = [data.draw(st.integers(0, count)) for _, count in runs]
    if not any(counts):
        counts[0] = 1
    block = block_of(runs, data.draw(st.integers(0, 9)))
    part = heads_of_runs(block, counts)
    keep = [at < kept for (_, count), kept in zip(runs, counts, strict=True) for at in range(count)]
    expected = select(block, keep)
    assert expected is not None
    assert (part.payloads(), offsets_of(part)) == (expected.payloads(), offsets_of(expected))
    assert Block.from_wire(part.to_wire()).meta.runs == part.meta.runs


# -- with brokers


async def test_learns_a_dictionary_and_publishes_it_retained(tmp_path: Path) -> None:
    async with sampled(tmp_path) as there, there.client("publisher") as bus, there.sampler() as sampler:
        await publish(bus, "devices/{}/telemetry", 60)
        await eventually(lambda: there.dictionary(b"devices/1000001/telemetry") is not None)
        topic = dictionary_topic(b"devices/+/telemetry").decode()
        async with bus.subscribe(topic) as retained:
            found = await asyncio.wait_for(anext(retained), WAIT_S)
    assert unpack_dictionary(found.payload) == there.dictionary(b"devices/1000001/telemetry")
    assert found.retain
    assert sampler.published >= 1


async def test_a_new_family_begins_with_what_a_sibling_has_learned(tmp_path: Path) -> None:
    async with sampled(tmp_path) as there, there.client("publisher") as bus, there.sampler() as sampler:
        await publish(bus, "alpha/{}/telemetry", 60)
        await eventually(lambda: there.dictionary(b"alpha/1000001/telemetry") is not None)
        await publish(bus, "beta/{}/telemetry", SAMPLES)
        await eventually(lambda: there.dictionary(b"beta/1000001/telemetry") is not None)
        await eventually(lambda: sampler.begun_from_siblings == 1)
        first, second = (there.dictionary(b"%s/1000001/telemetry" % site) for site in (b"alpha", b"beta"))
        assert first is not None
        assert second is not None
        assert (second.family, second.codec) == (b"beta/+/telemetry", first.codec)
        maintenance = sampler.maintenance_of(b"beta/+/telemetry")
        assert isinstance(maintenance, Predict)
        assert maintenance.current == second, "PREDICT goes on from it"
        await publish(bus, "gamma/{}/telemetry", SAMPLES - 1)
        assert there.dictionary(b"gamma/1000001/telemetry") is None


def topics_seen(sampler: SamplingServer) -> list[str]:
    """The topics of all messages that it gets from now on."""
    seen: list[str] = []
    observe = sampler.observe

    def observe_and_note(message: lexicast.Message) -> None:
        seen.append(message.topic)
        observe(message)

    sampler.observe = observe_and_note  # type: ignore[method-assign]  # only looks on
    return seen


async def test_a_flood_leaves_the_other_families_their_messages(tmp_path: Path) -> None:
    async with (
        sampled(tmp_path, compression__sampling_records_per_s=100) as there,
        there.client("publisher") as bus,
        there.sampler() as sampler,
    ):
        seen = topics_seen(sampler)
        for number in range(20):
            await bus.publish_many([("flood", b"x" * 100)] * 500)
            await bus.publish("rare", b"%d" % number)
        await eventually(lambda: seen.count("rare") >= 19)
        await asyncio.sleep(0)
    assert seen.count("flood") < 5_000


async def test_opted_out_topics_are_never_sampled_nor_compressed(tmp_path: Path) -> None:
    knobs: dict[str, Any] = {"compression__optout": ["secrets/#"], "compression__families": ["+/+"]}
    async with (
        sampled(tmp_path, **knobs) as there,
        there.client("publisher", compress=True) as bus,
        there.sampler() as sampler,
    ):
        seen = topics_seen(sampler)
        # "+/+" would take secrets/x in, were it not opted out.
        for number in range(200):
            await bus.publish("open/x", reading(1, number))
            await bus.publish("secrets/x", reading(1, number))
        await eventually(lambda: there.dictionary(b"open/x") is not None)
        assert there.dictionary(b"secrets/x") is None
        await eventually(lambda: len(bus.dictionaries()) == 1)
        await bus.publish_many([("open/x", reading(1, 1))] * 20 + [("secrets/x", reading(1, 1))] * 20)
        await publish_by_mqtt(there.broker, ["open/x", "secrets/x"])
        stored = await encodings(there)
    assert set(seen) == {"open/x"}
    assert stored["secrets/x"] == {RAW}
    assert FIRST_DICTIONARY in stored["open/x"]


async def test_opted_out_payloads_reach_aware_subscribers_untouched(tmp_path: Path) -> None:
    async with sampled(tmp_path, compression__optout=["secrets/#"]) as there, there.client("publisher") as bus:
        with aware(there.broker, "subscriber") as (client, got):
            await eventually(lambda: client.sdc_aware)
            client.subscribe("#", qos=1)
            await eventually(lambda: len(there.broker.engine.subscriptions.filters) > 1)
            await bus.publish("secrets/x", reading(1, 1) * 20)
            await bus.publish("open/x", reading(1, 1) * 20)
            await eventually(lambda: len(got) == 2)
        sent = client.sdc_stats().received
    assert sum(traffic.raw_bytes - traffic.sent_bytes for traffic in sent.values()) > 0
    assert {payload for _, payload in got} == {reading(1, 1) * 20}
    secret = [traffic for family, traffic in sent.items() if family.startswith("secrets")]
    assert [(t.messages, t.sent_bytes - t.raw_bytes) for t in secret] == [(1, 1)]


@contextmanager
def aware(broker: BrokerServer, name: str) -> Iterator[tuple[mqtt.Client, list[tuple[str, bytes]]]]:
    """A connected dictionary-aware MQTT client, and what it gets."""
    got: list[tuple[str, bytes]] = []
    client = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2, client_id=name)
    client.on_message = lambda _client, _userdata, message: got.append((message.topic, bytes(message.payload)))
    client.connect_async("127.0.0.1", broker.mqtt.port)
    client.loop_start()
    try:
        yield client, got
    finally:
        client.disconnect()
        client.loop_stop()


async def publish_by_mqtt(broker: BrokerServer, topics: list[str]) -> None:
    with aware(broker, "mqtt-publisher") as (client, _):
        await eventually(lambda: client.sdc_aware)
        sent = [client.publish(topic, reading(2, n), qos=1) for n in range(20) for topic in topics]
        await eventually(lambda: all(info.is_published() for info in sent))


async def encodings(there: Sampled) -> dict[str, set[int]]:
    """How the payloads of each topic are stored."""
    found: dict[str, set[int]] = {}
    for coordinator in there.cluster.coordinators.values():
        store = coordinator.server.store
        for group in range(there.broker.engine.groups):
            for block in store.read(group, 0).blocks:
                if block.kind == 0:
                    for run in block.meta.runs:
                        encoding = min(run.encoding, FIRST_DICTIONARY)
                        found.setdefault(block.meta.topics[run.topic].decode(), set()).add(encoding)
    return found


class Counting(FirstSamples):
    """`FirstSamples` that hands on how much it has seen."""

    def __init__(self) -> None:
        super().__init__()
        self.looks = 0

    def adopt(self, dictionary: Dictionary | None) -> None:
        self.looks += 1
        super().adopt(dictionary)

    def state(self) -> dict[str, Any]:
        return {"seen": self._samples.seen, "looks": self.looks}

    def restore(self, state: dict[str, Any], dictionary: Dictionary | None) -> None:
        self._samples.seen, self.looks = int(state["seen"]), int(state["looks"])
        self._current = dictionary


async def test_a_successor_goes_on_from_dictionary_and_state(tmp_path: Path) -> None:
    family = b"devices/+/telemetry"
    async with sampled(tmp_path) as there, there.client("publisher") as bus:
        async with there.sampler(make=Counting) as first:
            await publish(bus, "devices/{}/telemetry", 200)
            await eventually(lambda: first.published >= 1 and b"$sampling/devices/%2B/telemetry" in states(there))
            known = there.dictionary(b"devices/1000001/telemetry")
            before = first.maintenance_of(family)
        async with there.sampler(make=Counting) as second:
            await publish(bus, "devices/{}/telemetry", 1, 200)
            await eventually(lambda: second.maintenance_of(family) is not None)
            after = second.maintenance_of(family)
            assert isinstance(before, Counting)
            assert isinstance(after, Counting)
            assert after.looks == before.looks >= 1
            assert after._samples.seen > 30
            assert after.current is not None
            assert known is not None
            assert after.current.id == known.id
            assert second.published == 0


def states(there: Sampled) -> set[bytes]:
    store = next(iter(there.cluster.coordinators.values())).server.store
    return {
        block.meta.topics[run.topic]
        for group in range(there.broker.engine.groups)
        for block in store.read(group, 0).blocks
        if block.kind == 0
        for run in block.meta.runs
    }


async def test_two_sampling_brokers_divide_the_families_and_one_takes_over(tmp_path: Path) -> None:
    names = [f"family{letter}" for letter in "abcdefgh"]
    async with (
        sampled(tmp_path) as there,
        there.client("publisher") as bus,
        there.sampler("sampling-0", others="sampling-1") as one,
        there.sampler("sampling-1", others="sampling-0") as two,
    ):
        for name in names:
            await publish(bus, name + "/{}/t", 60)
        await eventually(lambda: all(there.dictionary(b"%s/1000001/t" % n.encode()) is not None for n in names))
        mine = {name for name in names if one.looks_after(b"%s/+/t" % name.encode())}
        assert mine
        assert mine != set(names)
        for server, expected in ((one, mine), (two, set(names) - mine)):
            assert set(server.status()["families"]) <= {f"{name}/+/t" for name in expected}
        # a broker has a dictionary before its publisher is told so
        await eventually(lambda: one.published + two.published == len(names))
        one.set_members({"sampling-0"})
        for name in names:
            await publish(bus, name + "/{}/t", 5, 60)
        await eventually(lambda: one.status()["looked_after"] == len(names))
        assert one.published + two.published == len(names)


async def test_audience_counts_those_who_are_sent_dictionaries(tmp_path: Path) -> None:
    async with sampled(tmp_path) as there, there.client("publisher") as bus, there.sampler() as sampler:
        with (
            aware(there.broker, "aware-subscriber") as (subscriber, _),
            aware(there.broker, "aware-publisher") as (publisher, _),
            aware(there.broker, "idle"),
        ):
            await eventually(lambda: subscriber.sdc_aware and publisher.sdc_aware)
            subscriber.subscribe("devices/+/telemetry")
            await eventually(lambda: len(there.broker.engine.subscriptions.filters) > 3)
            sent = publisher.publish("devices/1000001/telemetry", reading(1, 1), qos=1)
            await eventually(sent.is_published)
            await publish(bus, "devices/{}/telemetry", 60)

            def audience() -> tuple[int, int] | None:
                family = sampler.status()["families"].get("devices/+/telemetry")
                return family and (family["aware_publishers"], family["aware_subscribers"])

            await eventually(lambda: audience() == (2, 1), "one MQTT publisher and one Python client; a subscriber")
            maintenance = sampler.maintenance_of(b"devices/+/telemetry")
            assert maintenance is not None
            assert (maintenance.publishers, maintenance.subscribers) == (1, 1), "each link decides for itself"


async def test_a_family_that_cannot_be_trained_does_not_end_the_others(tmp_path: Path) -> None:
    class Broken(FirstSamples):
        def adopt(self, dictionary: Dictionary | None) -> None:
            if any(b"broken" in message for message in self._samples.last(1)):
                raise LexicastError("broken")
            super().adopt(dictionary)

    async with sampled(tmp_path) as there, there.client("publisher") as bus, there.sampler(make=Broken):
        await bus.publish_many([("bad/x", b"broken %d" % n) for n in range(50)])
        await publish(bus, "devices/{}/telemetry", 60)
        await eventually(lambda: there.dictionary(b"devices/1000001/telemetry") is not None)


# -- PREDICT's state


def seen_by(messages: int) -> Predict:
    """PREDICT after so many messages of one language, its dictionaries made."""
    algorithm = Predict()
    for number in range(messages):
        algorithm.observe(reading(number % 5, number), number)
        due = algorithm.due()
        if due is not None:
            algorithm.adopt(fulfil(due, family=b"f", now_us=number))
    return algorithm


def test_predict_goes_on_from_its_state_and_asks_for_nothing_before_it_has_new_samples() -> None:
    before = seen_by(700)
    assert before.current is not None
    after = Predict()
    after.restore(msgpack.unpackb(msgpack.packb(before.state())), before.current)
    assert {k: v for k, v in after.state().items() if k not in ("look_at", "promise_at")} == {
        k: v for k, v in before.state().items() if k not in ("look_at", "promise_at")
    }
    assert after.messages_until_look >= 100
    for number in range(99):
        after.observe(reading(1, number), number)
        assert after.due() is None


def test_predict_takes_up_a_dictionary_without_a_state() -> None:
    current = seen_by(100).current
    assert current is not None
    algorithm = Predict()
    algorithm.adopt(current)
    assert algorithm.current == current
    for number in range(99):
        algorithm.observe(reading(1, number), number)


@pytest.mark.parametrize(
    "change",
    [
        {"seen": -1},
        {"count": "x"},
        {"average": float("nan")},
        {"model": [[1.0]]},
        {"model": 3},
        {"promised": "high"},
        {"cpu_us": -1},
    ],
)
def test_predict_refuses_what_is_no_state(change: dict[str, Any]) -> None:
    algorithm = Predict()
    with pytest.raises((ValueError, TypeError)):
        algorithm.restore(seen_by(40).state() | change, None)
    assert algorithm.state() == Predict().state()


def test_a_state_is_small_and_holds_nothing_of_any_message() -> None:
    packed = msgpack.packb(seen_by(700).state())
    assert len(packed) < 400
    assert b"telemetry" not in packed
