"""The Client of `lexicast.mqtt`: paho-mqtt's, speaking dictionaries with a lexicast broker.

A program changes one import, `import lexicast.mqtt as mqtt` for `import paho.mqtt.client as mqtt`, and everything else
stays. MQTT 5 is the default here; the client asks with the user property `sdc` and, when the broker does not answer
it, behaves as plain paho, but for topic aliases: it takes some (`TOPIC_ALIASES_MAX`), and the program sees topics. With
MQTT 3 (`protocol=MQTTv311`) it is plain paho from the start.

The decisions are `compression.session.ClientSession`'s; this shell hooks three of paho's methods, `_send_publish`,
`_handle_publish` and `_handle_on_message`, and queues its bindings with `_packet_queue`. They are private, and nothing
public will do: paho keeps publications of QoS 1 and 2 across connections, and a payload encoded when it was published
would be sent again with the aliases of a connection that is gone, or tagged to a broker that knows no tags. At
`_send_publish` every transmission is encoded for the connection that carries it. (paho-mqtt is pinned, and tests fail
where the hooks are not called.)
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable
from copy import copy
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from paho.mqtt import client as paho
from paho.mqtt.client import MQTTMessage, MQTTMessageInfo
from paho.mqtt.enums import CallbackAPIVersion, MQTTErrorCode, MQTTProtocolVersion, _ConnectionState
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode

from lexicast.cluster.clock import Clock, SystemClock
from lexicast.cluster.errors import DictionaryError
from lexicast.compression.accounting import Traffic
from lexicast.compression.codecs import PAYLOAD_BYTES_MAX
from lexicast.compression.opted_out_topics import OPTOUT_PROPERTY
from lexicast.compression.session import ClientSession, Deliver, Fail, Fetch, Lost, Step
from lexicast.compression.streams.batches import Batched, Batcher, DueBatch
from lexicast.compression.wire import (
    ALIAS_TOPIC,
    BATCHES_PROPERTY,
    FIELDS_PROPERTY,
    HISTORY_PROPERTY,
    LOST_TOPIC,
    STREAMS_PROPERTY,
    USER_PROPERTY,
    ZSTD_PROPERTY,
)

from ..mqtt.codec.received_aliases import ReceivedAliases

HELD_MAX: Final = 1_000
# As many as a broker gives by default (mqtt.topic_aliases_sent_max).
TOPIC_ALIASES_MAX: Final = 4_096
BATCH_BYTES: Final = 4_096
# A broker takes packets of 1 MiB (`mqtt.packet_bytes_max`), and ends the connection for longer ones.
BATCH_BYTES_MAX: Final = 256 * 1024

_PUBLISH: Final = 0x30
_WITH_ID: Final = 0x06
# paho calls on_publish for what it queued as a PUBLISH of QoS 0; a binding is not the program's, so it is queued as 1.
_SILENT: Final = 1

OnSdcError: TypeAlias = Callable[["PahoClient", Any, MQTTMessage | None, DictionaryError], None]


class SdcStats(NamedTuple):
    """Payload bytes by family ("" where there is none), over all dictionary-aware connections of a client."""

    sent: dict[str, Traffic]
    received: dict[str, Traffic]
    waiting: int


class _Held(NamedTuple):
    """A publication made before CONNACK: the arguments of `_send_publish`."""

    mid: int
    topic: bytes
    payload: bytes
    qos: int
    retain: bool
    dup: bool
    info: MQTTMessageInfo | None
    properties: Properties | None


class PahoClient(paho.Client):
    """paho's Client with shared dictionaries.

    What differs from paho, when the broker is dictionary-aware: publications made between connect() and CONNACK are
    held until CONNACK (at most `held_max`, then MQTT_ERR_QUEUE_SIZE); messages on topics below `$sdc/` are not shown to
    the program; a message whose dictionary is missing waits for it, later ones behind it; one that cannot be
    decompressed goes to `on_sdc_error`, or to the log. A message that waits has already been acknowledged, unless
    `manual_ack` is set.

    `sdc=False` never asks for them, nor for topic aliases, `sdc_streams=False` not for topic streams (they need 42 KiB
    for each topic that is received, 300 where it is of zstd, 21 MiB at the most). `on_sdc_error(client, userdata,
    message, error)` is called where a message is lost because it cannot be decompressed (`message` still holds the
    tagged payload), with None for the message where a dictionary or binding is refused. `payload_bytes_max` stops
    decompression bombs.

    `batch_s` > 0: publications of QoS 0 and 1 wait up to so many seconds for others of their topic and cross the link
    as one compressed unit, of up to `batch_bytes` (at most 262,144); a retained one, one with properties and one of
    QoS 2 does not wait, and goes behind what waits of its topic. Of QoS 1 no more can wait than may be unanswered
    (`max_inflight_messages_set`: 20). What waits is sent by `disconnect()` too. Raises ValueError for bounds that are
    none.
    """

    def __init__(
        self,
        callback_api_version: CallbackAPIVersion = CallbackAPIVersion.VERSION1,
        client_id: str | None = "",
        clean_session: bool | None = None,
        userdata: Any = None,
        protocol: MQTTProtocolVersion = MQTTProtocolVersion.MQTTv5,
        transport: Literal["tcp", "websockets", "unix"] = "tcp",
        reconnect_on_failure: bool = True,
        manual_ack: bool = False,
        *,
        sdc: bool = True,
        sdc_streams: bool = True,
        batch_s: float = 0.0,
        batch_bytes: int = BATCH_BYTES,
        clock: Clock | None = None,
        held_max: int = HELD_MAX,
        payload_bytes_max: int = PAYLOAD_BYTES_MAX,
    ) -> None:
        self._sdc_asks = sdc and protocol == MQTTProtocolVersion.MQTTv5
        self._sdc_questions = [USER_PROPERTY, HISTORY_PROPERTY, FIELDS_PROPERTY]
        self._sdc_questions += [STREAMS_PROPERTY, ZSTD_PROPERTY] if sdc_streams else []
        self._sdc_questions += [BATCHES_PROPERTY] if batch_s else []
        self._sdc_user_on_connect: Callable[..., None] | None = None
        super().__init__(
            callback_api_version,
            client_id,
            clean_session,
            userdata,
            protocol,
            transport,
            reconnect_on_failure,
            manual_ack,
        )
        self.on_sdc_error: OnSdcError | None = None
        self._sdc_clock = clock or SystemClock()
        self._sdc: ClientSession[MQTTMessage] = ClientSession(payload_bytes_max=payload_bytes_max)
        self._sdc_accepted = False
        self._topic_aliases = ReceivedAliases()
        # How often disconnect() was called, and how often it had been when the present connection was begun.
        self._partings = 0
        self._partings_before = 0
        self._parting: tuple[Any, Properties | None] = (None, None)
        self._sdc_held: deque[_Held] = deque()
        self._sdc_held_max = held_max
        # publishing threads and the network thread; reentrant, for paho may run callbacks while it sends
        self._sdc_lock = threading.RLock()
        if batch_bytes > BATCH_BYTES_MAX:
            raise ValueError(f"batch_bytes is at most {BATCH_BYTES_MAX}, not {batch_bytes}")
        self._sdc_batcher: Batcher[_Held] | None = Batcher(batch_s, batch_bytes) if batch_s else None
        self._sdc_timer: threading.Timer | None = None

    def sdc_stats(self) -> SdcStats:
        """Raw and sent payload bytes a family, both ways, and how many messages wait for a dictionary."""
        with self._sdc_lock:
            return SdcStats(
                _by_name(self._sdc.sent.snapshot()), _by_name(self._sdc.received.snapshot()), self._sdc.waiting
            )

    @property
    def sdc_aware(self) -> bool:
        """Whether the present connection carries dictionaries."""
        return self._sdc_accepted and self._sdc.aware

    def connect_async(
        self,
        host: str,
        port: int = 1883,
        keepalive: int = 60,
        bind_address: str = "",
        bind_port: int = 0,
        clean_start: bool | Literal[3] = paho.MQTT_CLEAN_START_FIRST_ONLY,
        properties: Properties | None = None,
    ) -> None:
        """As paho's, and asks for dictionaries (`connect` comes through here too)."""
        if self._sdc_asks:
            properties = _asking(properties, self._sdc_questions)
        super().connect_async(host, port, keepalive, bind_address, bind_port, clean_start, properties)

    def reconnect(self) -> MQTTErrorCode:
        """As paho's. Nothing is published on the new connection before its CONNACK.

        A disconnect() that is called meanwhile holds: paho forgets it, and is connected for good.
        """
        self._partings_before = self._partings
        if self._sdc_asks:
            with self._sdc_lock:
                self._sdc_accepted = False
                self._topic_aliases.clear()
                # paho itself sends QoS 1 and 2 again
                held = [*self._sdc_held, *self._sdc_waiting()]
                self._sdc_held = deque([one for one in held if one.qos == 0])
        begun = super().reconnect()
        return super().disconnect(*self._parting) if self._is_parting and self.socket() is not None else begun

    @property
    def _is_parting(self) -> bool:
        """Whether the program has wanted the present connection to end since it was begun."""
        return self._partings != self._partings_before

    def _handle_connack(self) -> MQTTErrorCode:
        taken = super()._handle_connack()
        if self._is_parting and self._state == _ConnectionState.MQTT_CS_CONNECTED:
            # DISCONNECT waits to be written: paho would take its end for a broken connection, and connect again.
            self._state = _ConnectionState.MQTT_CS_DISCONNECTING
        return taken

    @property
    def on_connect(self) -> Callable[..., None] | None:
        """As paho's; reading it gives the hook that calls yours."""
        return self._sdc_on_connect if self._sdc_asks else self._sdc_user_on_connect

    @on_connect.setter
    def on_connect(self, func: Callable[..., None] | None) -> None:
        self._sdc_user_on_connect = func

    def _sdc_on_connect(self, client: paho.Client, userdata: Any, flags: Any, reason: Any, properties: Any) -> None:
        if not reason.is_failure:
            told = getattr(properties, "UserProperty", ())
            opted_out = [value.encode() for name, value in told if name == OPTOUT_PROPERTY]
            with self._sdc_lock:
                agreed = [each in told for each in (STREAMS_PROPERTY, HISTORY_PROPERTY, BATCHES_PROPERTY)]
                steps = self._sdc.connected(USER_PROPERTY in told, opted_out, *agreed)
                self._sdc_accepted = True
                for binding in self._sdc.held():
                    self._packet_queue(_PUBLISH, _binding_packet(binding), 0, _SILENT)
                held, self._sdc_held = self._sdc_held, deque()
                for one in held:
                    self._send_publish(*one)
            self._sdc_perform(steps)
        if self._sdc_user_on_connect is not None:
            self._sdc_user_on_connect(client, userdata, flags, reason, properties)

    def loop_misc(self) -> MQTTErrorCode:
        """As paho's; gives up waiting for dictionaries that do not come."""
        with self._sdc_lock:
            steps = self._sdc.tick(self._sdc_clock.monotonic())
        self._sdc_perform(steps)
        return super().loop_misc()

    def _send_publish(
        self,
        mid: int,
        topic: bytes,
        payload: bytes | bytearray = b"",
        qos: int = 0,
        retain: bool = False,
        dup: bool = False,
        info: MQTTMessageInfo | None = None,
        properties: Properties | None = None,
    ) -> MQTTErrorCode:
        if not self._sdc_asks or self.socket() is None:
            return super()._send_publish(mid, topic, payload, qos, retain, dup, info, properties)
        with self._sdc_lock:
            if not self._sdc_accepted:
                return self._sdc_hold(_Held(mid, topic, bytes(payload), qos, retain, dup, info, properties))
            if self._sdc_batcher is not None and self._sdc.batches(topic):
                one = _Held(mid, topic, bytes(payload), qos, retain, dup, info, properties)
                if self._sdc_gather(self._sdc_batcher, one):
                    return MQTTErrorCode.MQTT_ERR_SUCCESS
            bindings, encoded = self._sdc.outgoing(topic, bytes(payload), self._sdc_clock.time_us())
            for binding in bindings:
                self._packet_queue(_PUBLISH, _binding_packet(binding), 0, _SILENT)
            return super()._send_publish(mid, topic, encoded, qos, retain, dup, info, properties)

    # -- batches

    def _sdc_gather(self, batcher: Batcher[_Held], one: _Held) -> bool:
        """Whether the publication waits for others, or went with them; what is before it of its topic goes first."""
        alone = one.qos > 1 or one.retain or one.dup or one.properties is not None
        if alone or len(one.payload) >= batcher.batch_bytes:
            self._sdc_send_batches(batcher.flush(one.topic))
            return False
        self._sdc_send_batches(batcher.add(one.topic, one, len(one.payload), self._sdc_clock.monotonic()))
        self._sdc_wait_for_batches(batcher)
        return True

    def _sdc_wait_for_batches(self, batcher: Batcher[_Held]) -> None:
        due_s = batcher.due_s
        if due_s is None or self._sdc_timer is not None:
            return
        self._sdc_timer = threading.Timer(max(0.0, due_s - self._sdc_clock.monotonic()), self._sdc_batches_due)
        self._sdc_timer.daemon = True
        self._sdc_timer.start()

    def _sdc_batches_due(self) -> None:
        """What has waited long enough is sent; called by a timer's thread."""
        with self._sdc_lock:
            self._sdc_timer = None
            batcher = self._sdc_batcher
            if batcher is not None and self._sdc_accepted:
                self._sdc_send_batches(batcher.due(self._sdc_clock.monotonic()))
                self._sdc_wait_for_batches(batcher)

    def _sdc_send_batches(self, due: Iterable[DueBatch[_Held]]) -> None:
        for topic, entries in due:
            if len(entries) == 1:
                one = entries[0]
                bindings, payload = self._sdc.outgoing(topic, one.payload, self._sdc_clock.time_us())
            else:
                messages = [Batched(each.payload, each.mid if each.qos else 0) for each in entries]
                bindings, payload = self._sdc.outgoing_batch(topic, messages, self._sdc_clock.time_us())
            for binding in bindings:
                self._packet_queue(_PUBLISH, _binding_packet(binding), 0, _SILENT)
            if len(entries) == 1:
                super()._send_publish(one.mid, topic, payload, one.qos, False, False, one.info, None)
                continue
            told = [each for each in entries if not each.qos]
            info = _BatchInfo(self, told) if told else None
            packet = _control_packet(topic, payload)
            self._packet_queue(_PUBLISH, packet, told[0].mid if told else 0, 0 if told else _SILENT, info)  # type: ignore[arg-type]  # what paho asks of one

    def _sdc_tell_published(self, on_publish: Callable[..., None], mid: int) -> None:
        """As paho calls it: the first one's of a batch is told by paho itself."""
        with self._in_callback_mutex:
            try:
                if self._callback_api_version == CallbackAPIVersion.VERSION1:
                    on_publish(self, self._userdata, mid)
                else:
                    reason: Any = ReasonCode  # paho does not annotate its constructors
                    untyped: Any = Properties
                    on_publish(self, self._userdata, mid, reason(PacketTypes.PUBACK), untyped(PacketTypes.PUBACK))
            except Exception as error:
                self._easy_log(paho.MQTT_LOG_ERR, "Caught exception in on_publish: %s", error)
                if not self.suppress_exceptions:
                    raise

    def _sdc_waiting(self) -> list[_Held]:
        """What waits, in its order by topic, and does so no longer."""
        if self._sdc_batcher is None:
            return []
        return [each for waiting in self._sdc_batcher.flush_all() for each in waiting.entries]

    def disconnect(self, reasoncode: Any = None, properties: Properties | None = None) -> MQTTErrorCode:
        """As paho's; what waits for a batch is sent first."""
        self._parting = (reasoncode, properties)
        self._partings += 1
        with self._sdc_lock:
            if self._sdc_batcher is not None and self._sdc_accepted:
                self._sdc_send_batches(self._sdc_batcher.flush_all())
        return super().disconnect(reasoncode, properties)

    def _sdc_hold(self, held: _Held) -> MQTTErrorCode:
        if len(self._sdc_held) >= self._sdc_held_max:
            return MQTTErrorCode.MQTT_ERR_QUEUE_SIZE
        self._sdc_held.append(held)
        return MQTTErrorCode.MQTT_ERR_SUCCESS

    def _handle_publish(self) -> MQTTErrorCode:
        if self._sdc_asks:
            received = self._in_packet
            packet = self._topic_aliases.with_topic(received["packet"], bool(received["command"] & _WITH_ID))
            if packet is None:
                # As paho takes what breaks the rules: the connection ends, and the client connects again.
                self._easy_log(paho.MQTT_LOG_ERR, "a message with a topic alias that the broker has not told")
                return MQTTErrorCode.MQTT_ERR_PROTOCOL
            received["packet"] = packet
        return super()._handle_publish()

    def _handle_on_message(self, message: MQTTMessage) -> None:
        if not self.sdc_aware:
            super()._handle_on_message(message)
            return
        with self._sdc_lock:
            steps = self._sdc.incoming(
                message, message.topic.encode(), bytes(message.payload), self._sdc_clock.monotonic()
            )
        self._sdc_perform(steps)

    def _sdc_perform(self, steps: Iterable[Step[MQTTMessage]]) -> None:
        for step in steps:
            if isinstance(step, Deliver):
                step.item.payload = step.payload
                super()._handle_on_message(step.item)
            elif isinstance(step, Fail):
                self._sdc_report(step)
            elif isinstance(step, Fetch):
                self.subscribe(step.topic.decode())
            elif isinstance(step, Lost):
                self._packet_queue(_PUBLISH, _control_packet(LOST_TOPIC, step.topic), 0, _SILENT)
            else:
                self.unsubscribe(step.topic.decode())

    def _sdc_report(self, failed: Fail[MQTTMessage]) -> None:
        if self.on_sdc_error is not None:
            self.on_sdc_error(self, self.user_data_get(), failed.item, failed.error)
            return
        lost = f"message on '{failed.item.topic}' lost: " if failed.item is not None else ""
        self._easy_log(paho.MQTT_LOG_ERR, "%s%s", lost, failed.error)


