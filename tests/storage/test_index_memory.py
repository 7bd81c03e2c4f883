"""The memory table of the index against a list of what was entered."""

from __future__ import annotations

import random

import numpy as np
import pytest

from lexicast.storage.dualdb.rows import NEVER_US, RowColumns
from lexicast.storage.environment.options import StoreOptions
from lexicast.storage.index.memory import BlockEntries, IndexMemory
from lexicast.storage.index.runs import in_offset_order

Entry = tuple[int, int, int, int, int]  # offset, topic id, time, expiry, records


def found(rows: RowColumns) -> list[Entry]:
    """Rows as entries, by offset."""
    ordered = in_offset_order([rows])
    columns = (ordered.seq, ordered.key, ordered.low, ordered.high, ordered.tag)
    return list(zip(*[column.tolist() for column in columns], strict=True))


def asked(memory: IndexMemory, topics: list[int]) -> list[Entry]:
    """What the table says of topics."""
    return found(memory.recent(np.array(sorted(topics), np.uint64)))


@pytest.mark.parametrize("entries_max", [1, 20, 400])
def test_a_memory_table_answers_whatever_of_it_is_in_order_or_being_written(entries_max: int) -> None:
    rng = random.Random(entries_max)
    memory = IndexMemory(StoreOptions(index_entries_max=entries_max))
    entered: list[Entry] = []
    frozen = 0
    offset = 0
    for step in range(200):
        topics = rng.sample(range(1, 40), rng.randint(1, 12))
        firsts = [offset + at for at in range(len(topics))]
        records = [rng.randint(1, 9) for _ in topics]
        until = [rng.choice((0, 10**15 + step)) for _ in topics] if rng.random() < 0.5 else None
        offset += len(topics)
        memory.add(BlockEntries(topics, firsts, records, until, step))
        ends = [each or NEVER_US for each in until or [0] * len(topics)]
        entered += zip(firsts, topics, [step] * len(topics), ends, records, strict=True)
        if rng.random() < 0.05:
            if memory.frozen is None:
                memory.freeze({})
                frozen = len(entered)
            else:
                memory.written()
                del entered[:frozen]
        for wanted in (rng.sample(range(1, 45), 3), list(range(1, 45, 2))):
            assert asked(memory, wanted) == [entry for entry in entered if entry[1] in wanted]
            held = memory.held(np.array(wanted, np.uint64)).tolist()
            assert held == [any(entry[1] == topic for entry in entered) for topic in wanted]
    memory.clear()
    assert asked(memory, list(range(45))) == []
    assert not memory.held(np.arange(45, dtype=np.uint64)).any()


def test_pieces_of_a_frozen_table_are_in_order_and_hold_everything() -> None:
    rng = random.Random(1)
    memory = IndexMemory(StoreOptions(index_entries_max=80))
    for offset in range(0, 500, 5):
        memory.add(BlockEntries(rng.sample(range(1, 30), 5), list(range(offset, offset + 5)), [1] * 5, None, 1))
    memory.freeze({0: 500})
    pieces = memory.frozen_pieces()
    assert sorted([offset for piece in pieces for offset in piece.seq.tolist()]) == list(range(500))
    for piece in pieces:
        rows = list(zip(piece.key.tolist(), piece.seq.tolist(), strict=True))
        assert rows == sorted(rows)
    assert max([piece.size for piece in pieces]) <= 80 // 8 + 5
