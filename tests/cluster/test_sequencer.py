"""The sequencer: places are dense and given once, repeats answered, delivery waits for the commit, epochs ascend."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any, cast

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from lexicast.actors.coordinator.sequencer_memory import StoreMemory
from lexicast.actors.testing.simulator.memory_store import MemoryStore
from lexicast.cluster.blocks import CONTROL, QOS_MASK, Block, Mark, Meta, ProducerRun, Run, pack_meta, unpack_meta
from lexicast.cluster.errors import LedElsewhereError, PeerError, StaleEpochError, UsageError
from lexicast.cluster.positions import EPOCH_OFFSET_GAP
from lexicast.cluster.records import Released, Unsubscribed
from lexicast.cluster.repeats import RUNS_REMEMBERED, Placed
from lexicast.cluster.sequencer import RECORDS_PENDING_MAX, Sequenced, Sequencer

GROUP = 3
MEMBERS = ("a", "b", "c")
UID = b"session"


def entry(
    payloads: Sequence[bytes],
    qos: int = 1,
    sequence: int = 1,
    producer: bytes = b"p",
    incarnation: int = 1,
    marks: Sequence[Mark] = (),
    qos_of: Sequence[int] = (),
) -> tuple[Meta, bytes, bytes]:
    """(meta, lengths, body) of an entry; `qos_of`: each record's QoS."""
    levels = list(qos_of) or [qos] * len(payloads)
    runs = tuple([Run(0, 0, level, 0, 0, None, 0, 1) for level in levels])
    producers = (ProducerRun(producer, incarnation, sequence, len(payloads)),)
    meta = Meta((b"t",), runs, producers, tuple(marks), ("origin",), ())
    return meta, array("I", map(len, payloads)).tobytes(), b"".join(payloads)


def sequencer(store: MemoryStore | None = None, in_sync: Sequence[str] = ("a",), epoch: int = 1) -> Sequencer:
    """A sequencer that leads GROUP, its epoch record durable everywhere."""
    store = store or MemoryStore(8)
    made = Sequencer("a", StoreMemory(cast(Any, store.tables)))
    tail = store.tails().get(GROUP)
    start = made.open(GROUP, epoch, -1 if tail is None else tail.last, 0, in_sync)
    store.commit([start])
    for member in in_sync:
        made.durable(member, GROUP, start.last)
    return made


def publish(made: Sequencer, what: tuple[Meta, bytes, bytes], now_us: int = 1) -> Sequenced:
    meta, lengths, body = what
    return made.publish(GROUP, meta, pack_meta(meta), lengths, body, now_us)


def places(result: Sequenced) -> list[int]:
    """The offset of each record."""
    return [placed.offset + i for placed in result.placed for i in range(placed.count)]


def test_offsets_are_dense_and_the_epoch_record_is_the_first() -> None:
    made = sequencer()
    assert places(publish(made, entry([b"1", b"2"]))) == [1, 2]
    control = made.control(GROUP, [Unsubscribed("b", "f")], 1)
    assert (control.first, control.last) == (3, 3)
    assert places(publish(made, entry([b"3"], sequence=3))) == [4]


def test_a_repeat_is_answered_with_its_first_place_before_and_after_a_crash() -> None:
    store = MemoryStore(8)
    made = sequencer(store)
    first = publish(made, entry([b"1", b"2"]))
    again = publish(made, entry([b"1", b"2"]))
    assert again.block is None
    assert places(again) == places(first)
    assert first.block is not None
    store.commit([first.block])
    reopened = sequencer(store, epoch=2)
    again = publish(reopened, entry([b"1", b"2"]))
    assert again.block is None
    assert again.placed == (Placed(1, 1, 1), Placed(1, 1, 2))


def test_of_an_entry_with_repeats_the_rest_is_placed() -> None:
    made = sequencer()
    publish(made, entry([b"1", b"2"]))
    result = publish(made, entry([b"1", b"2", b"3"]))
    assert places(result) == [1, 2, 3]
    assert result.block is not None
    assert [(r.offset, r.payload) for r in result.block.records()] == [(3, b"3")]
    assert (result.block.first, result.block.last) == (3, 3)
    assert result.block.meta.producers == (ProducerRun(b"p", 1, 3, 1),)


