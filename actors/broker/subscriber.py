"""A subscriber: whoever gets deliveries from a broker, an MQTT session's connection or a Python client's stream.

Live or lagging, group by group (DESIGN.md, "Sessions are cursors"): where it is live its cursor is the broker's head,
and costs nothing; where it lags it has a cursor of its own in `lagging` and is brought up by `catching_up`, together
with all that stand at the same place (`riding`). A subscriber falls behind when its socket is full or its window of
unacknowledged publications is used up. `ready` sums it up for the hot path: live everywhere and nothing in the way.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, ClassVar, Protocol

from mypy_extensions import mypyc_attr

from lexicast.cluster.blocks import Block, Run
from lexicast.cluster.selection import select_from

from ..mqtt.codec.topic_aliases import KNOWN_ALIASES, TELLS_ALIASES
from .content.choosing import chosen
from .encoding import LINK, BlockView, EncodedBlock, Encoder, Grant, Grants, Kind
from .granted_filters import GrantedFilters
from .security.rights import ClientRights

if TYPE_CHECKING:
    from lexicast.compression.dictionary import Dictionary

    from .catching_up.run_packets import RunPackets


class SubscriberBroker(Protocol):
    """The broker, as its subscribers need it."""

    encoder: Encoder

    def lagged(self, subscriber: Subscriber) -> None:
        """The subscriber lags and nothing is in its way."""

    def view(self, block: Block) -> BlockView:
        """A view of a block, now."""


class StandingPlace(Protocol):
    """The laggards that stand at one offset of a group, and are brought up together."""

    offset: int
    members: set[Subscriber]


# More than 25 methods: what a kind of subscriber provides stands beside what all have in common.
@mypyc_attr(allow_interpreted_subclasses=True)  # by traces, and by tests
class Subscriber(GrantedFilters):
    """See the module's docstring. `drops`: a full socket costs QoS 0 publications instead of catching up."""

    # Whether it takes a part of each block, which nobody else gets (`python_clients.sample_stream`).
    samples: ClassVar[bool] = False

    __slots__ = (
        "alias_generation",
        "blocked",
        "broker",
        "closed",
        "drops",
        "kind",
        "known_aliases",
        "lagging",
        "missed",
        "missed_live",
        "past",
        "reads_zstd",
        "ready",
        "riding",
        "steps",
    )

    def __init__(
        self, broker: SubscriberBroker, kind: Kind, drops: bool = False, rights: ClientRights | None = None
    ) -> None:
        """`rights`: see `GrantedFilters`."""
        super().__init__(rights)
        self.broker = broker
        self.kind = kind
        self.drops = drops
        self.ready = True
        # Whether it reads topic streams of zstd.
        self.reads_zstd = False
        self.blocked = False
        self.closed = False
        self.lagging: dict[int, int] = {}
        # Groups that lag since they were live: what is missing was delivered to this broker, so its cache may have it.
        self.missed_live: set[int] = set()
        # group -> from where on the cache will do, of the groups in which what came before has to be fetched.
        self.past: dict[int, int] = {}
        # Those that stand where this one does, of the groups in which it is being brought up.
        self.riding: dict[int, StandingPlace] = {}
        # Topic streams: the last batch that was sent, by the stream's slot.
        self.steps: dict[int, int] = {}
        # And what frames would have spared while it was out of step, bytes by slot.
        self.missed: dict[int, int] = {}
        # The topic aliases that it was told, as bits, and when they were given.
        self.known_aliases = 0
        self.alias_generation = 0

    @property
    def takes_dictionaries(self) -> bool:
        """Whether dictionaries are sent to it: a dictionary-aware MQTT session, or a Python client's stream."""
        return (self.kind.aware or self.kind.version == LINK) and not self.samples

    @property
    def takes_packets(self) -> bool:
        """Whether what it gets out of the past is the same for all of its kind but for packet ids (`packets`)."""
        return False

    # -- what a kind of subscriber provides

    def write(self, data: bytes) -> None:
        """Send encoded publications."""
        raise NotImplementedError

    def gather(self) -> None:
        """What `take_packets` writes from now on may wait until `send_gathered`, in the same turn."""

    def send_gathered(self) -> None:
        """See `gather`."""

    def write_tagged(self, encoded: EncodedBlock) -> None:
        """`write` for dictionary-aware sessions: introduce aliases first."""
        self.write(encoded.data)

    def gets_dictionary(self, dictionary: Dictionary, instead_of_bytes: bool = False) -> bool:
        """Whether it has this dictionary, which a topic stream begins with, or gets it now that the stream needs it.
        `instead_of_bytes`: it follows a stream that needs none."""
        return True

    def has_dictionary(self, dictionary: int) -> bool:
        """Whether it has the dictionary of this id."""
        return True

    def deliver_with_ids(self, view: BlockView, grants: Grants) -> int | None:
        """Deliver a block that needs packet ids. Returns the offset where the window was used up, None if all went."""
        raise NotImplementedError

    # -- topic aliases

    def alias_form(self, needed: int) -> int:
        """Which form of what has these aliases (bits) it gets."""
        generation = self.broker.encoder.topic_aliases.generation
        if self.alias_generation != generation:
            self.alias_generation, self.known_aliases = generation, 0
        return KNOWN_ALIASES if needed & self.known_aliases == needed else TELLS_ALIASES

    # -- live delivery, when not simply `ready`

    def offer(self, view: BlockView, grants: Grants, encoded: EncodedBlock | None) -> None:
        """One live block: send it, or note from where on this subscriber lags."""
        block = view.block
        if self.closed or block.group in self.lagging:
            return
        if self.blocked:
            # Who is slow for the beginning of a block that becomes much is not slow: it gets the rest of it.
            if view.is_rest or not (self.drops and encoded is not None):
                self.lag(block.group, block.first, live=True)
            return
        self._send(view, grants, encoded, live=True)

    def _send(self, view: BlockView, grants: Grants, encoded: EncodedBlock | None, live: bool) -> bool:
        if encoded is not None:
            if encoded.data:  # empty when all that this subscriber wants has expired or lies before its cursor
                self.write_tagged(encoded)
            return True
        stopped = self.deliver_with_ids(view, grants)
        if stopped is None:
            return True
        self.lag(view.block.group, stopped, live=live)
        return False

    def lag(self, group: int, offset: int, live: bool) -> None:
        """From `offset` on this subscriber has to be brought up in `group`."""
        self.lagging[group] = offset
        if live:
            self.missed_live.add(group)
            self.past.pop(group, None)
        self.refresh()

    # -- catching up

    def stands_at(self, group: int, head: int) -> int:
        """Where it stands in a group whose head is `head`."""
        if group not in self.lagging:
            return head
        stand = self.riding.get(group)
        return self.lagging[group] if stand is None else max(stand.offset, self.lagging[group])

    def take(self, block: Block) -> bool:
        """A block out of the past, of a lagging group. False when something came in the way (cursor kept)."""
        start = self.lagging.get(block.group)
        if start is None or block.last < start:
            return True
        part = select_from(block, start)
        grants = () if part is None else tuple([self.grant(topic) for topic in part.meta.topics])
        if part is None or not any(grants):
            self.lagging[block.group] = block.last + 1
            return True
        found = chosen(self.broker.view(part), grants, self.broker.encoder)
        if found is None:
            self.lagging[block.group] = block.last + 1
            return True
        whole, grants = found
        encoder, kind = self.broker.encoder, self.kind
        for view in encoder.parts(whole) if kind.is_plain else (whole,):
            encoded = None if needs_ids(view.highest_qos, grants) else encoder.shared(kind, view, grants)
            if not self.take_view(view, grants, encoded):
                return False
        return True

    def take_view(self, view: BlockView, grants: Grants, encoded: EncodedBlock | None) -> bool:
        """`take` of what is at or after the cursor. `encoded`: the bytes, None where packet ids are needed."""
        group = view.block.group
        self.lagging[group] = view.block.last + 1
        return self._send(view, grants, encoded, live=group in self.missed_live) and not self.blocked

    def take_packets(self, group: int, runs: Iterable[RunPackets]) -> bool:
        """What a page of the past holds for it from its cursor on, run by run; False when something came in the way.

        Only of those that `takes_packets`.
        """
        raise NotImplementedError

    def granting(self, view: BlockView, run: Run, grant: Grant | None) -> Grant | None:
        """The grant that counts for this run: another, or none, where its publisher matters [MQTT-3.8.3-3]."""
        return grant

    def granted(self, origin: str | None, grant: Grant) -> Grant | None:
        """`granting` of what `origin` published."""
        return grant

    def discarded(self, group: int, first: int) -> None:
        """Retention has left nothing of `group` before `first`, and this subscriber's cursor was before it."""

    def yield_turn(self, group: int) -> None:
        """The group used up what could be sent: the others that lag come first the next time."""
        if group in self.lagging:
            self.lagging[group] = self.lagging.pop(group)

    def caught_up(self, group: int) -> None:
        """The group is live again."""
        self.lagging.pop(group, None)
        self.missed_live.discard(group)
        self.past.pop(group, None)
        if not self.lagging:
            self.refresh()

    def caught_up_but(self, groups: Mapping[int, object]) -> None:
        """All groups but these are live again."""
        lagging = self.lagging
        self.lagging = {group: lagging[group] for group in groups}
        self.missed_live.intersection_update(groups)
        past = self.past
        self.past = {group: past[group] for group in groups if group in past}
        if not self.lagging:
            self.refresh()

    def unblock(self) -> None:
        """Nothing is in the way any more."""
        self.blocked = False
        self.refresh()
        if self.lagging:
            self.broker.lagged(self)

    def block(self) -> None:
        """The socket is full, or the window used up."""
        self.blocked = True
        self.ready = False

    def refresh(self) -> None:
        """Recompute `ready`."""
        self.ready = not (self.blocked or self.lagging or self.closed)


def needs_ids(highest_qos: int, grants: Grants) -> bool:
    """Whether some publication of a block goes out with a packet id, or only to some because of No Local."""
    return any([grant is not None and (grant.no_local or (highest_qos > 0 and grant.qos > 0)) for grant in grants])
