"""Brokers' interest at a coordinator: a link's beginning, back-end subscriptions, and their end.

Cuts: a subscription takes effect where the group's deliveries stand when it is placed (`Group.delivered`); everything
before is the past, to be fetched, everything from there on arrives live on the link, after the reply. Every answer
that names such a place is sent in the same turn in which the place was read, after the blocks offered before it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from lexicast.cluster.errors import PeerError
from lexicast.cluster.positions import topic_group
from lexicast.cluster.records import ControlRecord, Subscribed, Unsubscribed
from lexicast.cluster.topics import check_filter, is_wildcard

from .link import Link
from .past import Past
from .peers import BrokerPeer, recorded_filters
from .retained import RetainedRequests

if TYPE_CHECKING:
    from .coordinator import CoordinatorServer

TIME_MAX_US = 2**63 - 1


class Interest:
    """See the module's docstring."""

    def __init__(self, server: CoordinatorServer, past: Past, retained: RetainedRequests) -> None:
        self._server = server
        self._past = past
        self._retained = retained

    def resume(self, link: Link, heads: dict[int, int], filters: Iterable[bytes]) -> dict[str, Any]:
        """A broker (re)opens its link: it wants `filters`, and in each group of `heads` what is not before its head.

        Replaces what an earlier link or incarnation of the broker had. Returns the heads of the other groups, and the
        sessions that an earlier incarnation left without letting go ("orphans").
        """
        server = self._server
        old = server.routing.peers.get(link.name)
        if old is not None and old.incarnation > link.incarnation:
            raise PeerError(f"{link.name} has been replaced by a newer incarnation")
        peer = BrokerPeer(link.name, link.incarnation, link)
        recorded = recorded_filters(server.store, peer.name, self._groups_of) if old is None else old.recorded()
        if old is not None:
            server.routing.drop(old)
            if old.link is not link:
                old.link.abort()
        server.routing.peers[peer.name] = peer
        wanted = set(filters)
        for gone in sorted(recorded.keys() - wanted):
            self._record(gone, Unsubscribed(peer.name, gone.decode()))
        for topic_filter in sorted(wanted):
            # What the log says already keeps its cut: a broker that dials again changes nothing.
            self._subscribe_one(peer, topic_filter, recorded.get(topic_filter) != peer.incarnation)
        server.routing.flush()
        for number, group in server.sequencer.groups.items():
            head = heads.get(number)
            if head is not None and head < group.delivered:
                peer.behind[number] = head
        if peer.behind:
            self._past.bring_up(peer)
        # A broker that only had to dial again still serves its sessions.
        orphans = self._orphans(peer) if old is None or old.incarnation < peer.incarnation else []
        groups = server.sequencer.groups
        fresh = {n: (g.epoch, g.delivered) for n, g in groups.items() if n not in peer.behind}
        return {"heads": fresh, "orphans": orphans}

    def _orphans(self, peer: BrokerPeer) -> list[tuple[int, tuple[Any, ...]]]:
        store = self._server.store
        return [
            (group, tuple(session))
            for group in self._server.sequencer.groups
            for session in store.sessions(group)
            if session.owner == peer.name and session.incarnation < peer.incarnation
        ]

    def subscribe(self, peer: BrokerPeer, filters: Iterable[bytes], retained: bool) -> dict[str, Any]:
        """Back-end subscriptions. Returns "cut": group -> first live offset; "retained": those of exact filters;
        "behind": the groups in which older blocks are still to come on this link, before the cut.
        """
        filters = list(filters)
        self._server.routing.flush()
        for topic_filter in filters:
            check_filter(topic_filter)
            self._subscribe_one(peer, topic_filter)
        groups = self._groups_of(filters)
        cut = {number: self._server.sequencer.groups[number].delivered for number in groups}
        found = self._retained.now(filters) if retained else []
        behind = [number for number in groups if number in peer.behind]
        return {"cut": cut, "retained": [block.to_wire() for block in found], "behind": behind}

    def _subscribe_one(self, peer: BrokerPeer, topic_filter: bytes, record_it: bool = True) -> None:
        if self._server.routing.insert(peer, topic_filter) and record_it:
            now_us = self._server.clock.time_us()
            record = Subscribed(peer.name, peer.incarnation, topic_filter.decode(), now_us, TIME_MAX_US)
            self._record(topic_filter, record)

    def unsubscribe(self, peer: BrokerPeer, filters: Iterable[bytes]) -> None:
        """The broker has no subscriber left for `filters`."""
        for topic_filter in filters:
            if self._server.routing.remove(peer, topic_filter):
                self._record(topic_filter, Unsubscribed(peer.name, topic_filter.decode()))

    def _record(self, topic_filter: bytes, record: ControlRecord) -> None:
        for group in self._groups_of([topic_filter]):
            self._server.append_control(group, record, _ignore)

    def _groups_of(self, filters: Iterable[bytes]) -> list[int]:
        led = self._server.sequencer.groups
        groups: set[int] = set()
        for topic_filter in filters:
            if is_wildcard(topic_filter):
                return list(led)
            groups.add(topic_group(topic_filter, self._server.store.groups))
        return [group for group in groups if group in led]


def _ignore(error: Exception | None) -> None:
    """For records whose commit nobody waits for: a failure shows in the store itself."""