def test_a_qos2_publication_sent_by_another_broker_is_a_repeat_until_released() -> None:
    store = MemoryStore(8)
    made = sequencer(store)
    first = publish(made, entry([b"x"], qos=2, marks=[Mark(0, UID, 7)]))
    assert first.block is not None
    again = publish(made, entry([b"y", b"x"], qos=2, producer=b"q", marks=[Mark(0, UID, 8), Mark(1, UID, 7)]))
    assert places(again) == [2, 1]
    store.commit([first.block])
    reopened = sequencer(store, epoch=2)
    assert publish(reopened, entry([b"x"], qos=2, producer=b"r", marks=[Mark(0, UID, 7)])).placed == (Placed(1, 1, 1),)
    below = reopened.begin_release(GROUP, UID, 0, (7,))
    store.commit([reopened.control(GROUP, [Released(UID, (7,))], 1)])
    reopened.end_release(GROUP, UID, (7,), below, True)
    released = publish(reopened, entry([b"x"], qos=2, producer=b"r", sequence=2, marks=[Mark(0, UID, 7)]))
    assert released.block is not None


def qos2(payload: bytes, producer: bytes, sequence: int, *marks: Mark) -> tuple[Meta, bytes, bytes]:
    """An entry of a broker (`producer`) with a publication for each of these marks."""
    return entry([payload + b"%d" % mark.packet_id for mark in marks], 2, sequence, producer, marks=marks)


@pytest.mark.parametrize("applied", [False, True])
def test_what_a_broker_brings_of_an_older_connection_is_neither_placed_nor_taken_for_what_bears_its_id(
    applied: bool,
) -> None:
    store = MemoryStore(8)
    made = sequencer(store)
    first = publish(made, qos2(b"x", b"q", 1, Mark(0, UID, 7, 20))).block
    assert first is not None
    if applied:
        store.commit([first])
        made.durable("a", GROUP, first.last)
        made.applied(GROUP, first.last + 1)
        assert not made.groups[GROUP].repeats.marks
        assert (made.remembers(GROUP, UID, 20, [7]), made.remembers(GROUP, UID, 10, [7])) == (True, False)
        released = made.control(GROUP, [Released(UID, (7,))], 1)
        store.commit([released])
    made.end_release(GROUP, UID, (7,), made.begin_release(GROUP, UID, 0, (7,)), True)
    late = publish(made, qos2(b"x", b"p", 1, Mark(0, UID, 7, 10)))
    assert (late.block, late.placed) == (None, (Placed(1, 0, 0),))
    # The first broker again: it still has something of the oldest connection, and has something of the newest.
    mixed = publish(made, qos2(b"y", b"p", 2, Mark(0, UID, 7, 10), Mark(1, UID, 7, 30), Mark(2, UID, 8, 30)))
    assert mixed.block is not None
    assert [record.payload for record in mixed.block.records()] == [b"y7", b"y8"]
    again = publish(made, qos2(b"y", b"r", 1, Mark(0, UID, 7, 31)))
    assert (again.block, places(again)) == (None, [mixed.block.first])


@pytest.mark.parametrize("applied", [False, True])
@pytest.mark.parametrize("forgotten", [False, True])
def test_what_bears_an_id_while_its_release_is_written_is_no_repeat(applied: bool, forgotten: bool) -> None:
    """A client went once it had sent its PUBREL, came back at once and published something else under the id, which was
    taken for what it had released: nobody got it."""
    store = MemoryStore(8)
    made = sequencer(store)
    first = publish(made, qos2(b"x", b"q", 1, Mark(0, UID, 7, 20))).block
    assert first is not None
    if applied:
        store.commit([first])
        made.durable("a", GROUP, first.last)
        made.applied(GROUP, first.last + 1)
    below = made.begin_release(GROUP, UID, 20, (7,))
    released = made.control(GROUP, [Released(UID, (7,), 20)], 1)
    older = publish(made, qos2(b"x", b"p", 1, Mark(0, UID, 7, 10)))
    assert (older.block, places(older)) == (None, [first.first])
    # Whoever comes back may release it again, and is answered once that is written.
    assert made.remembers(GROUP, UID, 30, (7,))
    other = publish(made, qos2(b"y", b"q", 2, Mark(0, UID, 7, 30)))
    assert other.block is not None
    assert other.block.first > released.last
    made.end_release(GROUP, UID, (7,), below, forgotten)
    again = publish(made, qos2(b"y", b"r", 1, Mark(0, UID, 7, 30)))
    assert (again.block, places(again)) == (None, [other.block.first])
    made.end_release(GROUP, UID, (7,), made.begin_release(GROUP, UID, 30, (7,)), True)
    assert len(made.groups[GROUP].repeats.marks) == 1  # the session's generation, until what it published is applied


