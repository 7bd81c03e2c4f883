"""An open session: one MQTT client's, while a connection serves it. What its packets mean, what it is sent, its end.

`session.Session` decides what the protocol needs; this performs it. The connection looks after the wire (`client_line`)
and lets the session go when that ends; where another connection takes the session over, it is the other way round.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from lexicast.cluster.topics.names import SHARE_PREFIX

from .client_line import ClientLine
from .codec.encode import encode_answer, encode_packet, encode_replies
from .codec.packets import (
    PACKET_TOO_LARGE,
    PROTOCOL_ERROR,
    PUBACK,
    PUBCOMP,
    PUBREC,
    PUBREL,
    SESSION_TAKEN_OVER,
    SUCCESS,
    V5,
    AckRun,
    Answer,
    Auth,
    Disconnect,
    MqttProtocolError,
    PubAck,
    PubComp,
    PubRec,
    PubRel,
    Subscribe,
    Terms,
    Unsubscribe,
    Will,
)
from .codec.properties import SESSION_EXPIRY_S
from .publishing import Publishing
from .releases import Releases
from .services import MqttServices
from .session import Reply, Session
from .session_state import delayed, will_delay_s
from .subscriber import MqttSubscriber
from .subscribing import change_subscriptions, join_shares, send_owed

# Publications of an earlier connection fetched at a time, to be sent again.
RESEND_RECORDS = 16
# How long a client that was sent to another broker may take to get there before its will is due.
SENT_AWAY_S = 10

_KINDS = {PubAck: PUBACK, PubRec: PUBREC, PubRel: PUBREL, PubComp: PUBCOMP}


class OpenSession:
    """See the module's docstring. `resumed`: the session is older than the connection."""

    __slots__ = (
        "_line",
        "_releases",
        "_resending",
        "_resumed",
        "_services",
        "_terms",
        "_write",
        "publisher",
        "session",
        "subscriber",
    )

    def __init__(
        self,
        services: MqttServices,
        line: ClientLine,
        subscriber: MqttSubscriber,
        terms: Terms,
        resumed: bool,
    ) -> None:
        self._services = services
        self._line = line
        self._write = subscriber.write
        self.session = subscriber.session
        self.subscriber = subscriber
        self._terms = terms
        self._resumed = resumed
        self._resending = False
        self._releases: Releases | None = None
        # The publisher's side, made when it is first needed.
        self.publisher: Publishing | None = None

    @property
    def is_open(self) -> bool:
        """Whether the client is being served."""
        return self._line.is_open

    @property
    def is_bridge(self) -> bool:
        """Whether the client is another broker."""
        return self._terms.bridge

    def begin(self) -> None:
        """CONNACK is out: deliveries begin.

        What an earlier connection left comes first [MQTT-4.4.0-1]; while it is under way nothing new takes an id.
        """
        self._send_again()
        send_owed(self._services, self)
        self.subscriber.start()
        if self._resumed and any([name.startswith(SHARE_PREFIX) for name in self.session.subscriptions]):
            self._line.work(join_shares(self._services, self))

    # -- what the client sends

    def take(self, packet: Any) -> None:
        """A packet, publications and PINGREQ aside. Raises MqttProtocolError, UnavailableError."""
        _MEANINGS[type(packet)](self, packet)

    def begin_publishing(self) -> Publishing:
        """The client's first publication."""
        # Not the method that makes the releases: it is bound to what holds the publisher, a circle.
        self.publisher = Publishing(self._services, self._line, self.subscriber, self._connection_releases())
        return self.publisher

    def acks(self, run: AckRun) -> None:
        """Acknowledgements of success. Raises MqttProtocolError."""
        session, ids = self.session, run.packet_ids
        if run.kind == PUBACK:
            session.on_pubacks(ids)
        elif run.kind == PUBREC:
            self._reply(session.on_pubrecs(ids))
            return
        elif run.kind == PUBCOMP:
            session.on_pubcomps(ids)
        else:
            self._release(ids)
            return
        self._acknowledged()

    def _ack(self, ack: PubAck | PubRec | PubRel | PubComp) -> None:
        """An acknowledgement with a reason of its own."""
        if isinstance(ack, PubRec) and ack.reason_code >= 0x80:
            self._reply(self.session.on_pubrecs([ack.packet_id], refused=True))
            self._acknowledged()
            return
        self.acks(AckRun(_KINDS[type(ack)], [ack.packet_id]))

    def _release(self, ids: list[int]) -> None:
        self._connection_releases().release(ids)

    def _connection_releases(self) -> Releases:
        if self._releases is None:
            self._releases = Releases(self._services.engine, self._line, self.subscriber, self._resumed)
        return self._releases

    def _change(self, packet: Subscribe | Unsubscribe) -> None:
        """Whatever stands behind it is seen by it, and by nothing that it ends: it is placed and answered first."""
        self._line.work(self._change_all(packet), first=True)

    async def _change_all(self, packet: Subscribe | Unsubscribe) -> None:
        await change_subscriptions(self._services, self, [packet, *self._line.held_changes()])

    def _disconnect(self, packet: Disconnect) -> None:
        expiry = (packet.properties or {}).get(SESSION_EXPIRY_S)
        if expiry is not None:
            if expiry and not self.session.expiry_s:
                raise MqttProtocolError(
                    PROTOCOL_ERROR, "MQTT-3.14.2-2", "a session that was to end with its connection cannot be kept now"
                )
            self.session.expiry_s = min(expiry, self._services.config.session_expiry_s_max)
        # Only "normal disconnection" takes the will back [MQTT-3.14.4-3], [MQTT-3.1.2-10].
        self._line.end(with_will=packet.reason_code != SUCCESS)

    def _auth(self, packet: Auth) -> None:
        raise MqttProtocolError(PROTOCOL_ERROR, "MQTT-4.12.0-7", "no authentication method was agreed")

    # -- what it is sent

    def _reply(self, replies: list[Reply]) -> None:
        """Write acknowledgements. (Of five bytes at most, like CONNACK: they fit whatever the client takes.)"""
        self._write(encode_replies(replies, self.session.version))

    def answer(self, packet: Answer) -> bool:
        """Write an answer by the client's terms; False when it takes none so large: the connection ends."""
        data = encode_answer(packet, self.session.version, self._terms)
        if data is None:
            self._line.disconnect(PACKET_TOO_LARGE)
            return False
        self._write(data)
        return True

    def _acknowledged(self) -> None:
        """The client has acknowledged deliveries: there may be room for others."""
        self._send_again()
        self.subscriber.acknowledged()

    def socket_drained(self) -> None:
        """The transport takes more."""
        self.subscriber.socket_drained()
        self._send_again()

    def _send_again(self) -> None:
        if self.session.pending and not self._resending and self._line.is_open:
            self._resending = True
            self.subscriber.resending(True)
            self._line.work(self._resend())

    async def _resend(self) -> None:
        """Send what an earlier connection left unacknowledged, as the window and the socket allow."""
        subscriber = self.subscriber
        try:
            while not subscriber.is_socket_full and (again := self.session.resend(RESEND_RECORDS)):
                blocks = await self._services.sessions.content([(r.group, r.offset) for r in again])
                if not self._line.is_open:
                    return
                subscriber.send_again(again, blocks)
        finally:
            self._resending = False
            subscriber.resending(False)
        subscriber.acknowledged()

    # -- the end

    def snapshot(self) -> Session:
        """The session with its cursor as it stands."""
        self.session.cursor = self._services.engine.subscriptions.cursor_of(self.subscriber)
        return self.session

    def taken_over(self, clean: bool) -> None:
        """Another connection has the session now [MQTT-3.1.4-3]; `clean`: and starts it anew."""
        will = self._leave()
        self._line.hang_up(encode_packet(Disconnect(SESSION_TAKEN_OVER), V5) if self.session.version == V5 else b"")
        if will is not None:
            self._services.sessions.will_of_taken(self.session, will, clean)

    def send_away(self) -> None:
        """The connection will end, and the client is expected at another broker at once: its will waits for that, as
        long as its session is kept [MQTT-3.1.3-9]."""
        will = self.session.will
        if will is not None and will_delay_s(will) < SENT_AWAY_S:
            self.session.will = delayed(will, SENT_AWAY_S)

    def let_go(self, with_will: bool) -> None:
        """The connection ends: the session is kept, or ends too."""
        will = self._leave()
        self._services.sessions.let_go(self.session, will if with_will else None)

    def _leave(self) -> Will | None:
        """Be served no more; the will, unless the client has taken it back by what waits behind something else
        [MQTT-3.14.4-3]."""
        self.snapshot()
        will, self.session.will = self.session.will, None
        taken_back = self._line.leave()
        self.subscriber.leave()
        if self.subscriber.dictionaries is not None:
            self._services.engine.dictionary_links.ended(self.subscriber.dictionaries.link)
        self.subscriber.send = _unheard  # what is being fetched for it goes nowhere
        self._services.sessions.leave(self)
        return None if taken_back else will


def _unheard(data: bytes) -> None:
    """`write` of a connection that has ended."""


_MEANINGS: Final[dict[type, Callable[[OpenSession, Any], None]]] = {
    AckRun: OpenSession.acks,
    PubAck: OpenSession._ack,
    PubRec: OpenSession._ack,
    PubRel: OpenSession._ack,
    PubComp: OpenSession._ack,
    Subscribe: OpenSession._change,
    Unsubscribe: OpenSession._change,
    Disconnect: OpenSession._disconnect,
    Auth: OpenSession._auth,
}
