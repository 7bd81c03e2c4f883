"""The dictionaries that a broker lacks, asked of the coordinators: the newest of all families, and older ones by id."""

from __future__ import annotations

from contextlib import suppress

from lexicast.cluster.errors import DictionaryError, LedElsewhereError
from lexicast.compression.dictionary import Dictionary

from .coordinators import Coordinators
from .dictionaries.keeper import DICTIONARIES_FILTER, DictionaryKeeper
from .feeds.retained_feed import RetainedFeed

OFFSET_END = 1 << 63


class DictionaryFetching:
    """See the module's docstring."""

    def __init__(self, keeper: DictionaryKeeper, coordinators: Coordinators) -> None:
        self._keeper = keeper
        self._coordinators = coordinators

    async def learn_newest(self) -> None:
        """Take the newest dictionary of every family, as retained, from all coordinators: a broker's start.

        Raises UnavailableError when one cannot be reached within `link.request_timeout_s`.
        """
        everything = dict.fromkeys(range(self._coordinators.groups), OFFSET_END)
        for block in await RetainedFeed(self._coordinators, {DICTIONARIES_FILTER: everything}).all():
            self._keeper.learn(block)

    async def fetch(self, dictionary: int) -> Dictionary:
        """A dictionary by id, held or asked of the coordinators.

        Raises DictionaryError when none has it, UnavailableError when one that might cannot be reached.
        """
        held = self._keeper.held(dictionary)
        if held is not None:
            return held
        found: list[bytes] = []

        def take(result: bytes | None) -> None:
            if result is not None:
                found.append(result)

        # Those that can be reached first: whoever sent a record that needs it has it.
        for pipeline in sorted(self._coordinators.pipelines.values(), key=lambda p: p.link is None):
            with suppress(LedElsewhereError):
                await self._coordinators.ask(pipeline, take, "dictionary", dictionary)
            if found:
                return self._keeper.hold(found[0])
        raise DictionaryError(f"dictionary {dictionary:016x} is in no coordinator's log")
