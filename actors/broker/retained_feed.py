"""The retained publications of new subscriptions, on their way from the coordinators page by page.

Whoever takes them asks for a page when it has room for one: nothing waits here but one page a subscriber, however many
there are.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lexicast.cluster.blocks import Block

from ..loop.turns import Turns
from .coordinators import Coordinators
from .filters import parts
from .pipelines.pipeline import Pipeline

PAGE_BYTES = 256 * 1024


class RetainedFeed:
    """What is retained of filters' topics from before their cuts. `done`: there is no further page."""

    def __init__(self, coordinators: Coordinators, cuts: Mapping[bytes, Mapping[int, int]]) -> None:
        self._coordinators = coordinators
        self._cuts = cuts
        self.filters = list(cuts)
        # What is left to be asked for; None: it has not been sorted yet.
        self._left: list[tuple[Pipeline, list[bytes]]] | None = None
        self._after: Any = None

    @property
    def done(self) -> bool:
        """Whether there is no further page."""
        return not (self.filters if self._left is None else self._left)

    async def _sorted(self) -> list[tuple[Pipeline, list[bytes]]]:
        """The filters by the coordinators that they concern."""
        by_pipeline: dict[Pipeline, list[bytes]] = {}
        turns = Turns()
        for topic_filter in self.filters:
            for pipeline in self._coordinators.pipelines_of(topic_filter):
                by_pipeline.setdefault(pipeline, []).append(topic_filter)
            await turns.give_way()
        return [(pipeline, part) for pipeline, filters in by_pipeline.items() for part in parts(filters)]

    async def page(self) -> list[tuple[bytes, Block]]:
        """The next page: (filter, a block of one record) each; it may be empty.

        Raises UnavailableError when the coordinator does not answer in time; ask again then.
        """
        if self._left is None:
            self._left = await self._sorted()
        pipeline, filters = self._left[0]
        answers: list[Any] = []
        await self._coordinators.ask(pipeline, answers.append, "retained", filters, self._after, PAGE_BYTES)
        self._after = answers[0]["after"]
        if self._after is None:
            self._left.pop(0)
        found: list[tuple[bytes, Block]] = []
        for number, wire in answers[0]["blocks"]:
            block, topic_filter = Block.from_wire(wire), filters[number]
            # What is at or after the cut has come, or comes, live.
            if block.last < self._cuts[topic_filter].get(block.group, 0):
                found.append((topic_filter, block))
        return found

    async def all(self) -> list[Block]:
        """All pages. Raises UnavailableError."""
        found: list[Block] = []
        while not self.done:
            found += [block for _, block in await self.page()]
        return found
