"""What was read of the past a moment ago: served again, never what may have changed, never more than there is room."""

from __future__ import annotations

from lexicast.actors.coordinator.past_memory import REMEMBERED_S, PastMemory
from lexicast.cluster.blocks import BLOCK_MEMORY_BYTES, PUBLICATIONS, RAW, Block, Meta, Run, pack_meta

GROUP, ROOM = 3, 1 << 20


def block(first: int) -> Block:
    meta = Meta((b"t",), (Run(0, 0, 1, RAW, 0, None, -1, 1),), (), (), (), ())
    size = (5).to_bytes(4, "little")
    return Block(GROUP, 1, first, first, 9, PUBLICATIONS, pack_meta(meta), size, b"hello")


def test_a_step_is_served_again_from_where_it_began() -> None:
    memory = PastMemory()
    found = [block(4), block(5)]
    memory.put(GROUP, 4, found, 6, 0.0)
    step = memory.get(GROUP, 4, ROOM, 1.0)
    assert step is not None
    assert (step.blocks, step.next) == (found, 6)
    assert memory.get(GROUP, 5, ROOM, 1.0) is None
    assert memory.get(GROUP + 1, 4, ROOM, 1.0) is None


def test_a_step_that_found_more_than_is_asked_for_is_read_anew() -> None:
    memory = PastMemory()
    found = [block(4), block(5)]
    memory.put(GROUP, 4, found, 6, 0.0)
    assert memory.get(GROUP, 4, sum([one.size_bytes for one in found]) - 1, 0.0) is None


def test_what_is_old_is_read_anew() -> None:
    memory = PastMemory()
    memory.put(GROUP, 4, [block(4)], 5, 0.0)
    memory.put(GROUP, 5, [block(5)], 6, 1.0)
    assert memory.get(GROUP, 4, ROOM, REMEMBERED_S) is None
    assert memory.get(GROUP, 5, ROOM, REMEMBERED_S) is not None


def test_the_oldest_make_room() -> None:
    memory = PastMemory(2 * (BLOCK_MEMORY_BYTES + block(0).size_bytes))
    for offset in range(3):
        memory.put(GROUP, offset, [block(offset)], offset + 1, 0.0)
        memory.put(GROUP, offset, [block(offset)], offset + 1, 0.0)
    assert [memory.get(GROUP, offset, ROOM, 0.0) is not None for offset in range(3)] == [False, True, True]
