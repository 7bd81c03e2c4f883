"""The last publications of each topic of a filter, before a subscription's cut: on their way to it page by page.

As `RetainedFeed`, one page at a time, when whoever takes them has room for it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from lexicast.cluster.blocks import U32, Block, pack_meta

from ...loop.turns import Turns
from ..coordinators import Coordinators
from .led_parts import LedParts
from .retained_feed import PAGE_BYTES


class LastFeed:
    """The last `count` of each topic that lie before `cuts` and not before `since` (in each group; None: all), nor at
    or after `until_us`. `done`: there is no further page."""

    def __init__(
        self,
        coordinators: Coordinators,
        topic_filter: bytes,
        count: int,
        cuts: Mapping[int, int],
        since: Mapping[int, int] | None,
        until_us: int,
    ) -> None:
        self._coordinators = coordinators
        self._filter = topic_filter
        self._count = count
        self._cuts = cuts
        self._since = since or {}
        self._until_us = until_us
        groups = sorted(g for g in coordinators.groups_of_all([topic_filter]) if g in cuts)
        self._parts = LedParts(coordinators, [(None, tuple(groups), None)])

    @property
    def done(self) -> bool:
        """Whether there is no further page."""
        return not self._parts.left

    async def page(self) -> list[tuple[bytes, Block]]:
        """The next page: (filter, a block of one record) each; it may be empty.

        Raises UnavailableError when the coordinator does not answer in time, IndexNotReadyError while it cannot; ask
        again then.
        """
        _, answer = await self._parts.ask("last", self._arguments)
        found: list[tuple[bytes, Block]] = []
        turns = Turns()
        for wire in answer["blocks"]:
            for part in _singles(Block.from_wire(wire)):
                found.append((self._filter, part))
                await turns.give_way()
        # With the page in hand and not before: one that is interrupted is asked for again.
        self._parts.took(answer["after"])
        return found

    def _arguments(self, _: None, groups: tuple[int, ...], after: Any) -> tuple[Any, ...]:
        return (
            [self._filter],
            self._count,
            {group: self._since.get(group, 0) for group in groups},
            {group: self._cuts[group] for group in groups},
            self._until_us,
            after,
            PAGE_BYTES,
        )


def _singles(block: Block) -> Iterator[Block]:
    """Each record as a block of its own; those of a run share its meta, so that a record costs the same in any block.

    Raises PeerError.
    """
    meta, lengths = block.meta, memoryview(block.lengths).cast("I")
    index, start, offset = 0, 0, block.first
    for run in meta.runs:
        offset += run.skip
        origins = meta.origins[run.origin : run.origin + 1] if run.origin >= 0 else ()
        own = meta._replace(
            topics=(meta.topics[run.topic],),
            runs=(run._replace(skip=0, topic=0, origin=len(origins) - 1, count=1),),
            producers=(),
            marks=(),
            origins=origins,
        )
        fields = (block.time_us, block.kind, pack_meta(own))
        for _ in range(run.count):
            end = start + lengths[index]
            length, body = block.lengths[U32 * index : U32 * (index + 1)], block.body[start:end]
            yield Block(block.group, block.epoch, offset, offset, *fields, length, body, own)
            index, start, offset = index + 1, end, offset + 1
