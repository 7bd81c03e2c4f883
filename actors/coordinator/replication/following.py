"""The groups that this coordinator follows: what their leaders ship goes to its store (`cluster.replication`).

A leader's link brings blocks as they are stored; they are verified, handed to the one committer of this coordinator,
and acknowledged when they are durable. What a leader says is committed, the store's tables follow from. Nothing is
delivered, and nobody is answered but the leader.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final

from mypy_extensions import mypyc_attr

from lexicast.cluster.blocks import PUBLICATIONS, Block
from lexicast.cluster.errors import LexicastError, PeerError, StaleEpochError, UsageError
from lexicast.cluster.protocol.messages import APPEND, APPENDED, REFUSED, REQUEST
from lexicast.cluster.protocol.requests import LEADER
from lexicast.cluster.protocol.shapes import check_request
from lexicast.cluster.replication import Followed, LogEnd
from lexicast.storage.log.stored_block import StoredBlock, stored_block
from lexicast.storage.store import Store

from ...link.link import Link
from ..committer import Committer

log = logging.getLogger(__name__)

# Steps of setting a group aside for which a leader waits at a time.
STEPS_AT_ONCE: Final = 64
# Bytes that wait for this coordinator's disk, beyond which leaders' links are not read.
WAITING_BYTES_MAX: Final = 64 * 1024 * 1024


def log_end(store: Store, group: int) -> LogEnd:
    """Where a store's log of a group stands."""
    tail = store.tails().get(group)
    starts = tuple([(e.epoch, e.first, e.previous_last) for e in store.epoch_starts(group)])
    return LogEnd(starts, tail.last if tail is not None else -1, store.applied_below(group))


