"""A follower's promises while it is to lead itself; batches of which a follower has a part that the disk refuses."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import pytest

from lexicast.actors.coordinator.committer import Committer
from lexicast.actors.coordinator.replication.following import Following
from lexicast.actors.link.link import Link
from lexicast.actors.testing.simulator.memory_store import MemoryStore
from lexicast.cluster.blocks import Block, control_block
from lexicast.cluster.clock import ManualClock
from lexicast.cluster.errors import StoreFullError
from lexicast.cluster.protocol.messages import REQUEST
from lexicast.cluster.records import EpochStart, pack_record
from lexicast.storage.store import Store


class OldLeader:
    """The link of a leader: what it is answered."""

    name = "old"
    closed = False

    def __init__(self) -> None:
        self.answers: list[asyncio.Future[Any]] = []

    def answer(self, number: int, work: Any) -> None:
        self.answers.append(asyncio.ensure_future(work))


class AtOnce:
    """A committer that does what it is asked at once."""

    def __init__(self) -> None:
        self.apart: set[int] = set()

    async def run(self, job: Callable[[], Any]) -> Any:
        return job()


@pytest.mark.parametrize(("adopted", "asked", "promised"), [(2, 1, 2), (2, 2, 2), (1, 2, 2)])
async def test_who_is_to_lead_refuses_older_leaders_before_its_first_block_is_durable(
    adopted: int, asked: int, promised: int
) -> None:
    deposed: list[int] = []
    led = {0: object()}
    store = MemoryStore(1)
    following = Following(cast(Store, store), cast(Committer, AtOnce()), led, deposed.extend)
    assert following.lead({0: adopted}) == [0]
    link = OldLeader()
    following.on_message(cast(Link, link), (REQUEST, 1, "follow", ({0: asked},)))
    (answer,) = await asyncio.gather(*link.answers)
    assert answer[0][0] == promised
    assert (0 in following) is (asked >= adopted)
    assert deposed == ([0] if asked >= adopted else [])
    assert store.promised(0) == (asked if asked >= adopted else 0)


class FullStore(MemoryStore):
    """Has no room for publications that a batch may hold."""

    def commit(self, blocks: Sequence[Any], apply: Mapping[int, int] | None = None) -> None:
        if any(block.group == 1 for block in blocks):
            raise StoreFullError("full")
        super().commit(blocks, apply)


def start_of(group: int) -> Block:
    return control_block(group, 1, 0, 1, [pack_record(EpochStart(1, -1, "a"))])


@pytest.mark.parametrize("shipped", [False, True])
async def test_of_groups_that_others_have_blocks_of_nothing_is_written_where_a_part_is_refused(shipped: bool) -> None:
    written: list[Block] = []
    refused: list[Block] = []
    store = FullStore(2)
    committer = Committer(
        cast(Store, store),
        ManualClock(),
        lambda blocks, applied: written.extend(blocks),
        lambda blocks, error: refused.extend(blocks),
        lambda error: None,
    )
    if shipped:
        committer.shipped.update({0, 1})
    publication = Block(1, 1, 0, 0, 1, 0, b"", b"", b"")
    committer.submit([start_of(0), publication])
    await committer.close()
    assert [block.group for block in written] == ([] if shipped else [0])
    assert [block.group for block in refused] == ([0, 1] if shipped else [1])
