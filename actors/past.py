"""The past: what a coordinator reads from its store for brokers and subscribers that are behind.

Every answer that names a place where live delivery goes on is sent in the same turn in which the place was read, after
the blocks offered before it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

from lexicast.cluster.blocks import Block
from lexicast.cluster.errors import LexicastError, UsageError
from lexicast.cluster.selection import offsets_of, select, select_from, select_topics
from lexicast.cluster.topics import is_wildcard, matches

from .peers import BrokerPeer

if TYPE_CHECKING:
    from .coordinator import CoordinatorServer

log = logging.getLogger(__name__)

FETCH_BYTES_MAX = 4 * 1024 * 1024
READ_STEP_BYTES = 1024 * 1024
# A tail of at most this many records is read in the event loop, so that the answer can say "and from here on live".
TAIL_RECORDS_MAX = 20_000
# Records of one `records` request: a session's window is smaller.
RECORDS_MAX = 65_535
# Topics whose match is remembered for the length of one request.
TOPICS_REMEMBERED = 10_000


class Past:
    """See the module's docstring."""

    def __init__(self, server: CoordinatorServer) -> None:
        self._server = server
        self._bringing_up: dict[BrokerPeer, asyncio.Task[None]] = {}

    def bring_up(self, peer: BrokerPeer) -> None:
        """Serve a broker that is behind, from the store, until it is live."""
        if peer not in self._bringing_up:
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
        while peer.behind and not peer.link.closed and peer.link.writable:
            for group in list(peer.behind):
                if not peer.link.writable:
                    return  # on_writable starts this again
                wanted = matcher(list(peer.filters))
                blocks, after, live = await self._read(group, peer.behind[group], wanted, READ_STEP_BYTES)
                if blocks:
                    peer.send(blocks)
                if live:
                    del peer.behind[group]
                else:
                    peer.behind[group] = after
        self._server.tell_heads(peer)

    async def fetch(
        self, peer: BrokerPeer, cursor: dict[int, int], filters: Iterable[bytes], bytes_max: int
    ) -> dict[str, Any]:
        """Records at or after `cursor` in its groups that match `filters`, about `bytes_max` bytes of them.

        Returns "blocks"; "cursor": where each group was left; "live": the groups read to where live delivery on this
        link goes on; "first": group -> first offset kept, where the cursor lay before it (something was discarded).
        """
        wanted = matcher(list(filters))
        room = min(bytes_max, FETCH_BYTES_MAX)
        blocks: list[Any] = []
        after: dict[int, int] = {}
        read: list[int] = []
        for group, offset in cursor.items():
            if group not in self._server.sequencer.groups:
                raise UsageError(f"group {group} is not led here")
            if room <= 0:
                break
            found, after[group], live = await self._read(group, offset, wanted, room)
            blocks += found
            room -= sum([block.size_bytes for block in found]) + 1
            if live:
                read.append(group)
        self._server.routing.flush()
        groups, store = self._server.sequencer.groups, self._server.store
        return {
            "blocks": [block.to_wire() for block in blocks],
            "cursor": after,
            # What was read to its end before another group's read gave way to other work may have grown since.
            "live": [g for g in read if g not in peer.behind and after[g] >= groups[g].delivered],
            "first": {g: first for g in after if (first := store.first_kept(g)) > cursor[g]},
        }

    async def _read(
        self, group: int, offset: int, wanted: Callable[[bytes], bool], bytes_max: int
    ) -> tuple[list[Block], int, bool]:
        """(blocks, where to go on, whether that is where live delivery stands); no other work runs after a True."""
        server = self._server
        state = server.sequencer.groups[group]
        if offset < state.committed:
            upto = state.committed - 1
            read = partial(server.store.read, group, offset, bytes_max=bytes_max, upto=upto, topics=wanted)
            long = state.committed - offset > TAIL_RECORDS_MAX
            result = await asyncio.to_thread(read) if long else read()
            if result.next_offset == offset:
                # Nothing is left there: retention or expiry took the group's last blocks.
                result = result._replace(next_offset=upto + 1)
            if result.next_offset <= upto or result.next_offset < state.committed:
                return result.blocks, result.next_offset, False
            blocks, offset = result.blocks, result.next_offset
        else:
            blocks = []
        room = bytes_max - sum([block.size_bytes for block in blocks])
        for block in server.sequencer.waiting(group, offset):
            part = select_from(block, offset)
            part = None if part is None else select_topics(part, wanted)
            if part is not None:
                if blocks and room <= 0:  # as much as the disk is behind may wait here
                    return blocks, max(offset, block.first), False
                blocks.append(part)
                room -= part.size_bytes
        return blocks, max(offset, state.delivered), True

    def offsets_at(self, peer: BrokerPeer, groups: Iterable[int] | None, time_us: int) -> dict[int, int]:
        """For each group (None: all led here) the first offset whose time is at or after `time_us`."""
        led = self._server.sequencer.groups
        wanted = list(led) if groups is None else [group for group in groups if group in led]
        return {group: self._server.store.offset_at(group, time_us) for group in wanted}

    def first_kept(self, peer: BrokerPeer, groups: Iterable[int]) -> dict[int, int]:
        """The first offset that retention has left in each group."""
        led = self._server.sequencer.groups
        return {group: self._server.store.first_kept(group) for group in groups if group in led}

    def records(self, peer: BrokerPeer, group: int, offsets: Iterable[int]) -> list[Any]:
        """Single records by offset, each as a block of its own; those no longer kept are left out."""
        found: list[Any] = []
        for offset in list(offsets)[:RECORDS_MAX]:
            for block in self._server.store.read(group, offset, bytes_max=1, upto=offset).blocks:
                part = select(block, [at == offset for at in offsets_of(block)])
                if part is not None:
                    found.append(part.to_wire())
        return found


def matcher(filters: list[bytes]) -> Callable[[bytes], bool]:
    """Whether a topic matches one of `filters`; of its own, since a long read runs on another thread."""
    known: dict[bytes, bool] = {}
    exact = frozenset(filters)
    wild = [topic_filter for topic_filter in filters if is_wildcard(topic_filter)]

    def wanted(topic: bytes) -> bool:
        found = known.get(topic)
        if found is None:
            found = topic in exact or any([matches(topic_filter, topic) for topic_filter in wild])
            if len(known) >= TOPICS_REMEMBERED:
                known.clear()
            known[topic] = found
        return found

    return wanted
