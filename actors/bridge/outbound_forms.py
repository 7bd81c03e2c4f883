"""Publications of this cluster as they go to the other broker: under its names, with what it takes. No I/O.

What goes without properties of its own, and does not expire, goes as all of its topic do: that is worked out once a
connection. What has been there, has expired, is too large or has no name there does not go.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from lexicast.cluster.blocks import QOS_MASK, RETAIN
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
from .dealt_records import DealtRecords
from .handshake import RemoteTerms
from .sent_publications import Form, Outbound, outbound_of
from .share_feed import ExpiringMessage

PROPERTIES_KNOWN_MAX: Final = 1_000
# More than any payload has.
PAYLOAD_BYTES_MAX: Final = 2**32
FORMS_MAX: Final = 10_000


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
        # No payload up to here is too large; -1: an empty one may be, by its topic and properties.
        self._payload_bytes_surely = -1
        # The user properties of what was published here.
        self._first: UserProperties = ()
        self._known: dict[UserProperties, bytes] = {}
        # By number of the bridge's topic, QoS and retain (as flags), topic.
        self._forms: dict[tuple[int, int], dict[bytes, Form]] = {}

    def connected(self, terms: RemoteTerms, version: int, remote_id: str) -> None:
        """A connection is there."""
        self._terms, self._version, self._remote_id = terms, version, remote_id
        self._first = onward((), self._own_id, remote_id) or ()
        # Where the other broker takes packets of any length none is too large.
        self._payload_bytes_surely = -1 if terms.packet_bytes_max else PAYLOAD_BYTES_MAX
        self._known.clear()
        self._forms.clear()

    def outbound(self, records: DealtRecords, at: int, end: int) -> tuple[list[Outbound], list[Place]]:
        """Those from `at` to before `end` as they go there, and where those are from that do not: counted, and told,
        why."""
        found: list[Outbound] = []
        passed: list[Place] = []
        number, places, topics, payloads = records.number, records.places, records.topics, records.payloads
        flags, messages = records.flags, records.messages
        most = self._payload_bytes_surely
        forms: dict[bytes, Form] = {}
        known_flags = -1
        for index in range(at, end):
            message, payload = messages[index], payloads[index]
            form: Form | None
            if message is None or (message.properties is None and not isinstance(message, ExpiringMessage)):
                topic, its_flags = topics[index], flags[index]
                if its_flags != known_flags:
                    known_flags = its_flags
                    forms = self._usual_forms(number, its_flags)
                form = forms.get(topic)
                if form is None:
                    form = self._usual_form(number, topic, its_flags)
                    if len(forms) >= FORMS_MAX:
                        forms.clear()
                    forms[topic] = form
            else:
                form = self._own_form(number, message)
            if form is not None and form.topic and (len(payload) <= most or not self._too_large(form, payload)):
                found.append(outbound_of((form, payload, places[index])))
                continue
            passed.append(places[index])
            if form is not None:
                self._tell_refused(form, topics[index].decode(errors="replace"), payload)
        return found, passed

    def _tell_refused(self, form: Form, name: str, payload: bytes) -> None:
        self._counters.refused_out += 1
        if not form.topic:
            self._counters.error(f"{name!r} has no name there: `local` taken off, `remote` put before it")
        else:
            self._counters.error(f"{name!r}: {len(payload):,} bytes are too many for the other broker")

    def _usual_forms(self, number: int, flags: int) -> dict[bytes, Form]:
        """Without properties and expiry, as most are: all of a topic go alike."""
        key = (number, flags)
        known = self._forms.get(key)
        if known is None:
            known = self._forms[key] = {}
        return known

    def _usual_form(self, number: int, topic: bytes, flags: int) -> Form:
        return self._form(number, topic, flags & QOS_MASK, flags & RETAIN > 0, None, self._first, None)

    def _own_form(self, number: int, message: Message) -> Form | None:
        """None where it does not go."""
        left_s, properties = self._left_s(message), message.properties
        user = self._first if properties is None else onward(properties.user, self._own_id, self._remote_id)
        if left_s == 0:  # it has waited for longer than anybody is to get it
            return None
        if user is None:
            self._counters.looped_out += 1
            return None
        return self._form(number, message.topic.encode(), message.qos, message.retain, properties, user, left_s)

    def _form(
        self,
        number: int,
        topic: bytes,
        qos: int,
        retain: bool,
        properties: Properties | None,
        user: UserProperties,
        left_s: int | None,
    ) -> Form:
        """Without a topic where it has no name there."""
        terms = self._terms
        assert terms is not None  # a connection is there
        qos = min(qos, self._topics[number].qos, terms.qos_max)
        is_plain = qos < 2 and not retain and left_s is None and (properties is None or _only_user(properties))
        try:
            name = (self._maps[number].mapped(topic) or "").encode()
        except UnicodeDecodeError:
            name = b""
        encoded = self._encoded(user, properties, is_plain, left_s)
        is_usual = properties is None and left_s is None
        return Form(name, qos, retain and terms.keeps_retained, encoded, is_plain, is_usual)

    def _left_s(self, message: Message) -> int | None:
        """Whole seconds until nobody is to get it, rounded up; 0: that is over; None: it does not expire."""
        if not isinstance(message, ExpiringMessage):
            return None
        left_us = message.expires_us - self._clock.time_us()
        return max(0, -(-left_us // 1_000_000))

    def _too_large(self, form: Form, payload: bytes) -> bool:
        terms = self._terms
        if terms is None or not terms.packet_bytes_max:
            return False
        size = publish_size(self._version, len(form.topic), len(payload), form.qos, form.properties)
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
