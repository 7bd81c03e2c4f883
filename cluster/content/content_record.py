"""A publication as conditions see it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from ..properties import CONTENT_TYPE, USER_PROPERTY
from .fields import FieldReader, Fields

_NO_READER: Final = FieldReader(())


class ContentRecord:
    """What a condition is asked of. The payload (as it was published, not compressed) is decoded once, when needed.

    `properties` as in `cluster.properties`; `time_us`: when it was published, in microseconds since 1970. `reader` has
    to know the names of all the conditions that the record is asked.
    """

    __slots__ = ("_fields", "payload", "properties", "qos", "reader", "retain", "time_us", "topic")

    def __init__(
        self,
        topic: bytes,
        payload: bytes,
        reader: FieldReader,
        time_us: int = 0,
        qos: int = 0,
        retain: bool = False,
        properties: Mapping[int, Any] | None = None,
    ) -> None:
        self.topic = topic
        self.payload = payload
        self.reader = reader
        self.time_us = time_us
        self.qos = qos
        self.retain = retain
        self.properties = properties
        self._fields: Fields | None = None

    @classmethod
    def of_fields(
        cls, topic: bytes, fields: Fields, time_us: int, qos: int, retain: bool, properties: Mapping[int, Any] | None
    ) -> ContentRecord:
        """One whose payload is not here, with the fields that it had."""
        record = cls(topic, b"", _NO_READER, time_us, qos, retain, properties)
        record._fields = fields
        return record

    def fields(self) -> Fields:
        """The payload's fields."""
        fields = self._fields
        if fields is None:
            properties = self.properties
            content_type = properties.get(CONTENT_TYPE) if properties else None
            fields = self._fields = self.reader.fields(self.payload, content_type)
        return fields

    def user_property(self, name: str) -> str | None:
        """The first user property of that name."""
        for key, value in self.properties.get(USER_PROPERTY, ()) if self.properties else ():
            if key == name:
                return str(value)
        return None

    def level(self, number: int) -> str | None:
        """A level of the topic, from 1."""
        levels = self.topic.split(b"/", number)
        return levels[number - 1].decode() if len(levels) >= number else None
