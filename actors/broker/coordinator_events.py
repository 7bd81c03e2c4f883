"""The events of the links to coordinators, beside the blocks that come: each handed to whom it concerns."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from lexicast.cluster.errors import UnavailableError
from lexicast.cluster.protocol.requests import BROKER
from lexicast.cluster.protocol.shapes import check_request

from ..link.link import Link
from .engine import BrokerEngine
from .pipelines.pipeline import Pipeline

Requests = Mapping[str, Callable[..., Awaitable[Any]]]


class CoordinatorEvents:
    """A `PipelineUser`; see the module's docstring."""

    def __init__(
        self,
        engine: BrokerEngine,
        requests: Requests,
        resumed: Callable[[Pipeline], None],
        room: Callable[[], None],
    ) -> None:
        """`requests`: what coordinators may ask, by method name; `resumed` is told when a link stands (again), `room`
        when no pipeline is full any more."""
        self.live = engine.live
        self.stored_compression = engine.stored_compression
        self._dictionaries = engine.dictionaries
        self._coordinators = engine.coordinators
        self._filters = engine.subscriptions.filters
        self._choosing = engine.subscriptions.choosing
        self._shares = engine.shares
        self.event_columns = engine.event_columns
        self._requests = requests
        self._resumed = resumed
        self._room = room

    async def register(self, pipeline: Pipeline, link: Link) -> None:
        """Tell a coordinator that was dialled of all back-end subscriptions that concern it."""
        await self._filters.register(pipeline, link)

    def on_resumed(self, pipeline: Pipeline) -> None:
        """A link stands (again)."""
        self._filters.registered(pipeline)
        if self._choosing is not None:
            self._choosing.resumed(pipeline)
        self._shares.resumed(pipeline)
        self._resumed(pipeline)

    def on_leads(self, pipeline: Pipeline, leads: dict[int, int]) -> list[int]:
        """See `PipelineUser`. On a link that stands the coordinator is told first from where on."""
        fresh = self._coordinators.news(pipeline, leads)
        standing = bool(fresh) and pipeline.link is not None
        if standing:
            heads = self.live.heads
            pipeline.resume_groups({group: heads.get(group, 0) for group in fresh})
        moved = self._coordinators.lead(pipeline, fresh)
        if standing:
            self._shares.resumed(pipeline)
            self._resumed(pipeline)
        return moved

    def on_deal(self, share: str, filter: bytes, rows: Any) -> None:
        """Members of a share are dealt records."""
        writes = self.live.writes
        writes.begin()
        try:
            self._shares.dealt(share, filter, rows)
        finally:
            writes.end()

    def on_room(self) -> None:
        """A pipeline has room again."""
        if not self._coordinators.full:
            self._room()

    def dictionary_content(self, dictionary: int) -> tuple[str, bytes] | None:
        """(family, packed) of a dictionary that is held."""
        held = self._dictionaries.held(dictionary)
        return None if held is None else (held.family.decode(), held.pack())

    async def on_request(self, method: str, arguments: tuple[Any, ...]) -> Any:
        """A coordinator asks. Raises UnavailableError for what nobody here answers, PeerError for wrong arguments."""
        work = self._requests.get(method)
        if work is None:
            raise UnavailableError(f"this broker does not answer {method}")
        check_request(BROKER, method, arguments)
        return await work(*arguments)
