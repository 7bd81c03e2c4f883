"""The past: what a coordinator reads from its store for brokers and subscribers that are behind.

Every answer that names a place where live delivery goes on is sent in the same turn in which the place was read, after
the blocks offered before it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from itertools import islice
from typing import Any, NamedTuple

from lexicast.cluster.blocks import Block, unpack_topics
from lexicast.cluster.errors import LedElsewhereError, LexicastError
from lexicast.cluster.selection import offsets_of, select, select_from
from lexicast.storage.log_reader import anything
from lexicast.storage.topic_reader import TopicSpan

from ..loop import turns as turns_of
from ..loop.turns import Turns
from .led_groups import LedGroups
from .past_memory import PastMemory
from .peers import BrokerPeer
from .topic_filters import TopicFilters, WideFilters

log = logging.getLogger(__name__)

FETCH_BYTES_MAX = 4 * 1024 * 1024
READ_STEP_BYTES = 1024 * 1024
# Bytes of one group that a fetch reads whatever they are: an answer that leaves nothing out serves whoever asks next,
# and a short past is cheaper to send than to look through again.
WHOLE_BYTES = 64 * 1024
# A fetch that finds little ends after so much time all the same: by then others may stand where it began.
FETCH_S = 0.1
# Records of one `records` request: a session's window is smaller.
RECORDS_MAX = 65_535


class Span(NamedTuple):
    """What was read of a group: blocks, where to go on, whether that is where live delivery stood, and whether no
    publication was left out."""

    blocks: list[Block]
    next: int
    live: bool
    whole: bool


class Past:
    """See the module's docstring. All reading is done in the event loop, which is let go on after each TURN_S; one
    reader at a time, or each of them would take a turn in one pass of the loop."""

    def __init__(self, led: LedGroups) -> None:
        self._led = led
        self._bringing_up: dict[BrokerPeer, asyncio.Task[None]] = {}
        # Held by the one who reads.
        self.reading = asyncio.Lock()
        self._memory = PastMemory()
        self.wide = WideFilters()

    def bring_up(self, peer: BrokerPeer) -> None:
        """Serve a broker that is behind, from the store, until it is live."""
        if peer not in self._bringing_up and not peer.registering:
            self._bringing_up[peer] = asyncio.create_task(self._bring_up_and_forget(peer))

    async def _bring_up_and_forget(self, peer: BrokerPeer) -> None:
        try:
            await self._bring_up(peer)
        except LexicastError as error:
            log.error("%s cannot be brought up: %s", peer.name, error)
            peer.link.abort()
        except Exception:  # it dials again, and is begun with anew
            log.exception("%s cannot be brought up", peer.name)
            peer.link.abort()
        finally:
            # In the very step in which it ends: `on_writable` may start the next one at once.
            del self._bringing_up[peer]

    async def _bring_up(self, peer: BrokerPeer) -> None:
        # What it is subscribed to is looked up when a block is read: it may have subscribed to more meanwhile.
        wanted = self._interest(peer)
        while not peer.gone and not peer.link.closed:
            behind = [group for group in peer.behind if group not in peer.announced]
            if not behind:
                break
            for group in behind:
                if not peer.link.writable:
                    return  # on_writable starts this again
                async with self.reading:
                    epoch = self._epoch(group)
                    if epoch is None or group not in peer.behind:
                        continue  # it is led elsewhere now
                    span = await self.step(group, peer.behind[group], wanted, READ_STEP_BYTES, Turns())
                    if self._epoch(group) != epoch or group in peer.announced:
                        continue
                    if span.blocks:
                        peer.send(span.blocks)
                    if span.live:
                        del peer.behind[group]
                    else:
                        peer.behind[group] = span.next
                await asyncio.sleep(0)
        self._led.tell_heads(peer)

    def _epoch(self, group: int) -> int | None:
        known = self._led.sequencer.groups.get(group)
        return None if known is None else known.epoch

    def _interest(self, peer: BrokerPeer) -> Callable[[bytes], bool]:
        peers_of = self._led.routing.peers_of
        return lambda topic: peer in peers_of(topic)

    async def fetch(
        self, peer: BrokerPeer, cursor: dict[int, int], filters: Iterable[bytes] | None, bytes_max: int
    ) -> dict[str, Any]:
        """Blocks that hold records at or after `cursor` in its groups, about `bytes_max` bytes of them: those that one
        of `filters` matches (None: of which the broker is subscribed to something; no filter: all), and perhaps others.

        Returns "blocks"; "cursor": where each group was left; "live": the groups read to where live delivery on this
        link goes on; "whole": the groups of which no block was left out; "first": group -> first offset kept, where the
        cursor lay before it (something was discarded).
        """
        names = None if filters is None else list(filters)
        wanted: Callable[[bytes], bool] = everything
        if names is None:
            wanted = self._interest(peer)
        elif names:
            wanted = TopicFilters(self._led, names, self.wide)
        room = min(bytes_max, FETCH_BYTES_MAX)
        blocks: list[Block] = []
        spans: dict[int, Span] = {}
        async with self.reading:
            turns, until_s = Turns(), turns_of.now_s() + FETCH_S
            for group, offset in cursor.items():
                if group not in self._led.sequencer.groups:
                    raise LedElsewhereError(f"group {group} is not led here")
                if spans and (room <= 0 or turns_of.now_s() >= until_s):
                    break
                span = spans[group] = await self._span(group, offset, wanted, room, turns, until_s)
                blocks += span.blocks
                room -= sum([block.size_bytes for block in span.blocks]) + 1
                await turns.give_way()
        for group, span in spans.items():
            self._led.check_served(group)
            if span.live:
                # What waits for matchers lies before that place: behind the answer it would be taken for a repeat.
                self._led.routing.choosers.release(peer, group)
        self._led.routing.flush()
        groups, store = self._led.sequencer.groups, self._led.store
        return {
            "blocks": [block.to_wire() for block in blocks],
            "cursor": {group: span.next for group, span in spans.items()},
            # What was read to its end before another group's read gave way to other work may have grown since.
            "live": [
                g
                for g, span in spans.items()
                if span.live and g not in peer.behind and span.next >= groups[g].delivered
            ],
            "whole": [group for group, span in spans.items() if span.whole],
            "first": {g: first for g in spans if (first := store.first_kept(g)) > cursor[g]},
        }

    async def _span(
        self,
        group: int,
        offset: int,
        wanted: Callable[[bytes], bool],
        bytes_max: int,
        turns: Turns,
        until_s: float,
    ) -> Span:
        """A group's part of a fetch: in steps, everything first, then what is wanted."""
        all_wanted = wanted is everything
        first = everything if all_wanted else anything
        span = await self.step(group, offset, first, min(bytes_max, WHOLE_BYTES), turns)
        blocks, whole = span.blocks, True
        if not (span.live or all_wanted):
            chosen = [block for block in blocks if any(map(wanted, unpack_topics(block.meta_bytes)))]
            blocks, whole = chosen, len(chosen) == len(blocks)
        size = sum([block.size_bytes for block in blocks])
        while not span.live and size < bytes_max and turns_of.now_s() < until_s:
            await turns.give_way()
            span = await self.step(group, span.next, first if whole else wanted, bytes_max - size, turns)
            more = span.blocks
            if whole and not all_wanted:
                more = [block for block in more if any(map(wanted, unpack_topics(block.meta_bytes)))]
                whole = len(more) == len(span.blocks)
            blocks += more
            size += sum([block.size_bytes for block in more])
        return Span(blocks, span.next, span.live, whole)

    async def step(
        self, group: int, offset: int, wanted: Callable[[bytes], bool], bytes_max: int, turns: Turns
    ) -> Span:
        """About a turn's worth of reading; no other work runs after one that ends where live delivery stands."""
        led = self._led
        state = led.sequencer.groups[group]
        if led.routing.ends.get(group, state.opened) <= offset and offset >= state.opened:
            return Span([], max(offset, state.delivered), True, True)  # nothing was published since
        blocks: list[Block] = []
        while offset < state.applied:
            await turns.give_way()
            upto = state.applied - 1
            found, next_offset = await self._read(group, offset, wanted, bytes_max, upto, turns)
            blocks += found
            bytes_max -= sum([block.size_bytes for block in found])
            # Where it stands still, nothing is left: retention or expiry took the group's last blocks.
            offset = next_offset if next_offset != offset else upto + 1
            if offset <= upto or offset < state.applied:
                return Span(blocks, offset, False, True)
        if led.sequencer.groups.get(group) is not state:
            raise LedElsewhereError(f"group {group} is not led here any more")
        for block in led.sequencer.waiting(group, offset):
            if any(map(wanted, block.meta.topics)):
                if blocks and bytes_max <= 0:  # as much as the disk is behind may wait here
                    return Span(blocks, max(offset, block.first), False, True)
                part = select_from(block, offset)
                if part is not None:
                    blocks.append(part)
                    bytes_max -= part.size_bytes
        return Span(blocks, max(offset, state.delivered), True, True)

    async def _read(
        self, group: int, offset: int, wanted: Callable[[bytes], bool], bytes_max: int, upto: int, turns: Turns
    ) -> tuple[list[Block], int]:
        """(blocks, where to go on), from memory where that has been read just now, and of few topics by the index."""
        if isinstance(wanted, TopicFilters):
            found = await self.looked_up(group, offset, wanted, upto, turns)
            if found is not None:
                result = found[0].read(offset, bytes_max, found[1], turns.left_s)
                return result.blocks, result.next_offset
        known = self._memory.get(group, offset, bytes_max, turns_of.now_s()) if wanted is anything else None
        if known is not None:
            return known.blocks, known.next
        store, read_s = self._led.store, turns.left_s
        topics = anything if wanted is everything else wanted
        result = store.read(group, offset, bytes_max=bytes_max, upto=upto, topics=topics, read_s=read_s)
        if wanted is anything and result.blocks and not result.expires:
            self._memory.put(group, offset, result.blocks, result.next_offset, turns_of.now_s())
        return result.blocks, result.next_offset

    async def looked_up(
        self, group: int, offset: int, wanted: TopicFilters, last: int, turns: Turns
    ) -> tuple[TopicSpan, int] | None:
        """The past of few topics that has been looked up, to be read from `offset` on, up to the offset returned; None
        where the log is to be scanned."""
        span = await wanted.span(group, offset, turns)
        if span is None:
            return None
        last = min(last, wanted.below(group) - 1)
        while not (looked := span.look(offset, last, turns.left_s)):
            if looked is None:
                wanted.give_up()
                return None
            await turns.give_way()
        return span, last

    def offsets_at(self, peer: BrokerPeer, groups: Iterable[int] | None, time_us: int) -> dict[int, int]:
        """For each group (None: all led here) the first offset whose time is at or after `time_us`."""
        led = self._led.served
        wanted = list(led) if groups is None else [group for group in groups if group in led]
        return {group: self._led.store.offset_at(group, time_us) for group in wanted}

    def records(self, peer: BrokerPeer, group: int, offsets: Iterable[int]) -> list[Any]:
        """Single records by offset, each as a block of its own, expired or not; those no longer kept are left out.

        Those too that were delivered and are not in the log yet: left out, they would be taken for discarded.
        """
        found: list[Any] = []
        for offset in list(offsets)[:RECORDS_MAX]:
            stored = self._led.store.read(group, offset, bytes_max=1, upto=offset, expired=True).blocks
            for block in stored or islice(self._led.sequencer.waiting(group, offset), 1):
                part = select(block, [at == offset for at in offsets_of(block)])
                if part is not None:
                    found.append(part.to_wire())
        return found


def everything(topic: bytes) -> bool:
    """`anything`, for many at once: nobody will ask for the same again."""
    return True