@mypyc_attr(allow_interpreted_subclasses=True)  # by tests
class Following:
    """A `LinkUser` of the links that leaders have dialled. `lead` takes a group away, `led` says which are led here."""

    def __init__(
        self, store: Store, committer: Committer, led: Collection[int], depose: Callable[[Sequence[int]], None]
    ) -> None:
        """`depose(groups)`: somebody leads them under a newer epoch: stop leading them."""
        self._store = store
        self._committer = committer
        self._led = led
        self._depose = depose
        self._groups: dict[int, Followed] = {}
        # The epochs under which groups were to be led here. Until an epoch's first block is durable the store does not
        # know of it; a leader that it has replaced is refused all the same.
        self._adopted: dict[int, int] = {}
        self._leaders: dict[int, Link] = {}
        self._links: set[Link] = set()
        # Groups that are being set aside -> from which offset on (None: all of that is in its file).
        self._aside: dict[int, int | None] = {}
        self._requests: dict[str, Callable[..., Any]] = {
            "follow": self._follow,
            "begin": self._begin,
            "install": self._install,
            "end": self._end,
            "set_aside": self._set_aside,
        }

    def __contains__(self, group: int) -> bool:
        return group in self._groups

    def leader(self, group: int) -> str | None:
        """The name of who ships a group here."""
        link = self._leaders.get(group)
        return None if link is None or link.closed else link.name

    def lead(self, epochs: Mapping[int, int]) -> list[int]:
        """Of `epochs` those groups that may be led here under them: nothing of an older leader is taken any more. Not
        the others, since a newer epoch was promised to another leader."""
        able = []
        for group, epoch in epochs.items():
            if self._promised(group) > epoch:
                continue
            self._adopted[group] = epoch
            # Its tables go on to follow only what is committed: whether others count is for `Followers` to say.
            self._leaders.pop(group, None)
            self._groups.pop(group, None)
            able.append(group)
        return able

    def _promised(self, group: int) -> int:
        """The newest epoch of which something is taken here."""
        known = self._groups.get(group)
        here = max(self._adopted.get(group, 0), known.epoch if known is not None else 0)
        return max(self._store.promised(group), here)

    # -- LinkUser

    def opened(self, link: Link) -> Following:
        """A leader has dialled."""
        self._links.add(link)
        return self

    def on_message(self, link: Link, message: tuple[Any, ...]) -> None:
        """One message of a leader."""
        if message[0] == APPEND:
            self._append(link, message[1])
        elif message[0] == REQUEST:
            _, number, method, arguments = message
            work = self._requests.get(method)
            if work is None:
                link.reply(number, UsageError(f"no such request: {method}"))
                return
            check_request(LEADER, method, arguments)
            link.answer(number, work(link, *arguments))
        else:
            raise PeerError(f"a leader sent a message of kind {message[0]}")

    def on_close(self, link: Link, error: Exception | None) -> None:
        """The leader asks again where its groups stand when it has dialled again."""
        self._links.discard(link)
        for group in [group for group, leader in self._leaders.items() if leader is link]:
            self._groups[group].taking = False

    def on_writable(self, link: Link) -> None:
        """Acknowledgements are few."""

    # -- blocks

    def _append(self, link: Link, items: Iterable[Any]) -> None:
        taken: list[StoredBlock] = []
        committed: dict[int, int] = {}
        refused: dict[int, int] = {}
        for group, epoch, previous, below, values in items:
            known = self._groups.get(group)
            if known is None or self._leaders.get(group) is not link:
                refused[group] = 0 if known is None else known.epoch
                continue
            try:
                blocks = [stored_block(group, last, value, checksum) for last, value, checksum in values]
                known.take(epoch, previous, [(b.block.epoch, b.block.first, b.block.last) for b in blocks])
            except LexicastError as error:
                log.warning("group %d: what %s ships is not taken: %s", group, link.name, error)
                known.taking = False
                refused[group] = known.epoch
                continue
            taken += blocks
            known.committed = max(known.committed, below)
            if blocks or below == known.committed:
                # Also where that was said before: it may have lain beyond what was here.
                committed[group] = known.committed
        if refused:
            link.send((REFUSED, refused))
        if taken:
            new = [each.outline.block for each in taken]
            # For QoS 0 nobody waits at the leader either.
            awaited = any([block.kind != PUBLICATIONS or block.highest_qos for block in new])
            self._committer.submit(new, awaited, taken)
            self._restrain()
        if committed:
            self._committer.apply(committed, awaited=False)

    def written(self, blocks: Iterable[Block]) -> None:
        """These are durable here; those of groups that are led here concern nobody."""
        told: dict[Link, dict[int, tuple[int, int]]] = {}
        for block in blocks:
            known, link = self._groups.get(block.group), self._leaders.get(block.group)
            if known is not None and link is not None:
                told.setdefault(link, {})[block.group] = (known.epoch, block.last + 1)
        for link, groups in told.items():
            link.send((APPENDED, groups))
        self._restrain()

    def refused(self, groups: Iterable[int]) -> None:
        """The disk had no room: what was handed to it is not there, so nothing that follows may be taken."""
        for group in groups:
            known, link = self._groups.get(group), self._leaders.get(group)
            if known is not None:
                known.taking = False
                if link is not None:
                    link.send((REFUSED, {group: known.epoch}))

    def _restrain(self) -> None:
        full = self._committer.waiting_bytes > WAITING_BYTES_MAX
        for link in self._links:
            if full:
                link.pause_reading()
            else:
                link.resume_reading()

    # -- what a leader asks

    async def _follow(self, link: Link, epochs: Mapping[int, int]) -> dict[int, tuple[Any, ...]]:
        """Promise these epochs. Returns of each group (promised epoch, epoch starts, last offset, applied below); where
        the epoch is newer than asked for, the leader has been replaced."""
        stale, fresh = {}, {}
        for group, epoch in epochs.items():
            if not 0 <= group < self._store.groups:
                raise PeerError(f"group {group} is not one of this store's {self._store.groups}")
            promised = self._promised(group)
            if epoch < promised:
                stale[group] = (promised, (), -1, 0)
            else:
                fresh[group] = epoch
        self._depose([group for group in fresh if group in self._led])
        for group, epoch in fresh.items():
            self._committer.apart.add(group)
            self._leaders[group] = link
            self._aside.pop(group, None)
            known = self._groups.get(group)
            if known is None:
                self._groups[group] = Followed(epoch, -1)
            else:
                known.promise(epoch)
        await self._committer.run(partial(self._store.promise, fresh))
        ends = {}
        for group, epoch in fresh.items():
            known = self._groups.get(group)
            if known is None or known.epoch != epoch or self._leaders.get(group) is not link:
                continue  # another leader has come meanwhile
            end = log_end(self._store, group)
            known.last = end.last
            ends[group] = (epoch, end.starts, end.last, end.applied_below)
        return {**stale, **ends}

    async def _begin(self, link: Link, places: Mapping[int, tuple[int, int]]) -> tuple[int, ...]:
        """Each group's (epoch, last offset in common): what lies beyond goes, what follows comes. Returns the groups
        that cannot: what lies beyond has been applied, so nothing here is of use."""
        cannot = []
        for group, (epoch, last) in places.items():
            known = self._known(link, group)
            if last + 1 < self._store.applied_below(group):
                cannot.append(group)
                continue
            if last < known.last:
                await self._committer.run(partial(self._store.truncate, group, last))
                known = self._known(link, group)
            known.begin(epoch, last)
        return tuple(cannot)

    def _known(self, link: Link, group: int) -> Followed:
        known = self._groups.get(group)
        if known is None or self._leaders.get(group) is not link:
            raise StaleEpochError(f"group {group} has another leader")
        return known

    async def _install(self, link: Link, group: int, page: Any) -> None:
        """What the leader's tables know that its log does not tell any more."""
        self._known(link, group)
        await self._committer.run(partial(self._store.install, group, page))

    async def _end(self, link: Link, group: int, epoch: int, previous: int, end: tuple[int, int, int]) -> None:
        """The leader's log of a group ends at `end` (epoch, last offset, time), with nothing behind `previous`."""
        known = self._known(link, group)
        if known.last != previous:
            raise UsageError(f"group {group}: the log ends at offset {known.last}, not at {previous}")
        self._committer.apply({group: previous + 1})
        await self._committer.run(partial(self._store.end_at, group, *end))
        self._known(link, group).ends(epoch, previous, end[1])

    async def _set_aside(self, link: Link, group: int, epoch: int, last: int) -> bool:
        """What was applied here behind offset `last` is not what the leader has: it is kept in a file, and the group
        leaves, to be copied anew. Whoever asks was given the newest epoch there is, which was promised here: what is
        in its log is what counts. Returns whether there is more to do."""
        known = self._known(link, group)
        if epoch != known.epoch:
            raise StaleEpochError(f"epoch {known.epoch} was promised, not {epoch}")
        known.taking = False
        store, run = self._store, self._committer.run
        place = self._aside.get(group, last + 1)
        for _ in range(STEPS_AT_ONCE):
            if place is not None:
                place = await run(partial(store.set_aside, group, place, epoch))
            elif not await run(partial(store.forget_group, group)):
                self._aside.pop(group, None)
                self._known(link, group).last = -1
                return False
            self._known(link, group)
            self._aside[group] = place
        return True

    @property
    def count(self) -> int:
        """How many groups are followed here."""
        return sum([known.taking for known in self._groups.values()])
