"""A store on a bench: a folder, a clock, blocks of publications and of control records."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from lexicast.cluster.blocks import PUBLICATIONS, Block, Mark, Meta, ProducerRun, Run, control_block, pack_meta
from lexicast.cluster.clock import ManualClock
from lexicast.cluster.errors import StoreFullError
from lexicast.cluster.records import (
    ControlRecord,
    pack_record,
)
from lexicast.storage.environment.options import StoreOptions
from lexicast.storage.store import Store
from lexicast.storage.upkeep.reclaiming import EXPIRED_KEPT_US

# What has expired stays for so long.
KEPT_S = EXPIRED_KEPT_US / 1_000_000
MIB = 1 << 20
START_US = 1_700_000_000_000_000


class Pub(NamedTuple):
    topic: bytes
    payload: bytes
    flags: int = 0
    expiry_ms: int = 0


def publications(
    first: int,
    rows: list[Pub],
    *,
    group: int = 0,
    epoch: int = 1,
    time_us: int = START_US,
    producers: tuple[ProducerRun, ...] = (),
    marks: tuple[Mark, ...] = (),
) -> Block:
    """A block with a run for each publication."""
    topics = tuple(dict.fromkeys(row.topic for row in rows))
    runs = tuple(Run(0, topics.index(r.topic), r.flags, 0, r.expiry_ms, None, -1, 1) for r in rows)
    lengths = b"".join(len(r.payload).to_bytes(4, "little") for r in rows)
    meta = pack_meta(Meta(topics, runs, producers, marks, (), ()))
    body = b"".join(r.payload for r in rows)
    return Block(group, epoch, first, first + len(rows) - 1, time_us, PUBLICATIONS, meta, lengths, body)


def control(first: int, *records: ControlRecord, group: int = 0, epoch: int = 1, time_us: int = START_US) -> Block:
    return control_block(group, epoch, first, time_us, [pack_record(r) for r in records])


def found(blocks: list[Block]) -> list[tuple[int, bytes, bytes]]:
    return [(r.offset, r.topic, r.payload) for block in blocks for r in block.records()]


class Bench:
    """A directory, a clock, and a store that can be closed and opened again."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.clock = ManualClock()

    @contextmanager
    def open(self, options: StoreOptions | None = None, groups: int = 4, cluster_id: str = "c") -> Iterator[Store]:
        store = Store.open(
            self.directory,
            cluster_id=cluster_id,
            member="m1",
            groups=groups,
            options=options or StoreOptions(),
            clock=self.clock,
        )
        try:
            yield store
        finally:
            store.close()

    def reclaim(self, store: Store) -> int:
        """Reclaim until nothing is left to do; the number of blocks that went."""
        blocks = 0
        for _ in range(10_000):
            step = store.reclaim(self.clock.time_us())
            blocks += step.blocks
            if not step.more:
                return blocks
        raise AssertionError("reclaiming does not come to an end")


def fill(store: Store, block: Callable[[int], Block]) -> int:
    """Commit `block(0)`, `block(1)`, ... until the store is full; how many it took."""
    for stored in range(1_000):
        try:
            store.commit([block(stored)])
        except StoreFullError:
            return stored
    raise AssertionError("the store does not get full")
