"""An MQTT session: subscriptions, what is in flight both ways, packet ids. Pure: events in, replies out.

Theory of operation. A session is a cursor (DESIGN: sessions are cursors): it holds no publications, only where they
stand. The broker delivers; the session numbers what it delivers with QoS 1 and 2, and remembers (group, offset) of each
until it is acknowledged.

    to the client      send()  ->  unacknowledged  -- PUBACK (QoS 1), PUBREC with an error (QoS 2) -->  forgotten
                                        |  PUBREC (QoS 2)
                                        v
                                     released  -- PUBCOMP -->  forgotten

    a new connection   unacknowledged  ->  pending  -- resend(), DUP, same packet id, original order -->  unacknowledged

    from the client    QoS 2 PUBLISH  ->  arriving  -- committed(), PUBREC -->  received  -- PUBREL -->  forgotten

Invariants:
  * A packet id is in at most one of pending, unacknowledged, released; `send` never gives one that is in any.
  * unacknowledged + released <= window = min(client's Receive Maximum, inflight_max) [MQTT-3.3.4-9]. `pending` is not
    counted, but nothing new is sent before all of it was sent again [MQTT-4.6.0-1], [MQTT-4.6.0-6].
  * pending and unacknowledged keep the order of first sending; released that of the PUBRECs [MQTT-4.6.0-4].
  * `held()`: every publication of a group before it is completed (or was never sent here); groups that are not in it
    have nothing in flight.
  * At most `receive_max` QoS 1 and 2 publications of an MQTT 5 client's connection are unanswered; one more is its
    error (0x93). Ids `carried` over from an earlier connection do not count until they are sent again (4.9).

Memory: at most `inflight_max` entries in flight, 65,535 ids from the client, `subscriptions_max` filters.
What survives the broker is in `session_state`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Final, NamedTuple, Protocol, TypeAlias

from lexicast.cluster.errors import UsageError
from lexicast.cluster.positions import Cursor

from .codec.packets import (
    PACKET_ID_NOT_FOUND,
    PROTOCOL_ERROR,
    PUBCOMP,
    PUBREC,
    PUBREL,
    QUOTA_EXCEEDED,
    RECEIVE_MAXIMUM_EXCEEDED,
    V5,
    AckRun,
    MqttProtocolError,
    PubComp,
    PubRel,
    SubscriptionOptions,
    Will,
)

PACKET_ID_MAX: Final = 65_535
DEFAULT_INFLIGHT_MAX: Final = 4_000
DEFAULT_RECEIVE_MAX: Final = 1_000
DEFAULT_SUBSCRIPTIONS_MAX: Final = 10_000

# (group, offset, QoS, whether it was sent as a retained message); a plain tuple because `send` makes one a publication
# (a NamedTuple takes five times as long to make).
InFlight: TypeAlias = tuple[int, int, int, bool]
Reply: TypeAlias = AckRun | PubRel | PubComp


class SessionSubscription(NamedTuple):
    """One subscription's options (3.8.3.1) and its identifier."""

    qos: int = 0
    no_local: bool = False
    retain_as_published: bool = False
    retain_handling: int = 0
    identifier: int | None = None
    # The condition on publications, as it was written; "": none.
    where: str = ""


class SubscribeOutcome(NamedTuple):
    """What became of one filter of a SUBSCRIBE."""

    reason_code: int
    existed: bool
    send_retained: bool


class Resend(NamedTuple):
    """A PUBLISH to be sent again, with DUP [MQTT-3.3.1-1] and the same packet id [MQTT-4.4.0-1]."""

    packet_id: int
    group: int
    offset: int
    qos: int
    retained: bool


class Arrived(NamedTuple):
    """What to do with the publications of a read: publish those at `fresh` (None: all), answer `replies` at once."""

    fresh: list[int] | None
    replies: list[Reply]


_ALL_FRESH: Final = Arrived(None, [])


class ReleasedIds(NamedTuple):
    """Answers to PUBRELs, and the packet ids that each topic group may forget."""

    replies: list[Reply]
    by_group: dict[int, list[int]]


