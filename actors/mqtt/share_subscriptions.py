"""Shared subscriptions of MQTT clients (4.8.2): members of shares, beside their sessions' own subscribers.

A member shares the session's packet ids, window and socket, as a subscription with a window in time does. It has no
cursor: what it is dealt is its until the client acknowledges it, or refuses it (PUBACK or PUBREC from 0x80 on), which
discards it [MQTT-4.8.2-6]. Where the connection ends what is not sent, or sent with QoS 1 and not acknowledged, goes to
others; what was sent with QoS 2 stays with the session and is completed when its client returns [MQTT-4.8.2-4], or is
gone with the session [MQTT-4.8.2-5]. After UNSUBSCRIBE what is under way is completed, and nothing more comes.

What the share is dealt is at most a window's worth a coordinator: so little waits here while the client's window or
socket is full.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Final, cast

from lexicast.cluster.blocks import Block
from lexicast.cluster.errors import LimitError
from lexicast.cluster.selection import offsets_of, select_from
from lexicast.cluster.topics.names import shared

from ..broker.content.choosing import chosen
from ..broker.dictionaries.link_choice import ConnectionDictionaries
from ..broker.encoding import EncodedBlock, Grant, Grants
from ..broker.shares.dealt_blocks import DealtBlock, DealtPart
from ..broker.shares.share_packets import SharePackets
from ..broker.shares.shared_members import ShareKey
from ..broker.subscriber import needs_ids
from .subscriber import WRITE_BYTES, MqttSubscriber

if TYPE_CHECKING:
    from ..broker.engine import BrokerEngine

log = logging.getLogger(__name__)

# Shared subscriptions of a session: each is a member at every coordinator.
CLIENT_SHARES_MAX: Final = 100
# How often a session that comes back looks whether there is room for its shares.
ROOM_S: Final = 5.0
# How often it is looked whether a dictionary that a block needs has come.
DICTIONARY_S: Final = 0.05


# More than 25 methods: what it is dealt, what of that is in flight and what becomes of it at the end is one account.
class ShareSubscriber(MqttSubscriber):
    """One shared subscription, beside the session's own subscriber `main`."""

    __slots__ = (
        "_began_us",
        "_dealt",
        "_flying",
        "_grant",
        "_key",
        "_main",
        "_members",
        "_packets",
        "_parts",
        "_parts_bytes",
        "_plain",
        "_rests",
        "_waits",
    )

    def __init__(self, engine: BrokerEngine, main: MqttSubscriber, share: str, filter: bytes, grant: Grant) -> None:
        self._main = main
        kind = main.kind._replace(streams=False, topic_aliases=0)
        super().__init__(engine, main.session, kind, main.write, drops=False)
        self._members = engine.shares
        self._key = ShareKey(share, filter, engine.shares.member_name(main.session.client_id))
        self._grant = grant
        self._began_us = engine.clock.time_us()
        self._dealt: deque[DealtPart] = deque()
        # How much was sent and is not acknowledged: what `session.shared` has as this one's.
        self._flying = 0
        # Whether its packets follow from payload, topic and grant.
        self._plain = self.kind.is_plain and not (self.kind.packet_bytes_max or grant.chooses or grant.no_local)
        self._packets = SharePackets()
        # What `_give` writes at its end.
        self._parts: list[bytes] | None = None
        self._parts_bytes = 0
        # Unsubscribed, while what was sent is not acknowledged.
        self._rests = False
        # For a dictionary.
        self._waits = False
        self.ready = False
        if main.is_resending:
            self.resending(True)
        if main.is_socket_full:
            self.socket_full()

    async def join(self, since: Mapping[int, int] | None) -> None:
        """See `SharedMembers.join`."""
        await self._members.join(self._key, self, max(1, self.session.window), since, self._grant.qos == 2)

    # -- what it is dealt

    def take_dealt(self, parts: list[DealtPart]) -> None:
        """See `ShareMember`."""
        self._dealt.extend(parts)
        self._give()

    def held(self) -> dict[int, list[int]]:
        """See `ShareMember`."""
        held = self._in_flight()
        for part in self._dealt:
            held.setdefault(part.group, []).extend(part.offsets())
        return held

    def _in_flight(self) -> dict[int, list[int]]:
        """What was sent and is not acknowledged, by group."""
        found: dict[int, list[int]] = {}
        for packet_id, owner in self.session.shared.items():
            entry = self.session.unacknowledged.get(packet_id)
            if owner is self and entry is not None:
                found.setdefault(entry[0], []).append(entry[1])
        return found

    def _give(self) -> None:
        """What there is room for, in one write: a turn brings a block a topic group."""
        self._parts, self._parts_bytes = [], 0
        try:
            self._give_parts()
        finally:
            self._number()
            self._flush()
            self._parts = None

    def _flush(self) -> None:
        if self._parts:
            data, self._parts, self._parts_bytes = b"".join(self._parts), [], 0
            self._main.write(data)

    def _number(self) -> None:
        """The packets that were put together are in flight, and written by `_flush`."""
        if self._packets.size_bytes:
            data, ids = self._packets.take(self.session)
            self.session.shared.update(dict.fromkeys(ids, self))
            self._flying += len(ids)
            self._gather_part(data)

    def _gather_part(self, data: bytes) -> None:
        assert self._parts is not None
        self._parts.append(data)
        self._parts_bytes += len(data)
        if self._parts_bytes >= WRITE_BYTES:
            self._flush()

    def _give_parts(self) -> None:
        while self._dealt and not (self.blocked or self.closed):
            part = self._dealt[0]
            block = part.dealt.block
            if block.meta.dictionaries and self._engine.live.waiting.missing([block]):
                if not self._waits:
                    self._waits = True
                    asyncio.get_running_loop().call_later(DICTIONARY_S, self._look_again)
                return
            self._dealt.popleft()
            try:
                rest = self._send_part(part)
            except Exception:
                self._members.undeliverable(self._key, part)
                continue
            if rest is not None:
                self._dealt.appendleft(rest)

    def _look_again(self) -> None:
        self._waits = False
        self._give()

    def _send_part(self, part: DealtPart) -> DealtPart | None:
        """What there is no room for comes back."""
        payloads = self._plain_payloads(part)
        if payloads is not None:
            return self._send_plain(part, payloads)
        self._number()
        block, rest = part.block(), None
        if self.kind.is_plain and (found := self.broker.view(block).cut(self._engine.recoder)) is not None:
            block, rest = found[0].block, found[1].block
        stopped = self._send_block(block)
        left = select_from(block, stopped) if stopped is not None else None
        if rest is not None and left is not None:
            # What was cut off goes behind it: both come back, the last first.
            self._dealt.appendleft(self._whole(rest))
            rest = None
        again = left if left is not None else rest
        return None if again is None else self._whole(again)

    def _whole(self, block: Block) -> DealtPart:
        return DealtPart(DealtBlock(block, self.broker.view), range(block.count))

    def _plain_payloads(self, part: DealtPart) -> list[bytes] | None:
        """The payloads of the block, where nothing but these, its topics and the grant decide what is sent."""
        if not self._plain or part.dealt.expires or (self.rights is not None and self._engine.rights.restricted):
            return None
        view, recoder = part.dealt.view, self._engine.recoder
        if view.may_become_much(recoder.payload_bytes_max):
            return None
        payloads = view.raw(recoder)
        return None if None in payloads else cast("list[bytes]", payloads)

    def _send_plain(self, part: DealtPart, payloads: list[bytes]) -> DealtPart | None:
        rest: DealtPart | None = None
        room = self.session.room - self._packets.numbered
        if len(part.numbers) > room and self._grant.qos and part.dealt.view.highest_qos:
            self._window_full = True
            self.block()
            if room <= 0:
                return part
            part, rest = part.cut(room)
        done = self._packets.add(part, payloads, self.kind, self._grant)
        if self._packets.size_bytes >= WRITE_BYTES:
            self._number()
        if done:
            self._members.done(self._key, part.group, done)
        return rest

    def _send_block(self, block: Block) -> int | None:
        """The offset where the window was used up, None if all went."""
        grants = self._granted_of(block)
        found = chosen(self.broker.view(block), grants, self._engine.encoder) if any(grants) else None
        stopped: int | None = None
        flying: Sequence[int] = ()
        if found is not None:
            view, grants = found
            sent = self.session.sent
            if needs_ids(view.highest_qos, grants):
                stopped = self.deliver_with_ids(view, grants)
                flying = self._took_off(self.session.sent - sent)
            else:
                self.write_tagged(self._engine.encoder.shared(self.kind, view, grants))
        offsets = offsets_of(block)
        if stopped is not None:
            offsets = [offset for offset in offsets if offset < stopped]
        if flying:
            in_flight = frozenset(flying)
            offsets = [offset for offset in offsets if offset not in in_flight]
        if offsets:
            self._members.done(self._key, block.group, offsets)
        return stopped

    def _granted_of(self, block: Block) -> Grants:
        """What its client may not read is withheld, and done with: of what was published before it joined what it may
        not read of the past."""
        topics, rights = block.meta.topics, self.rights
        if rights is None or not self._engine.rights.restricted:
            return (self._grant,) * len(topics)
        may_read = rights.may_read_past if block.time_us < self._began_us else rights.may_read
        return tuple([self._grant if may_read(topic) else None for topic in topics])

    def _took_off(self, count: int) -> list[int]:
        """The offsets of the newest `count` in flight: the share's from now on, not the session's cursor's."""
        session, offsets = self.session, list[int]()
        for packet_id in list(islice(reversed(session.unacknowledged), count)):
            group, offset, qos, _ = session.unacknowledged[packet_id]
            session.unacknowledged[packet_id] = group, offset, qos, True
            session.shared[packet_id] = self
            offsets.append(offset)
        self._flying += len(offsets)
        return offsets

    def completed(self, group: int, offset: int) -> None:
        """See `session.Shared`."""
        self._flying -= 1
        self._members.done(self._key, group, (offset,))
        if self._rests and not self._flying:
            self._main.windows.pop(self._name_at_rest, None)
            self.leave()

    # -- the connection's

    def _go_on(self) -> None:
        if self._is_free():
            self.unblock()
            self._give()

    def refresh(self) -> None:
        """Never `ready`: it is in no fan-out."""
        self.ready = False

    def _connection_dictionaries(self) -> ConnectionDictionaries | None:
        """The connection's."""
        return self._main.dictionaries

    def _write_introduced(self, encoded: EncodedBlock) -> None:
        """In the order of the connection."""
        if self._parts is None or self._main.dictionaries is not None:
            self._main._write_introduced(encoded)
            return
        self._gather_part(encoded.data)

    @property
    def _name_at_rest(self) -> bytes:
        """Under what the connection has it then: no filter."""
        return self._key.member.encode()

    def unsubscribed(self) -> None:
        """What was sent is completed; it leaves then."""
        self._dealt.clear()
        if not self._flying:
            self.leave()
            return
        self._rests = True
        self.block()
        self._members.leave(self._key, self._in_flight())
        self._main.windows[self._name_at_rest] = self

    def leave(self) -> None:
        """Nothing of it is under way, or the connection has ended."""
        self._dealt.clear()
        self._land()
        if self._rests:
            self._members.end_rest(self._key)
        else:
            self._members.leave(self._key)
        super().leave()

    def _land(self) -> None:
        """The connection has ended: QoS 2 is the session's to complete, the rest others'."""
        session = self.session
        for packet_id in [packet_id for packet_id, owner in session.shared.items() if owner is self]:
            del session.shared[packet_id]
            entry = session.unacknowledged.get(packet_id)
            if entry is not None and entry[2] == 2:
                self._members.done(self._key, entry[0], (entry[1],))  # [MQTT-4.8.2-4], [MQTT-4.8.2-5]
            elif entry is not None:
                session.abandon([packet_id])
        self._flying = 0