def test_a_release_that_fails_leaves_what_it_was_to_forget() -> None:
    made = sequencer(MemoryStore(8))
    first = publish(made, qos2(b"x", b"q", 1, Mark(0, UID, 7, 20))).block
    assert first is not None
    made.end_release(GROUP, UID, (7,), made.begin_release(GROUP, UID, 20, (7,)), False)
    again = publish(made, qos2(b"x", b"r", 1, Mark(0, UID, 7, 20)))
    assert (again.block, places(again)) == (None, [first.first])


def test_of_whom_only_a_release_is_known_an_older_connection_brings_nothing_more() -> None:
    """Its repeat was answered by the place that another connection's had, so the group has no mark of its own."""
    store = MemoryStore(8)
    made = sequencer(store)
    first = publish(made, qos2(b"x", b"q", 1, Mark(0, UID, 7, 10))).block
    assert first is not None
    assert publish(made, qos2(b"x", b"q", 2, Mark(0, UID, 7, 30))).block is None
    below = made.begin_release(GROUP, UID, 30, (7,))
    released = made.control(GROUP, [Released(UID, (7,), 30)], 1)
    store.commit([first, released])
    made.durable("a", GROUP, released.last)
    made.applied(GROUP, released.last + 1)
    made.end_release(GROUP, UID, (7,), below, True)
    late = publish(made, qos2(b"x", b"p", 1, Mark(0, UID, 7, 20)))
    assert (late.block, late.placed) == (None, (Placed(1, 0, 0),))
    assert publish(made, qos2(b"y", b"q", 3, Mark(0, UID, 7, 30))).block is not None


