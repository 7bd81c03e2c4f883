"""The messages that users of the Python client hold, and their MQTT 5 properties."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from lexicast.cluster.errors import UsageError
from lexicast.cluster.positions import Position
from lexicast.cluster.properties import (
    CONTENT_TYPE,
    CORRELATION_DATA,
    FIELD_BYTES_MAX,
    PAYLOAD_FORMAT,
    RESPONSE_TOPIC,
    USER_PROPERTY,
    well_formed,
)
from lexicast.cluster.topics.names import check_filter, matches


@dataclass(frozen=True, slots=True)
class Properties:
    """The MQTT 5 properties that travel with a publication, unchanged.

    `user` are the user properties in their order; a name may appear more than once.
    """

    user: tuple[tuple[str, str], ...] = ()
    content_type: str | None = None
    response_topic: str | None = None
    correlation_data: bytes | None = None
    payload_is_text: bool = False

    def get(self, name: str, default: str | None = None) -> str | None:
        """The first user property of that name."""
        return next((value for key, value in self.user if key == name), default)


@dataclass(slots=True)
class Message:
    """A publication as a subscriber or a reader of the past gets it.

    `position` is unique in the cluster; `time` is when the coordinator stored it (UTC). `qos` is the publisher's.
    From a subscription `retain` says that the message was there, retained, before the subscription began; from
    `history` it says that it was published as retained. `publisher` is the publisher's client id, None when unknown.
    """

    topic: str
    payload: bytes
    position: Position
    time: datetime
    qos: int
    retain: bool
    properties: Properties | None
    publisher: str | None

    @property
    def headers(self) -> dict[str, str]:
        """The user properties by name, none where there are none; of a name that appears twice the first."""
        found: dict[str, str] = {}
        for name, value in self.properties.user if self.properties is not None else ():
            found.setdefault(name, value)
        return found

    def matches(self, filter: str) -> bool:
        """Whether its topic matches a filter: which of several filters it came by. Raises TopicError."""
        name = filter.encode()
        check_filter(name)
        return matches(name, self.topic.encode())

    @property
    def damaged(self) -> str:
        """Why a message of the history has no payload: it cannot be decompressed (its dictionary is missing, its data
        damaged). Empty for all others."""
        return ""


class DamagedMessage(Message):
    """A publication whose payload cannot be decompressed: `payload` is empty, `damaged` says why."""

    __slots__ = ("_why",)

    def __init__(self, why: str, *fields: Any) -> None:
        super().__init__(*fields)
        self._why = why

    @property
    def damaged(self) -> str:
        """Why there is no payload."""
        return self._why


def as_properties(properties: Properties | Mapping[str, str] | None) -> Properties:
    """What users give as `properties`: `Properties`, or a mapping of user properties."""
    return properties if isinstance(properties, Properties) else Properties(user=tuple((properties or {}).items()))


def pack_properties(properties: Properties | Mapping[str, str] | None) -> dict[int, Any] | None:
    """Properties, or a mapping of user properties, as {MQTT identifier: value} in ascending order.

    Raises UsageError for values of a wrong type.
    """
    if not properties:
        return None
    given = as_properties(properties)
    if not all(isinstance(text, str) for pair in given.user for text in pair):
        raise UsageError("user properties are pairs of texts: properties={'unit': 'km/h'}")
    fields: tuple[tuple[int, Any], ...] = (
        (PAYLOAD_FORMAT, 1 if given.payload_is_text else None),
        (CONTENT_TYPE, given.content_type),
        (RESPONSE_TOPIC, given.response_topic),
        (CORRELATION_DATA, given.correlation_data),
        (USER_PROPERTY, [list(pair) for pair in given.user] or None),
    )
    packed = {identifier: value for identifier, value in fields if value is not None} or None
    if packed is not None and not well_formed(packed):
        raise UsageError(
            f"properties are texts without NUL, at most {FIELD_BYTES_MAX} bytes each; so many bytes as correlation_data"
        )
    return packed


def unpack_properties(carried: Mapping[int, Any] | None) -> Properties | None:
    """The inverse of `pack_properties`; identifiers that this version does not know are left out."""
    if not carried:
        return None
    return Properties(
        user=tuple([(str(name), str(value)) for name, value in carried.get(USER_PROPERTY, ())]),
        content_type=carried.get(CONTENT_TYPE),
        response_topic=carried.get(RESPONSE_TOPIC),
        correlation_data=carried.get(CORRELATION_DATA),
        payload_is_text=carried.get(PAYLOAD_FORMAT) == 1,
    )
