"""One MQTT connection: a whole read at once in, joined buffers out; `session.Session` decides what the protocol needs.

    NEW      nothing but CONNECT is understood
    OPENING  the session is being taken over; what came behind CONNECT is held, the socket is not read
    OPEN     served
    CLOSED   the session was let go (saved, or ended); the will, if one is due, is out

Acknowledgements of publications go out in the order of the publications [MQTT-4.6.0-2], whatever group they belong to.
A publisher is not read while a pipeline is full. An error ends this connection with its reason and nothing else.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import TYPE_CHECKING, Any

from lexicast.cluster.blocks import FIRST_DICTIONARY, RETAIN
from lexicast.cluster.errors import DictionaryError, LexicastError, UnavailableError
from lexicast.cluster.properties import carried
from lexicast.cluster.topics import matches
from lexicast.compression.dictionary import Dictionary
from lexicast.compression.wire import ALIAS_TOPIC, Bindings

from .mqtt_codec import PacketReader, encode_acks, encode_packet, farewell
from .mqtt_connecting import Connecting, Refused
from .mqtt_packets import (
    DISCONNECT_WITH_WILL,
    KEEP_ALIVE_TIMEOUT,
    NOT_AUTHORIZED,
    PAYLOAD_FORMAT_INVALID,
    PROTOCOL_ERROR,
    PUBACK,
    PUBCOMP,
    PUBREC,
    PUBREL,
    QUOTA_EXCEEDED,
    SERVER_SHUTTING_DOWN,
    SERVER_UNAVAILABLE,
    SESSION_TAKEN_OVER,
    V5,
    AckRun,
    Auth,
    Connect,
    Disconnect,
    MqttProtocolError,
    PingReq,
    PingResp,
    PubAck,
    PubComp,
    PublishRun,
    PubRec,
    PubRel,
    Received,
    Subscribe,
    Unsubscribe,
    Will,
)
from .mqtt_properties import MESSAGE_EXPIRY_S, SESSION_EXPIRY_S
from .mqtt_subscribing import subscribe, unsubscribe
from .mqtt_subscriber import MqttSubscriber
from .session import Reply, Session

if TYPE_CHECKING:
    from .mqtt_listener import MqttListener

log = logging.getLogger(__name__)

NEW, OPENING, OPEN, CLOSED = range(4)
TOPICS_PUBLISHED_MAX = 1_000
PINGRESP = encode_packet(PingResp(), V5)


class Slot:
    """Publications that wait for their acknowledgement, in the order of the wire."""

    __slots__ = ("error", "ids", "qos", "ready")

    def __init__(self, qos: int, ids: list[int]) -> None:
        self.qos = qos
        self.ids = ids
        self.ready = False
        self.error: str | None = None


class MqttConnection(asyncio.Protocol):
    """See the module's docstring."""

    __slots__ = (
        "_acks",
        "_acks_scheduled",
        "_aliases",
        "_held",
        "_listener",
        "_paused",
        "_published_topics",
        "_reader",
        "_slots",
        "_state",
        "client_id",
        "heard",
        "heard_at",
        "keep_alive_s",
        "session",
        "subscriber",
        "transport",
    )

    def __init__(self, listener: MqttListener) -> None:
        self._listener = listener
        config = listener.config
        self._reader = PacketReader(config.packet_bytes_max, topic_alias_max=config.topic_alias_max)
        self._state = NEW
        self._held: list[Received] | None = None
        self._slots: deque[Slot] | None = None
        self._acks: list[bytes] | None = None
        self._acks_scheduled = False
        self._aliases: Bindings | None = None
        self._published_topics: set[bytes] | None = None
        self._paused = False
        self.client_id = ""
        self.heard = True
        self.heard_at = listener.now_s
        self.keep_alive_s = 0
        self.session: Session = None  # type: ignore[assignment]  # set before OPEN
        self.subscriber: MqttSubscriber | None = None
        self.transport: asyncio.Transport = None  # type: ignore[assignment]  # set by connection_made

    @property
    def version(self) -> int:
        """4 or 5; 0 before CONNECT."""
        return self._reader.version

    @property
    def is_open(self) -> bool:
        """Whether the client is being served."""
        return self._state == OPEN

    # -- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]  # uvloop's transport
        self.transport.set_write_buffer_limits(high=self._listener.config.output_bytes_max)
        self._listener.made(self)

    def data_received(self, data: bytes) -> None:
        self.heard = True
        items = self._reader.feed(data)
        if self._state == OPEN:
            self._handle(items)
        elif self._held is not None:
            self._held += items
        elif self._state == NEW and items:
            self._begin(items)
        if self._reader.error is not None and self._state != OPENING:
            self.fail(self._reader.error)

    def pause_writing(self) -> None:
        if self.subscriber is not None:
            self.subscriber.socket_full()

    def resume_writing(self) -> None:
        if self.subscriber is not None:
            self.subscriber.socket_drained()

    def connection_lost(self, error: Exception | None) -> None:
        self._close(with_will=True)
        self._listener.lost(self)

    # -- beginning

    def _begin(self, items: list[Received]) -> None:
        connect = items[0]
        assert isinstance(connect, Connect)  # the reader takes nothing else first
        self._state = OPENING
        self._held = items[1:]
        self.transport.pause_reading()
        self._listener.spawn(self._open(connect))

    async def _open(self, connect: Connect) -> None:
        try:
            await Connecting(self._listener, self, connect).run()
        except Refused as refused:
            self._refuse(refused.packet(connect.version))
        except (LexicastError, TimeoutError, OSError) as error:
            log.warning("client %r cannot be served now: %s", connect.client_id, error)
            self._refuse(Refused(SERVER_UNAVAILABLE).packet(connect.version))

    def _refuse(self, packet: bytes) -> None:
        if self._state != CLOSED:
            self.transport.write(packet)
            self._end()

    def opened(self, session: Session, subscriber: MqttSubscriber, connack: bytes, keep_alive_s: int) -> None:
        """The session is this connection's: answer, and go on with what was held."""
        self.session, self.subscriber, self.keep_alive_s = session, subscriber, keep_alive_s
        self.client_id = session.client_id
        if subscriber.kind.aware:
            self._aliases, self._published_topics = Bindings(), set()
        self._state = OPEN
        self.transport.write(connack)
        held, self._held = self._held or [], None
        self._handle(held)
        if self._reader.error is not None:
            self.fail(self._reader.error)
        elif self._state == OPEN and not self._paused:
            self.transport.resume_reading()

    @property
    def gone(self) -> bool:
        """Whether the client has left meanwhile."""
        return self._state == CLOSED

    # -- what the client sends

    def _handle(self, items: list[Received]) -> None:
        try:
            for item in items:
                if self._state != OPEN:
                    return
                if type(item) is PublishRun:
                    self._publish(item)
                elif type(item) is AckRun:
                    self._acks_in(item.kind, item.packet_ids)
                else:
                    _HANDLERS[type(item)](self, item)
        except MqttProtocolError as error:
            self.fail(error)
        except UnavailableError as error:
            log.warning("client %r: %s", self.client_id, error)
            self.disconnect(SERVER_UNAVAILABLE)

    def _acks_in(self, kind: int, ids: list[int]) -> None:
        session, subscriber = self.session, self.subscriber
        assert subscriber is not None
        if kind == PUBACK:
            session.on_pubacks(ids)
        elif kind == PUBREC:
            self._reply(session.on_pubrecs(ids))
            return
        elif kind == PUBCOMP:
            session.on_pubcomps(ids)
        else:
            self._release(ids)
            return
        if session.pending:
            self._listener.spawn(self.resend())
        subscriber.acknowledged()

    def _on_ack(self, ack: PubAck | PubRec | PubRel | PubComp) -> None:
        """An acknowledgement with a reason of its own."""
        if isinstance(ack, PubRec) and ack.reason_code >= 0x80:
            self._reply(self.session.on_pubrecs([ack.packet_id], refused=True))
            if self.subscriber is not None:
                self.subscriber.acknowledged()
            return
        kinds = {PubAck: PUBACK, PubRec: PUBREC, PubRel: PUBREL, PubComp: PUBCOMP}
        self._acks_in(kinds[type(ack)], [ack.packet_id])

    def _reply(self, replies: list[Reply]) -> None:
        for reply in replies:
            if isinstance(reply, AckRun):
                self.transport.write(encode_acks(reply.kind, reply.packet_ids))
            else:
                self.transport.write(encode_packet(reply, self.version))

    def _release(self, ids: list[int]) -> None:
        """PUBREL: PUBCOMP once the groups' forgetting is durable, since the client may use the ids again then."""
        released = self.session.on_pubrels(ids)
        known = {packet_id for listed in released.by_group.values() for packet_id in listed}
        unknown = [packet_id for packet_id in ids if packet_id not in known]
        wanted: dict[int | None, list[int]] = dict(released.by_group)
        if unknown:
            # Of an earlier connection, perhaps to another broker: whichever group remembers them.
            wanted[None] = unknown
        self._listener.spawn(self._release_then_reply(wanted, released.replies))

    async def _release_then_reply(self, wanted: dict[int | None, list[int]], replies: list[Reply]) -> None:
        try:
            await self._listener.release(self.session.uid, wanted)
        except (LexicastError, TimeoutError) as error:
            log.warning("client %r: PUBREL: %s", self.client_id, error)
            self.disconnect(SERVER_UNAVAILABLE)
            return
        if self._state == OPEN:
            self._reply(replies)

    # -- publications

    def _publish(self, run: PublishRun) -> None:
        topic = run.topic
        if topic.startswith(b"$"):
            self._publish_dollar(run)
            return
        properties, expiry_ms = None, 0
        if run.properties:
            properties = carried(run.properties)
            expiry_ms = int(run.properties.get(MESSAGE_EXPIRY_S, 0)) * 1000
        payloads, ids = run.payloads, run.packet_ids
        if ids is not None:
            group = self._listener.engine.group_of(topic)
            arrived = self.session.on_publishes(run.qos, ids, group)
            self._reply(arrived.replies)
            if arrived.fresh is not None:
                payloads = [payloads[i] for i in arrived.fresh]
                ids = [ids[i] for i in arrived.fresh]
                if not ids:
                    return
        flags = run.qos | (RETAIN if run.retain else 0)
        like: dict[str, Any] = {"expiry_ms": expiry_ms, "properties": properties} if run.properties else {}
        if self._aliases is None:
            self._publish_run(topic, flags, payloads, ids, like)
        else:
            self._publish_tagged(topic, flags, payloads, ids, like)

    def _publish_run(
        self, topic: bytes, flags: int, payloads: list[bytes], ids: list[int] | None, like: dict[str, Any]
    ) -> None:
        engine = self._listener.engine
        if ids is None:
            pipeline = engine.publish(topic, flags, payloads, self.client_id, **like)
        else:
            slot = Slot(flags & 3, ids)
            if self._slots is None:
                self._slots = deque()
            self._slots.append(slot)

            def done(result: Any) -> None:
                slot.ready = True
                slot.error = result if isinstance(result, str) else None
                self._slots_ready()

            mark = (self.session.uid, ids) if flags & 3 == 2 else None
            pipeline = engine.publish(topic, flags, payloads, self.client_id, done, mark, **like)
        if pipeline.full:
            self._pause()

    def _publish_tagged(
        self, topic: bytes, flags: int, payloads: list[bytes], ids: list[int] | None, like: dict[str, Any]
    ) -> None:
        """Publications of a dictionary-aware session: passed through untouched, run by run of one encoding."""
        recoder, aliases = self._listener.engine.recoder, self._aliases
        assert aliases is not None
        start = 0
        try:
            encoded = [recoder.from_aware(payload, aliases) for payload in payloads]
        except DictionaryError as error:
            raise MqttProtocolError(PAYLOAD_FORMAT_INVALID, "$sdc", str(error)) from None
        for end in range(1, len(encoded) + 1):
            if end < len(encoded) and encoded[end][:2] == encoded[start][:2]:
                continue
            encoding, dictionary = encoded[start][:2]
            data = [e.data for e in encoded[start:end]]
            run = {**like, "encoding": min(encoding, FIRST_DICTIONARY), "dictionary": dictionary}
            self._publish_run(topic, flags, data, None if ids is None else ids[start:end], run)
            start = end
        self._introduce_newest(topic)

    def _introduce_newest(self, topic: bytes) -> None:
        """Send the newest dictionary of a family to whoever publishes to it (wire rule 6)."""
        seen = self._published_topics
        if seen is None or topic in seen or self.subscriber is None:
            return
        if len(seen) < TOPICS_PUBLISHED_MAX:
            seen.add(topic)
        newest = self._listener.engine.dictionaries.newest(topic)
        if newest is not None:
            self.subscriber.introduce(newest)

    def new_dictionary(self, dictionary: Dictionary) -> None:
        """A family has a new dictionary; a publisher of that family gets it."""
        seen = self._published_topics
        if seen and self.subscriber is not None and any(matches(dictionary.family, topic) for topic in seen):
            self.subscriber.introduce(dictionary)

    def _publish_dollar(self, run: PublishRun) -> None:
        """`$sdc/alias` binds aliases; nothing else below `$` is for clients to publish."""
        if self._aliases is not None and run.topic == ALIAS_TOPIC and run.qos == 0:
            try:
                for payload in run.payloads:
                    self._aliases.bind(payload)
            except DictionaryError as error:
                raise MqttProtocolError(PAYLOAD_FORMAT_INVALID, "$sdc", str(error)) from None
            return
        log.info("client %r may not publish to %r", self.client_id, run.topic)
        ids = run.packet_ids
        if ids is None:
            return  # QoS 0: there is no way to say it, and the standard asks for none (4.7.2)
        if self.version != V5:
            raise MqttProtocolError(NOT_AUTHORIZED, "MQTT-3.3.5-2", f"{run.topic!r} is reserved for the broker")
        answer = PubAck if run.qos == 1 else PubRec
        for packet_id in ids:
            self.transport.write(encode_packet(answer(packet_id, NOT_AUTHORIZED), V5))

    def _slots_ready(self) -> None:
        if not self._acks_scheduled:
            self._acks_scheduled = True
            asyncio.get_running_loop().call_soon(self._send_acks)

    def _send_acks(self) -> None:
        """Everything that is acknowledged by now and next in order, as one write."""
        self._acks_scheduled = False
        slots, session = self._slots, self.session
        if self._state != OPEN or slots is None:
            return
        parts: list[bytes] = []
        while slots and slots[0].ready:
            slot = slots.popleft()
            if slot.error is None:
                session.committed(slot.qos, slot.ids)
                parts.append(encode_acks(PUBACK if slot.qos == 1 else PUBREC, slot.ids))
                continue
            session.refused(slot.qos, slot.ids)
            log.warning("client %r: publications refused: %s", self.client_id, slot.error)
            if self.version != V5:
                # 3.1.1 has no negative acknowledgement: only a closed connection says "not stored".
                self.transport.write(b"".join(parts))
                self.disconnect(QUOTA_EXCEEDED)
                return
            answer = PubAck if slot.qos == 1 else PubRec
            parts += [encode_packet(answer(packet_id, QUOTA_EXCEEDED), V5) for packet_id in slot.ids]
        if parts:
            self.transport.write(b"".join(parts))

    def _pause(self) -> None:
        if not self._paused:
            self._paused = True
            self._listener.waiting.add(self)
            self.transport.pause_reading()

    def resume(self) -> None:
        """The pipelines have room again."""
        self._paused = False
        if self._state == OPEN:
            self.transport.resume_reading()

    # -- other packets

    def _subscribe(self, packet: Subscribe) -> None:
        self._listener.spawn(subscribe(self._listener, self, packet))

    def _unsubscribe(self, packet: Unsubscribe) -> None:
        self.transport.write(unsubscribe(self._listener, self, packet))

    def _ping(self, packet: PingReq) -> None:
        self.transport.write(PINGRESP)

    def _disconnect_in(self, packet: Disconnect) -> None:
        expiry = (packet.properties or {}).get(SESSION_EXPIRY_S)
        if expiry is not None:
            if expiry and not self.session.expiry_s:
                raise MqttProtocolError(
                    PROTOCOL_ERROR, "MQTT-3.14.2-2", "a session that was to end with its connection cannot be kept now"
                )
            self.session.expiry_s = min(expiry, self._listener.config.session_expiry_s_max)
        self._close(with_will=packet.reason_code == DISCONNECT_WITH_WILL)
        self.transport.close()

    def _auth(self, packet: Auth) -> None:
        raise MqttProtocolError(PROTOCOL_ERROR, "MQTT-4.12.0-7", "no authentication method was agreed")

    def _again(self, packet: Connect) -> None:
        raise MqttProtocolError(PROTOCOL_ERROR, "MQTT-3.1.0-2", "a second CONNECT")

    # -- sending again after a reconnect

    async def resend(self) -> None:
        """Send what an earlier connection left unacknowledged, as the window allows."""
        again = self.session.resend()
        if not again or self.subscriber is None:
            return
        try:
            blocks = await self._listener.sessions.content([(r.group, r.offset) for r in again])
        except LexicastError as error:
            log.warning("client %r: %s", self.client_id, error)
            self.disconnect(SERVER_UNAVAILABLE)
            return
        if self._state == OPEN:
            self.subscriber.send_again(again, blocks)
            self.subscriber.acknowledged()

    # -- the end

    def check_keep_alive(self, now_s: float) -> None:
        """Close when nothing was heard for one and a half times the keep-alive [MQTT-3.1.2-22], or no CONNECT came."""
        if self.heard:
            self.heard, self.heard_at = False, now_s
        silent_s = now_s - self.heard_at
        if self._state == NEW and silent_s > self._listener.config.connect_timeout_s:
            self.transport.abort()
        elif self._state == OPEN and self.keep_alive_s and silent_s > 1.5 * self.keep_alive_s and not self._paused:
            self.disconnect(KEEP_ALIVE_TIMEOUT, with_will=True)

    def fail(self, error: MqttProtocolError) -> None:
        """The client broke the rules: say so and close."""
        if self._state == CLOSED:
            return
        log.info("client %r: %s", self.client_id, error)
        self.transport.write(farewell(error, self.version, connected=self._state == OPEN))
        self._end()

    def disconnect(self, reason_code: int, with_will: bool = True) -> None:
        """The server ends the connection."""
        if self._state == CLOSED:
            return
        if self._state == OPEN and self.version == V5:
            self.transport.write(encode_packet(Disconnect(reason_code), V5))
        self._end(with_will)

    def _end(self, with_will: bool = True) -> None:
        self._close(with_will)
        if not self.transport.is_closing():
            self.transport.close()
            # A peer that never reads would hold its buffer for ever.
            asyncio.get_running_loop().call_later(self._listener.config.connect_timeout_s, self.transport.abort)

    def shut_down(self) -> None:
        """The broker stops: wills are not due, sessions are saved."""
        self.disconnect(SERVER_SHUTTING_DOWN, with_will=False)

    def snapshot(self) -> Session:
        """The session with its cursor as it stands."""
        if self.subscriber is not None:
            self.session.cursor = self._listener.engine.cursor_of(self.subscriber)
        return self.session

    def taken_over(self) -> bytes:
        """Another connection has the session now [MQTT-3.1.4-3]."""
        state = self._listener.state_of(self.snapshot())
        will = self._take_will()
        self._leave()
        if self.version == V5 and not self.transport.is_closing():
            self.transport.write(encode_packet(Disconnect(SESSION_TAKEN_OVER), V5))
        if not self.transport.is_closing():
            self.transport.close()
        if will is not None:
            self._listener.will_of_taken(self.session, will)
        return state

    def _take_will(self) -> Will | None:
        will, self.session.will = self.session.will, None
        return will

    def _leave(self) -> None:
        self._state = CLOSED
        if self.subscriber is not None:
            self._listener.engine.leave(self.subscriber)
        if self._listener.sessions.owners.get(self.client_id) is self:
            del self._listener.sessions.owners[self.client_id]

    def _close(self, with_will: bool) -> None:
        """Let the session go, once."""
        state, self._state = self._state, CLOSED
        if state != OPEN:
            return
        self.snapshot()
        will = self._take_will()
        self._leave()
        if with_will and will is not None:
            self._listener.sessions.publish_will(self.session, will)
        self._listener.sessions.let_go(self.session)


_HANDLERS: dict[type, Any] = {
    PubAck: MqttConnection._on_ack,
    PubRec: MqttConnection._on_ack,
    PubRel: MqttConnection._on_ack,
    PubComp: MqttConnection._on_ack,
    Subscribe: MqttConnection._subscribe,
    Unsubscribe: MqttConnection._unsubscribe,
    PingReq: MqttConnection._ping,
    Disconnect: MqttConnection._disconnect_in,
    Auth: MqttConnection._auth,
    Connect: MqttConnection._again,
}