def test_an_entry_of_nothing_but_repeats_is_placed_already() -> None:
    made = sequencer()
    mark, other = Mark(0, UID, 7, 10), Mark(1, UID, 8, 10)
    entries = [qos2(b"x", b"q", 1, mark), qos2(b"x", b"p", 1, mark), qos2(b"x", b"r", 1, mark, other)]
    assert [made.is_placed(GROUP, each[0], len(each[1]) // 4) for each in entries] == [False, False, False]
    publish(made, entries[0])
    assert [made.is_placed(GROUP, each[0], len(each[1]) // 4) for each in entries] == [True, True, False]


def test_a_publication_of_an_older_connection_that_was_sent_again_is_answered_with_its_place() -> None:
    made = sequencer()
    block = publish(made, qos2(b"x", b"q", 1, Mark(0, UID, 7, 20))).block
    assert block is not None
    late = publish(made, qos2(b"x", b"p", 1, Mark(0, UID, 7, 10)))
    assert (late.block, places(late)) == (None, [block.first])
    of_another, unknown = Mark(0, b"another", 7, 10), Mark(0, UID, 8)
    assert publish(made, qos2(b"x", b"p", 2, of_another)).block is not None
    assert publish(made, qos2(b"x", b"p", 3, unknown)).block is not None


def test_of_a_connection_that_brought_what_could_not_be_stored_nothing_is_remembered() -> None:
    made = sequencer()
    kept = publish(made, qos2(b"x", b"q", 1, Mark(0, UID, 7, 20))).block
    refused = publish(made, qos2(b"x", b"q", 2, Mark(0, UID, 8, 30))).block
    assert refused is not None
    made.withdraw(refused)
    assert publish(made, qos2(b"x", b"q", 3, Mark(0, UID, 8, 20))).block is not None
    late = publish(made, qos2(b"x", b"q", 4, Mark(0, UID, 9, 10)))
    assert (late.block, late.placed) == (None, (Placed(1, 0, 0),))
    assert kept is not None


def test_marks_of_sessions_that_never_release_leave_memory_with_their_commit() -> None:
    store = MemoryStore(8)
    made = sequencer(store)
    for number in range(1, 200):
        uid = b"session-%d" % number
        block = publish(made, entry([b"x"], qos=2, sequence=number, marks=[Mark(0, uid, 7, 1)])).block
        assert block is not None
        assert made.groups[GROUP].repeats.marks.get(uid, 7) is not None
        store.commit([block])
        made.durable("a", GROUP, block.last)
        made.applied(GROUP, block.last + 1)
        again = publish(made, entry([b"x"], qos=2, producer=uid, marks=[Mark(0, uid, 7)]))
        assert places(again) == [block.first]
    assert not made.groups[GROUP].repeats.marks


def test_qos0_goes_at_once_but_overtakes_nothing() -> None:
    made = sequencer()
    at_once = publish(made, entry([b"0"], qos=0)).block
    assert made.deliverable(GROUP) == [at_once]
    safe = publish(made, entry([b"1"], sequence=2)).block
    behind = publish(made, entry([b"2"], qos=0, sequence=3)).block
    assert made.deliverable(GROUP) == []
    assert safe is not None
    made.durable("a", GROUP, safe.last)
    assert made.deliverable(GROUP) == [safe, behind]
    assert list(made.waiting(GROUP, safe.first)) == [safe, behind]  # committed, and not in the tables yet
    made.applied(GROUP, safe.last + 1)
    assert list(made.waiting(GROUP, 0)) == [behind]


def test_a_mixed_entry_waits_for_its_commit() -> None:
    made = sequencer()
    mixed = publish(made, entry([b"0", b"1"], qos_of=[0, 1])).block
    assert made.deliverable(GROUP) == []
    assert mixed is not None
    made.durable("a", GROUP, mixed.last)
    assert made.deliverable(GROUP) == [mixed]


def test_committed_means_durable_in_every_member() -> None:
    made = sequencer(in_sync=MEMBERS)
    block = publish(made, entry([b"1"])).block
    assert block is not None
    assert not made.durable("a", GROUP, block.last)
    assert not made.durable("b", GROUP, block.last)
    assert not made.durable("stranger", GROUP, block.last)
    assert made.deliverable(GROUP) == []
    assert made.durable("c", GROUP, block.last)
    assert made.deliverable(GROUP) == [block]


def test_what_an_earlier_epoch_has_left_is_settled_when_everybody_who_counts_has_the_new_one() -> None:
    """A member that counts may lack it until then, lead next, and take it back: no tables may have followed from it."""
    made = Sequencer("a", StoreMemory(cast(Any, MemoryStore(8).tables)))
    start = made.open(GROUP, 2, 40, 0, ("a", "b"))
    assert made.groups[GROUP].settled == 0
    made.durable("a", GROUP, start.last)
    assert made.groups[GROUP].settled == 0
    made.durable("b", GROUP, start.last)
    assert made.groups[GROUP].settled == start.last + 1


def test_a_stale_epoch_and_a_leader_that_is_no_member_are_refused() -> None:
    made = sequencer(epoch=5)
    with pytest.raises(StaleEpochError):
        made.open(GROUP, 5, 0, 0, ["a"])
    with pytest.raises(UsageError, match="in-sync"):
        made.open(GROUP, 6, 0, 0, ["b"])
    with pytest.raises(LedElsewhereError):
        made.room(GROUP + 1, 1)
    with pytest.raises(LedElsewhereError):
        made.publish(GROUP + 1, *_with_bytes(entry([b"x"])), 1)


def test_an_epoch_begins_once_although_the_group_was_left() -> None:
    made = sequencer(epoch=5)
    made.close(GROUP)
    assert made.begun(GROUP) == 5
    with pytest.raises(StaleEpochError, match="not after 5"):
        made.open(GROUP, 5, 0, 0, ["a"])
    made.open(GROUP, 6, 0, 0, ["a"])
    assert (made.begun(GROUP), made.begun(GROUP + 1)) == (6, -1)


def _with_bytes(what: tuple[Meta, bytes, bytes]) -> tuple[Meta, bytes, bytes, bytes]:
    meta, lengths, body = what
    return meta, pack_meta(meta), lengths, body


def test_a_new_epoch_starts_beyond_everything_the_old_one_could_have_given() -> None:
    store = MemoryStore(8)
    made = sequencer(store)
    assert made.room(GROUP, RECORDS_PENDING_MAX)
    assert not made.room(GROUP, RECORDS_PENDING_MAX + 1)
    last = places(publish(made, entry([b"lost"], qos=0)))[-1]
    assert sequencer(store, epoch=2).groups[GROUP].delivered > last
    assert RECORDS_PENDING_MAX < EPOCH_OFFSET_GAP


def test_times_never_go_back() -> None:
    made = sequencer()
    first = publish(made, entry([b"1"]), now_us=50).block
    second = publish(made, entry([b"2"], sequence=2), now_us=10).block
    assert first is not None
    assert second is not None
    assert (first.time_us, second.time_us) == (50, 50)


def test_a_replaced_incarnation_is_refused_not_answered() -> None:
    made = sequencer()
    publish(made, entry([b"1"], incarnation=2))
    with pytest.raises(StaleEpochError):
        publish(made, entry([b"never stored"], incarnation=1))
    assert places(publish(made, entry([b"2"], incarnation=3))) == [2]


def test_a_withdrawn_block_is_no_first_copy_but_its_successor_is() -> None:
    made = sequencer()
    refused = publish(made, entry([b"1"])).block
    kept = publish(made, entry([b"2"], sequence=2)).block
    assert refused is not None
    assert kept is not None
    made.withdraw(refused)
    made.durable("a", GROUP, kept.last)
    assert made.deliverable(GROUP) == [kept]
    assert publish(made, entry([b"2"], sequence=2)).block is None
    again = publish(made, entry([b"1"], sequence=1)).block
    assert again is not None
    assert again.first == kept.last + 1


def test_what_was_delivered_and_could_not_be_stored_is_not_waited_for() -> None:
    made = sequencer()
    stored = publish(made, entry([b"1"], qos=0)).block
    refused = publish(made, entry([b"2"], qos=0, sequence=2)).block
    assert stored is not None
    assert refused is not None
    made.durable("a", GROUP, stored.first - 1)
    made.deliverable(GROUP)
    assert made.groups[GROUP].last_unsettled == refused.last
    made.withdraw(refused)
    assert made.groups[GROUP].last_unsettled == stored.last
    made.durable("a", GROUP, stored.last)
    made.applied(GROUP, stored.last + 1)
    assert made.groups[GROUP].last_unsettled == -1


def test_a_refused_entry_is_no_repeat_although_later_ones_are_stored() -> None:
    store = MemoryStore(8)
    made = sequencer(store)
    later = publish(made, entry([b"2"], sequence=2)).block
    assert later is not None
    store.commit([later])
    for epoch in (2, 3):
        made = sequencer(store, epoch=epoch)
        assert publish(made, entry([b"2"], sequence=2)).block is None
    assert publish(made, entry([b"1"], sequence=1)).block is not None


def test_more_uncommitted_entries_than_are_remembered_of_old_do_not_hide_the_first() -> None:
    made = sequencer()
    for sequence in range(1, RUNS_REMEMBERED + 10):
        publish(made, entry([b"x"], sequence=sequence))
    assert publish(made, entry([b"x"], sequence=1)).placed == (Placed(1, 1, 1),)
    made.durable("a", GROUP, RUNS_REMEMBERED + 9)
    publish(made, entry([b"x"], sequence=RUNS_REMEMBERED + 10))
    assert publish(made, entry([b"x"], sequence=1)).placed == (Placed(1, 0, 0),)


@pytest.mark.parametrize(
    "broken",
    [
        {"runs": (Run(0, 0, 1, 0, 0, None, 0, 2),)},
        {"runs": (Run(1, 0, 1, 0, 0, None, 0, 1),)},
        {"runs": (Run(0, 1, 1, 0, 0, None, 0, 1),)},
        {"runs": (Run(0, 0, 3, 0, 0, None, 0, 1),)},
        {"runs": (Run(0, 0, 1, 2, 0, None, 0, 1),)},
        {"runs": (Run(0, 0, 1, 0, 1 << 60, None, 0, 1),)},
        {"producers": ()},
        {"producers": (ProducerRun(b"p", 1, 1 << 63, 1),)},
        {"producers": (ProducerRun(b"p", -1, 1, 1),)},
        {"marks": (Mark(1, UID, 1),)},
        {"marks": (Mark(0, UID, 1 << 16),)},
    ],
)
def test_an_entry_that_contradicts_itself_is_refused_and_takes_no_place(broken: dict[str, Any]) -> None:
    made = sequencer()
    meta, lengths, body = entry([b"x"])
    with pytest.raises(PeerError):  # by whom it was unpacked, or by the sequencer
        publish(made, (unpack_meta(pack_meta(meta._replace(**broken))), lengths, body))
    with pytest.raises(PeerError):
        publish(made, (meta, lengths, body + b"more"))
    with pytest.raises(PeerError):
        publish(made, (meta._replace(runs=(), producers=()), b"", b""))
    assert places(publish(made, entry([b"x"]))) == [1]


class Cluster(RuleBasedStateMachine):
    """One group with 1 to 3 members: publishers that resend, members of any speed, leaders that crash."""

    @initialize(in_sync=st.integers(1, 3))
    def begin(self, in_sync: int) -> None:
        self.stores = {member: MemoryStore(8) for member in MEMBERS}
        self.epoch = 0
        self.given: dict[int, tuple[bytes, int]] = {}  # offset -> (producer, sequence), of all epochs
        self.seen: dict[int, tuple[bytes, int]] = {}
        self.seen_last = -1
        self.acknowledged: dict[tuple[bytes, int], int] = {}
        self.sequences = {b"p": 1, b"q": 1}
        self.sent: list[tuple[Meta, bytes, bytes]] = []
        self.lead("a", MEMBERS[:in_sync])

    def lead(self, leader: str, in_sync: Sequence[str]) -> None:
        """`leader` takes over; the others are truncated to what it has and catch up."""
        self.epoch += 1
        log = self.stores[leader]
        tails = {group: tail.last for group, tail in log.tails().items()}
        for member in in_sync:
            if member != leader:
                self.stores[member] = log.replayed(tails)
        self.in_sync = in_sync
        self.pending: dict[str, list[Block]] = {member: [] for member in in_sync}
        self.waiting: list[tuple[int, list[tuple[tuple[bytes, int], int]]]] = []
        self.sequencer = Sequencer(leader, StoreMemory(cast(Any, log.tables)))
        self.place(self.sequencer.open(GROUP, self.epoch, tails.get(GROUP, -1), 0, in_sync))
        for member in in_sync:  # before anything is served
            start = self.pending[member].pop()
            self.stores[member].commit([start])
            self.sequencer.durable(member, GROUP, start.last)
        self.settle()

    def place(self, block: Block) -> None:
        for queue in self.pending.values():
            queue.append(block)
        if block.kind == CONTROL:
            keys = [(b"control", block.first + i) for i in range(block.count)]
        else:
            keys = [(p.producer, p.sequence + i) for p in block.meta.producers for i in range(p.count)]
        assert block.last - block.first + 1 == block.count
        for i, key in enumerate(keys):
            assert block.first + i not in self.given, "an offset was given twice"
            self.given[block.first + i] = key

    @rule(producer=st.sampled_from([b"p", b"q"]), levels=st.lists(st.integers(0, 2), min_size=1, max_size=4))
    def publish(self, producer: bytes, levels: list[int]) -> None:
        sequence = self.sequences[producer]
        self.sequences[producer] += len(levels)
        marks = [Mark(i, producer, (sequence + i) % 65_535 + 1) for i, level in enumerate(levels) if level == 2]
        made = entry([b"x"] * len(levels), sequence=sequence, producer=producer, marks=marks, qos_of=levels)
        self.sent.append(made)
        self.send(made)

    @precondition(lambda self: self.sent)
    @rule(data=st.data())
    def resend(self, data: st.DataObject) -> None:
        self.send(data.draw(st.sampled_from(self.sent)))

    def send(self, what: tuple[Meta, bytes, bytes]) -> None:
        meta = what[0]
        run = meta.producers[0]
        keys = [(run.producer, run.sequence + i) for i in range(run.count)]
        result = publish(self.sequencer, what)
        if result.block is not None:
            self.place(result.block)
        offsets = places(result)
        assert len(offsets) == len(keys)
        for key, offset in zip(keys, offsets, strict=True):
            if offset:
                assert self.given[offset] == key, "the answer names another record's place"
            assert self.acknowledged.get(key, offset) in (offset, 0), "a repeat got a new place"
        wait = result.block.last if result.block is not None else max(offsets)
        if any(r.flags & QOS_MASK for r in meta.runs):
            self.waiting.append((wait, list(zip(keys, offsets, strict=True))))
        self.settle()

    @rule(data=st.data(), count=st.integers(1, 3))
    def durable(self, data: st.DataObject, count: int) -> None:
        member = data.draw(st.sampled_from(sorted(self.in_sync)))
        done, self.pending[member] = self.pending[member][:count], self.pending[member][count:]
        if done:
            self.stores[member].commit(done)
            self.sequencer.durable(member, GROUP, done[-1].last)
        self.settle()

    @rule(data=st.data(), in_sync=st.sets(st.sampled_from(MEMBERS), min_size=1))
    def crash(self, data: st.DataObject, in_sync: set[str]) -> None:
        """The leader is lost; any member of the in-sync set may take over, with whom it likes to wait for."""
        leader = data.draw(st.sampled_from(sorted(self.in_sync)))
        self.lead(leader, sorted({leader, *in_sync}))

    @precondition(lambda self: len(self.in_sync) == 1 and any(b.kind != CONTROL for b in self.pending[self.in_sync[0]]))
    @rule(data=st.data())
    def refuse(self, data: st.DataObject) -> None:
        """The disk is full for one block."""
        queue = self.pending[self.in_sync[0]]
        block = data.draw(st.sampled_from([b for b in queue if b.kind != CONTROL]))
        queue.remove(block)
        self.waiting = [w for w in self.waiting if not block.first <= w[0] <= block.last]
        self.sequencer.withdraw(block)
        self.settle()

    def settle(self) -> None:
        """Deliver and acknowledge what may be."""
        committed = self.sequencer.groups[GROUP].committed
        for block in self.sequencer.deliverable(GROUP):
            for record in block.records():
                assert record.offset > self.seen_last, "delivered out of order"
                self.seen_last = record.offset
                self.seen[record.offset] = self.given[record.offset]
            if any(run.flags & QOS_MASK for run in block.meta.runs):
                assert all(block in self.stores[m].blocks[GROUP] for m in self.in_sync), "seen before it is committed"
        done = [w for w in self.waiting if w[0] < committed]
        self.waiting = [w for w in self.waiting if w[0] >= committed]
        for _, records in done:
            self.acknowledged.update({key: offset for key, offset in records if offset})

    @invariant()
    def nothing_acknowledged_is_lost_or_stored_twice(self) -> None:
        for member in self.in_sync:
            stored: dict[tuple[bytes, int], int] = {}
            for block in self.stores[member].blocks.get(GROUP, ()):
                if block.kind != CONTROL:
                    for run in block.meta.producers:
                        for i in range(run.count):
                            key = (run.producer, run.sequence + i)
                            assert key not in stored, "stored twice"
                            stored[key] = 1
            assert self.acknowledged.keys() <= stored.keys(), "acknowledged and lost"


TestCluster = Cluster.TestCase
TestCluster.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)


def test_a_joiner_is_waited_for_before_it_counts_and_who_is_dropped_is_not() -> None:
    made = sequencer()
    group = made.groups[GROUP]
    start = group.next
    assert not made.count(GROUP, ["a"], {"b": start})
    block = publish(made, entry([b"0"])).block
    assert block is not None
    assert not made.durable("a", GROUP, block.last)  # b lacks it
    assert made.durable("b", GROUP, block.last)
    assert not made.count(GROUP, ["a", "b"], {})
    behind = publish(made, entry([b"1"], sequence=2)).block
    assert behind is not None
    made.durable("a", GROUP, behind.last)
    assert group.committed == block.last + 1
    assert made.count(GROUP, ["a"], {})  # b is lost
    assert group.committed == behind.last + 1
    with pytest.raises(UsageError):
        made.count(GROUP, ["b"], {})


def test_nothing_is_committed_while_there_are_fewer_members_than_asked_for() -> None:
    made = Sequencer("a", StoreMemory(cast(Any, MemoryStore(8).tables)), min_copies=2)
    made.open(GROUP, 1, -1, 0, ["a"])
    assert not made.durable("a", GROUP, 0)
    made.count(GROUP, ["a", "b"], {})
    assert made.durable("b", GROUP, 0)
