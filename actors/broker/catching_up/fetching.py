"""Pages of the past fetched from the coordinators: those that many groups wait for in one request each.

A wait is a `Stand`: an offset of a group, and who stands there. With few filters among all that wait they are fetched
for by these; with more, by all that the broker is subscribed to, which serves whoever comes next and had his filter
here by then; or everything is, which serves whoever comes.

Where pages do not fit into one answer, two requests are under way, each for half of the groups: the coordinator reads
for one while the broker takes what the other has brought.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from lexicast.cluster.blocks import Block
from lexicast.cluster.errors import LexicastError, PeerError, UnavailableError

from ..dictionaries.waiting_blocks import WaitingBlocks
from ..pipelines.pipeline import Pipeline
from .pages import Page, Stand

if TYPE_CHECKING:
    from ..subscriber import Subscriber

log = logging.getLogger(__name__)

# An answer is taken in one turn, and devices' blocks hold a message or a few: 256 KiB of those made it a long one.
FETCH_BYTES = 64 * 1024
# With so many filters among them laggards are fetched for by name; for more, by all that the broker is subscribed to.
NARROW_FILTERS = 64


class FetchingBroker(Protocol):
    """What is needed of the engine."""

    def pipeline_of(self, group: int) -> Pipeline | None:
        """The pipeline to the leader of `group`."""

    @property
    def version(self) -> int:
        """The version of the broker's interest."""

    def reached(self, group: int, offset: int) -> None:
        """What the group holds from `offset` on comes live."""

    def head(self, group: int) -> int | None:
        """Up to where the group has been delivered here; None where that is not known yet."""


