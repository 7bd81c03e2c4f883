"""One bridge, without Ray: its connections to the other broker, one after the other, and what flows over them.

    await may_connect()  ->  dial  ->  CONNECT, CONNACK  ->  SUBSCRIBE, SUBACK  ->  both ways, until it ends
          ^                                                                              |
          +------------------ a pause, drawn at random, longer each time ----------------+

The other broker keeps one session for the bridge, under one client id: so of two that take themselves for the bridge
the second ends the first one's connection, and `may_connect` lets only the one that the cluster knows try again.
"""

from __future__ import annotations

import asyncio
import logging
import random
import ssl
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final

from lexicast.cluster.bridges.definitions import BridgeDefinition, BridgeSecrets
from lexicast.cluster.bridges.echoes import Echoes
from lexicast.cluster.bridges.topic_map import TopicMap
from lexicast.cluster.errors import TopicError, UnavailableError
from lexicast.compression.session import ClientSession, Deliver, Fail, Fetch, Lost, Step
from lexicast.compression.wire import LOST_TOPIC

from ..client.client import Client
from ..loop.background import keep_going, stop_loops
from ..mqtt.codec import encode_acks, encode_publish
from ..mqtt.codec.packets import (
    PUBREL,
    V5,
    AckRun,
    ConnAck,
    Disconnect,
    PubAck,
    PubComp,
    PublishRun,
    PubRec,
    PubRel,
    Received,
    SubAck,
    Subscribe,
    SubscriptionOptions,
    Unsubscribe,
)
from .bridge_bit import BridgeBit
from .counters import BridgeCounters
from .handshake import (
    RemoteTerms,
    client_id_of,
    connect_of,
    failed,
    granted_terms,
    level_of,
    refusal,
    refuses_version,
    subscriptions_of,
)
from .incoming import IncomingTopics
from .link_encoder import Arrived, LinkEncoder, bindings_packets
from .outgoing import OutgoingTopics
from .remote_link import RemoteLink, dial_remote, tls_context

log = logging.getLogger(__name__)

ANSWER_S: Final = 30.0
TICK_S: Final = 1.0
# A connection that has lasted so long was a good one: the pause after it is the shortest.
GOOD_S: Final = 10.0
# Packet ids of SUBSCRIBE and UNSUBSCRIBE: beyond all that publications have.
REQUEST_IDS: Final = range(60_001, 65_536)


