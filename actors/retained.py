"""Retained publications as brokers ask for them: of exact topics at once, by wildcard beside other work."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from lexicast.cluster.blocks import RETAIN, Block
from lexicast.cluster.positions import topic_group
from lexicast.cluster.selection import select
from lexicast.cluster.topics import is_wildcard

from .past import matcher
from .peers import BrokerPeer

if TYPE_CHECKING:
    from .coordinator import CoordinatorServer


class RetainedRequests:
    """See the module's docstring."""

    def __init__(self, server: CoordinatorServer) -> None:
        self._server = server

    async def retained(self, peer: BrokerPeer, filters: Iterable[bytes]) -> list[Any]:
        """Retained records of topics that match, each current at some time since the question."""
        filters = list(filters)
        wild = [name for name in filters if is_wildcard(name)]
        found = self.now([name for name in filters if not is_wildcard(name)])
        if wild:
            groups, wanted, store = list(self._server.sequencer.groups), matcher(wild), self._server.store
            # What is not in the store yet is looked at first: what is committed meanwhile is then in one of both.
            waiting = {group: self._waiting_retained(group, wanted) for group in groups}
            stored = await asyncio.to_thread(lambda: {group: store.retained(group, wanted) for group in groups})
            for group in groups:
                found += _newest(stored[group], waiting[group])
        return [block.to_wire() for block in found]

    def now(self, names: list[bytes]) -> list[Block]:
        """The same at once, for exact filters."""
        found: list[Block] = []
        for name in names:
            group = topic_group(name, self._server.store.groups)
            if group in self._server.sequencer.groups:
                block = self._server.store.retained_topic(group, name)
                stored = [] if block is None else [block]
                found += _newest(stored, self._waiting_retained(group, name.__eq__))
        return found

    def _waiting_retained(self, group: int, wanted: Callable[[bytes], bool]) -> dict[bytes, Block]:
        latest: dict[bytes, Block] = {}
        for block in self._server.sequencer.waiting(group, 0):
            latest.update(_retained_records(block, wanted))
        return latest


def _newest(stored: Iterable[Block], waiting: dict[bytes, Block]) -> list[Block]:
    """One retained record a topic, the one with the higher offset; cleared ones are left out."""
    latest = {block.meta.topics[block.meta.runs[0].topic]: block for block in stored}
    for topic, block in waiting.items():
        if topic not in latest or latest[topic].last < block.first:
            latest[topic] = block
    return [block for block in latest.values() if block.body]


def _retained_records(block: Block, wanted: Callable[[bytes], bool]) -> dict[bytes, Block]:
    """topic -> the last retained record of `block` on it, as a block of its own."""
    runs = block.meta.runs
    if not any([run.flags & RETAIN for run in runs]):
        return {}
    last: dict[bytes, int] = {}
    record = 0
    for run in runs:
        record += run.count
        topic = block.meta.topics[run.topic]
        if run.flags & RETAIN and wanted(topic):
            last[topic] = record - 1
    count = block.count
    found = {}
    for topic, index in last.items():
        part = select(block, [i == index for i in range(count)])
        if part is not None:
            found[topic] = part
    return found
