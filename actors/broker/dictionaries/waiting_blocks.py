"""Blocks that have come and wait for a dictionary: a broker delivers what plain sessions can read, in order.

The coordinator takes them for delivered, so whoever asks how far a group has come has to ask here too. Usually a block
waits for one round trip: the coordinator that sent it has the dictionary in the same log.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable

from lexicast.cluster.blocks import Block
from lexicast.cluster.errors import DictionaryError, UnavailableError

from .keeper import DictionaryKeeper

log = logging.getLogger(__name__)

# Blocks of a group that may wait; beyond it they go out without, and plain sessions do not get what they cannot read.
BLOCKS_MAX = 1_000
RETRY_S = 0.05


class WaitingBlocks:
    """See the module's docstring. `blocks`: those that wait, by group, in order of offsets. `fetch` raises
    DictionaryError when nobody has a dictionary, UnavailableError when somebody who might cannot be reached."""

    def __init__(
        self, keeper: DictionaryKeeper, fetch: Callable[[int], Awaitable[object]], deliver: Callable[[Block], None]
    ) -> None:
        self._keeper = keeper
        self._fetch = fetch
        self._deliver = deliver
        self.blocks: dict[int, list[Block]] = {}
        self._fetching: dict[int, asyncio.Task[None]] = {}

    def __contains__(self, group: object) -> bool:
        return group in self.blocks

    def takes(self, block: Block) -> bool:
        """Whether the block has to wait, and does from now on."""
        waiting = self.blocks.get(block.group)
        if waiting is None:
            if not (block.meta.dictionaries and self.missing([block])):
                return False
            self.blocks[block.group] = [block]
            return True
        waiting.append(block)
        if len(waiting) > BLOCKS_MAX:
            self._give_up(waiting[0].meta.dictionaries, f"{BLOCKS_MAX} blocks wait for it")
        return True

    def missing(self, blocks: Iterable[Block]) -> bool:
        """Whether a block needs a dictionary that is not held; it is fetched then."""
        missing = {d for block in blocks for d in block.meta.dictionaries if not self._keeper.settled(d)}
        for dictionary in missing - self._fetching.keys():
            self._fetching[dictionary] = asyncio.get_running_loop().create_task(self._fetched(dictionary))
        return bool(missing)

    async def _fetched(self, dictionary: int) -> None:
        try:
            while not self._keeper.settled(dictionary):
                try:
                    await self._fetch(dictionary)
                    continue
                except UnavailableError:
                    pass
                await asyncio.sleep(RETRY_S)
        except DictionaryError as error:
            self._give_up([dictionary], str(error))
        except Exception as error:  # what waits for it must not wait for ever
            log.exception("dictionary %016x could not be fetched", dictionary)
            self._give_up([dictionary], repr(error))
        finally:
            del self._fetching[dictionary]
        self._go_on()

    def _give_up(self, dictionaries: Iterable[int], why: str) -> None:
        for dictionary in dictionaries:
            if not self._keeper.settled(dictionary):
                log.error("dictionary %016x is given up: %s", dictionary, why)
                self._keeper.give_up(dictionary)
        self._go_on()

    def _go_on(self) -> None:
        """Deliver what need not wait any more."""
        for group, blocks in list(self.blocks.items()):
            while blocks and not (blocks[0].meta.dictionaries and self.missing(blocks[:1])):
                self._deliver(blocks.pop(0))
            if not blocks:
                del self.blocks[group]

    def close(self) -> None:
        """Fetch no more."""
        for task in list(self._fetching.values()):
            task.cancel()