async def join_share(
    engine: BrokerEngine, main: MqttSubscriber, name: bytes, grant: Grant, since: Mapping[int, int] | None = None
) -> None:
    """Have `main`'s client be a member of the share that the filter `name` names, in the place of what it has under
    it. Raises TopicError, LexicastError, TimeoutError."""
    found = shared(name)
    assert found is not None
    subscriber = ShareSubscriber(engine, main, *found, grant)
    replaced, main.windows[name] = main.windows.get(name), subscriber
    if replaced is not None:
        replaced.unsubscribed()
    try:
        await subscriber.join(since)
    except BaseException:
        if main.windows.get(name) is subscriber:
            del main.windows[name]
            subscriber.leave()
        raise


async def join_again(engine: BrokerEngine, main: MqttSubscriber, grants: Mapping[bytes, Grant]) -> None:
    """A session is taken up again that is a member of shares: of those that its client has not left, or joined anew,
    meanwhile. Where there are too many shares it waits for room: what else the session has goes on.

    Raises LexicastError, TimeoutError.
    """
    waiting = dict(grants)
    while waiting:
        todo, waiting = waiting, {}
        for name, grant in todo.items():
            if main.closed or name not in main.session.subscriptions or name in main.windows:
                continue
            try:
                await join_share(engine, main, name, grant)
            except LimitError as error:
                log.warning("client %r: %r: %s", main.session.client_id, name, error)
                waiting[name] = grant
        if waiting:
            await asyncio.sleep(ROOM_S)
