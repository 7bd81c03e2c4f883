"""The shares of the groups that a coordinator leads: joined by brokers' members, dealt to them, saved, and forgotten.

A share is in memory while it has members. Its place in each group is a row among the sessions of that group, under a
client id that no client can have (`row_name`), so it is replicated, compacted and expires as sessions do. It is written
when the share begins in a group, when its last member has been gone for LINGER_S (so a lone one that comes and goes all
the time has no more than a row a group written in that), and meanwhile where it has moved, at most once in SAVE_S and
SAVES_AT_ONCE a round: what was done since then is dealt again after a crash. Where nothing moves it is written four
times in the time for which it is kept (`IN_USE_S` at least while somebody is there).

What a member holds waits again in the turn in which it leaves or its broker's link ends. But the client has what may
have been sent with QoS 2, or will: a broker that comes back, or joins its members where another coordinator led them,
has RETURN_S to say that it goes on with that. What a broker may deliver live may be dealt: QoS 1 and 2 once it is
committed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Coroutine, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from lexicast.cluster.blocks import Block
from lexicast.cluster.clock import US_PER_S
from lexicast.cluster.errors import LexicastError, LimitError, PeerError
from lexicast.cluster.positions import topic_group
from lexicast.cluster.protocol.messages import DEAL
from lexicast.cluster.records import SessionSaved
from lexicast.cluster.shares.choices import CHOICES_MAX
from lexicast.cluster.shares.dealing import TOPIC, Share
from lexicast.cluster.shares.pieces import MemberKey
from lexicast.cluster.shares.places import SharePlace, pack_place, unpack_place
from lexicast.cluster.topics.names import is_wildcard, matches

from ...link.link import Link
from ...loop.turns import Turns
from ..led_groups import LedGroups
from ..past import READ_STEP_BYTES, Past
from ..peers import BrokerPeer
from ..session_home import SessionHome
from .led_share import LedShare, in_messages

log = logging.getLogger(__name__)

SAVE_S: Final = 1.0
ROUND_S: Final = 0.1
SAVES_AT_ONCE: Final = 10
READ_AGAIN_S: Final = 1.0
# How long what may have been sent with QoS 2 is kept for the members of a broker that is not linked (yet): brokers dial
# again within a second.
RETURN_S: Final = 5.0
# How long a share without members stays in memory: its last one may be back at once.
LINGER_S: Final = 5.0
# LedShares in memory; each takes `dealing.BYTES_MAX` of publications at most.
SHARES_MAX: Final = 1_000
DAY_S: Final = 86_400
# How long the place of a share that has members is kept at least where its coordinator dies; renewed within a quarter.
IN_USE_S: Final = 3_600

# As whose a place is written: whether the share has members.
IN_USE: Final = b"share"
UNUSED: Final = b"share-"


class ShareRules(NamedTuple):
    """How publications are dealt (`dealing.TOPIC`, `FREE`), and how long a share that nobody is in is kept."""

    strategy: str = TOPIC
    expiry_s: int = 7 * DAY_S


USUAL_RULES: Final = ShareRules()


def row_name(name: str, filter: bytes) -> str:
    """Under which name a share's place lies among the sessions; MQTT allows no U+0000 in client ids."""
    return f"\0share\0{name}\0{filter.decode()}"