class _BatchInfo:
    """What paho tells of a packet that it has written, or lost with its connection (`rc`): passed on to those whose
    messages of QoS 0 were in it."""

    def __init__(self, client: PahoClient, sent: list[_Held]) -> None:
        self.rc = MQTTErrorCode.MQTT_ERR_SUCCESS
        self._client = client
        self._sent = sent

    def _set_as_published(self) -> None:
        is_lost = self.rc != MQTTErrorCode.MQTT_ERR_SUCCESS
        on_publish: Any = None if is_lost else self._client.on_publish
        for one in self._sent:
            if is_lost and one.info is not None:
                one.info.rc = self.rc
            if one is not self._sent[0] and on_publish is not None:
                self._client._sdc_tell_published(on_publish, one.mid)
            if one.info is not None:
                one.info._set_as_published()


def _binding_packet(binding: bytes) -> bytes:
    """A QoS 0 PUBLISH of a binding on ALIAS_TOPIC, without properties."""
    return _control_packet(ALIAS_TOPIC, binding)


def _control_packet(topic: bytes, payload: bytes) -> bytes:
    """A QoS 0 PUBLISH without properties."""
    body = len(topic).to_bytes(2, "big") + topic + b"\0" + payload
    length, left = bytearray(), len(body)
    while left > 0x7F:
        length.append(left & 0x7F | 0x80)
        left >>= 7
    length.append(left)
    return bytes((_PUBLISH,)) + length + body


def _asking(properties: Properties | None, questions: Iterable[tuple[str, str]]) -> Properties:
    """A copy of the program's CONNECT properties with the questions added (once)."""
    untyped: Any = Properties  # paho does not annotate its constructor
    asking: Properties = untyped(PacketTypes.CONNECT) if properties is None else copy(properties)
    if not hasattr(asking, "TopicAliasMaximum"):
        asking.TopicAliasMaximum = TOPIC_ALIASES_MAX
    for question in questions:
        if question not in getattr(asking, "UserProperty", ()):
            asking.UserProperty = question  # paho appends to a new list
    return asking


def _by_name(families: dict[bytes, Traffic]) -> dict[str, Traffic]:
    return {family.decode(errors="replace"): traffic for family, traffic in families.items()}
