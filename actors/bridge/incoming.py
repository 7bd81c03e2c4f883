"""From the other broker to this cluster: what comes is acknowledged once it is committed here.

What has come waits in one queue, in order, and is published by one task, as much at a time as has gathered; so the
order stays (but where the cluster has room again in the midst of one turn). What this cluster has no room for is tried
again for as long as it takes (RETRY_S); meanwhile the queue fills, and what it does not take stays in the socket, and
at last in the other broker's session, which is persistent.

An acknowledgement goes over the connection on which its publication came, and no other: the other broker sends again
what it has none of [MQTT-4.4.0-1], and of two for one id the second would be taken for that of the id's next
publication. What is sent again and is here is acknowledged in its turn, and not stored again.

QoS 2: an id is remembered until it is released [MQTT-4.3.3-10], over any number of connections, not over the end of
this process: what the other broker sends again then may be stored twice, as with QoS 1.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final, TypeAlias

from lexicast.cluster.bridges.echoes import Echoes
from lexicast.cluster.bridges.hops import onward
from lexicast.cluster.bridges.topic_map import TopicMap
from lexicast.cluster.errors import TopicError, UsageError
from lexicast.cluster.properties import carried

from ..client.awaited_positions import PublishManyRefusedError
from ..client.client import Client
from ..client.entries import EXPIRY_S_MAX
from ..client.messages import Properties, unpack_properties
from ..client.publisher import CHUNK
from ..mqtt.codec import encode_acks
from ..mqtt.codec.packets import PUBACK, PUBCOMP, PUBREC, PublishRun
from ..mqtt.codec.properties import expiry_ms
from .counters import BridgeCounters
from .remote_link import RemoteLink

RETRY_S: Final = 1.0
# Waiting to be stored; beyond it the socket is not read.
QUEUE_RECORDS_MAX: Final = 8_192
QUEUE_BYTES_MAX: Final = 16 * 1024 * 1024
# Published at a time, by calls of so many, of which each is taken whole or not at all.
TURN_RECORDS: Final = 4_096
CALL_RECORDS: Final = CHUNK


# What publications agree in that are published by one call: QoS, retain, expiry in seconds, properties.
Kind: TypeAlias = tuple[int, bool, float | None, Properties]
# Topic and payload.
Pair: TypeAlias = tuple[str, bytes]


@dataclass(slots=True)
class _Waiting:
    """Publications of one kind, of one connection, as they came. `is_stored` False: they are acknowledged only."""

    kind: Kind
    is_stored: bool
    connection: int
    records: int = 0
    size: int = 0
    messages: list[Pair] = field(default_factory=list)
    packet_ids: list[int] = field(default_factory=list)


class IncomingTopics:
    """See the module's docstring."""

    def __init__(self, client: Client, topics: TopicMap, own_id: str, counters: BridgeCounters, echoes: Echoes) -> None:
        self._client = client
        self._topics = topics
        self._own_id = own_id
        self._counters = counters
        self._echoes = echoes
        self._link: RemoteLink | None = None
        self._remote_id = ""
        self._echoing = False
        # Of what comes without properties.
        self._usual = Properties()
        self._queue: deque[_Waiting] = deque()
        self._records = self._bytes = 0
        self._arrived = asyncio.Event()
        self._paused = False
        # What came on an older one is not acknowledged. The other broker's session began with `_kept_since`.
        self._connection = self._kept_since = 0
        # Of this connection, and not acknowledged; of QoS 1, of the one before; of QoS 2 and not released.
        self._open: set[int] = set()
        self._before: set[int] = set()
        self._unreleased: set[int] = set()

    @property
    def waiting(self) -> int:
        """Publications that have come, and are not stored yet."""
        return self._records

    @property
    def connection(self) -> int:
        """The number of the present connection, or of the last."""
        return self._connection

    def comes_again(self, connection: int) -> bool:
        """Whether what came on that connection, and was not acknowledged, comes again on the present one."""
        return self._kept_since <= connection < self._connection

    def connected(self, link: RemoteLink, remote_id: str, session_present: bool, echoing: bool) -> None:
        """A connection is there. `echoing`: what is published there comes back."""
        self._link, self._remote_id, self._echoing = link, remote_id, echoing
        self._usual = Properties(user=onward((), remote_id, self._own_id) or ())
        self._paused = False
        self._connection += 1
        if not session_present:
            self._kept_since = self._connection
            self._open.clear()
            self._unreleased.clear()
        self._before = self._open - self._unreleased
        self._open = set()
        self._look_for_room()

    def lost(self) -> None:
        """It is over."""
        self._link = None

    # -- from the other broker

    def take(self, run: PublishRun, now_s: float) -> None:
        """Publications have come."""
        ids = run.packet_ids
        if ids is None or not (run.dup or run.qos == 2) or not any([self._is_repeat(run, each) for each in ids]):
            self._take_fresh(run, now_s)
            return
        for number, each in enumerate(ids):
            part = _part(run, [number])
            if not self._is_repeat(run, each):
                self._take_fresh(part, now_s)
            elif each not in self._open:
                self._put(None, part, Properties())

    def _is_repeat(self, run: PublishRun, packet_id: int) -> bool:
        """Whether it is here already: of QoS 2 an id that was not released [MQTT-4.3.3-10], of QoS 1 one that comes
        again and was not acknowledged."""
        if run.qos == 2:
            return packet_id in self._unreleased
        return run.dup and (packet_id in self._open or packet_id in self._before)

    def _take_fresh(self, run: PublishRun, now_s: float) -> None:
        if run.qos == 2:
            self._unreleased.update(run.packet_ids or ())
        name = self._topics.mapped(run.topic)
        if name is None:
            self._counters.refused_in += len(run.payloads)
            topic = run.topic.decode(errors="replace")
            self._counters.error(f"{topic!r} has no name here: `remote` taken off, `local` put before it")
        properties = self._usual
        if run.properties:
            properties = unpack_properties(carried(run.properties)) or Properties()
            user = onward(properties.user, self._remote_id, self._own_id)
            if name is not None and user is None:
                self._counters.looped_in += len(run.payloads)
                name = None
            properties = replace(properties, user=user or ())
        if name is not None and self._echoing:
            self._put_others(name, run, properties, now_s)
        else:
            self._put(name, run, properties)

    def pass_over(self, run: PublishRun) -> None:
        """They cannot be read: acknowledged in their turn, or they would come for ever."""
        self._put(None, run, Properties())

    def released(self, packet_ids: list[int]) -> None:
        """PUBREL."""
        self._unreleased.difference_update(packet_ids)
        if self._link is not None:
            self._link.send(encode_acks(PUBCOMP, packet_ids))

    def _put_others(self, name: str, run: PublishRun, properties: Properties, now_s: float) -> None:
        """All of them, in order, since they are acknowledged in order [MQTT-4.6.0-2]; own ones are not stored."""
        own = [self._echoes.came(run.topic, payload, now_s) for payload in run.payloads]
        if not any(own):
            self._put(name, run, properties)
            return
        for number, is_own in enumerate(own):
            self._counters.looped_in += is_own
            self._put(None if is_own else name, _part(run, [number]), properties)

    def _put(self, name: str | None, run: PublishRun, properties: Properties) -> None:
        kind: Kind = (run.qos, run.retain, _expiry_s(run), properties)
        last = self._queue[-1] if self._queue else None
        if (
            last is None
            or last.kind != kind
            or last.is_stored != (name is not None)
            or last.connection != self._connection
            or last.records >= CALL_RECORDS
        ):
            last = _Waiting(kind, name is not None, self._connection)
            self._queue.append(last)
        count, size = len(run.payloads), sum(map(len, run.payloads))
        if name is not None:
            last.messages += [(name, payload) for payload in run.payloads]
        if run.packet_ids is not None:
            last.packet_ids += run.packet_ids
            self._open.update(run.packet_ids)
            self._before.difference_update(run.packet_ids)
        last.records += count
        last.size += size
        self._records += count
        self._bytes += size
        self._arrived.set()
        self._look_for_room()

    def _look_for_room(self) -> None:
        part = 2 if self._paused else 1
        full = self._records > QUEUE_RECORDS_MAX // part or self._bytes > QUEUE_BYTES_MAX // part
        if full != self._paused and self._link is not None:
            self._paused = full
            self._link.pause(full)

    # -- to the cluster

    async def store(self) -> None:
        """Store what comes; runs for ever."""
        while True:
            await self._arrived.wait()
            turn: list[_Waiting] = []
            records = 0
            while self._queue and records < TURN_RECORDS:
                turn.append(self._queue.popleft())
                records += turn[-1].records
            if not self._queue:
                self._arrived.clear()
            await self._publish(turn)
            self._acknowledge(turn)
            self._records -= records
            self._bytes -= sum(each.size for each in turn)
            self._look_for_room()

    async def _publish(self, turn: list[_Waiting]) -> None:
        """Returns once all of it is stored, or will never be."""
        left: list[tuple[Kind, list[Pair]]] = [
            (each.kind, each.messages[at : at + CALL_RECORDS])
            for each in turn
            for at in range(0, len(each.messages), CALL_RECORDS)
        ]
        while left:
            refused = await asyncio.gather(*[self._publish_alike(kind, messages) for kind, messages in left])
            left = [(kind, again) for (kind, _), again in zip(left, refused, strict=True) if again]
            if left:
                self._counters.retried_in += sum(len(again) for _, again in left)
                await asyncio.sleep(RETRY_S)

    async def _publish_alike(self, kind: Kind, messages: list[Pair]) -> list[Pair]:
        """What of these was refused, and is to be tried again."""
        qos, retain, expiry_s, properties = kind
        try:
            await self._client.publish_many(messages, qos=qos, retain=retain, expiry_s=expiry_s, properties=properties)
        except PublishManyRefusedError as error:
            self._counters.error(f"this cluster has no room: {error}")
            refused = [pair for pair, place in zip(messages, error.positions, strict=True) if place is None]
            self._counters.received += len(messages) - len(refused)
            return refused
        except (TopicError, UsageError) as error:
            if len(messages) > 1:  # something is wrong with some of them
                half = len(messages) // 2
                first = await self._publish_alike(kind, messages[:half])
                return first + await self._publish_alike(kind, messages[half:])
            self._counters.refused_in += 1
            self._counters.error(f"this cluster does not take it: {error}")
            return []
        self._counters.received += len(messages)
        return []

    def _acknowledge(self, turn: list[_Waiting]) -> None:
        """In the order in which they came [MQTT-4.6.0-2], [MQTT-4.6.0-3]."""
        link, parts = self._link, []
        for each in turn:
            if link is None or not each.packet_ids or each.connection != self._connection:
                continue
            self._open.difference_update(each.packet_ids)
            parts.append(encode_acks(PUBACK if each.kind[0] == 1 else PUBREC, each.packet_ids))
        if link is not None and parts:
            link.send(b"".join(parts))


def _expiry_s(run: PublishRun) -> float | None:
    """As this cluster takes it: above 0, and no more than it counts."""
    expires_ms = expiry_ms(run.properties or {})
    return min(expires_ms / 1_000, float(EXPIRY_S_MAX)) if expires_ms else None


def _part(run: PublishRun, numbers: Sequence[int]) -> PublishRun:
    ids = run.packet_ids
    return PublishRun(
        run.topic,
        run.qos,
        run.retain,
        run.dup,
        run.properties,
        [run.payloads[number] for number in numbers],
        None if ids is None else [ids[number] for number in numbers],
    )
