"""The connection of one MQTT client: a whole read at once in, joined buffers out, the packets in the order of the wire.

What they mean is the open session's (`open_session`), which there is once CONNECT is answered; the states are
`client_socket`'s. A packet that has to be finished before anything behind it is looked at (CONNECT, SUBSCRIBE,
UNSUBSCRIBE, a binding of dictionaries that are not here) stalls the connection: what stands behind it is held until
that is done, PINGREQ and acknowledgements of deliveries aside.

The socket is not read while something is held, so at most one read is; nor while the client does not take the answers
it asked for. An error ends this connection with its reason and nothing else.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Coroutine
from functools import partial
from typing import Any, Protocol

from lexicast.cluster.errors import LexicastError, UnavailableError
from lexicast.cluster.protocol.messages import LINK_PREFACE

from .client_line import GOING, HELD, NO_ROOM, RELEASES, UNREAD
from .client_socket import CLOSED, NEW, OPEN, OPENING, ClientSocket
from .codec import PacketReader, encode_packet, farewell
from .codec.packets import (
    KEEP_ALIVE_TIMEOUT,
    NOT_AUTHORIZED,
    PUBREL,
    SERVER_BUSY,
    SERVER_UNAVAILABLE,
    SUCCESS,
    UNSPECIFIED_ERROR,
    USE_ANOTHER_SERVER,
    V5,
    AckRun,
    Connect,
    Disconnect,
    MqttProtocolError,
    PingReq,
    PingResp,
    PubAck,
    PubComp,
    PublishRun,
    PubRec,
    Received,
    Subscribe,
    Unsubscribe,
)
from .codec.properties import SERVER_REFERENCE
from .connecting import Accepted, Connecting, Refused
from .login.logins import Login
from .open_session import OpenSession
from .services import MqttServices

log = logging.getLogger(__name__)

PINGRESP = encode_packet(PingResp(), V5)


class Connections(Protocol):
    """Who is told of connections."""

    def made(self, connection: MqttConnection) -> None:
        """A connection was accepted."""

    def lost(self, connection: MqttConnection) -> None:
        """A connection has ended."""

    def becomes_link(self, connection: MqttConnection, data: bytes) -> None:
        """It is no MQTT that is spoken: a Python client logs in. `data`: what has come of it already."""


class MqttConnection(ClientSocket):
    """See the module's docstring. `served`: the session, while the connection is open."""

    __slots__ = (
        "_connections",
        "_heard",
        "_heard_at",
        "_held",
        "_keep_alive_s",
        "_login",
        "_reader",
        "_services",
        "_socket_full",
        "_stalled",
        "client_id",
        "served",
    )

    def __init__(self, services: MqttServices, connections: Connections) -> None:
        super().__init__()
        self._services = services
        self._connections = connections
        config = services.config
        self._reader = PacketReader(config.packet_bytes_max, topic_alias_max=config.topic_alias_max)
        self._stalled = False
        self._held: list[Received] | None = None
        self._socket_full = False
        self._heard = False
        self._heard_at = asyncio.get_running_loop().time()
        self._keep_alive_s = 0
        self._login = Login(SUCCESS)
        self.client_id = ""
        self.served: OpenSession | None = None

    # -- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.transport.set_write_buffer_limits(high=self._services.config.output_bytes_max)
        self._connections.made(self)

    def data_received(self, data: bytes) -> None:
        if self.state == CLOSED:
            return  # see `hang_up`
        if not self._heard and self.state == NEW and data.startswith(LINK_PREFACE):
            self.state = CLOSED
            self._connections.becomes_link(self, data[len(LINK_PREFACE) :])
            return
        self._heard = True
        self._services.received_bytes += len(data)
        self._take(self._reader.feed(data))
        # Deliveries stop at a full socket; answers do not, so that a client that takes none is not read.
        if self._socket_full and self.transport.get_write_buffer_size() > 2 * self._services.config.output_bytes_max:
            self.pause(UNREAD)

    def pause_writing(self) -> None:
        self._socket_full = True
        if self.served is not None:
            self.served.subscriber.socket_full()

    def resume_writing(self) -> None:
        self._socket_full = False
        if self.served is not None:
            self.resume(UNREAD)
            self.served.socket_drained()

    def connection_lost(self, error: Exception | None) -> None:
        self._let_go(with_will=True)
        self._connections.lost(self)

    # -- beginning

    def _begin(self, connect: Connect) -> None:
        self.state = OPENING
        self._stalled = True
        # Read on until something else comes: who has left by the time that it is its turn is not opened.
        login = self._services.logins.check(connect, self.transport, lambda: self.state == CLOSED)
        if isinstance(login, Login):
            self._services.openings.enter(partial(self._open, connect, login))
        else:
            self._services.spawn(self._wait_for_login(connect, login))

    async def _wait_for_login(self, connect: Connect, login: Awaitable[Login]) -> None:
        try:
            found = await login
        except BaseException:
            self.transport.abort()
            raise
        if self.state == OPENING:
            self._services.openings.enter(partial(self._open, connect, found))

    async def _open(self, connect: Connect, login: Login) -> None:
        if self.state != OPENING:
            return  # the client has left while it waited for its turn
        self._login = login
        try:
            accepted = await Connecting(self._services, self, self.transport, connect, login).run()
            if accepted is not None:
                self._opened(accepted)
        except Refused as refused:
            self.end(words=refused.packet(connect))
        except (LexicastError, TimeoutError, OSError) as error:
            log.warning("client %r cannot be served now: %s", connect.client_id, error)
            self.end(words=Refused(SERVER_UNAVAILABLE).packet(connect))
        finally:
            if self.state == OPENING:  # something unforeseen, which the task's end logs
                self.transport.abort()

    def _opened(self, accepted: Accepted) -> None:
        """The session is this connection's: answer, and go on with what was held."""
        served = self.served = accepted.served
        self.client_id, self._keep_alive_s = served.session.client_id, accepted.keep_alive_s
        self.state = OPEN
        self.transport.write(accepted.connack)
        if self.check_login():
            return  # its user has changed while its session was opened
        self._go_on()
        served.begin()

    # -- what the client sends

    def _take(self, items: list[Received]) -> None:
        """Packets in the order of the wire."""
        served, pings = self.served, 0
        try:
            for at, item in enumerate(items):
                if self._stalled:
                    self._hold(items[at:])
                    break
                if served is None:
                    assert type(item) is Connect  # the reader takes nothing else first
                    self._begin(item)
                elif type(item) is PublishRun:
                    (served.publisher or served.begin_publishing()).publish(item)
                elif type(item) is PingReq:
                    pings += 1
                elif type(item) is AckRun:
                    served.acks(item)
                else:
                    served.take(item)
        except MqttProtocolError as error:
            self._fail(error)
        except UnavailableError as error:
            log.warning("client %r: %s", self.client_id, error)
            self.disconnect(SERVER_BUSY)
        if pings and self.state == OPEN:
            self.transport.write(PINGRESP * pings)
        if self._reader.error is not None and not self._stalled:
            self._fail(self._reader.error)

    def _hold(self, items: list[Received]) -> None:
        """Keep these until `_go_on`, but for what need not wait once the client is connected."""
        if self.state == CLOSED:
            return
        held, served = self._held or [], self.served
        for item in items:
            if served is not None and type(item) is PingReq:
                self.transport.write(PINGRESP)
            elif served is not None and _overtakes(item):
                served.take(item)
            else:
                held.append(item)
        if held:
            self._held = held
            self.pause(HELD)

    def _go_on(self) -> None:
        """Take what was held, and what comes."""
        if self.state == CLOSED:
            return
        self._stalled = False
        self._take(self._let_loose())
        if self._held is None:
            self.resume(HELD)

    def _let_loose(self) -> list[Received]:
        held, self._held = self._held or [], None
        return held

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

    def work(self, work: Coroutine[Any, Any, None], first: bool = False) -> None:
        """Run something that this client waits for; see `ClientLine`."""
        if first:
            self._stalled = True
        self._services.spawn(self._work(work, first))

    async def _work(self, work: Coroutine[Any, Any, None], first: bool) -> None:
        try:
            await work
            if first:
                self._go_on()
        except (LexicastError, TimeoutError) as error:
            log.warning("client %r: %s", self.client_id, error)
            self.disconnect(SERVER_BUSY)
        except Exception:
            self.disconnect(UNSPECIFIED_ERROR)
            raise  # to be logged with the task

    # -- the end

    def check_login(self) -> bool:
        """Close where whoever has logged in may not stay: their row has changed. Whether it was so."""
        if self.state != OPEN or self._services.logins.holds(self._login):
            return False
        logins = self._services.logins
        logins.kicked(self._login, "the user is another one, or gone", self.client_id, self.transport)
        self.disconnect(NOT_AUTHORIZED)
        return True

    def check_keep_alive(self, now_s: float) -> None:
        """Close when nothing was heard for one and a half times the keep-alive [MQTT-3.1.2-22], no CONNECT came, or the
        login is over."""
        if now_s > self._login.until_s and self.state == OPEN:
            self._services.logins.kicked(self._login, "the login is over", self.client_id, self.transport)
            self.disconnect(NOT_AUTHORIZED)
        if self._heard and self.state != NEW:
            self._heard, self._heard_at = False, now_s
            return
        silent_s = now_s - self._heard_at
        if self.state == NEW:
            if silent_s > self._services.config.connect_timeout_s:
                self.transport.abort()
            return
        # A client that this broker does not read cannot be heard; one that reads no answers has had its time.
        excused = self.is_paused(NO_ROOM | RELEASES | HELD) or not self._keep_alive_s
        if self.state == OPEN and not excused and silent_s > 1.5 * self._keep_alive_s:
            self.disconnect(KEEP_ALIVE_TIMEOUT)

    def _fail(self, error: MqttProtocolError) -> None:
        """The client broke the rules: say so and close."""
        if self.state == CLOSED:
            return
        log.info("client %r: %s", self.client_id, error)
        self.end(words=farewell(error, self._reader.version, connected=self.state == OPEN))

    def disconnect(self, reason_code: int) -> None:
        """The server ends the connection (SERVER_BUSY where CONNACK would say SERVER_UNAVAILABLE)."""
        told = self.state == OPEN and self._reader.version == V5
        self.end(words=encode_packet(Disconnect(reason_code), V5) if told else b"")

    def send_away(self, reference: str, now: bool) -> bool:
        """Have the client go to another broker, `reference` if it can be told (MQTT 5, 4.11), once what it published
        is acknowledged, or `now`. False while that is waited for."""
        if self.state != OPEN:
            if self.state == NEW:
                self.transport.abort()
            return self.state in (NEW, CLOSED)
        self.pause(GOING)
        served = self.served
        if not now and served is not None and served.publisher is not None and not served.publisher.is_answered:
            return False
        words = b""
        if self._reader.version == V5:
            properties = {SERVER_REFERENCE: reference} if reference else None
            words = encode_packet(Disconnect(USE_ANOTHER_SERVER, properties), V5)
        if served is not None:
            served.send_away()
        self.end(words=words)
        return True

    def end(self, with_will: bool = True, words: bytes = b"") -> None:
        """Let the session go, and then the client, with these last words."""
        if self.state != CLOSED:
            self._let_go(with_will)
            self.hang_up(words)

    def _let_go(self, with_will: bool) -> None:
        """Let the session go, if there is one, once."""
        if self.served is not None:
            self.served.let_go(with_will)
        else:
            self.leave()

    def leave(self) -> bool:
        """Serve no session any more. Whether the client has taken its will back, by a DISCONNECT that is held."""
        taken_back = any(isinstance(item, Disconnect) and item.reason_code == SUCCESS for item in self._held or ())
        self.state, self.served = CLOSED, None
        self._stalled, self._held = True, None
        return taken_back


def _overtakes(packet: Received) -> bool:
    """Whether it need not wait behind what waits: it acknowledges what was delivered."""
    return isinstance(packet, PubAck | PubRec | PubComp) or (isinstance(packet, AckRun) and packet.kind != PUBREL)
