"""The sample stream of a sampling broker: a bounded and fair part of what is published goes to its link.

A sample is no subscription with gaps: it is never behind, nothing is fetched for it, and what it leaves out costs the
broker one look at a clock a block. Nobody waits for a sample, so what is taken within GATHER_S goes out together: at a
thousand messages a second the sampling broker, woken by each, took more of the cores than a coordinator. What may be
taken is `sampling.budget.Shares`'; topics that the configuration opts out are never taken, so no sampling broker ever
sees them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final, Protocol

import msgpack

from lexicast.cluster.blocks import PUBLICATIONS, U32, Block, Meta, Run, pack_meta
from lexicast.cluster.protocol.messages import DELIVER

from ...sampling.budget import Shares
from ..encoding import LINK, BlockView, EncodedBlock, Grants, Kind
from ..subscriber import Subscriber, SubscriberBroker

SAMPLE_KIND: Final = Kind(LINK)
PACK = msgpack.Packer(autoreset=True).pack
GATHER_S: Final = 0.05
GATHERED_BYTES_MAX: Final = 64 * 1024


class PackedSink(Protocol):
    """The link that packed messages go to."""

    @property
    def writable(self) -> bool:
        """Whether the socket takes more."""
        ...

    def send_packed(self, data: bytes) -> None:
        """Send a packed message."""


class SampleStream(Subscriber):
    """A sampling broker's subscription. `opted_out(topic)`: never sampled."""

    samples = True

    __slots__ = ("_gathered", "_gathered_bytes", "_opted_out", "_prefix", "_shares", "_sink", "number", "skipped")

    def __init__(
        self,
        broker: SubscriberBroker,
        sink: PackedSink,
        number: int,
        records_per_s: float,
        opted_out: Callable[[bytes], bool],
    ) -> None:
        super().__init__(broker, SAMPLE_KIND, drops=True)
        self._sink = sink
        self._shares = Shares(records_per_s)
        self._opted_out = opted_out
        self._prefix = b"\x93" + PACK(DELIVER) + PACK(number) + b"\x91"
        self._gathered: list[bytes] = []
        self._gathered_bytes = 0
        self.number = number
        self.skipped = 0

    def offer(self, view: BlockView, grants: Grants, encoded: EncodedBlock | None) -> None:
        """Take what the budget allows of a live block; the rest is left out for good."""
        now_s = asyncio.get_running_loop().time()
        block = view.block
        if self.closed or self.blocked or not self._sink.writable or self._shares.spent(now_s):
            self.skipped += block.count
            return
        counts = self._counts(block, grants, now_s)
        taken = sum(counts)
        self.skipped += block.count - taken
        if taken:
            self._gather(self._prefix + PACK(heads_of_runs(block, counts).to_wire()))

    def _gather(self, message: bytes) -> None:
        if not self._gathered:
            asyncio.get_running_loop().call_later(GATHER_S, self._send_gathered)
        self._gathered.append(message)
        self._gathered_bytes += len(message)
        if self._gathered_bytes >= GATHERED_BYTES_MAX:
            self._send_gathered()

    def _send_gathered(self) -> None:
        gathered, self._gathered, self._gathered_bytes = self._gathered, [], 0
        if gathered and not self.closed:
            self._sink.send_packed(b"".join(gathered))

    def _counts(self, block: Block, grants: Grants, now_s: float) -> list[int]:
        mean_bytes = len(block.body) // block.count
        topics, take = block.meta.topics, self._shares.take
        return [
            0
            if grants[run.topic] is None or self._opted_out(topics[run.topic])
            else take(topics[run.topic], run.count, mean_bytes, now_s)
            for run in block.meta.runs
        ]

    def lag(self, group: int, offset: int, live: bool) -> None:
        """A sample does not lag."""

    def unblock(self) -> None:
        """Nothing is in the way any more; what was missed stays so."""
        self.blocked = False
        self.lagging.clear()
        self.refresh()


def heads_of_runs(block: Block, counts: Sequence[int]) -> Block:
    """The first `counts[i]` records of each run of a publications block (not all 0), offsets kept.

    Unlike `selection.select` it costs by what is kept, not by what the block holds.
    """
    lengths = memoryview(block.lengths).cast("I")
    runs: list[Run] = []
    sizes: list[bytes] = []
    bodies: list[bytes] = []
    record = start = skipped = 0
    for run, count in zip(block.meta.runs, counts, strict=True):
        end = record + run.count
        skipped += run.skip
        if count:
            kept = sum(lengths[record : record + count])
            runs.append(run._replace(skip=skipped, count=count))
            sizes.append(block.lengths[record * U32 : (record + count) * U32])
            bodies.append(block.body[start : start + kept])
            skipped = 0
        skipped += run.count - count
        start += sum(lengths[record:end])
        record = end
    meta = block.meta
    part = Meta(meta.topics, tuple(runs), (), (), meta.origins, meta.dictionaries)
    fields = (block.group, block.epoch, block.first, block.last, block.time_us, PUBLICATIONS)
    return Block(*fields, pack_meta(part), b"".join(sizes), b"".join(bodies), part)