# More than 25 methods: requests, dealing, reading and saving of one table.
class LedShares:
    """See the module's docstring."""

    def __init__(self, led: LedGroups, home: SessionHome, past: Past, rules: ShareRules) -> None:
        self._led = led
        self._home = home
        self._past = past
        self._rules = rules
        self._kept_s = max(rules.expiry_s, IN_USE_S)
        self._shares: dict[tuple[str, bytes], LedShare] = {}
        self._routes: dict[bytes, tuple[LedShare, ...]] = {}
        # One tuple for all topics that go to the same shares.
        self._same: dict[tuple[LedShare, ...], tuple[LedShare, ...]] = {}
        self._reading: set[LedShare] = set()
        self._retiring: set[LedShare] = set()
        self._left_again: set[LedShare] = set()
        # Of which something is kept for members that have yet to join here: group -> until when (the loop's time).
        self._unclaimed: dict[LedShare, dict[int, float]] = {}
        self._touched: dict[LedShare, None] = {}
        self._saving: set[tuple[LedShare, int]] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        led.when_closed.append(self._closed)

    # -- requests

    def join(
        self,
        peer: BrokerPeer,
        name: str,
        filter: bytes,
        member: str,
        window: int,
        since: Mapping[int, int] | None,
        held: Mapping[int, Collection[int]],
        exact: bool = False,
    ) -> Coroutine[Any, Any, dict[str, Any]]:
        """A broker has a member: it gets `window` records at most until it has some of them done. `held`: what it has
        of an earlier link; `exact`: it is sent with QoS 2 what was published so. Where the share is new it begins at
        `since`, else where deliveries stand. It is a member when this returns: `told` and `leave` come after it, though
        they may be on the same read of the link.

        Awaited it returns "groups": those led here that it is placed in, durably. Raises LimitError.
        """
        share = self._shares.get((name, filter)) or self._new(name, filter)
        key = peer.name, member
        comes = share.links.get(key) is not peer.link
        if exact:
            share.exact.add(key)
        if comes:
            share.links[key] = peer.link
            share.share.join(key, window)
            share.share.hold(key, held)
        else:
            share.share.hold(key, {group: held[group] for group in held if group not in share.share.groups})
        return self._placed(share, peer.link, key, since or {}, comes)

    async def _placed(
        self, share: LedShare, link: Link, key: MemberKey, since: Mapping[int, int], comes: bool
    ) -> dict[str, Any]:
        """A member that cannot be placed leaves, unless it was one before: it holds what it was dealt."""
        try:
            async with share.beginning:
                if share.links.get(key) is not link:
                    return {"groups": []}
                groups = [group for group in self._concerned(share.filter) if group not in share.saved]
                await asyncio.gather(*[self._begin(share, group, since) for group in groups])
        except BaseException:
            if comes and share.links.get(key) is link:
                self._leave(share, key)
            raise
        if link.closed and share.links.get(key) is link:
            self._leave(share, key)
        self._touch(share)
        return {"groups": [group for group in self._concerned(share.filter) if group in share.saved]}

    def told(self, peer: BrokerPeer, rows: Iterable[tuple[str, bytes, str, Mapping[int, Iterable[int]]]]) -> None:
        """What members have had done: (name, filter, member, group -> offsets)."""
        moved: dict[LedShare, None] = {}
        for name, filter, member, done in rows:
            share = self._shares.get((name, filter))
            if share is None:
                continue
            for group, offsets in done.items():
                share.share.done((peer.name, member), group, offsets)
            share.has_moved((peer.name, member))
            moved[share] = None
        for share in moved:
            self._go_on(share)

    def leave(
        self, peer: BrokerPeer, name: str, filter: bytes, member: str, kept: Mapping[int, Collection[int]]
    ) -> None:
        """A member is gone, but for `kept`, which it still has done."""
        share = self._shares.get((name, filter))
        if share is not None:
            self._leave(share, (peer.name, member), kept)

    def unlinked(self, link: Link) -> None:
        """A broker's link has ended: what its members hold is dealt to others, but for what they may go on with."""
        for share in list(self._shares.values()):
            left = [key for key, known in share.links.items() if known is link]
            in_doubt = {key: kept for key in left if (kept := share.in_doubt(key))}
            for key in left:
                self._leave(share, key, in_doubt.get(key))
            if in_doubt:
                self._spawn(self._given_up(share, list(in_doubt), link))

    async def _given_up(self, share: LedShare, keys: Sequence[MemberKey], link: Link) -> None:
        """A broker that does not come back has nothing done."""
        await asyncio.sleep(RETURN_S)
        for key in keys:
            if share.links.get(key) is link:
                self._leave(share, key)

    def _leave(self, share: LedShare, key: MemberKey, kept: Mapping[int, Collection[int]] | None = None) -> None:
        share.leave(key, kept)
        self._touch(share)

    # -- a share's life

    def _new(self, name: str, filter: bytes) -> LedShare:
        if len(self._shares) >= SHARES_MAX:
            raise LimitError(f"{SHARES_MAX} shares are served at a time, and this would be one more")
        share = self._shares[name, filter] = LedShare(name, filter, Share(self._rules.strategy), self._shares_of)
        self._forget_routes()
        self._led.routing.taker = self.offered
        return share

    def _serves(self, share: LedShare) -> bool:
        return self._shares.get((share.name, share.filter)) is share

    def _ended(self, share: LedShare) -> None:
        del self._shares[share.name, share.filter]
        self._forget_routes()
        if not self._shares:
            self._led.routing.taker = None

    def _forget_routes(self) -> None:
        self._routes.clear()
        self._same.clear()

    def _concerned(self, filter: bytes) -> list[int]:
        led = self._led.served
        groups = led if is_wildcard(filter) else [topic_group(filter, self._led.store.groups)]
        return [group for group in groups if group in led]

    async def _begin(self, share: LedShare, group: int, since: Mapping[int, int]) -> None:
        """Go on where it was left, or begin; returns when that is durable. Raises LexicastError."""
        if group in share.share.groups:  # what it began as could not be saved
            await self._save(share, group)
            return
        if group not in self._led.sequencer.groups:
            return  # it was closed meanwhile
        delivered = self._led.sequencer.groups[group].delivered
        row = self._home.get(group, row_name(share.name, share.filter))
        left_us = row.expires_us - self._led.clock.time_us() if row is not None else 0
        place = None
        if row is not None and left_us > 0:
            try:
                place = unpack_place(row.place)
            except PeerError as error:
                log.error("%s begins anew in group %d: %s", _title(share), group, error)
        at = min(since.get(group, delivered), delivered)
        led_before = place is not None and row is not None and row.uid == IN_USE
        share.begin(group, place or SharePlace(at, at), delivered, led_before)
        if led_before:
            self._keep_unclaimed(share, group)
        if led_before and place is not None and left_us > self._kept_s * US_PER_S // 2:
            share.is_saved(group, self._led.clock.monotonic(), place)
        else:
            await self._save(share, group)

    def _keep_unclaimed(self, share: LedShare, group: int) -> None:
        if share not in self._unclaimed:
            self._unclaimed[share] = {}
            self._spawn(self._claimed(share))
        self._unclaimed[share][group] = asyncio.get_running_loop().time() + RETURN_S

    async def _claimed(self, share: LedShare) -> None:
        """What no member has brought along in time is dealt."""
        waiting, time_s = self._unclaimed[share], asyncio.get_running_loop().time
        try:
            while waiting:
                await asyncio.sleep(min(waiting.values()) - time_s())
                now_s = time_s()
                over = {group for group, until_s in waiting.items() if until_s <= now_s}
                for group in over:
                    del waiting[group]
                share.share.unclaimed_wait(over)
                self._go_on(share)
        finally:
            del self._unclaimed[share]

    def _closed(self, numbers: Iterable[int]) -> None:
        for share in self._shares.values():
            for group in numbers:
                share.end(group)

    # -- dealing

    def offered(self, block: Block) -> None:
        """A block that may be delivered."""
        for share in dict.fromkeys([share for topic in block.meta.topics for share in self._shares_of(topic)]):
            if share.offered(block):
                self._touch(share)

    def _shares_of(self, topic: bytes) -> tuple[LedShare, ...]:
        found = self._routes.get(topic)
        if found is None:
            if len(self._routes) >= CHOICES_MAX:
                self._forget_routes()
            made = tuple([share for share in self._shares.values() if matches(share.filter, topic)])
            found = self._routes[topic] = self._same.setdefault(made, made)
        return found

    def _touch(self, share: LedShare) -> None:
        """Deal once to all who come or go in a turn, and of all blocks that it brings."""
        if not self._touched:
            asyncio.get_running_loop().call_soon(self._deal_touched)
        self._touched[share] = None

    def _deal_touched(self) -> None:
        touched, self._touched = self._touched, {}
        for share in touched:
            self._go_on(share)

    def _go_on(self, share: LedShare) -> None:
        """Deal, read on where there is room, and look whether anybody is left."""
        if not self._serves(share):
            return  # it has ended: what is saved is another one's by now
        for link, rows in share.deal().items():
            for some in in_messages(rows):
                link.gather((DEAL, share.name, share.filter, [row.to_wire() for row in some]))
            link.flush()
        share.forget_gone()
        if not share.links:
            if share not in self._retiring:
                self._retiring.add(share)
                self._spawn(self._retire(share))
            else:
                self._left_again.add(share)
        elif share.behind and share.share.plenty and share.share.served and share not in self._reading:
            self._reading.add(share)
            self._spawn(self._read(share))

    async def _read(self, share: LedShare) -> None:
        """Read on until it is live, or as much is open as may be. What cannot be read is tried again: nothing else need
        happen to a share that is behind, of which nothing is dealt."""
        failed: set[int] = set()
        try:
            while share.behind and share.share.served and not share.share.full:
                groups = share.behind.keys() - failed
                for group in groups:
                    try:
                        if not share.share.full:
                            await self._read_group(share, group)
                    except LexicastError as error:
                        log.error("%s cannot be read in group %d: %s", _title(share), group, error)
                        failed.add(group)
                if not groups:
                    failed.clear()
                await asyncio.sleep(0 if groups else READ_AGAIN_S)
        finally:
            self._reading.discard(share)

    async def _read_group(self, share: LedShare, group: int) -> None:
        async with self._past.reading:
            groups = self._led.sequencer.groups
            state = groups.get(group)
            if state is None or group not in share.behind:
                return
            at = max(share.behind[group], share.share.read(group))
            span = await self._past.step(group, at, share.wants, READ_STEP_BYTES, Turns())
            if groups.get(group) is not state or group not in share.behind:
                return
            for block in span.blocks:
                share.take(block)
            share.share.take(group, None, span.next)
            if span.live:
                del share.behind[group]
            else:
                share.behind[group] = span.next
        self._go_on(share)

    # -- saved

    async def run(self) -> None:
        """Save what has moved, and pass over who has stood still. Runs until it is cancelled."""
        while True:
            await asyncio.sleep(ROUND_S)
            now_s = self._led.clock.monotonic()
            for share in list(self._shares.values()):
                if share.stall(now_s):
                    self._go_on(share)
            for share, group in self._due(now_s):
                self._saving.add((share, group))
                self._spawn(self._save_due(share, group))

    def _due(self, now_s: float) -> list[tuple[LedShare, int]]:
        """What is to be saved, what has waited longest first."""
        found: list[tuple[float, LedShare, int]] = []
        before_s, renewed_s = now_s - SAVE_S, now_s - self._kept_s / 4
        for share in self._shares.values():
            due = share.due(before_s, renewed_s)
            found += [(at_s, share, group) for at_s, group in due if (share, group) not in self._saving]
        found.sort(key=lambda each: each[0])
        return [(share, group) for _, share, group in found[:SAVES_AT_ONCE]]

    async def _save_due(self, share: LedShare, group: int) -> None:
        """A group that has no quorum now holds no other one up."""
        try:
            if self._serves(share):
                await self._save_quietly(share, group)
        finally:
            self._saving.discard((share, group))

    def _place(self, share: LedShare, group: int) -> SharePlace:
        state = self._led.sequencer.groups.get(group)
        return share.place(group, state.delivered if state is not None else 0)

    async def _save_quietly(self, share: LedShare, group: int) -> None:
        try:
            await self._save(share, group)
        except LexicastError as error:
            log.debug("%s is saved later: %s", _title(share), error)

    async def _save(self, share: LedShare, group: int) -> None:
        """Returns when it is durable. Raises LexicastError."""
        place = self._place(share, group)
        await self._home.keep(group, self._row(share, place))
        share.is_saved(group, self._led.clock.monotonic(), place)

    def _row(self, share: LedShare, place: SharePlace) -> SessionSaved:
        """`share_expiry_s` counts from when nobody is there any more."""
        expiry_s = self._kept_s if share.links else max(1, self._rules.expiry_s)
        expires_us = self._led.clock.time_us() + expiry_s * US_PER_S
        name = row_name(share.name, share.filter)
        return SessionSaved(
            name, IN_USE if share.links else UNUSED, 1, "", 0, 0, expiry_s, expires_us, 0, b"", b"", pack_place(place)
        )

    async def _retire(self, share: LedShare) -> None:
        """Nobody is there any more: it is saved where it stands, and waits in the store."""
        try:
            left = True
            while left and not share.links:
                await asyncio.sleep(LINGER_S if len(self._shares) <= SHARES_MAX // 2 else 0)
                self._left_again.discard(share)
                if share.links:
                    break
                await asyncio.gather(*[self._save_quietly(share, group) for group in list(share.share.groups)])
                # Somebody may have come, had something done and gone meanwhile.
                left = share in self._left_again
        finally:
            self._retiring.discard(share)
            self._left_again.discard(share)
        if not share.links and self._serves(share):
            self._ended(share)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Read, deal and save no more."""
        self._touched.clear()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def status(self) -> dict[str, Any]:
        """For `lexicast status`: of each share that has members, or had a moment ago, how many, what they hold or wait
        for, how many records it is behind with what is yet to be read, at most (others' records may be among those),
        and in how many groups it has moved since it was saved."""
        return {
            f"{share.name}/{share.filter.decode()}": {
                "members": len(share.links),
                "open_records": share.share.open_records,
                "unsaved_groups": share.unsaved_groups,
                "lag_records": share.share.open_records + sum([self._unread(share, group) for group in share.behind]),
            }
            for share in self._shares.values()
        }

    def whereabouts(self, topic: bytes, group: int, offset: int) -> dict[str, str]:
        """For `lexicast trace`: by share of a topic what has become of the publication at `offset`: the broker whose
        member holds it, or "unread", "waiting", "done"."""
        found = {}
        for share in self._shares_of(topic):
            if group in share.share.groups:
                where = share.share.whereabouts(group, offset)
                found[f"{share.name}/{share.filter.decode()}"] = where if isinstance(where, str) else where[0]
        return found

    def _unread(self, share: LedShare, group: int) -> int:
        """Offsets between where it has read to and where deliveries stand, but for those that no record has: each epoch
        begins far beyond the one before."""
        state = self._led.sequencer.groups.get(group)
        if state is None or group not in share.share.groups:
            return 0
        read = share.share.read(group)
        unread = state.delivered - read
        for epoch in self._led.store.epoch_starts(group):
            unread -= max(0, min(epoch.first, state.delivered) - max(read, epoch.previous_last + 1))
        return max(0, unread)


def _title(share: LedShare) -> str:
    return f"the share {share.name!r} of {share.filter!r}"