class SharedOwner(Protocol):
    """A shared subscription that was dealt a publication."""

    def completed(self, group: int, offset: int) -> None:
        """The client has it (PUBACK, PUBREC), or does not want it."""


class Unsettled:
    """Of all sessions that a broker serves those that it has to look at, by client id: so the others cost it nothing.

    `in_flight`: exactly those with something in flight to the client. `lagging`: at least those that lag. `sent_to`:
    at least those that got something with QoS 1 or 2, and had nothing in flight, since it was emptied.
    """

    __slots__ = ("in_flight", "lagging", "sent_to")

    def __init__(self) -> None:
        self.in_flight: dict[str, None] = {}
        self.lagging: dict[str, None] = {}
        self.sent_to: dict[str, None] = {}

    def takes_off(self, client_id: str) -> None:
        """The session has something in flight from now on."""
        self.in_flight[client_id] = None
        self.sent_to[client_id] = None

    def forget(self, client_id: str) -> None:
        """The session is served no more."""
        for kind in (self.in_flight, self.lagging, self.sent_to):
            kind.pop(client_id, None)


@dataclass(slots=True)
class Session:
    """One client's session; see the module's docstring. Raises MqttProtocolError where the client broke the rules."""

    client_id: str
    uid: bytes
    generation: int
    version: int = V5
    inflight_max: int = DEFAULT_INFLIGHT_MAX
    receive_max: int = DEFAULT_RECEIVE_MAX
    subscriptions_max: int = DEFAULT_SUBSCRIPTIONS_MAX
    # Session Expiry Interval in seconds: how long the session outlives its connection (2**32 - 1: for ever).
    expiry_s: int = 0
    # Who has logged in; "": nobody. A session is never given to another user.
    user: str = ""
    will: Will | None = None
    subscriptions: dict[bytes, SessionSubscription] = field(default_factory=dict)
    # How often these have changed; and, where they are many, how they were written when they had changed so often.
    changes: int = 0
    filters_written: tuple[int, bytes] = (-1, b"")
    # Those whose retained publications are still being sent; the next connection gets them from the beginning.
    owed: frozenset[bytes] = frozenset()
    # group -> next offset to deliver; kept by the broker, here only to be saved
    cursor: Cursor = field(default_factory=dict)
    # The connection's number in its broker's incarnation.
    connection: int = 0
    # Its broker's, while that serves it.
    unsettled: Unsettled = field(default_factory=Unsettled, compare=False)
    # QoS 1 and 2 publications sent to the client over this connection; how many of them, which filters (their digest)
    # and when (monotonic) the session was saved last.
    sent: int = 0
    sent_saved: int = 0
    filters_saved: bytes = b""
    saved_s: float = 0.0
    window: int = 0
    next_id: int = 1
    pending: dict[int, InFlight] = field(default_factory=dict)
    unacknowledged: dict[int, InFlight] = field(default_factory=dict)
    released: dict[int, InFlight] = field(default_factory=dict)
    # Packet ids of the client's QoS 2 publications -> topic group: not yet committed, and committed.
    arriving: dict[int, int] = field(default_factory=dict)
    received: dict[int, int] = field(default_factory=dict)
    # Those of `arriving` and `received` that this connection has not seen.
    carried: set[int] = field(default_factory=set)
    # Whose those of `unacknowledged` are that shared subscriptions were dealt.
    shared: dict[int, SharedOwner] = field(default_factory=dict, compare=False)
    # QoS 1 publications of this connection without PUBACK yet.
    unanswered: int = 0

    def connected(self, version: int, receive_maximum: int = PACKET_ID_MAX) -> list[Reply]:
        """A connection begins: the PUBRELs to send first [MQTT-4.4.0-1]; then call `resend` as the window allows.

        `receive_maximum`: the client's (3.1.1 has none: the default).
        """
        if not 0 < receive_maximum <= PACKET_ID_MAX:
            raise UsageError(f"a receive maximum is 1 to {PACKET_ID_MAX}, not {receive_maximum}")
        self.version = version
        self.window = min(receive_maximum, self.inflight_max)
        self.unanswered = 0
        self.carried = {*self.arriving, *self.received}
        # What was sent again and not acknowledged is older than what still waits to be sent again.
        self.pending = {**self.unacknowledged, **self.pending}
        self.unacknowledged = {}
        return [AckRun(PUBREL, list(self.released))] if self.released else []

    # -- subscriptions

    def subscribe(
        self,
        name: bytes,
        options: SubscriptionOptions,
        identifier: int | None = None,
        shared: bool = False,
        where: str = "",
    ) -> SubscribeOutcome:
        """Add or replace a subscription [MQTT-3.8.4-3]. The filter was checked by the caller."""
        existed = name in self.subscriptions
        if not existed and len(self.subscriptions) >= self.subscriptions_max:
            return SubscribeOutcome(QUOTA_EXCEEDED, False, False)
        self.changes += 1
        self.subscriptions[name] = SessionSubscription(
            options.qos, options.no_local, options.retain_as_published, options.retain_handling, identifier, where
        )
        # [MQTT-3.3.1-9] to [MQTT-3.3.1-11]; none on shared subscriptions (4.8.2).
        wanted = options.retain_handling == 0 or (options.retain_handling == 1 and not existed)
        return SubscribeOutcome(options.qos, existed, wanted and not shared)

    def unsubscribe(self, name: bytes) -> bool:
        """Remove a subscription; False when there was none."""
        self.changes += 1
        self.owed -= {name}
        return self.subscriptions.pop(name, None) is not None

    def owe(self, filters: Iterable[bytes]) -> None:
        """What is retained on these is being sent."""
        self.changes += 1
        self.owed |= self.subscriptions.keys() & filters

    def paid(self) -> None:
        """All of that has been sent."""
        if self.owed:
            self.changes += 1
            self.owed = frozenset()

    # -- publications to the client

    @property
    def room(self) -> int:
        """How many new QoS 1 and 2 publications may be sent now; 0 while old ones have to be sent again."""
        if self.pending:
            return 0
        return max(0, self.window - len(self.unacknowledged) - len(self.released))

    @property
    def in_flight(self) -> int:
        """Outgoing QoS 1 and 2 publications not completed."""
        return len(self.pending) + len(self.unacknowledged) + len(self.released)

    def take_ids(self, count: int) -> list[int]:
        """The next `count` packet ids not in use [MQTT-2.2.1-4]. Raises UsageError when there are not so many."""
        start = self.next_id
        run = range(start, start + count)
        if run.stop <= PACKET_ID_MAX and self._unused(run):
            self.next_id = run.stop
            return list(run)
        if count > PACKET_ID_MAX - self.in_flight:
            raise UsageError(f"{count} packet ids asked for and {PACKET_ID_MAX - self.in_flight} are free")
        ids: list[int] = []
        while len(ids) < count:
            if self._unused((start,)):
                ids.append(start)
            start = start % PACKET_ID_MAX + 1
        self.next_id = start
        return ids

    def _unused(self, ids: Iterable[int]) -> bool:
        # Most of these are empty most of the time; an empty one too would look at each id.
        held = (self.unacknowledged, self.released, self.pending)
        return not any([entries and not entries.keys().isdisjoint(ids) for entries in held])

    def send(self, group: int, offsets: Sequence[int], qos: int, retained: bool = False) -> list[int]:
        """Packet ids for publications about to be sent with `qos` 1 or 2: for as many as the window allows.

        `offsets` are in ascending order; those beyond the ids returned stay with the cursor.
        """
        count = min(len(offsets), self.room)
        return self.send_all([(group, offset, qos, retained) for offset in offsets[:count]])

    def send_one(self, group: int, offset: int, qos: int, retained: bool = False) -> int:
        """`send` of one publication, which is what a fleet's runs are; 0 where the window does not allow it."""
        if self.room == 0:
            return 0
        packet_id = self.next_id
        used = packet_id in self.unacknowledged or packet_id in self.released or packet_id in self.pending
        if used or packet_id == PACKET_ID_MAX:
            packet_id = self.take_ids(1)[0]
        else:
            self.next_id = packet_id + 1
        self.sent += 1
        if not self.unacknowledged:
            self.unsettled.takes_off(self.client_id)
        self.unacknowledged[packet_id] = (group, offset, qos, retained)
        return packet_id

    def send_all(self, publications: Sequence[InFlight]) -> list[int]:
        """`send` of publications that differ in more than their offsets."""
        count = min(len(publications), self.room)
        ids = self.take_ids(count)
        self.sent += count
        if count and not self.unacknowledged:
            self.unsettled.takes_off(self.client_id)
        self.unacknowledged.update(zip(ids, publications, strict=False))  # the rest stays with the cursor
        return ids

    def _settle(self) -> None:
        """Something was completed."""
        if not (self.unacknowledged or self.released or self.pending):
            self.unsettled.in_flight.pop(self.client_id, None)

    def resend(self, most: int = PACKET_ID_MAX) -> list[Resend]:
        """What to send again now, in original order, as many as the window allows and at most `most`; again after
        acknowledgements."""
        count = min(most, max(0, self.window - len(self.unacknowledged) - len(self.released)))
        again = dict(islice(self.pending.items(), count))
        for packet_id in again:
            del self.pending[packet_id]
        self.unacknowledged |= again
        return [Resend(packet_id, *entry) for packet_id, entry in again.items()]

    def abandon(self, packet_ids: Iterable[int]) -> None:
        """These cannot be sent: discarded by retention, unreadable, or larger than the client takes.

        Not for those that expired after they were sent once: [MQTT-4.3.3-7].
        """
        for packet_id in packet_ids:
            self.unacknowledged.pop(packet_id, None)
            self.pending.pop(packet_id, None)
        self._settle()

    def held(self) -> Cursor:
        """group -> the lowest offset in flight. QoS 2 counts until its PUBCOMP: the client may deliver on PUBREL.

        Retained messages sent to new subscriptions lie before the subscription's cut and hold nothing back.
        """
        found: Cursor = {}
        for entries in (self.unacknowledged, self.pending, self.released):
            for group, offset, _, retained in entries.values():
                if not retained and offset < found.get(group, offset + 1):
                    found[group] = offset
        return found

    def on_pubacks(self, packet_ids: Iterable[int]) -> int:
        """PUBACKs, with success or not: how many were known. Others are ignored: repeats, and acknowledgements of what
        a session before this one sent."""
        known = 0
        for packet_id in packet_ids:
            entry = self._take(packet_id)
            if entry is None:
                continue
            if entry[2] != 1:
                raise _wrong_ack("PUBACK", packet_id, "MQTT-4.3.3-3")
            known += 1
        self._settle()
        return known

    def on_pubrecs(self, packet_ids: Iterable[int], refused: bool = False) -> list[Reply]:
        """PUBRECs: the PUBRELs to answer with [MQTT-4.3.3-4]. `refused`: a reason code of 0x80 or more, which ends it.

        An id not known gets PUBREL 0x92 in MQTT 5 (3.6.2.1), a plain one in 3.1.1.
        """
        release: list[int] = []
        replies: list[Reply] = []
        for packet_id in packet_ids:
            entry = self._take(packet_id)
            if entry is not None and entry[2] != 2:
                raise _wrong_ack("PUBREC", packet_id, "MQTT-4.3.2-3")
            if refused:
                continue
            if entry is not None:
                self.released[packet_id] = entry
            if packet_id in self.released or self.version != V5:
                release.append(packet_id)
            else:
                replies.append(PubRel(packet_id, PACKET_ID_NOT_FOUND))
        self._settle()
        return [AckRun(PUBREL, release), *replies] if release else replies

    def on_pubcomps(self, packet_ids: Iterable[int]) -> int:
        """PUBCOMPs, with success or not: how many were known [MQTT-4.3.3-5]."""
        known = 0
        for packet_id in packet_ids:
            if packet_id in self.released:
                del self.released[packet_id]
                known += 1
        self._settle()
        return known

    def _take(self, packet_id: int) -> InFlight | None:
        """Forget an unacknowledged or pending publication."""
        entry = self.unacknowledged.pop(packet_id, None)
        if entry is None and self.pending:
            entry = self.pending.pop(packet_id, None)
        if self.shared and entry is not None:
            owner = self.shared.pop(packet_id, None)
            if owner is not None:
                owner.completed(entry[0], entry[1])
        return entry

    # -- publications from the client

    def on_publishes(self, qos: int, packet_ids: Sequence[int], group: int) -> Arrived:
        """PUBLISHes of QoS 1 or 2 to a topic of `group`. Raises MqttProtocolError (0x93) over the receive maximum.

        Publish the fresh ones, then call `committed` (or `refused`) with their packet ids.
        """
        if qos == 1:
            self.unanswered += len(packet_ids)
            self._check_receive_max()
            return _ALL_FRESH
        self.carried.difference_update(packet_ids)
        fresh: list[int] = []
        again: list[int] = []
        for index, packet_id in enumerate(packet_ids):
            if packet_id in self.received:
                again.append(packet_id)  # [MQTT-4.3.3-10]: acknowledged again, not published again
            elif packet_id not in self.arriving:
                self.arriving[packet_id] = group
                fresh.append(index)
        self._check_receive_max()
        replies: list[Reply] = [AckRun(PUBREC, again)] if again else []
        return Arrived(None if len(fresh) == len(packet_ids) else fresh, replies)

    def _check_receive_max(self) -> None:
        if self.version != V5:  # 3.1.1 knows no receive maximum; the 16 bits of packet ids are the bound
            return
        open_now = self.unanswered + len(self.arriving) + len(self.received) - len(self.carried)
        if open_now > self.receive_max:
            raise MqttProtocolError(
                RECEIVE_MAXIMUM_EXCEEDED,
                "MQTT-3.3.4-7",
                f"{open_now} publications without an answer: the receive maximum is {self.receive_max}",
            )

    def committed(self, qos: int, packet_ids: Sequence[int]) -> None:
        """These are stored: PUBACK (QoS 1) or PUBREC (QoS 2) goes out now."""
        if qos == 1:
            self.unanswered = max(0, self.unanswered - len(packet_ids))
            return
        for packet_id in packet_ids:
            group = self.arriving.pop(packet_id, None)
            if group is not None:
                self.received[packet_id] = group

    def refused(self, qos: int, packet_ids: Sequence[int]) -> None:
        """These were refused: PUBACK or PUBREC with an error goes out, and the ids are free [MQTT-4.3.3-9]."""
        if qos == 1:
            self.unanswered = max(0, self.unanswered - len(packet_ids))
            return
        for packet_id in packet_ids:
            self.arriving.pop(packet_id, None)
        self.carried.difference_update(packet_ids)

    def on_pubrels(self, packet_ids: Iterable[int], resumed: bool = False) -> ReleasedIds:
        """PUBRELs: the PUBCOMPs to answer with [MQTT-4.3.3-11], and what the topic groups may forget.

        An id not known gets PUBCOMP 0x92 in MQTT 5 (3.7.2.1), a plain one in 3.1.1, and where the session is `resumed`:
        "not an error during recovery", but clients take it for one. Raises MqttProtocolError for an id that has no
        PUBREC yet.
        """
        done: list[int] = []
        replies: list[Reply] = []
        by_group: dict[int, list[int]] = {}
        for packet_id in packet_ids:
            group = self.received.pop(packet_id, None)
            if group is not None:
                self.carried.discard(packet_id)
                by_group.setdefault(group, []).append(packet_id)
            elif packet_id in self.arriving:
                raise MqttProtocolError(
                    PROTOCOL_ERROR, "MQTT-4.3.3-4", f"PUBREL {packet_id} came before its PUBREC was sent"
                )
            if group is not None or self.version != V5 or resumed:
                done.append(packet_id)
            else:
                replies.append(PubComp(packet_id, PACKET_ID_NOT_FOUND))
        return ReleasedIds([AckRun(PUBCOMP, done), *replies] if done else replies, by_group)


def _wrong_ack(packet: str, packet_id: int, statement: str) -> MqttProtocolError:
    return MqttProtocolError(PROTOCOL_ERROR, statement, f"{packet} {packet_id} answers a PUBLISH of another QoS")
