"""A Python client's requests for the past, with a condition or without: what does not hold stays at the broker."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import Any

from lexicast.cluster.blocks import PUBLICATIONS, Block
from lexicast.cluster.content.parsed import predicate
from lexicast.cluster.content.predicate import Predicate
from lexicast.cluster.errors import DictionaryError, UsageError

from ...loop.turns import Turns
from ..content.choosing import chosen
from ..encoding import BlockView, Grant
from ..engine import BrokerEngine
from .history import HISTORY_BYTES_MAX, Since, check_filters, count_page, history_page, last_page
from .user_rights import UserRights

log = logging.getLogger(__name__)

Cursor = dict[int, int]
# Groups, and the place where to go on with them.
After = Sequence[tuple[Sequence[int], Any]]


def condition_of(where: Any) -> Predicate | None:
    """The condition that a client has given. Raises UsageError."""
    if where is not None and type(where) is not str:
        raise UsageError(f"where={where!r}: it is a text")
    return None if where is None else predicate(where)


class PastRequests:
    """See the module's docstring; what each raises, `history` says. `where`: only what that holds for, so that a page
    may be empty."""

    def __init__(self, engine: BrokerEngine, user: UserRights | None = None) -> None:
        """`user`: who asks; None: somebody who may read everything."""
        self._engine = engine
        self._user = user

    async def history(
        self,
        filters: tuple[bytes, ...],
        since: Since | None,
        until_us: int,
        cursor: Cursor | None,
        bytes_max: int,
        where: str | None,
    ) -> dict[str, Any]:
        """See `history_page`."""
        condition = self._allowed(filters, where)
        page = await history_page(self._engine.coordinators, filters, since, until_us, cursor, bytes_max)
        return await self._chosen(page, condition)

    async def last(
        self,
        filters: tuple[bytes, ...],
        since: Since | None,
        until_us: int,
        count: int,
        after: After | None,
        bytes_max: int,
        where: str | None,
    ) -> dict[str, Any]:
        """See `last_page`: of the last `count` of each topic those for which the condition holds."""
        condition = self._allowed(filters, where)
        page = await last_page(self._engine.coordinators, filters, since, until_us, count, after, bytes_max)
        return await self._chosen(page, condition)

    async def count(
        self,
        filters: tuple[bytes, ...],
        since: Since | None,
        until_us: int,
        cursor: Cursor | None,
        where: str | None,
    ) -> dict[str, Any]:
        """See `count_page`; with a condition the publications are looked at, here."""
        condition, coordinators = self._allowed(filters, where), self._engine.coordinators
        if condition is None and (self._user is None or self._user.counts_whole(filters)):
            return await count_page(coordinators, filters, since, until_us, cursor)
        page = await history_page(coordinators, filters, since, until_us, cursor, HISTORY_BYTES_MAX)
        found = await self._holding(page["blocks"], condition)
        return {"count": sum([block.count for block in found]), "cursor": page["cursor"], "done": page["done"]}

    def _allowed(self, filters: tuple[bytes, ...], where: str | None) -> Predicate | None:
        """The condition of what may be asked. Raises UsageError, TopicError, NotAuthorizedError."""
        if self._user is not None:
            check_filters(filters)
            self._user.check_filters(filters, past=True)
        return condition_of(where)

    async def _chosen(self, page: dict[str, Any], condition: Predicate | None) -> dict[str, Any]:
        if condition is None and (self._user is None or not self._user.restricted):
            return page
        return {**page, "blocks": [block.to_wire() for block in await self._holding(page["blocks"], condition)]}

    async def _holding(self, wires: Iterable[Any], condition: Predicate | None) -> list[Block]:
        turns = Turns()
        found: list[Block] = []
        for wire in wires:
            block: Block | None = Block.from_wire(wire)
            if block is not None and block.kind == PUBLICATIONS:
                if self._user is not None:
                    block = await self._user.of_past(block)
                if block is not None and condition is not None:
                    block = await self._of_condition(block, condition)
                if block is not None:
                    found.append(block)
            await turns.give_way()
        return found

    async def _of_condition(self, block: Block, condition: Predicate) -> Block | None:
        engine = self._engine
        await self._fetch(block.meta.dictionaries)
        view = BlockView(block, engine.clock.time_us())
        part = chosen(view, (Grant(where=condition),) * len(block.meta.topics), engine.encoder)
        return None if part is None else part.view.block

    async def _fetch(self, dictionaries: Iterable[int]) -> None:
        for dictionary in dictionaries:
            if self._engine.recoder.get(dictionary) is None:
                try:
                    await self._engine.dictionary_fetching.fetch(dictionary)
                except DictionaryError as error:  # to conditions, what needs it has no fields
                    log.warning("publications of the past whose fields nobody knows: %s", error)
