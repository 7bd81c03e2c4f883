"""Publications of this cluster as they go to the other broker: under its names, with what it takes. No I/O.

What goes without properties of its own, and does not expire, goes as all of its topic do: that is worked out once a
connection. What has been there, has expired, is too large or has no name there does not go.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from lexicast.cluster.bridges.definitions import BridgedTopic
from lexicast.cluster.bridges.hops import UserProperties, onward
from lexicast.cluster.bridges.topic_map import TopicMap
from lexicast.cluster.clock import Clock
from lexicast.cluster.properties import USER_PROPERTY

from ..client.entries import EXPIRY_S_MAX
from ..client.messages import Message, Properties, pack_properties
from ..mqtt.codec import publish_size, write_properties
from ..mqtt.codec.packets import V5
from ..mqtt.codec.properties import MESSAGE_EXPIRY_S
from .counters import BridgeCounters
from .dealt_positions import Place
from .handshake import RemoteTerms
from .sent_publications import Outbound
from .share_feed import ExpiringMessage

PROPERTIES_KNOWN_MAX: Final = 1_000
FORMS_MAX: Final = 10_000


class Form(NamedTuple):
    """How a publication goes there, but for its payload; see `Outbound`."""

    topic: bytes
    qos: int
    retain: bool
    properties: bytes
    is_plain: bool


class OutboundForms:
    """See the module's docstring."""

    def __init__(self, topics: Sequence[BridgedTopic], own_id: str, clock: Clock, counters: BridgeCounters) -> None:
        self._topics = topics
        self._maps = [TopicMap([topic.local_side()]) for topic in topics]
        self._own_id = own_id
        self._clock = clock
        self._counters = counters
        self._terms: RemoteTerms | None = None
        self._version = V5
        self._remote_id = ""
        # The user properties of what was published here.
        self._first: UserProperties = ()
        self._known: dict[UserProperties, bytes] = {}
        # By number of the bridge's topic, topic, QoS, retain.
        self._forms: dict[tuple[int, str, int, bool], Form] = {}

    def connected(self, terms: RemoteTerms, version: int, remote_id: str) -> None:
        """A connection is there."""
        self._terms, self._version, self._remote_id = terms, version, remote_id
        self._first = onward((), self._own_id, remote_id) or ()
        self._known.clear()
        self._forms.clear()

    def outbound(self, place: Place, message: Message) -> Outbound | None:
        """A message as it goes there; None where it does not: counted, and told, why."""
        form: Form | None
        if message.properties is None and not isinstance(message, ExpiringMessage):
            form = self._usual_form(place[0], message)
        else:
            form = self._own_form(place[0], message)
        if form is not None and not form.topic:
            self._counters.refused_out += 1
            self._counters.error(f"{message.topic!r} has no name there: `local` taken off, `remote` put before it")
        elif form is not None:
            outbound = Outbound(
                form.topic, message.payload, form.qos, form.retain, form.properties, form.is_plain, place
            )
            if not self._too_large(outbound):
                return outbound
            self._counters.refused_out += 1
            self._counters.error(f"{message.topic!r}: {len(message.payload):,} bytes are too many for the other broker")
        return None

    def _usual_form(self, number: int, message: Message) -> Form:
        """Without properties and expiry, as most are: all of a topic go alike."""
        key = (number, message.topic, message.qos, message.retain)
        form = self._forms.get(key)
        if form is None:
            if len(self._forms) >= FORMS_MAX:
                self._forms.clear()
            form = self._forms[key] = self._form(number, message, self._first, None)
        return form

    def _own_form(self, number: int, message: Message) -> Form | None:
        """None where it does not go."""
        left_s, properties = self._left_s(message), message.properties
        user = self._first if properties is None else onward(properties.user, self._own_id, self._remote_id)
        if left_s == 0:  # it has waited for longer than anybody is to get it
            return None
        if user is None:
            self._counters.looped_out += 1
            return None
        return self._form(number, message, user, left_s)

    def _form(self, number: int, message: Message, user: UserProperties, left_s: int | None) -> Form:
        terms, topic, properties = self._terms, self._topics[number], message.properties
        assert terms is not None  # a connection is there
        qos = min(message.qos, topic.qos, terms.qos_max)
        is_plain = qos < 2 and not message.retain and left_s is None and (properties is None or _only_user(properties))
        name = self._maps[number].encoded(message.topic)
        retain = message.retain and terms.keeps_retained
        return Form(name, qos, retain, self._encoded(user, properties, is_plain, left_s), is_plain)

    def _left_s(self, message: Message) -> int | None:
        """Whole seconds until nobody is to get it, rounded up; 0: that is over; None: it does not expire."""
        if not isinstance(message, ExpiringMessage):
            return None
        left_us = message.expires_us - self._clock.time_us()
        return max(0, -(-left_us // 1_000_000))

    def _too_large(self, outbound: Outbound) -> bool:
        terms = self._terms
        if terms is None or not terms.packet_bytes_max:
            return False
        size = publish_size(
            self._version, len(outbound.topic), len(outbound.payload), outbound.qos, outbound.properties
        )
        return size + terms.aware > terms.packet_bytes_max  # a payload to a lexicast has a tag

    def _encoded(self, user: UserProperties, properties: Properties | None, plain: bool, left_s: int | None) -> bytes:
        """The properties of a PUBLISH; nothing in 3.1.1."""
        if self._version != V5:
            return b""
        if left_s is not None or (not plain and properties is not None):
            packed = pack_properties(properties) or {}
            expiry = {} if left_s is None else {MESSAGE_EXPIRY_S: min(left_s, EXPIRY_S_MAX)}
            return write_properties({**packed, **expiry, USER_PROPERTY: list(user)})
        known = self._known.get(user)
        if known is None:
            if len(self._known) >= PROPERTIES_KNOWN_MAX:
                self._known.clear()
            known = self._known[user] = write_properties({USER_PROPERTY: list(user)})
        return known


def _only_user(properties: Properties) -> bool:
    """Whether it has user properties alone."""
    return not (
        properties.content_type
        or properties.response_topic
        or properties.correlation_data
        or properties.payload_is_text
    )
