"""One MQTT connection: a whole read at once in, joined buffers out; `session.Session` decides what the protocol needs.

    NEW      nothing but CONNECT is understood
    OPENING  the session is being taken over; what came behind CONNECT is held, the socket is not read
    OPEN     served
    CLOSED   the session was let go (saved, or ended); the will, if one is due, is out

Packets are taken in the order of the wire. One that has to be finished before anything behind it is looked at (CONNECT,
SUBSCRIBE, UNSUBSCRIBE, a binding of dictionaries that are not here) stalls the connection: what stands behind it is
held until `go_on`, PINGREQ and acknowledgements of deliveries aside.

The socket is not read while there is a reason not to: something is held (HELD: so at most one read is), the pipelines
are full (NO_ROOM), too many PUBRELs wait (RELEASES), or the client does not take the answers it asked for (UNREAD).
Each reason is ended by whoever gave it. An error ends this connection with its reason and nothing else.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

from lexicast.cluster.errors import LexicastError, UnavailableError

from .codec.codec import PacketReader, encode_packet, farewell
from .codec.encode import encode_answer, encode_replies
from .codec.packets import (
    KEEP_ALIVE_TIMEOUT,
    NO_TERMS,
    PACKET_TOO_LARGE,
    SERVER_BUSY,
    SERVER_SHUTTING_DOWN,
    SERVER_UNAVAILABLE,
    SESSION_TAKEN_OVER,
    SUCCESS,
    UNSPECIFIED_ERROR,
    V5,
    AckRun,
    Answer,
    Connect,
    Disconnect,
    MqttProtocolError,
    PingReq,
    PingResp,
    PublishRun,
    Received,
    Subscribe,
    Terms,
    Unsubscribe,
    Will,
)
from .connecting import Connecting, Refused
from .handlers import HANDLERS, acks_in, overtakes
from .publishing import Publishing
from .session import Reply, Session
from .subscriber import MqttSubscriber

if TYPE_CHECKING:
    from .listener import MqttListener

log = logging.getLogger(__name__)

# Reasons not to read the socket.
NO_ROOM, RELEASES, UNREAD, HELD = 1, 2, 4, 8
# Publications of an earlier connection fetched at a time, to be sent again.
RESEND_RECORDS = 16
# How long a client may go on sending, unread, after its farewell.
LINGER_S = 2.0
PINGRESP = encode_packet(PingResp(), V5)

NEW, OPENING, OPEN, CLOSED = range(4)


class MqttConnection(asyncio.Protocol):
    """See the module's docstring."""

    __slots__ = (
        "_held",
        "_listener",
        "_pauses",
        "_reader",
        "_resending",
        "_stalled",
        "_state",
        "client_id",
        "heard",
        "heard_at",
        "keep_alive_s",
        "publisher",
        "resumed",
        "session",
        "subscriber",
        "terms",
        "transport",
    )

    def __init__(self, listener: MqttListener) -> None:
        self._listener = listener
        config = listener.config
        self._reader = PacketReader(config.packet_bytes_max, topic_alias_max=config.topic_alias_max)
        self._state = NEW
        self._stalled = False
        self._held: list[Received] | None = None
        self.publisher: Publishing | None = None
        self._resending = False
        self._pauses = 0
        self.client_id = ""
        self.heard = False
        self.heard_at = asyncio.get_running_loop().time()
        self.keep_alive_s = 0
        self.resumed = False
        self.session: Session = None  # type: ignore[assignment]  # set before OPEN
        self.subscriber: MqttSubscriber | None = None
        self.terms = NO_TERMS
        self.transport: asyncio.Transport = None  # type: ignore[assignment]  # set by connection_made

    @property
    def version(self) -> int:
        """4 or 5; 0 before CONNECT."""
        return self._reader.version

    @property
    def listener(self) -> MqttListener:
        """Whose connection it is."""
        return self._listener

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
        if self._state == CLOSED:
            return  # see `_hang_up`
        self.heard = True
        self._take(self._reader.feed(data))
        # Deliveries stop at a full socket; answers do not, so that a client that takes none is not read.
        full = self.subscriber is not None and self.subscriber.is_socket_full
        if full and self.transport.get_write_buffer_size() > 2 * self._listener.config.output_bytes_max:
            self._pause(UNREAD)

    def pause_writing(self) -> None:
        if self.subscriber is not None:
            self.subscriber.socket_full()

    def resume_writing(self) -> None:
        if self.subscriber is not None and self._state == OPEN:
            self._resume(UNREAD)
            self.subscriber.socket_drained()
            self._send_again()

    def connection_lost(self, error: Exception | None) -> None:
        self._close(with_will=True)
        self._listener.lost(self)

    # -- beginning

    def begin(self, connect: Connect) -> None:
        """CONNECT: the reader takes nothing else first."""
        self._state = OPENING
        self.stall()
        self._pause(HELD)
        self._listener.spawn(self._open(connect))

    async def _open(self, connect: Connect) -> None:
        try:
            await Connecting(self._listener, self, connect).run()
        except Refused as refused:
            self._refuse(refused.packet(connect))
        except (LexicastError, TimeoutError, OSError) as error:
            log.warning("client %r cannot be served now: %s", connect.client_id, error)
            self._refuse(Refused(SERVER_UNAVAILABLE).packet(connect))
        finally:
            if self._state == OPENING:  # something unforeseen, which the task's end logs
                self.transport.abort()

    def _refuse(self, packet: bytes) -> None:
        if self._state != CLOSED:
            self.transport.write(packet)
            self.end()

    def opened(
        self,
        session: Session,
        subscriber: MqttSubscriber,
        connack: bytes,
        terms: Terms,
        keep_alive_s: int,
        resumed: bool,
    ) -> None:
        """The session is this connection's: answer, and go on with what was held."""
        self.session, self.subscriber, self.terms, self.keep_alive_s = session, subscriber, terms, keep_alive_s
        self.client_id, self.resumed = session.client_id, resumed
        self._state = OPEN
        self.transport.write(connack)
        self.go_on()
        # What an earlier connection left comes first [MQTT-4.4.0-1]; while it is under way nothing new takes an id.
        self._send_again()
        subscriber.start()

    @property
    def gone(self) -> bool:
        """Whether the client has left."""
        return self._state == CLOSED

    # -- what the client sends

    def _take(self, items: list[Received]) -> None:
        """Packets in the order of the wire."""
        pings = 0
        try:
            for at, item in enumerate(items):
                if self._stalled:
                    self._hold(items[at:])
                    break
                if type(item) is PublishRun:
                    self.publishing.publish(item)
                elif type(item) is PingReq:
                    pings += 1
                elif type(item) is AckRun:
                    acks_in(self, item)
                else:
                    HANDLERS[type(item)](self, item)
        except MqttProtocolError as error:
            self.fail(error)
        except UnavailableError as error:
            log.warning("client %r: %s", self.client_id, error)
            self.disconnect(SERVER_BUSY)
        if pings and self._state == OPEN:
            self.transport.write(PINGRESP * pings)
        if self._reader.error is not None and not self._stalled:
            self.fail(self._reader.error)

    def _hold(self, items: list[Received]) -> None:
        """Keep these until `go_on`, but for what need not wait once the client is connected."""
        if self._state == CLOSED:
            return
        held = self._held or []
        for item in items:
            if self._state == OPEN and type(item) is PingReq:
                self.transport.write(PINGRESP)
            elif self._state == OPEN and overtakes(item):
                HANDLERS[type(item)](self, item)
            else:
                held.append(item)
        if held:
            self._held = held
            self._pause(HELD)

    def stall(self) -> None:
        """Nothing further is taken from the client before `go_on`."""
        self._stalled = True

    def go_on(self) -> None:
        """The inverse of `stall`."""
        if self._state == CLOSED:
            return
        self._stalled = False
        held, self._held = self._held or [], None
        self._take(held)
        if self._held is None:
            self._resume(HELD)

    def held_changes(self) -> list[Subscribe | Unsubscribe]:
        """Take the SUBSCRIBEs and UNSUBSCRIBEs that come next of what is held."""
        changes: list[Subscribe | Unsubscribe] = []
        held = self._held or []
        for item in held:
            if not isinstance(item, Subscribe | Unsubscribe):
                break
            changes.append(item)
        del held[: len(changes)]
        return changes

    @property
    def publishing(self) -> Publishing:
        """The publisher's side, made when it is first needed."""
        if self.publisher is None:
            assert self.subscriber is not None
            self.publisher = Publishing(self._listener, self, self.subscriber.kind.aware)
        return self.publisher

    def work(self, work: Coroutine[Any, Any, None]) -> None:
        """Run something that this client waits for. If it fails the connection ends: it would wait for ever."""
        self._listener.spawn(self._work(work))

    async def _work(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except (LexicastError, TimeoutError) as error:
            log.warning("client %r: %s", self.client_id, error)
            self.disconnect(SERVER_BUSY)
        except Exception:
            self.disconnect(UNSPECIFIED_ERROR)
            raise  # to be logged with the task

    # -- answers

    def reply(self, replies: list[Reply]) -> None:
        """Write acknowledgements. (Of five bytes at most, like CONNACK: they fit whatever the client takes.)"""
        self.transport.write(encode_replies(replies, self.version))

    def answer(self, packet: Answer) -> bool:
        """Write an answer by the client's terms; False when it takes none so large: the connection ends."""
        data = encode_answer(packet, self.version, self.terms)
        if data is None:
            self.disconnect(PACKET_TOO_LARGE)
            return False
        self.transport.write(data)
        return True

    # -- reading, or not

    def wait_for_room(self) -> None:
        """A pipeline is full: `make_room` ends the pause."""
        self._listener.waiting.add(self)
        self._pause(NO_ROOM)

    def make_room(self) -> None:
        """The pipelines have room again."""
        self._resume(NO_ROOM)

    def hold_back(self, held: bool = True) -> None:
        """More of this client's PUBRELs wait than may, or no more."""
        if held:
            self._pause(RELEASES)
        else:
            self._resume(RELEASES)

    def _pause(self, reason: int) -> None:
        if self._state == CLOSED:
            return
        if not self._pauses:
            self.transport.pause_reading()
        self._pauses |= reason

    def _resume(self, reason: int) -> None:
        if self._pauses & reason:
            self._pauses &= ~reason
            if not self._pauses and self._state == OPEN:
                self.transport.resume_reading()

    # -- sending again after a reconnect

    def _send_again(self) -> None:
        if self.session.pending and not self._resending and self._state == OPEN and self.subscriber is not None:
            self._resending = True
            self.subscriber.resending(True)
            self.work(self._resend())

    def acknowledged(self) -> None:
        """The client has acknowledged deliveries: there may be room for others."""
        self._send_again()
        if self.subscriber is not None:
            self.subscriber.acknowledged()

    async def _resend(self) -> None:
        """Send what an earlier connection left unacknowledged, as the window and the socket allow."""
        subscriber = self.subscriber
        assert subscriber is not None
        try:
            while not subscriber.is_socket_full and (again := self.session.resend(RESEND_RECORDS)):
                blocks = await self._listener.sessions.content([(r.group, r.offset) for r in again])
                if self._state != OPEN:
                    return
                subscriber.send_again(again, blocks)
        finally:
            self._resending = False
            subscriber.resending(False)
        subscriber.acknowledged()

    # -- the end

    def check_keep_alive(self, now_s: float) -> None:
        """Close when nothing was heard for one and a half times the keep-alive [MQTT-3.1.2-22], or no CONNECT came."""
        if self.heard and self._state != NEW:
            self.heard, self.heard_at = False, now_s
            return
        silent_s = now_s - self.heard_at
        if self._state == NEW:
            if silent_s > self._listener.config.connect_timeout_s:
                self.transport.abort()
            return
        # A client that this broker does not read cannot be heard; one that reads no answers has had its time.
        excused = self._pauses & (NO_ROOM | RELEASES | HELD) or not self.keep_alive_s
        if self._state == OPEN and not excused and silent_s > 1.5 * self.keep_alive_s:
            self.disconnect(KEEP_ALIVE_TIMEOUT)

    def fail(self, error: MqttProtocolError) -> None:
        """The client broke the rules: say so and close."""
        if self._state == CLOSED:
            return
        log.info("client %r: %s", self.client_id, error)
        words = farewell(error, self.version, connected=self._state == OPEN)
        self.transport.write(words)
        self.end(linger=bool(words))

    def disconnect(self, reason_code: int, with_will: bool = True) -> None:
        """The server ends the connection (SERVER_BUSY where CONNACK would say SERVER_UNAVAILABLE)."""
        if self._state == CLOSED:
            return
        if told := self._state == OPEN and self.version == V5:
            self.transport.write(encode_packet(Disconnect(reason_code), V5))
        self.end(with_will, linger=told)

    def end(self, with_will: bool = True, linger: bool = True) -> None:
        """Let the session go, and the client: at once, or `linger` until it has taken what it was told."""
        paused = bool(self._pauses)
        self._close(with_will)
        self._hang_up(linger, paused)

    def _hang_up(self, linger: bool, paused: bool) -> None:
        """End the socket. `linger`: a client that is still sending when its farewell comes would lose it with the
        connection's reset, so it is heard out for a moment, unread."""
        transport = self.transport
        if transport.is_closing():
            return
        if linger:
            transport.write_eof()
            if paused:
                transport.resume_reading()
        else:
            transport.close()
        # A peer that never reads would hold its buffer for ever.
        asyncio.get_running_loop().call_later(LINGER_S, transport.abort)

    def shut_down(self) -> None:
        """The broker stops: the connection is closed without the client's word, so its will is due [MQTT-3.1.2-8]."""
        self.disconnect(SERVER_SHUTTING_DOWN)

    def snapshot(self) -> Session:
        """The session with its cursor as it stands."""
        assert self.subscriber is not None
        self.session.cursor = self._listener.engine.subscriptions.cursor_of(self.subscriber)
        return self.session

    def taken_over(self, clean: bool) -> None:
        """Another connection has the session now [MQTT-3.1.4-3]; `clean`: and starts it anew."""
        will = self._take_will()
        self.snapshot()
        self._leave()
        if self.version == V5 and not self.transport.is_closing():
            self.transport.write(encode_packet(Disconnect(SESSION_TAKEN_OVER), V5))
        self._hang_up(self.version == V5, bool(self._pauses))
        if will is not None:
            self._listener.sessions.will_of_taken(self.session, will, clean)

    def _take_will(self) -> Will | None:
        will, self.session.will = self.session.will, None
        if any(isinstance(item, Disconnect) and item.reason_code == SUCCESS for item in self._held or ()):
            return None  # it was taken back, by what waits for something before it [MQTT-3.14.4-3]
        return will

    def _leave(self) -> None:
        self._state = CLOSED
        self._stalled, self._held = True, None
        self.publisher = None  # it refers to this connection
        if self.subscriber is not None:
            self.subscriber.leave()
            self.subscriber.write = _unheard  # type: ignore[method-assign]  # what is being fetched for it goes nowhere
        if self._listener.sessions.owners.get(self.client_id) is self:
            del self._listener.sessions.owners[self.client_id]

    def _close(self, with_will: bool) -> None:
        """Let the session go, once."""
        state, self._state = self._state, CLOSED
        self._stalled = True
        if state != OPEN:
            return
        self.snapshot()
        will = self._take_will()
        self._leave()
        self._listener.sessions.let_go(self.session, will if with_will else None)


def _unheard(data: bytes) -> None:
    """`write` of a connection that has ended."""