class BridgeServer:
    """See the module's docstring."""

    def __init__(
        self,
        client: Client,
        definition: BridgeDefinition,
        secrets: BridgeSecrets,
        own_id: str,
        may_connect: Callable[[], Awaitable[bool]] | None = None,
    ) -> None:
        """`client`: of this cluster, open; `own_id`: what names it among the hops; `may_connect`: whether this is the
        bridge still. Raises ConfigError for certificates that are none."""
        self._definition = definition
        self._secrets = secrets
        self._context: ssl.SSLContext | None = tls_context(definition, secrets)
        self._own_id = own_id
        self._may_connect = may_connect
        self._version = level_of(definition)
        self.counters = BridgeCounters()
        self._echoes = Echoes()
        comes_in = TopicMap([topic.remote_side() for topic in definition.topic if topic.comes_in])
        self._outgoing = OutgoingTopics(
            client,
            definition.name,
            definition.topic,
            own_id,
            definition.window,
            self.counters,
            self._echoes,
            comes_in,
        )
        self._incoming = IncomingTopics(client, comes_in, own_id, self.counters, self._echoes)
        self._session: ClientSession[Arrived] = ClientSession()
        self._link: RemoteLink | None = None
        self._terms: RemoteTerms | None = None
        self._connack: asyncio.Future[ConnAck] | None = None
        self._answers: dict[int, asyncio.Future[SubAck]] = {}
        self._next_request = 0
        self._bit = BridgeBit(definition.tells_bridge and self._version != V5)
        self._started = False
        # Whether the subscriptions were made with the bridge bit; None: not all are made, as far as is known: also of a
        # session that the other broker may have begun while a connection was not answered.
        self._subscribed_with_bit: bool | None = None
        self._filters_refused: list[str] = []
        self._since_us = 0
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Begin; what goes wrong is told by `status`, and tried again."""
        name = self._definition.name
        loops = [*self._outgoing.loops(), self._incoming.store(), self._connect_for_ever(), self._tick()]
        self._tasks = [keep_going(loop, f"bridge {name}") for loop in loops]

    async def stop(self) -> None:
        """End it; what is not acknowledged goes out again when it begins anew."""
        await stop_loops(*self._tasks)
        if self._link is not None:
            self._link.close("it is stopped")

    def status(self) -> dict[str, Any]:
        """For `lexicast status`."""
        link = self._link
        return {
            "name": self._definition.name,
            "address": self._definition.address,
            "connected": self._terms is not None,
            "since_us": self._since_us,
            "client_id": client_id_of(self._definition, self._own_id),
            "lexicast": "" if self._terms is None else self._terms.cluster,
            "compressed": self._terms is not None and self._terms.aware,
            "unacknowledged": self._outgoing.under_way,
            "waiting_in": self._incoming.waiting,
            "refused_waiting": self._outgoing.refused_waiting,
            "filters_refused": len(self._filters_refused),
            "repeats": self._outgoing.repeats,
            "echoes_forgotten": self._echoes.forgotten,
            "link_bytes_out": 0 if link is None else link.bytes_sent,
            "link_bytes_in": 0 if link is None else link.bytes_received,
            **self.counters.plain(),
        }

    # -- connections

    async def _connect_for_ever(self) -> None:
        shortest_s, longest_s = self._definition.reconnect_s
        pause_s, told = shortest_s, ""
        while True:
            began_s = time.monotonic()
            try:
                await self._connection()
            except UnavailableError as error:
                self.counters.error(str(error))
                # The same again and again is said once; `lexicast status` tells it too.
                level = logging.INFO if str(error) == told else logging.WARNING
                log.log(level, "bridge %s: %s", self._definition.name, error)
                told = str(error)
            if time.monotonic() - began_s > GOOD_S:
                pause_s = shortest_s
            # Decorrelated: bridges that were cut together do not come together (Brooker, AWS, 2015).
            pause_s = min(longest_s, random.uniform(shortest_s, 3 * pause_s))
            await asyncio.sleep(pause_s)

    async def _connection(self) -> None:
        """One connection, until it ends. Raises UnavailableError: why."""
        if self._may_connect is not None and not await self._may_connect():
            raise UnavailableError("another one is this bridge by now, or the coordination server does not say")
        link = self._link = await dial_remote(self._definition, self._context, self._received)
        try:
            terms = await self._open(link)
            await self._subscribe(link, terms)
            self._begin(link, terms)
            await link.ended.wait()
            raise UnavailableError(link.reason)
        finally:
            self._terms = None
            self._outgoing.lost()
            self._incoming.lost()
            self._bit.ended()
            self._since_us = time.time_ns() // 1_000
            link.end("it is over")
            self._link = None
            self._answers.clear()

    async def _open(self, link: RemoteLink) -> RemoteTerms:
        clean = self._definition.clean_start and not self._started
        self._connack = asyncio.get_running_loop().create_future()
        link.send_packet(connect_of(self._definition, self._secrets, self._own_id, clean, self._bit.tells))
        try:
            connack: ConnAck = await self._answer(link, self._connack)
        except UnavailableError:
            self._bit.unanswered()
            self._subscribed_with_bit = None
            raise
        if refuses_version(connack):
            self._bit.refused()
        if why := refusal(connack):
            raise UnavailableError(why)
        self._bit.accepted()
        return granted_terms(self._definition, connack)

    async def _answer(self, link: RemoteLink, answer: asyncio.Future[Any]) -> Any:
        """What is answered. Raises UnavailableError: the connection has ended before, or it takes too long."""
        ending = asyncio.ensure_future(link.ended.wait())
        try:
            await asyncio.wait([answer, ending], timeout=ANSWER_S, return_when=asyncio.FIRST_COMPLETED)
        finally:
            ending.cancel()
        if answer.done():
            return answer.result()
        raise UnavailableError(link.reason if link.ended.is_set() else f"it does not answer within {ANSWER_S:.0f} s")

    async def _subscribe(self, link: RemoteLink, terms: RemoteTerms) -> None:
        """What comes may come before it is answered. Raises UnavailableError."""
        wanted = subscriptions_of(self._definition)
        # In 3.1.1 each SUBSCRIBE brings what is retained once more.
        goes_on = terms.session_present and self._version != V5
        if not wanted or (goes_on and self._subscribed_with_bit == self._bit.tells):
            return
        self._filters_refused = []
        self._subscribed_with_bit = None
        for filters in (wanted[at : at + 20] for at in range(0, len(wanted), 20)):
            suback = await self._answer(link, self._request(link, filters))
            if len(suback.reason_codes) != len(filters):
                raise UnavailableError(f"it answers {len(filters)} filters with {len(suback.reason_codes)} codes")
            for number in failed(suback.reason_codes):
                told = filters[number][0].decode()
                self._filters_refused.append(told)
                self.counters.error(f"the other broker does not let it subscribe to {told!r}")
        self._subscribed_with_bit = None if self._filters_refused else self._bit.tells

    def _request(self, link: RemoteLink, filters: list[tuple[bytes, SubscriptionOptions]]) -> asyncio.Future[SubAck]:
        packet_id = self._request_id()
        answer = self._answers[packet_id] = asyncio.get_running_loop().create_future()
        link.send_packet(Subscribe(packet_id, filters))
        return answer

    def _request_id(self) -> int:
        self._next_request = (self._next_request + 1) % len(REQUEST_IDS)
        return REQUEST_IDS[self._next_request]

    def _begin(self, link: RemoteLink, terms: RemoteTerms) -> None:
        self._terms = terms
        if terms.session_present and not self._started and self._outgoing.has_qos2:
            # What this bridge had under way before its process began is not known; see `sent_publications`.
            link.send(encode_acks(PUBREL, self._outgoing.sent.all_ids()))
        self._started = True
        self._since_us = time.time_ns() // 1_000
        self.counters.connects += 1
        definition = self._definition
        session = self._session if terms.aware else None
        encoder = LinkEncoder(
            self._version,
            session,
            terms.batches,
            definition.batch_bytes,
            definition.batch_s,
            terms.packet_bytes_max,
        )
        link.keep_alive(terms.keep_alive_s)
        self._outgoing.connected(link, terms, encoder, self._version, self._remote_id(terms), self._echoing)

    def _remote_id(self, terms: RemoteTerms) -> str:
        return terms.cluster or self._definition.remote_name

    @property
    def _echoing(self) -> bool:
        """Whether what is published there comes back: 5 has No Local, 3.1.1 the bridge bit, where it is known."""
        return self._version != V5 and not self._bit.tells

    # -- packets

    def _received(self, items: list[Received]) -> None:
        now_s = asyncio.get_running_loop().time()
        for item in items:
            if isinstance(item, PublishRun):
                self._arrived(item, now_s)
            elif isinstance(item, AckRun) and item.kind == PUBREL:
                self._incoming.released(item.packet_ids)
            elif isinstance(item, AckRun | PubAck | PubRec | PubComp):
                self._outgoing.acknowledged(item)
            else:
                self._other(item)

    def _other(self, item: Received) -> None:
        if isinstance(item, PubRel):
            self._incoming.released([item.packet_id])
        elif isinstance(item, ConnAck):
            self._accepted(item)
        elif isinstance(item, SubAck):
            answer = self._answers.pop(item.packet_id, None)
            if answer is not None and not answer.done():
                answer.set_result(item)
        elif isinstance(item, Disconnect) and self._link is not None:
            self._link.end(f"it ends the connection, 0x{item.reason_code:02x}")

    def _accepted(self, connack: ConnAck) -> None:
        """What the other broker has kept may stand right behind it, in the same read: that is taken as of this
        connection, with what it grants."""
        link = self._link
        if link is None or self._connack is None or self._connack.done():
            return
        self._connack.set_result(connack)
        if refusal(connack):
            return
        terms = granted_terms(self._definition, connack)
        if not terms.session_present:
            self._echoes.clear()
        self._incoming.connected(link, self._remote_id(terms), terms.session_present, self._echoing)
        try:
            steps = self._session.connected(terms.aware, terms.opted_out, terms.streams, terms.history, terms.batches)
        except TopicError as error:
            link.end(f"it names topics that are none: {error}")
            return
        if terms.aware:
            link.send(bindings_packets(self._session.held()))
        self._perform(steps)

    def _arrived(self, run: PublishRun, now_s: float) -> None:
        if not self._session.aware:
            self._incoming.take(run, now_s)
            return
        ids = run.packet_ids or [0] * len(run.payloads)
        for packet_id, payload in zip(ids, run.payloads, strict=True):
            arrived = (run, packet_id, self._incoming.connection)
            self._perform(self._session.incoming(arrived, run.topic, payload, now_s))

    def _perform(self, steps: list[Step[Arrived]]) -> None:
        link, now_s = self._link, asyncio.get_running_loop().time()
        for step in steps:
            if isinstance(step, Deliver):
                if (run := self._single(step.item, step.payload)) is not None:
                    self._incoming.take(run, now_s)
            elif isinstance(step, Fail):
                self.counters.damaged += 1
                self.counters.error(str(step.error))
                if step.item is not None and (run := self._single(step.item, b"")) is not None:
                    self._incoming.pass_over(run)
            elif link is None:
                continue
            elif isinstance(step, Fetch):
                link.send_packet(Subscribe(self._request_id(), [(step.topic, SubscriptionOptions())]))
            elif isinstance(step, Lost):
                link.send(encode_publish(V5, LOST_TOPIC, step.topic))
            else:
                link.send_packet(Unsubscribe(self._request_id(), [step.topic]))

    def _single(self, arrived: Arrived, payload: bytes) -> PublishRun | None:
        """One of a run, decompressed. It may have waited for its dictionary since an older connection: then it comes
        again, and this one is nobody's; or it is of a session that is over, where nobody waits for its
        acknowledgement."""
        run, packet_id, connection = arrived
        if packet_id and self._incoming.comes_again(connection):
            return None
        ids = [packet_id] if packet_id and connection == self._incoming.connection else None
        return PublishRun(run.topic, run.qos, run.retain, run.dup, run.properties, [payload], ids)

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            if self._terms is not None and self._terms.aware:
                self._perform(self._session.tick(asyncio.get_running_loop().time()))
