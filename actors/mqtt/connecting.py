"""The way from CONNECT to CONNACK: who may come in, which session it is, what it left behind, what this server says.

What is not there is refused in the protocol's own words: enhanced authentication by reason code.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import socket
from contextlib import suppress
from typing import NamedTuple

from lexicast.cluster.bridges.hops import CLUSTER_PROPERTY, short_id
from lexicast.cluster.errors import NotOwnerError, StaleEpochError
from lexicast.cluster.topics.names import SHARE_PREFIX, SYS_PREFIX
from lexicast.compression.dictionary import PACKED_BYTES_MAX
from lexicast.compression.opted_out_topics import OPTOUT_PROPERTY
from lexicast.compression.wire import (
    BATCHES_PROPERTY,
    FIELDS_PROPERTY,
    HISTORY_PROPERTY,
    STREAMS_PROPERTY,
    ZSTD_PROPERTY,
)
from lexicast.compression.wire import USER_PROPERTY as SDC

from ..broker.encoding import Grant, Kind
from ..loop.turns import Turns
from .client_line import ClientLine
from .codec.encode import encode_acks, encode_answer, encode_packet
from .codec.packets import (
    BAD_AUTHENTICATION_METHOD,
    CLIENT_ID_NOT_VALID,
    CONNACK_REASONS,
    NOT_AUTHORIZED,
    PACKET_TOO_LARGE,
    SERVER_BUSY,
    SUCCESS,
    TOPIC_NAME_INVALID,
    V5,
    AckRun,
    ConnAck,
    Connect,
    Properties,
    Terms,
    Will,
)
from .codec.properties import (
    ASSIGNED_CLIENT_ID,
    AUTHENTICATION_METHOD,
    MAXIMUM_PACKET_BYTES,
    RECEIVE_MAXIMUM,
    REQUEST_PROBLEM,
    SERVER_KEEP_ALIVE_S,
    SESSION_EXPIRY_S,
    TOPIC_ALIAS_MAXIMUM,
    USER_PROPERTY,
)
from .codec.topic_aliases import alias_class
from .login.logins import Login, end_of
from .open_session import OpenSession
from .services import MqttServices
from .session import PACKET_ID_MAX, Session
from .subscriber import MqttSubscriber
from .subscribing import grant_of

log = logging.getLogger(__name__)

CLIENT_ID_BYTES_MAX = 1_024
# The largest that CONNECT can ask for: no limit, so that 0 (no keep-alive) is granted too.
KEEP_ALIVE_S_UNLIMITED = 65_535
# What may wait to be sent to a dictionary-aware client, here and in the kernel. What still lies in the broker's cache
# is encoded with the newest dictionary when the link has room; what was written early is not. (On links of 1 Mbit/s the
# kernel alone took seconds' worth, all deflated, before there was a first dictionary.)
AWARE_OUTPUT_BYTES = 64 * 1024
# The largest PUBLISH of a dictionary: its topic is its family's escaped name.
DICTIONARY_PACKET_BYTES_MAX = PACKED_BYTES_MAX + 65_535 + 32
DISCARDED_PROPERTY = "lexicast-discarded-at-most"


class Refused(Exception):
    """The connection is refused with a reason code."""

    def __init__(self, reason_code: int) -> None:
        assert reason_code in CONNACK_REASONS, hex(reason_code)
        super().__init__(hex(reason_code))
        self.reason_code = reason_code

    def packet(self, connect: Connect) -> bytes:
        """The CONNACK that says so; empty for a client that takes no packet so large."""
        return encode_answer(ConnAck(False, self.reason_code), connect.version, terms_of(connect)) or b""


def terms_of(connect: Connect) -> Terms:
    """What a CONNECT asks of all that is sent to the client."""
    properties = connect.properties or {}
    # Request Problem Information is 1 where it is left out (3.1.2.11.7).
    return Terms(properties.get(MAXIMUM_PACKET_BYTES, 0), not properties.get(REQUEST_PROBLEM, 1), connect.bridge)


class Accepted(NamedTuple):
    """The session that is to be served, and the CONNACK that says so."""

    served: OpenSession
    connack: bytes
    keep_alive_s: int


class Connecting:
    """One CONNECT on its way to CONNACK."""

    def __init__(
        self,
        services: MqttServices,
        line: ClientLine,
        transport: asyncio.Transport,
        connect: Connect,
        login: Login,
    ) -> None:
        self._services = services
        self._engine = services.engine
        self._line = line
        self._transport = transport
        self._connect = connect
        self._login = login
        self._properties: Properties = connect.properties or {}
        self._config = services.config
        self._terms = terms_of(connect)

    async def run(self) -> Accepted | None:
        """None when the client has left meanwhile. Raises Refused, LexicastError or TimeoutError."""
        try:
            accepted = await self._run()
        except Refused as refused:
            self._services.refused[f"0x{refused.reason_code:02x}"] += 1
            log.info("client %r is refused: 0x%02x", self._connect.client_id, refused.reason_code)
            raise
        log.info("client %r has connected", self._connect.client_id)
        return accepted

    async def _run(self) -> Accepted | None:
        connect = self._connect
        self._admit()
        client_id = connect.client_id or f"auto-{secrets.token_hex(11)}"
        if self._terms.packet_bytes_max and self._answer(client_id, False, 0) is None:
            raise Refused(PACKET_TOO_LARGE)
        session = Session(
            client_id,
            b"",
            0,
            connect.version,
            self._config.inflight_max,
            self._config.receive_max,
            self._config.subscriptions_per_session_max,
        )
        session.user = self._login.user
        session.expiry_s = self._expiry_s()
        session.will = self._will()
        if session.will is not None:
            self._check_will(session.user, client_id, session.will.topic)
        with self._services.sessions.opening(session):
            return await self._open(client_id, session)

    async def _open(self, client_id: str, session: Session) -> Accepted | None:
        connect, sessions = self._connect, self._services.sessions
        try:
            present = await sessions.open(connect.clean_start, session)
        except StaleEpochError:  # another connection has taken the session over: CONNACK has no code of its own for it
            raise Refused(SERVER_BUSY) from None
        except NotOwnerError:
            user, peer = self._login.user, end_of(self._transport, "peername")
            self._services.logins.note("login_refused", "another user's session", user, client_id, peer)
            raise Refused(CLIENT_ID_NOT_VALID) from None
        releases = session.connected(connect.version, int(self._properties.get(RECEIVE_MAXIMUM, PACKET_ID_MAX)))
        subscriber = self._subscriber(session)
        # Nothing is delivered before CONNACK; what comes meanwhile is caught up with.
        subscriber.block()
        try:
            discarded = await self._restore(session, subscriber) if present else 0
        except BaseException:
            session.will = None  # the connection was never accepted
            self._let_go(session, subscriber)
            raise
        if self._line.is_closed:
            self._let_go(session, subscriber)
            return None
        served = OpenSession(self._services, self._line, subscriber, self._terms, present)
        if not sessions.take(served, session):
            session.will = None
            self._engine.subscriptions.leave(subscriber)
            raise Refused(SERVER_BUSY)
        if self._aware:
            send_late(self._transport, self._config.output_bytes_max)
        data = self._answer(client_id, present, discarded)
        assert data is not None  # `run` has looked
        data += b"".join([encode_acks(r.kind, r.packet_ids) for r in releases if isinstance(r, AckRun)])
        return Accepted(served, data, self._keep_alive_s())

    def _let_go(self, session: Session, subscriber: MqttSubscriber) -> None:
        session.cursor = {**session.cursor, **self._engine.subscriptions.cursor_of(subscriber)}
        will, session.will = session.will, None
        self._engine.subscriptions.leave(subscriber)
        self._services.sessions.let_go(session, will)

    # -- may it come in

    def _admit(self) -> None:
        connect = self._connect
        if AUTHENTICATION_METHOD in self._properties:
            raise Refused(BAD_AUTHENTICATION_METHOD)  # [MQTT-4.12.0-1]: none is offered
        if self._login.reason_code != SUCCESS:
            raise Refused(self._login.reason_code)
        if not self._services.logins.holds(self._login):
            raise Refused(NOT_AUTHORIZED)  # while it waited for its turn
        if not connect.client_id and connect.version != V5 and not connect.clean_start:
            raise Refused(CLIENT_ID_NOT_VALID)  # 3.1.1 [MQTT-3.1.3-8]
        if len(connect.client_id.encode()) > CLIENT_ID_BYTES_MAX:
            raise Refused(CLIENT_ID_NOT_VALID)  # [MQTT-3.1.3-5] allows limits above 23 bytes
        will = connect.will
        if will is not None and will.topic.startswith(b"$") and not will.topic.startswith(SYS_PREFIX):
            raise Refused(TOPIC_NAME_INVALID if connect.version == V5 else NOT_AUTHORIZED)

    def _will(self) -> Will | None:
        """The will that is kept. Not one on `$SYS/`: a Mosquitto bridge announces itself there, and is welcome."""
        will = self._connect.will
        if will is not None and will.topic.startswith(SYS_PREFIX):
            self._services.dropped_dollar += 1
            return None
        return will

    def _check_will(self, user: str, client_id: str, topic: bytes) -> None:
        """Raises Refused where the client may not publish it. (When it is due, that is asked again.)"""
        rights = self._engine.rights
        if not rights.may_publish(user, client_id, topic):
            rights.refuse("will", user, client_id, topic)
            raise Refused(NOT_AUTHORIZED)

    # -- the session

    def _expiry_s(self) -> int:
        limit = self._config.session_expiry_s_max
        if self._connect.version == V5:
            return min(int(self._properties.get(SESSION_EXPIRY_S, 0)), limit)
        return 0 if self._connect.clean_start else limit

    def _keep_alive_s(self) -> int:
        """Only MQTT 5 can be told of another keep-alive than it asked for."""
        asked, most = self._connect.keep_alive_s, self._config.keep_alive_s_max
        if self._connect.version != V5 or most == KEEP_ALIVE_S_UNLIMITED:
            return asked
        return min(asked or most, most)

    @property
    def _aware(self) -> bool:
        """Whether it takes part in dictionary compression. Not where a dictionary could be too large to be sent."""
        limit = self._terms.packet_bytes_max
        takes_all = not limit or limit >= DICTIONARY_PACKET_BYTES_MAX
        return self._connect.version == V5 and self._services.compression and takes_all and self._asks(SDC)

    @property
    def _streams(self) -> bool:
        """Whether it may get topic streams. Not where a packet could be too large: it would be a hole."""
        limited = self._terms.packet_bytes_max
        return self._aware and self._engine.streamer is not None and not limited and self._asks(STREAMS_PROPERTY)

    @property
    def _topic_aliases(self) -> int:
        """How many topic aliases are used towards it. None where a packet could be too large: with one it is longer
        the first time."""
        takes = self._connect.version == V5 and not self._terms.packet_bytes_max
        asked = int(self._properties.get(TOPIC_ALIAS_MAXIMUM, 0)) if takes else 0
        return alias_class(self._config.topic_aliases_sent_max, asked)

    @property
    def _history(self) -> bool:
        """Whether it may publish against its link's own past, which takes 4 KiB here."""
        return self._aware and self._asks(HISTORY_PROPERTY)

    @property
    def _batches(self) -> bool:
        """Whether what it publishes may come as batches."""
        return self._aware and self._asks(BATCHES_PROPERTY)

    def _asks(self, asked: tuple[str, str]) -> bool:
        return asked in [tuple(pair) for pair in self._properties.get(USER_PROPERTY, ())]

    def _subscriber(self, session: Session) -> MqttSubscriber:
        terms, aliases = self._terms, self._topic_aliases
        kind = Kind(self._connect.version, self._aware, terms.packet_bytes_max, self._streams, aliases)
        drops = self._config.slow_qos0 == "drop"
        subscriber = MqttSubscriber(self._engine, session, kind, self._transport.write, drops)
        subscriber.reads_zstd = self._streams and self._asks(ZSTD_PROPERTY)
        if subscriber.dictionaries is not None:
            subscriber.dictionaries.reads_history = self._history
            subscriber.dictionaries.reads_batches = self._batches
            subscriber.dictionaries.reads_fields = self._asks(FIELDS_PROPERTY)
        return subscriber

    async def _restore(self, session: Session, subscriber: MqttSubscriber) -> int:
        """Go on where the session was left. Returns an upper bound of what retention discarded meanwhile."""
        wanted: dict[bytes, Grant] = {}
        turns = Turns()
        for name, subscription in session.subscriptions.items():
            if not name.startswith(SHARE_PREFIX):  # those are joined once it is served
                wanted[name] = grant_of(subscription)
            await turns.give_way()
        if wanted:
            await self._engine.subscriptions.subscribe(subscriber, wanted, start=session.cursor)
        return subscriber.discarded_records

    # -- the answer

    def _answer(self, client_id: str, present: bool, discarded: int) -> bytes | None:
        """CONNACK; None when the client takes none so large. Properties without which it would go wrong are not left
        out, nor user properties that say what its payloads are."""
        version = self._connect.version
        connack = ConnAck(present, SUCCESS, self._connack(client_id, discarded) if version == V5 else None)
        data, limit = encode_packet(connack, version), self._terms.packet_bytes_max
        if not limit or len(data) <= limit:
            return data
        if discarded:
            return self._answer(client_id, present, 0)
        return None if self._aware else encode_answer(connack, version, self._terms)

    def _connack(self, client_id: str, discarded: int) -> Properties:
        config = self._config
        properties: Properties = {
            RECEIVE_MAXIMUM: config.receive_max,
            MAXIMUM_PACKET_BYTES: config.packet_bytes_max,
            TOPIC_ALIAS_MAXIMUM: config.topic_alias_max,
        }
        if not self._connect.client_id:
            properties[ASSIGNED_CLIENT_ID] = client_id
        if self._expiry_s() != int(self._properties.get(SESSION_EXPIRY_S, 0)):
            properties[SESSION_EXPIRY_S] = self._expiry_s()
        if self._keep_alive_s() != self._connect.keep_alive_s:
            properties[SERVER_KEEP_ALIVE_S] = self._keep_alive_s()
        told: list[tuple[str, str]] = []
        if self._aware:
            opted_out = self._engine.dictionaries.opted_out.filters
            told = [
                SDC,
                *([STREAMS_PROPERTY] if self._streams else []),
                *([HISTORY_PROPERTY] if self._history else []),
                *([BATCHES_PROPERTY] if self._batches else []),
                *[(OPTOUT_PROPERTY, topic_filter.decode()) for topic_filter in opted_out],
            ]
        if CLUSTER_PROPERTY in [name for name, _ in self._properties.get(USER_PROPERTY, ())]:
            told.append((CLUSTER_PROPERTY, short_id(self._services.cluster_id)))
        if discarded:
            told.append((DISCARDED_PROPERTY, str(discarded)))
        if told:
            properties[USER_PROPERTY] = told
        return properties


def send_late(transport: asyncio.Transport, output_bytes_max: int) -> None:
    """Keep little between the broker's cache and a dictionary-aware client's link; see AWARE_OUTPUT_BYTES."""
    transport.set_write_buffer_limits(high=min(AWARE_OUTPUT_BYTES, output_bytes_max))
    raw = transport.get_extra_info("socket")
    with suppress(OSError):  # only a socket that is no TCP socket refuses
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, AWARE_OUTPUT_BYTES)
