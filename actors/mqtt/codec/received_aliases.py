"""The topic aliases that a broker has told a client: each PUBLISH gets its topic back before paho looks at it.

paho shows an empty topic where there is only an alias (MQTT 5, section 3.3.2.3.4). It has to be resolved as the packet
comes: QoS 2 is kept until it is released, and its alias may stand for another topic by then.
"""

from __future__ import annotations

from typing import Final

TOPIC_ALIAS: Final = 0x23
SUBSCRIPTION_ID: Final = 0x0B
USER_PROPERTY: Final = 0x26
# PUBLISH's other properties (section 3.3.2.3) -> bytes; 0: those that say how long they are.
_BYTES: Final = {0x01: 1, 0x02: 4, 0x08: 0, 0x09: 0, 0x03: 0}


class ReceivedAliases:
    """Those of one connection."""

    def __init__(self) -> None:
        self._topics: dict[int, bytes] = {}

    def clear(self) -> None:
        """The connection is another one: it has none."""
        self._topics.clear()

    def with_topic(self, packet: bytearray, has_id: bool) -> bytearray | None:
        """A PUBLISH of MQTT 5 without its fixed header, with its topic; None: it has none, and nobody has told what its
        alias stands for."""
        ends = 2 + int.from_bytes(packet[:2], "big")
        alias = topic_alias(packet, ends + 2 * has_id)
        if not alias:
            return packet if ends > 2 else None
        if ends > 2:
            self._topics[alias] = bytes(packet[2:ends])
            return packet
        topic = self._topics.get(alias)
        return None if topic is None else bytearray(len(topic).to_bytes(2, "big") + topic) + packet[ends:]


def topic_alias(packet: bytearray, at: int) -> int:
    """The topic alias among the properties that begin at `at`; 0: there is none, or they are none of PUBLISH's, which
    paho will see. A broker of ours has it first, so the others are mostly not looked at."""
    size, at = _varint(packet, at)
    ends = at + size
    while at + 3 <= ends <= len(packet):
        kind = packet[at]
        if kind == TOPIC_ALIAS:
            return int.from_bytes(packet[at + 1 : at + 3], "big")
        at = _behind(packet, at + 1, kind)
        if not at:
            break
    return 0


def _behind(packet: bytearray, at: int, kind: int) -> int:
    """Where the property whose value is at `at` ends; 0: it is none."""
    if kind == SUBSCRIPTION_ID:
        return _varint(packet, at)[1]
    if kind == USER_PROPERTY:
        return _behind_text(packet, _behind_text(packet, at))
    width = _BYTES.get(kind)
    if width is None:
        return 0
    return at + width if width else _behind_text(packet, at)


def _behind_text(packet: bytearray, at: int) -> int:
    return at + 2 + int.from_bytes(packet[at : at + 2], "big")


def _varint(packet: bytearray, at: int) -> tuple[int, int]:
    """A variable byte integer and where it ends."""
    value = 0
    for shift in range(0, 28, 7):
        if at >= len(packet):
            break
        byte = packet[at]
        value, at = value | (byte & 0x7F) << shift, at + 1
        if byte < 0x80:
            break
    return value, at
