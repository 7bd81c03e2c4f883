"""Brokers' interest at a coordinator: a link's beginning, back-end subscriptions, and their end.

Interest is soft state. A broker registers what it wants whenever a link begins, before it is served on it; here it is
kept in memory alone, so a subscription with wildcards costs no record, and whoever leads a group next needs none. Exact
topics' subscriptions are recorded too, in their one group: the index has them beside the topic's publications, and
channels read them from the log.

Cuts: a subscription takes effect where the group's deliveries stand when it is placed (`Group.delivered`); everything
before is the past, to be fetched, everything from there on arrives live on the link, after the reply. Every answer
that names such a place is sent in the same turn in which the place was read, after the blocks offered before it. A
broker that registers is behind in every group until it has registered everything: its cuts are the heads it came with.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any

from lexicast.cluster.errors import PeerError, UsageError
from lexicast.cluster.positions import topic_group
from lexicast.cluster.protocol.messages import LEADS
from lexicast.cluster.protocol.requests import FILTERS_MAX
from lexicast.cluster.records import Subscribed, Unsubscribed
from lexicast.cluster.topics.names import is_wildcard

from ..link.link import Link
from ..loop.turns import Turns
from .led_groups import LedGroups
from .past import Past
from .peers import BrokerPeer
from .session_home import SessionHome

TIME_MAX_US = 2**63 - 1
# Filters of a broker that is gone that leave the trie in one step.
FILTERS_FORGOTTEN = 100


class Interest:
    """See the module's docstring."""

    def __init__(self, led: LedGroups, home: SessionHome, past: Past) -> None:
        self._led = led
        self._home = home
        self._past = past
        # What brokers of an earlier link had, until it has been taken out.
        self._before: dict[BrokerPeer, BrokerPeer] = {}
        # Broker, incarnation and filter -> the record that is under way, and not in the store's table yet.
        self._recording: dict[tuple[str, int, bytes], Subscribed | Unsubscribed] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        led.when_opened.append(self._opened)
        led.when_closed.append(self._closed)

    # -- a broker comes (back)

    def resume(self, link: Link, heads: dict[int, int]) -> None:
        """A broker (re)opens its link: in each group of `heads` it wants what is not before its head. Replaces what an
        earlier link or incarnation of the broker had. It registers its filters next, then it asks to be served."""
        led = self._led
        old = led.routing.peers.get(link.name)
        if old is not None and old.incarnation > link.incarnation:
            raise PeerError(f"{link.name} has been replaced by a newer incarnation")
        peer = BrokerPeer(link.name, link.incarnation, link, came_with=heads)
        led.routing.flush()
        led.routing.replace(peer)
        for number, group in led.sequencer.groups.items():
            if number not in led.opening:
                peer.behind[number] = min(heads.get(number, group.delivered), group.delivered)
        if old is not None:
            self._before[peer] = old
            if old.link is not link:
                old.link.abort()
        self._home.owners.linked(peer, newer=old is None or old.incarnation < peer.incarnation)

    def register(self, peer: BrokerPeer, filters: Iterable[bytes]) -> None:
        """A part of what a broker that resumes is subscribed to. What the log says already keeps its cut: a broker that
        dials again changes nothing."""
        for topic_filter in self._place(peer, filters):
            # Recorded is it by who leads its group.
            recorded = is_wildcard(topic_filter) or not self._groups_of([topic_filter])
            if not (recorded or self._is_recorded(peer, topic_filter)):
                self._record_begin(peer, topic_filter)

    def _is_recorded(self, peer: BrokerPeer, topic_filter: bytes) -> bool:
        under_way = self._recording.get((peer.name, peer.incarnation, topic_filter))
        if under_way is not None:
            return isinstance(under_way, Subscribed)
        before = self._before.get(peer)
        if before is not None and before.incarnation == peer.incarnation and topic_filter in before.filters:
            return True  # or is about to be
        group = topic_group(topic_filter, self._led.store.groups)
        stored = self._led.store.tables.subscription(group, peer.name, topic_filter.decode())
        return stored is not None and stored.incarnation == peer.incarnation

    def serve(self, peer: BrokerPeer) -> dict[str, Any]:
        """A broker has registered everything: it is served from now on. Returns "heads" of the groups in which it
        misses nothing, and "leads": group -> epoch of all that are served here."""
        led = self._led
        led.routing.choosers.release(peer)
        led.routing.flush()
        peer.registering = False
        groups = led.sequencer.groups
        for number in [n for n, at in peer.behind.items() if at >= groups[n].delivered]:
            del peer.behind[number]
        if peer.behind:
            self._past.bring_up(peer)
        task = asyncio.get_running_loop().create_task(self._end_stale(peer, self._before.pop(peer, None)))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        served = {n: g for n, g in groups.items() if n not in led.opening}
        fresh = {n: (g.epoch, g.delivered) for n, g in served.items() if n not in peer.behind}
        peer.came_with.clear()
        return {"heads": fresh, "leads": {n: g.epoch for n, g in served.items()}}

    # -- groups that come and go

    def _opened(self, numbers: Sequence[int]) -> None:
        """These groups are served from now on: brokers whose links stand are to ask for them."""
        groups = self._led.sequencer.groups
        for peer in self._led.routing.peers.values():
            if peer.gone or peer.link.closed:
                continue
            for number in numbers:
                head = peer.came_with.get(number, groups[number].delivered)
                peer.behind[number] = min(head, groups[number].delivered)
            if not peer.registering:
                peer.announced.update(numbers)
                peer.link.send((LEADS, {number: groups[number].epoch for number in numbers}))

    def _closed(self, numbers: Sequence[int]) -> None:
        gone = set(numbers)
        self._led.routing.choosers.forget_groups(gone)
        for peer in self._led.routing.peers.values():
            peer.forget_groups(gone)

    def resume_groups(self, peer: BrokerPeer, heads: dict[int, int]) -> dict[str, Any]:
        """A broker that was told of groups has registered what it wants of them: in each it wants what is not before
        its head. Returns "heads" as `serve`; groups that are led elsewhere again are passed over."""
        led = self._led
        led.routing.choosers.release(peer)
        led.routing.flush()
        fresh = {}
        for number, head in heads.items():
            group = led.sequencer.groups.get(number)
            if group is None or number in led.opening:
                continue
            peer.announced.discard(number)
            if head >= group.delivered:
                peer.behind.pop(number, None)
                fresh[number] = (group.epoch, group.delivered)
            else:
                peer.behind[number] = head
        if peer.behind:
            self._past.bring_up(peer)
        return {"heads": fresh}

    async def _end_stale(self, peer: BrokerPeer, before: BrokerPeer | None) -> None:
        """Forget what the broker had before and has not registered again, a little at a time."""
        turns = Turns()
        if before is not None:
            wanted = list(before.filters)
            for at in range(0, len(wanted), FILTERS_FORGOTTEN):
                step = self._led.routing.remove(before, wanted[at : at + FILTERS_FORGOTTEN])
                self._end_records(peer, step)
                await turns.give_way()
            return
        for group in list(self._led.sequencer.groups):
            for record, _ in self._led.store.tables.subscriptions(group):
                if record.broker == peer.name:
                    self._end_records(peer, [record.filter.encode()])
                await turns.give_way()

    def _end_records(self, peer: BrokerPeer, filters: Iterable[bytes]) -> None:
        for topic_filter in filters:
            if not peer.gone and topic_filter not in peer.filters:
                self._record_end(peer, topic_filter)

    async def close(self) -> None:
        """Forget no more."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # -- subscriptions

    def subscribe(self, peer: BrokerPeer, filters: Iterable[bytes], wildcard: bool) -> dict[str, Any]:
        """Back-end subscriptions, at most FILTERS_MAX. Of the groups that they concern (`wildcard`: of all) it returns
        "cut": group -> first live offset; "ends": group -> where the last publication before the cut ends, as far as is
        known; "first": group -> where what retention has left begins, if it took something; "behind": those in which
        older blocks are still to come on this link, before the cut.
        """
        self._led.routing.choosers.release(peer)  # what comes before the cut
        self._led.routing.flush()
        filters = list(filters)
        for topic_filter in filters:
            if not is_wildcard(topic_filter):
                self._led.check_served(topic_group(topic_filter, self._led.store.groups))
        fresh = set(self._place(peer, filters))
        for topic_filter in filters:
            # One that is not fresh was registered while another coordinator led its group.
            if not is_wildcard(topic_filter) and (topic_filter in fresh or not self._is_recorded(peer, topic_filter)):
                self._record_begin(peer, topic_filter)
        opening = self._led.opening
        wanted = list(self._led.sequencer.groups) if wildcard else self._groups_of(filters)
        numbers = [number for number in wanted if number not in opening] if opening else wanted
        groups, ends = self._led.sequencer.groups, self._led.routing.ends
        cut = {number: groups[number].delivered for number in numbers}
        return {
            "cut": cut,
            "ends": {n: ends[n] if n in ends else min(groups[n].opened, cut[n]) for n in numbers},
            "first": {n: first for n in numbers if (first := self._led.store.first_kept(n))},
            "behind": [number for number in numbers if number in peer.behind],
        }

    def _place(self, peer: BrokerPeer, filters: Iterable[bytes]) -> list[bytes]:
        filters = list(filters)
        if len(filters) > FILTERS_MAX:
            raise UsageError(f"{len(filters)} filters in one request: at most {FILTERS_MAX}")
        return self._led.routing.insert(peer, filters)

    def unsubscribe(self, peer: BrokerPeer, filters: Iterable[bytes]) -> None:
        """The broker has no subscriber left for `filters`."""
        for topic_filter in self._led.routing.remove(peer, filters):
            self._record_end(peer, topic_filter)

    def choose(
        self, peer: BrokerPeer, begin: Iterable[bytes], end: Iterable[bytes], number: int, samples: bool
    ) -> None:
        """Of the broker's filters these choose from now on (all their subscriptions have conditions), and those no
        more; matchers are believed that know its conditions up to `number`. `samples`: it has a sampling broker."""
        self._led.routing.choosers.choose(peer, begin, end, number, samples)
        # Of what it was spared it is told once a second; a subscription that waits for this begins here.
        self._led.tell_heads(peer)

    def _record_begin(self, peer: BrokerPeer, topic_filter: bytes) -> None:
        now_us, name = self._led.clock.time_us(), topic_filter.decode()
        self._record(peer, topic_filter, Subscribed(peer.name, peer.incarnation, name, now_us, TIME_MAX_US))

    def _record_end(self, peer: BrokerPeer, topic_filter: bytes) -> None:
        if not is_wildcard(topic_filter):
            self._record(peer, topic_filter, Unsubscribed(peer.name, topic_filter.decode()))

    def _record(self, peer: BrokerPeer, topic_filter: bytes, record: Subscribed | Unsubscribed) -> None:
        """Nobody waits for its commit: a failure shows in the store itself."""
        key = peer.name, peer.incarnation, topic_filter

        def done(error: Exception | None) -> None:
            if self._recording.get(key) is record:
                del self._recording[key]

        for group in self._groups_of([topic_filter]):
            self._recording[key] = record
            try:
                self._led.append_control(group, record, done)
            except BaseException:
                done(None)
                raise

    def _groups_of(self, filters: Iterable[bytes]) -> list[int]:
        led = self._led.served
        groups: set[int] = set()
        for topic_filter in filters:
            if is_wildcard(topic_filter):
                return list(led)
            groups.add(topic_group(topic_filter, self._led.store.groups))
        return [group for group in groups if group in led]
