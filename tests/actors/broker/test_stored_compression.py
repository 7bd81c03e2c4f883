"""Publications of plain clients in their family's compression: what is stored, who gets what, what it may cost."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from lexicast.actors.broker.pipelines.entries import GroupEntryBuilder
from lexicast.actors.broker.pipelines.stored_compression import (
    PERIOD_S,
    REMEMBERED_BYTES,
    CompressionBudget,
    StoredCompression,
)
from lexicast.actors.mqtt.codec.packets import V311
from lexicast.cluster.blocks import FIRST_DICTIONARY, PUBLICATIONS, RAW, Block
from lexicast.cluster.positions import topic_group
from lexicast.compression.codecs import DEFLATE_PRESET, ZSTD
from lexicast.compression.dictionary import Dictionary
from lexicast.compression.opening import Room
from lexicast.compression.wire import Recoder

from ...support.harness import GROUPS, Cluster
from ...support.mqtt_harness import Raw, close_clients, served

MESSAGE = b'{"device": "pump-17", "state": "running", "speed": 1420, "temperature": 61.5}'
DICTIONARY = Dictionary(b"pumps/+", ZSTD, MESSAGE * 4)
OTHER = Dictionary(b"valves/+", DEFLATE_PRESET, b'{"valve": "open", "flow": 12}' * 4)


def newest(topic: bytes) -> Dictionary | None:
    return {b"pumps": DICTIONARY, b"valves": OTHER}.get(topic.partition(b"/")[0])


@dataclass
class Times:
    """A clock, and the CPU time of a thread, that a test moves."""

    now_s: float = 0.0
    busy_s: float = 0.0
    tick_s: float = 0.0

    def clock(self) -> float:
        self.now_s += self.tick_s
        return self.now_s

    def busy(self) -> float:
        return self.busy_s


def storing_of(times: Times, cpu_percent: float = 10) -> tuple[StoredCompression, Recoder]:
    recoder = Recoder()
    return StoredCompression(recoder, newest, cpu_percent, times.clock, times.busy), recoder


def block_of(builder: GroupEntryBuilder, storing: StoredCompression | None, sequence: int = 1) -> Block:
    """The entry as it comes back."""
    group, meta, lengths, body = builder.seal(b"producer", 1, sequence, storing).wire
    last = len(lengths) // 4 - 1
    return Block(group, 1, 0, last, 0, PUBLICATIONS, meta, lengths, body)


def raw_of(block: Block, recoder: Recoder) -> list[bytes]:
    found = []
    for record in block.records():
        found.append(recoder.to_raw(min(record.encoding, FIRST_DICTIONARY), record.dictionary, record.payload))
    return found


PAYLOADS = st.lists(
    st.one_of(st.just(MESSAGE), st.just(MESSAGE[:30]), st.just(b""), st.binary(max_size=20)), min_size=1, max_size=4
)
TOPICS = st.sampled_from([b"pumps/1", b"pumps/2", b"valves/1", b"other"])


@given(st.lists(st.tuples(TOPICS, PAYLOADS, st.sampled_from([RAW, DICTIONARY.id])), min_size=1, max_size=6))
def test_what_is_stored_decompresses_to_what_was_published(added: list[tuple[bytes, list[bytes], int]]) -> None:
    storing, recoder = storing_of(Times())
    builder, plain, wanted = GroupEntryBuilder(0), GroupEntryBuilder(0), []
    for topic, payloads, encoding in added:
        sent = payloads
        if encoding != RAW:
            sent = recoder.encode_all(payloads, DICTIONARY)
        for each in (builder, plain):
            each.add(topic, 1, list(sent), "me", dictionary=None if encoding == RAW else encoding)
        wanted += payloads
    block = block_of(builder, storing)
    assert raw_of(block, recoder) == wanted
    assert len(block.body) <= len(block_of(plain, None).body)
    for record in block.records():
        assert record.payload or record.encoding == RAW  # an empty one clears a retained publication
        assert record.dictionary in (None, DICTIONARY.id, OTHER.id)
    recalled = storing.raw_of(block)
    assert recalled in (None, wanted)
    compressed = [encoding for _, _, encoding in added] == [RAW] * len(added) and block.meta.dictionaries
    assert (recalled is not None) == bool(compressed)
    assert storing.raw_of(block) is None  # once


def test_what_does_not_become_shorter_stays_as_it_came() -> None:
    storing, _ = storing_of(Times())
    builder = GroupEntryBuilder(0)
    builder.add(b"pumps/1", 1, [b"x", b"yz"], "me")
    builder.add(b"other/1", 1, [MESSAGE], "me")
    block = block_of(builder, storing)
    assert (block.body, block.meta.dictionaries) == (b"xyz" + MESSAGE, ())
    assert storing.status()["records"] == 0


def test_nothing_is_compressed_where_the_knob_says_so() -> None:
    storing, _ = storing_of(Times(), cpu_percent=0)
    builder = GroupEntryBuilder(0)
    builder.add(b"pumps/1", 1, [MESSAGE], "me")
    assert block_of(builder, storing).body == MESSAGE
    assert storing.status() == {"on": False, "records": 0, "raw_bytes": 0, "stored_bytes": 0, "left_raw": 1}


def test_another_producers_block_is_not_taken_for_ones_own() -> None:
    storing, _ = storing_of(Times())
    for sequence in (1, 2):
        builder = GroupEntryBuilder(0)
        builder.add(b"pumps/1", 1, [MESSAGE], "me")
        block = block_of(builder, storing, sequence)
    group, meta, lengths, body = block.group, block.meta_bytes, block.lengths, block.body
    for other in (
        Block(group + 1, 1, 0, 0, 0, PUBLICATIONS, meta, lengths, body),
        Block(group, 1, 0, 0, 0, PUBLICATIONS, meta.replace(b"producer", b"producex"), lengths, body),
    ):
        assert storing.raw_of(other) is None
    assert storing.raw_of(block) == [MESSAGE]


def test_time_that_others_take_is_not_charged() -> None:
    times = Times(tick_s=0.05)  # the clock goes on by more than an entry costs
    storing, _ = storing_of(times)
    for sequence in range(1, 20):
        builder = GroupEntryBuilder(0)
        builder.add(b"pumps/1", 1, [MESSAGE], "me")
        times.busy_s += 1e-5
        assert block_of(builder, storing, sequence).meta.dictionaries
    assert storing.status()["left_raw"] == 0


def test_what_is_remembered_is_bounded() -> None:
    storing, _ = storing_of(Times())
    for sequence in range(5):
        storing.remember(b"p", 1, 0, sequence, [bytes(REMEMBERED_BYTES // 4)])
    assert len(storing._remembered) == 4
    assert storing._remembered_bytes == REMEMBERED_BYTES


def spend(times: Times, record_s: float, records_per_s: int, seconds: float, busy: float = 0.0) -> list[float]:
    """A load on a budget of 10%: CPU spent in each period. `busy`: share of time that other work takes."""
    budget, spent = CompressionBudget(10), [0.0]
    entries_per_s = 100
    records = records_per_s // entries_per_s
    for number in range(int(seconds * entries_per_s)):
        times.now_s = number / entries_per_s
        times.busy_s += busy / entries_per_s
        if budget.period_over(times.now_s):
            budget.begin(times.now_s, times.busy_s)
            spent.append(0.0)
        if budget.allows(records):
            budget.charge(records, records * record_s)
            times.busy_s += records * record_s
            spent[-1] += records * record_s
    return spent[1:]


def test_a_load_within_the_budget_is_compressed_whole() -> None:
    # 2,000 messages/s at 30 us
    assert all(abs(spent - 0.06) < 0.001 for spent in spend(Times(), 30e-6, 2_000, 20))


def test_no_period_costs_more_than_the_budget_and_an_entry() -> None:
    for record_s, per_s in ((1e-6, 60_000), (30e-6, 5_000), (100e-6, 4_000), (1e-3, 1_000)):
        costs = spend(Times(), record_s, per_s, 20)
        assert max(costs[1:]) <= 0.1 * PERIOD_S + record_s * per_s / 100


def test_a_flood_costs_one_budget_and_then_nothing() -> None:
    costs = spend(Times(), 2e-6, 1_000_000, 30)
    assert costs[0] <= 0.12
    assert sum(costs[1:]) == 0


def test_a_busy_broker_compresses_nothing() -> None:
    costs = spend(Times(), 10e-6, 2_000, 10, busy=0.6)
    assert sum(costs[1:]) == 0
    assert sum(spend(Times(), 10e-6, 2_000, 10, busy=0.4)) > 0.19


def test_one_dear_first_use_does_not_end_it() -> None:
    budget = CompressionBudget(10)
    budget.begin(0.0, 0.0)
    assert budget.allows(1)
    budget.charge(1, 0.05)  # a dictionary is prepared
    taken = 0
    for number in range(2_000):
        now_s = number / 400
        if budget.period_over(now_s):
            budget.begin(now_s, 0.0)
        if budget.allows(1):
            budget.charge(1, 10e-6)
            taken += 1
    assert taken > 1_500


# -- in a cluster


async def test_plain_publications_lie_compressed_and_arrive_as_they_were(tmp_path: Path) -> None:
    async with Cluster(tmp_path) as cluster:
        store = (await cluster.start_coordinator()).server.store
        writer, reader = await cluster.start_engine("writer"), await cluster.start_engine("reader")
        writer.engine.dictionaries.hold(DICTIONARY.pack())
        await writer.publish(b"pumps/1", [MESSAGE, MESSAGE])
        group = topic_group(b"pumps/1", GROUPS)
        stored = [r for b in store.read(group, 0).blocks if b.kind == PUBLICATIONS for r in b.records()]
        assert [(r.encoding, r.dictionary) for r in stored] == [(FIRST_DICTIONARY, DICTIONARY.id)] * 2
        assert max(len(r.payload) for r in stored) < len(MESSAGE) // 3
        # The reader's broker fetches the dictionary, which is in the log of the records' group.
        assert [d.dictionary for d in store.tables.dictionaries(group)] == [DICTIONARY.id]
        stream = await reader.subscribe(b"pumps/1", start={group: 0})
        await stream.arrived(2)
        recoder = reader.engine.recoder
        assert recoder.all_to_raw(FIRST_DICTIONARY, DICTIONARY.id, stream.payloads()) == [MESSAGE] * 2


async def test_local_plain_subscribers_get_it_without_decompression() -> None:
    with served() as there:
        engine = there.broker().engine

        async def hold() -> None:
            engine.dictionaries.hold(DICTIONARY.pack())

        there.run(hold())
        decoded = count_decoding(engine.recoder)
        reader, publisher = await Raw.connect(there.port), await Raw.connect(there.port, version=V311)
        await reader.subscribe("pumps/#", qos=1)
        for _ in range(3):
            await publisher.publish("pumps/1", MESSAGE, qos=1)
        assert [message.payload for message in await reader.messages(3)] == [MESSAGE] * 3
        assert engine.stored_compression.status()["records"] == 3
        assert decoded() == 0
        await publisher.publish("pumps/1", MESSAGE, qos=1, retain=True)
        late = await Raw.connect(there.port)
        await late.subscribe("pumps/#")
        assert (await late.messages(1))[0].payload == MESSAGE  # out of the past: decompressed
        assert decoded() == 1
        await close_clients()


def count_decoding(recoder: Recoder) -> Callable[[], int]:
    """How often a payload is decompressed from now on."""
    to_raw, all_to_raw, count = recoder.to_raw, recoder.all_to_raw, [0]

    def counting(encoding: int, dictionary: int | None, data: bytes, room: Room | None = None) -> bytes:
        count[0] += encoding != RAW
        return to_raw(encoding, dictionary, data, room)

    def counting_all(
        encoding: int, dictionary: int | None, payloads: list[bytes], room: Room | None = None
    ) -> list[bytes]:
        count[0] += len(payloads) * (encoding != RAW)
        return all_to_raw(encoding, dictionary, payloads, room)

    recoder.to_raw = counting  # type: ignore[method-assign]  # watched
    recoder.all_to_raw = counting_all  # type: ignore[method-assign]  # watched
    return lambda: count[0]
