"""The MQTT 5 properties of a publication that travel with it, unchanged, from publisher to subscriber.

`Run.properties` holds them as {identifier: value}, the identifiers being the standard's own (section 2.2.2.2):

    PAYLOAD_FORMAT    1   int, 0 = bytes, 1 = UTF-8 text       [MQTT-3.3.2-4]
    CONTENT_TYPE      3   str                                  [MQTT-3.3.2-20]
    RESPONSE_TOPIC    8   str                                  [MQTT-3.3.2-15]
    CORRELATION_DATA  9   bytes                                [MQTT-3.3.2-16]
    USER_PROPERTY    38   list of (str, str), in order         [MQTT-3.3.2-17], [MQTT-3.3.2-18]

The others concern one connection alone (topic alias, subscription identifier) or have a field of their own (expiry).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

PAYLOAD_FORMAT: Final = 1
CONTENT_TYPE: Final = 3
RESPONSE_TOPIC: Final = 8
CORRELATION_DATA: Final = 9
USER_PROPERTY: Final = 38

# Two bytes name the length of a text or of binary data (section 1.5).
FIELD_BYTES_MAX: Final = 65_535

CARRIED: Final = frozenset({PAYLOAD_FORMAT, CONTENT_TYPE, RESPONSE_TOPIC, CORRELATION_DATA, USER_PROPERTY})


def carried(properties: Mapping[int, Any]) -> dict[int, Any] | None:
    """Those of a PUBLISH packet's properties that travel with the publication; None when there are none.

    In ascending order of identifier, so that equal properties are equal bytes once packed (they share a run).
    """
    return {identifier: properties[identifier] for identifier in sorted(properties) if identifier in CARRIED} or None


def well_formed(properties: object) -> bool:
    """Whether these are carried properties of the right types: what another process sent is not trusted."""
    return type(properties) is dict and all(_good(identifier, value) for identifier, value in properties.items())


def _good(identifier: object, value: object) -> bool:
    if type(identifier) is not int:
        return False
    if identifier == PAYLOAD_FORMAT:
        return type(value) is int and value in (0, 1)
    if identifier in (CONTENT_TYPE, RESPONSE_TOPIC):
        return _is_text(value)
    if identifier == CORRELATION_DATA:
        return type(value) is bytes and len(value) <= FIELD_BYTES_MAX
    if identifier != USER_PROPERTY or not isinstance(value, list | tuple):
        return False
    return all(isinstance(pair, list | tuple) and len(pair) == 2 and all(map(_is_text, pair)) for pair in value)


def _is_text(value: object) -> bool:
    """Whether it is a UTF-8 Encoded String [MQTT-1.5.4-1], [MQTT-1.5.4-2]: else nobody could be sent it."""
    if type(value) is not str or "\0" in value:
        return False
    try:
        return len(value) * 4 <= FIELD_BYTES_MAX or len(value.encode()) <= FIELD_BYTES_MAX
    except UnicodeEncodeError:
        return False
