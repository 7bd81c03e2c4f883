"""Topic aliases towards clients (MQTT 5, section 3.3.2.3.4): numbers that stand for topics, the same on all connections
of a broker, so that what many subscribers get stays the same bytes. Pure.

A live block has two forms: with topics and their numbers, for whoever lacks one of these, and with the numbers alone,
for whoever knows them all. The first one is right for everybody, since it may be said again what a number stands for.
So a connection's state is the set of numbers that it was told, as bits, and nothing else is kept of it.

Topics get numbers as they come. Where there are more topics than numbers the others go without; and where these are
published to more often than those that have one, all numbers are given anew (`generation`: what a connection knew
counts no more).

A client says how many aliases it takes; those that take about as many share bytes (`alias_class`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from .encode import encode_qos0_run
from .packets import V5
from .wire import encode_varint, pack_u16

# What a form of a block does with aliases: leaves them out, tells them, knows them to be known.
NO_ALIASES: Final = 0
TELLS_ALIASES: Final = 1
KNOWN_ALIASES: Final = 2

# Publications, in times of the numbers there are, over which it is judged who has them.
JUDGED_OVER: Final = 16


def alias_class(most: int, of_client: int) -> int:
    """How many aliases are used of a client that takes `of_client`, where a broker gives `most`: a power of 2 where
    those are fewer [MQTT-3.1.2-27]; 0: none."""
    if of_client >= most:
        return most
    return 1 << of_client.bit_length() - 1 if of_client else 0


class TopicAliases:
    """See the module's docstring. At most `most` topics have a number, from 1 on."""

    __slots__ = ("_most", "_numbers", "_used", "_wanted", "generation")

    def __init__(self, most: int) -> None:
        self._most = most
        self._numbers: dict[bytes, int] = {}
        self.generation = 0
        # Publications to topics that have a number, and to those that would.
        self._used = 0
        self._wanted = 0

    def numbers_of(self, topics: Iterable[bytes], most: int) -> int:
        """The numbers of those of these topics that have one of up to `most`, given now where there are some left, as
        bits. Numbers are given anew here, and nowhere else."""
        if self._used + self._wanted > JUDGED_OVER * self._most:
            self._judge()
        numbers, bits = self._numbers, 0
        for topic in topics:
            number = numbers.get(topic)
            if number is None:
                if len(numbers) >= self._most:
                    self._wanted += 1
                    continue
                number = numbers[topic] = len(numbers) + 1
            self._used += 1
            if number <= most:
                bits |= 1 << number
        return bits

    def _judge(self) -> None:
        if self._wanted > self._used:
            self._numbers = {}
            self.generation += 1
        self._used = self._wanted = 0

    def number_of(self, topic: bytes, most: int) -> int:
        """A topic's number, 0: it has none of up to `most`."""
        number = self._numbers.get(topic, 0)
        return number if number <= most else 0


def encode_aliased_run(
    topic: bytes, payloads: Sequence[bytes], number: int, is_known: bool, retain: bool, properties: bytes
) -> bytes:
    """`encode_qos0_run` in MQTT 5 with a topic alias; the first packet has the topic too unless it `is_known`."""
    properties = with_alias(properties, number)
    if is_known:
        return encode_qos0_run(V5, b"", payloads, retain, properties)
    first = encode_qos0_run(V5, topic, payloads[:1], retain, properties)
    return first if len(payloads) == 1 else first + encode_qos0_run(V5, b"", payloads[1:], retain, properties)


def with_alias(properties: bytes, number: int) -> bytes:
    """Encoded properties (b"": none) with a topic alias among them."""
    alias = b"\x23" + pack_u16(number)
    if not properties:
        return b"\x03" + alias
    begins = 1
    while properties[begins - 1] & 128:
        begins += 1
    return encode_varint(len(properties) - begins + len(alias)) + alias + properties[begins:]