class PageFetching:
    """See the module's docstring.

    `take(page)`: a page has come. `go_on(group)`: a group's page has come, or should be asked for again;
    `later(group)`: again after a while, for nothing is to be had now.
    """

    def __init__(
        self,
        broker: FetchingBroker,
        waiting: WaitingBlocks,
        take: Callable[[Page], None],
        go_on: Callable[[int], None],
        later: Callable[[int], None],
    ) -> None:
        self._broker = broker
        self._waiting = waiting
        self._take_page = take
        self._go_on = go_on
        self._later = later
        self._needed: dict[Pipeline, dict[int, Stand]] = {}
        self._fetching: dict[Pipeline, set[asyncio.Task[None]]] = {}
        # The groups that requests under way ask for.
        self._asked: dict[Pipeline, set[int]] = {}
        # Those whose last answer had no room for all groups.
        self._crowded: set[Pipeline] = set()
        self._closed = False

    def need(self, group: int, stand: Stand) -> None:
        """The page that begins where these stand."""
        pipeline = self._broker.pipeline_of(group)
        if pipeline is None or self._closed:
            self._later(group)
            return
        needed = self._needed.setdefault(pipeline, {})
        # Who asks for less here is asked again when a page of the group has come.
        if group not in needed or not needed[group].everything:
            needed[group] = stand
        self._begin(pipeline)

    def _begin(self, pipeline: Pipeline) -> None:
        under_way = self._fetching.setdefault(pipeline, set())
        if len(under_way) < (2 if pipeline in self._crowded else 1):
            task = asyncio.get_running_loop().create_task(self._fetch_all(pipeline))
            under_way.add(task)

    def close(self) -> None:
        """Fetch nothing more."""
        self._closed = True
        for tasks in self._fetching.values():
            for task in tasks:
                task.cancel()

    async def _fetch_all(self, pipeline: Pipeline) -> None:
        try:
            await asyncio.sleep(0)  # the other groups of this turn
            while needed := self._share(pipeline):
                asked = self._asked.setdefault(pipeline, set())
                asked.update(needed)
                try:
                    await self._fetch(pipeline, needed)
                except Exception as error:
                    self._crowded.discard(pipeline)
                    if not isinstance(error, LexicastError):
                        log.exception("a page of %s could not be taken", pipeline.member.name)
                    for group in needed:
                        self._later(group)
                finally:
                    asked.difference_update(needed)
                if not self._closed:
                    await asyncio.sleep(0)
        finally:
            under_way = self._fetching[pipeline]
            under_way.difference_update([asyncio.current_task()])
            if not under_way:
                del self._fetching[pipeline]
                self._asked.pop(pipeline, None)

    def _share(self, pipeline: Pipeline) -> dict[int, Stand]:
        """What one request is to ask for: all that is needed, or the half of it that has waited longer; not what the
        other one asks for."""
        needed, asked = self._needed.pop(pipeline, {}), self._asked.get(pipeline, ())
        free = [group for group in needed if group not in asked]
        first = pipeline in self._crowded and not asked
        chosen = free[: (len(free) + 1) // 2] if first else free
        share = {group: needed.pop(group) for group in chosen}
        if needed:
            self._needed[pipeline] = needed
            if first and len(free) > 1:
                self._begin(pipeline)
        return share

    async def _fetch(self, pipeline: Pipeline, needed: dict[int, Stand]) -> None:
        """One page of each group, as far as they fit into one answer."""
        cursor = {group: stand.offset for group, stand in needed.items() if stand.members}
        for group in needed.keys() - cursor.keys():
            self._go_on(group)
        if not cursor:
            return
        everything = any([stand.everything for stand in needed.values()])
        filters = frozenset() if everything else self._narrow(needed)
        version = self._broker.version
        answered: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def done(error: Exception | None, result: Any) -> None:
            try:
                if error is None:
                    self._note_room(pipeline, len(result["cursor"]) < len(cursor))
                    self._take(cursor, filters, version, result)
            except LexicastError as bad:
                error = bad
            except Exception as bad:
                error = UnavailableError(f"an answer could not be taken: {bad!r}")
                raise
            finally:
                # Whatever happens: nobody else would ever go on with these groups.
                if not answered.done():
                    answered.set_result(None) if error is None else answered.set_exception(error)

        pipeline.call(done, "fetch", cursor, None if filters is None else sorted(filters), FETCH_BYTES)
        await answered

    def _note_room(self, pipeline: Pipeline, crowded: bool) -> None:
        (self._crowded.add if crowded else self._crowded.discard)(pipeline)

    @staticmethod
    def _narrow(needed: dict[int, Stand]) -> frozenset[bytes] | None:
        """The filters of all that wait, where these are few."""
        filters: set[bytes] = set()
        seen: set[Subscriber] = set()
        for members in {id(stand.members): stand.members for stand in needed.values()}.values():
            for subscriber in members:
                if subscriber not in seen:
                    seen.add(subscriber)
                    filters.update(subscriber.subscriptions)
                    if len(filters) > NARROW_FILTERS:
                        return None
        return frozenset(filters)

    def _take(
        self, cursor: dict[int, int], filters: frozenset[bytes] | None, version: int, result: dict[str, Any]
    ) -> None:
        """An answer to `fetch`, while it is taken off the link. Raises UnavailableError when it must be asked again."""
        blocks: dict[int, list[Block]] = {}
        for wire in result["blocks"]:
            block = Block.from_wire(wire)
            try:
                block.meta  # noqa: B018  # looked at where it costs the block alone
            except PeerError as error:
                log.error("a block out of the past is left out: %s", error)
            else:
                blocks.setdefault(block.group, []).append(block)
        if self._waiting.missing([block for found in blocks.values() for block in found]):
            raise UnavailableError("a dictionary has to be fetched first")
        whole, live, first = set(result["whole"]), set(result["live"]), result["first"]
        for group, start in cursor.items():
            end = result["cursor"].get(group)
            if end is None:
                self._go_on(group)  # it did not fit in
                continue
            # Who has been elsewhere may be ahead of this broker, whose coordinator is cut off from the others and does
            # not know that it leads no more: what lies between, others here have not got.
            head = self._broker.head(group)
            ahead = head is not None and start > head
            comes_live = group in live and group not in self._waiting and not ahead
            if end > start or comes_live:
                page = Page(
                    group,
                    start,
                    end,
                    blocks.get(group, []),
                    whole=group in whole,
                    version=version,
                    filters=filters or None,
                    first_kept=first.get(group, 0),
                )
                self._take_page(page)
                if comes_live:
                    self._broker.reached(group, end)
                self._go_on(group)
            else:
                self._later(group)  # the broker itself is being brought up there, or waits for a dictionary
