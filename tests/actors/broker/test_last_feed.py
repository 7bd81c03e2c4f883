"""The last publications of a subscription's topics, page by page: each comes once, and none holds others up."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from lexicast.actors.broker.feeds.last_feed import LastFeed
from lexicast.cluster.blocks import PUBLICATIONS, Block, Meta, Run, pack_meta
from lexicast.cluster.errors import PeerError
from lexicast.cluster.points_in_time import FOREVER_US


def block_of(first: int, runs: tuple[Run, ...], origins: tuple[str, ...] = ()) -> Block:
    """A block of the topics a and b whose payloads are their numbers."""
    count, skips = sum([run.count for run in runs]), sum([run.skip for run in runs])
    bodies = [b"%d" % at for at in range(count)]
    meta = pack_meta(Meta((b"a", b"b"), runs, (), (), origins, (7,)))
    lengths = b"".join([len(body).to_bytes(4, "little") for body in bodies])
    return Block(3, 1, first, first + skips + count - 1, 5, PUBLICATIONS, meta, lengths, b"".join(bodies))


class Coordinators:
    """Two coordinators that answer with these pages; `asked` what they were asked beyond."""

    def __init__(self, *pages: dict[str, Any]) -> None:
        self.pages = {page["asked"]: page for page in pages}
        self.asked: list[Any] = []

    def groups_of_all(self, filters: list[bytes]) -> range:
        return range(9)

    def by_leader(self, groups: tuple[int, ...]) -> dict[str, list[int]]:
        return {"one": list(groups)}

    def leader_of(self, group: int) -> str:
        return "one"

    async def ask(self, pipeline: str, take: Any, method: str, *arguments: Any) -> None:
        self.asked.append(arguments[5])
        await asyncio.sleep(0)
        take(self.pages[arguments[5]])


def feed_of(coordinators: Any) -> LastFeed:
    return LastFeed(coordinators, b"+", 9, {3: 99}, None, FOREVER_US)


async def test_each_record_is_a_block_of_its_own() -> None:
    runs = (
        Run(0, 0, 1, 0, 0, None, 1, 2),
        Run(3, 1, 0, 2, 500, {1: 1}, -1, 1),
        Run(0, 0, 2, 1, 0, None, 0, 1),
    )
    block = block_of(10, runs, ("x", "y"))
    feed = feed_of(Coordinators({"asked": None, "blocks": [block.to_wire()], "after": None}))
    found = await feed.page()
    assert feed.done
    parts = [Block.from_wire(part.to_wire()) for _, part in found]
    assert [record for part in parts for record in part.records()] == list(block.records())
    assert [(part.first, part.last, part.count) for part in parts] == [(at, at, 1) for at in (10, 11, 15, 16)]


async def test_a_page_of_many_records_does_not_hold_up_the_loop() -> None:
    block = block_of(0, (Run(0, 0, 1, 0, 0, None, -1, 16_000),))
    task = asyncio.create_task(
        feed_of(Coordinators({"asked": None, "blocks": [block.to_wire()], "after": None})).page()
    )
    turns = 0
    cpu_s = time.process_time()
    while not task.done():
        await asyncio.sleep(0)
        turns += 1
    assert len(await task) == 16_000
    assert turns > 5
    # A cut for each took 18 s.
    assert time.process_time() - cpu_s < 4


@pytest.mark.parametrize("steps", [1, 2, 3, 4])
async def test_a_page_that_is_interrupted_is_asked_for_again(steps: int) -> None:
    large, small = (
        block_of(0, (Run(0, 0, 1, 0, 0, None, -1, 8_000),)),
        block_of(9_000, (Run(0, 1, 1, 0, 0, None, -1, 2),)),
    )
    coordinators = Coordinators(
        {"asked": None, "blocks": [large.to_wire()], "after": "place"},
        {"asked": "place", "blocks": [small.to_wire()], "after": None},
    )
    feed = feed_of(coordinators)
    task = asyncio.create_task(feed.page())
    for _ in range(steps):
        await asyncio.sleep(0)
    assert not task.done()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert not feed.done
    found = await feed.page() + await feed.page()
    assert (len(found), feed.done) == (8_002, True)
    assert coordinators.asked == [None, None, "place"]


async def test_a_page_that_cannot_be_read_is_asked_for_again() -> None:
    page: dict[str, Any] = {"asked": None, "blocks": [(1, 2)], "after": None}
    feed = feed_of(Coordinators(page))
    with pytest.raises(PeerError):
        await feed.page()
    page["blocks"] = [block_of(0, (Run(0, 0, 1, 0, 0, None, -1, 1),)).to_wire()]
    assert len(await feed.page()) == 1
