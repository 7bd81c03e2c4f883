"""A block's publications on their way to those whose conditions hold: what is the same for several is made once."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from ..encoding import BlockView, Encoder, Grant, Kind
from ..subscriber import Subscriber, needs_ids
from .choosing import Pick, choice_of
from .record_packets import Alike, RecordPackets, alike_of


class Cohort:
    """Subscribers that get the same of every block: one kind, one grant, its condition included."""

    __slots__ = ("alike", "grant", "members", "with_ids")

    def __init__(self, kind: Kind, grant: Grant) -> None:
        self.grant = grant
        self.alike = alike_of(kind, grant._replace(qos=0, where=None))
        # Whether they may get packet ids; with No Local it depends on the publisher who gets what.
        self.with_ids = grant.qos > 0 or grant.no_local
        # Each with all its subscriptions, its filters.
        self.members: dict[Subscriber, Collection[bytes]] = {}


class Giving:
    """See the module's docstring; of one live block."""

    __slots__ = ("_choice", "_encoder", "_packets", "_view")

    def __init__(self, view: BlockView, encoder: Encoder) -> None:
        self._view = view
        self._encoder = encoder
        self._choice = choice_of(view, encoder)
        self._packets: dict[Alike, RecordPackets] = {}

    def of_one(self, cohort: Cohort, records: list[int], subscribers: Sequence[Subscriber]) -> int:
        """Send these records, by number in ascending order, to members of a cohort that have no other subscription; the
        number of publications sent."""
        if (cohort.with_ids and needs_ids(self._view.highest_qos, (cohort.grant,))) or subscribers[0].samples:
            return self.of_several([(record, (cohort.grant,)) for record in records], subscribers)
        packets = self._packets.get(cohort.alike)
        if packets is None:
            packets = self._packets[cohort.alike] = RecordPackets(self._choice, self._encoder, cohort.alike)
        encoded = packets.encoded(records)
        if not encoded.data:
            return 0
        late = list[Subscriber]()
        for subscriber in subscribers:
            if subscriber.ready:
                subscriber.write_tagged(encoded)
            elif not (subscriber.closed or self._view.block.group in subscriber.lagging):
                late.append(subscriber)
        if late:
            view, grants = self._choice.of_picks([(record, (cohort.grant,)) for record in records])
            for subscriber in late:
                subscriber.offer(view, grants, encoded)
        return encoded.records * len(subscribers)

    def of_several(self, picks: Sequence[Pick], subscribers: Sequence[Subscriber]) -> int:
        """Send these records to subscribers of one kind whose subscriptions overlap, or who need packet ids."""
        view, grants = self._choice.of_picks(picks)
        if needs_ids(view.highest_qos, grants) or subscribers[0].samples:
            for subscriber in subscribers:
                subscriber.offer(view, grants, None)
            return view.block.count * len(subscribers)
        # Cohorts are of one kind: who shares them is.
        encoded = self._encoder.shared(subscribers[0].kind, view, grants)
        if not encoded.data:
            return 0
        for subscriber in subscribers:
            if subscriber.ready:
                subscriber.write_tagged(encoded)
            else:
                subscriber.offer(view, grants, encoded)
        return encoded.records * len(subscribers)
