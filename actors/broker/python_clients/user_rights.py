"""What a user's Python client may ask for, and what is left of it: the one place where rules meet its requests.

Live delivery and catching up go by the rights of its streams, as MQTT's do. Here is what MQTT has no form for: pages of
blocks as they are stored, whose topics are looked at one by one, and whose dictionaries are replaced where the client
may not have them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from contextlib import suppress

from lexicast.cluster.blocks import FIRST_DICTIONARY, Block
from lexicast.cluster.errors import DictionaryError, NotAuthorizedError
from lexicast.cluster.selection import for_readers, select_topics
from lexicast.cluster.topics.names import is_wildcard
from lexicast.compression.dictionary import Dictionary
from lexicast.compression.link_dictionaries import NONE

from ..encoding import BlockView
from ..engine import BrokerEngine
from ..security.rights import ClientRights

log = logging.getLogger(__name__)


class UserRights:
    """See the module's docstring."""

    def __init__(self, engine: BrokerEngine, rights: ClientRights) -> None:
        self._engine = engine
        self.of_topics = rights

    @property
    def restricted(self) -> bool:
        """Whether there are rules at all."""
        return self.of_topics.restricted

    def check_filters(self, filters: Iterable[bytes], past: bool) -> None:
        """Raises NotAuthorizedError: one of them can bring the client nothing. `past`: what was published before is
        asked for."""
        for topic_filter in filters:
            if not self.of_topics.may_subscribe(topic_filter, past):
                self.of_topics.refuse("subscribe", topic_filter)
                what = "read what was published to" if past else "read"
                raise NotAuthorizedError(f"{self.who} may not {what} {topic_filter.decode()!r}")

    @property
    def who(self) -> str:
        """The user, for people."""
        user = self.of_topics.user
        return f"user {user!r}" if user else "who has not logged in"

    def counts_whole(self, filters: Iterable[bytes]) -> bool:
        """Whether nothing has to be left out of what these match, which `check_filters` has let through."""
        return not self.restricted or not any(map(is_wildcard, filters))

    def may_have(self, dictionary: Dictionary) -> bool:
        """Whether its link may have a dictionary; see `DictionaryLinks.allows`."""
        return dictionary.publishers > 1 or self._engine.dictionary_links.allows(self.of_topics, dictionary.family)

    async def of_past(self, block: Block) -> Block | None:
        """What is left of a block of the past; None: nothing."""
        return await self._part(block, self.of_topics.may_read_past)

    async def of_retained(self, block: Block) -> Block | None:
        """What is left of a retained publication: it may be read, and whoever left it may still write there."""
        meta, rights = block.meta, self._engine.rights
        run = meta.runs[0]
        author = meta.origins[run.origin] if run.origin >= 0 else None
        if not rights.author_may_write(author, meta.topics[run.topic]):
            return None
        return await self._part(for_readers(block), self.of_topics.may_read)

    async def _part(self, block: Block, may: Callable[[bytes], bool]) -> Block | None:
        if not self.restricted:
            return block
        part = select_topics(block, may)
        return None if part is None else await self._recoded(for_readers(part))

    async def _recoded(self, block: Block) -> Block:
        """The block without dictionaries that the client may not have."""
        meta = block.meta
        numbers = {run.encoding - FIRST_DICTIONARY for run in meta.runs if run.encoding >= FIRST_DICTIONARY}
        used = {meta.dictionaries[number] for number in numbers}
        instead: list[tuple[int, int]] = []
        for id in used:
            found = await self._dictionary(id)
            if found is not None and not self.may_have(found):
                instead.append((id, NONE))
        if not instead and len(used) == len(meta.dictionaries):
            return block
        return self._engine.encoder.recoded(BlockView(block, self._engine.clock.time_us()), tuple(sorted(instead)))

    async def _dictionary(self, id: int) -> Dictionary | None:
        if self._engine.recoder.get(id) is None:
            with suppress(DictionaryError):
                await self._engine.dictionary_fetching.fetch(id)
        return self._engine.recoder.get(id)
