"""The retained publications of new subscriptions, on their way from the coordinators page by page.

Whoever takes them asks for a page when it has room for one: nothing waits here but one page a subscriber, however many
there are.
"""

from __future__ import annotations

from collections.abc import Mapping

from lexicast.cluster.blocks import Block
from lexicast.cluster.positions import topic_group
from lexicast.cluster.topics.names import is_wildcard

from ...loop.turns import Turns
from ..coordinators import Coordinators
from ..filters import parts
from ..pipelines.pipeline import Pipeline
from .led_parts import LedParts

PAGE_BYTES = 256 * 1024


class RetainedFeed:
    """What is retained of filters' topics from before their cuts. `done`: there is no further page."""

    def __init__(self, coordinators: Coordinators, cuts: Mapping[bytes, Mapping[int, int]]) -> None:
        self._coordinators = coordinators
        self._cuts = cuts
        self.filters = list(cuts)
        # What is left to be asked for; None: it has not been sorted yet.
        self._parts: LedParts[list[bytes]] | None = None

    @property
    def done(self) -> bool:
        """Whether there is no further page."""
        return not (self.filters if self._parts is None else self._parts.left)

    async def _sorted(self) -> LedParts[list[bytes]]:
        """The filters by the coordinators that they concern: wildcards all groups, topics their own."""
        coordinators, turns = self._coordinators, Turns()
        by_pipeline: dict[Pipeline | None, list[bytes]] = {}
        # What is retained where nobody is known to lead cannot be told now.
        groups: dict[Pipeline | None, set[int]] = {None: set(range(coordinators.groups)) - coordinators.unled}
        for topic_filter in self.filters:
            pipeline = None
            if not is_wildcard(topic_filter):
                group = topic_group(topic_filter, coordinators.groups)
                pipeline = coordinators.leader_of(group)
                groups.setdefault(pipeline, set()).add(group)
            by_pipeline.setdefault(pipeline, []).append(topic_filter)
            await turns.give_way()
        return LedParts(
            coordinators,
            [
                (part, tuple(sorted(groups[pipeline])), None)
                for pipeline, filters in by_pipeline.items()
                for part in parts(filters)
            ],
        )

    async def page(self) -> list[tuple[bytes, Block]]:
        """The next page: (filter, a block of one record) each; it may be empty.

        Raises UnavailableError when the coordinator does not answer in time; ask again then.
        """
        if self._parts is None:
            self._parts = await self._sorted()
        filters, answer = await self._parts.ask(
            "retained", lambda filters, groups, after: (filters, groups, after, PAGE_BYTES)
        )
        found: list[tuple[bytes, Block]] = []
        for number, wire in answer["blocks"]:
            block, topic_filter = Block.from_wire(wire), filters[number]
            # What is at or after the cut has come, or comes, live.
            if block.last < self._cuts[topic_filter].get(block.group, 0):
                found.append((topic_filter, block))
        # With the page in hand and not before: one that cannot be read is asked for again.
        self._parts.took(answer["after"])
        return found

    async def all(self) -> list[Block]:
        """All pages. Raises UnavailableError."""
        found: list[Block] = []
        while not self.done:
            found += [block for _, block in await self.page()]
        return found
