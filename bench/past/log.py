"""Logs to look into: topics, and blocks of publications as brokers' batches make them."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from lexicast.cluster.blocks import PUBLICATIONS, U32, Block, Meta, Run, pack_meta
from lexicast.cluster.clock import Clock, ManualClock
from lexicast.cluster.positions import topic_group
from lexicast.storage.environment.options import StoreOptions
from lexicast.storage.store import Store

PAYLOAD_BYTES: Final = 100
# Topics of one site, which one filter names.
SITE_TOPICS: Final = 100
BLOCKS_A_COMMIT: Final = 1_000
START_US: Final = 1_700_000_000_000_000


def topic_name(number: int) -> bytes:
    """dev/HALF/SITE/NUMBER: a filter names half of the topics, or a site, or one."""
    site = number // SITE_TOPICS
    return b"dev/%d/%d/%d" % (site % 2, site, number)


def block_of(group: int, first: int, time_us: int, topics: list[bytes], expiry_ms: int = 0) -> Block:
    """One publication of each topic."""
    runs = tuple([Run(0, at, 1, 0, expiry_ms, None, -1, 1) for at in range(len(topics))])
    meta = pack_meta(Meta(tuple(topics), runs, (), (), (), ()))
    lengths = PAYLOAD_BYTES.to_bytes(U32, "little") * len(topics)
    body = random.Random(first).randbytes(PAYLOAD_BYTES) * len(topics)
    return Block(group, 1, first, first + len(topics) - 1, time_us, PUBLICATIONS, meta, lengths, body)


def open_store(folder: Path, groups: int, clock: Clock) -> Store:
    """A store with a coordinator's own options."""
    return Store.open(folder, cluster_id="bench", member="m", groups=groups, options=StoreOptions(), clock=clock)


def device_log(publications: int, topics: int, groups: int) -> Iterator[list[Block]]:
    """Commits: topics publish in a random order, as devices do, each message a block of its own."""
    rng = random.Random(publications)
    names = [topic_name(number) for number in range(topics)]
    homes = [topic_group(name, groups) for name in names]
    last = [-1] * groups
    for start in range(0, publications, BLOCKS_A_COMMIT):
        blocks = []
        for at in range(start, min(start + BLOCKS_A_COMMIT, publications)):
            number = rng.randrange(topics)
            group = homes[number]
            last[group] += 1
            blocks.append(block_of(group, last[group], START_US + at, [names[number]]))
        yield blocks


def batch_log(blocks: int, topics_a_block: int, topics: int, expiry_ms: int = 0) -> Iterator[Block]:
    """Blocks of one group that hold so many topics each, one publication of each."""
    rng = random.Random(blocks)
    names = [topic_name(number) for number in range(topics)]
    for at in range(blocks):
        some = rng.sample(names, topics_a_block)
        yield block_of(0, at * topics_a_block, START_US + at * 1_000, some, expiry_ms)


def keep_house(store: Store, now_us: int) -> None:
    """What a coordinator does between commits, until nothing is left to do."""
    while store.reclaim(now_us).more:
        pass


def manual_clock() -> ManualClock:
    """One that stands at the time of the first publication."""
    return ManualClock(time_us=START_US)
