"""The client's dictionaries: what it compresses with, and what it decompresses from.

The broker pushes the newest dictionary of each family; one that a received block names and that is not here is fetched
by id. A payload whose dictionary cannot be had is an error, never wrong bytes.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from typing import Final

from lexicast.cluster.clock import Clock, SystemClock
from lexicast.cluster.errors import DictionaryError
from lexicast.compression.codecs import Codec, Deflate, payload_bytes_max
from lexicast.compression.dictionary import Dictionary, unpack_dictionary
from lexicast.compression.families import FamilyMap
from lexicast.compression.link_dictionaries import NONE
from lexicast.compression.opening import Room
from lexicast.compression.opted_out_topics import OptedOut
from lexicast.compression.wire import Recoder

from .entries import Compress

# Compressors at work: up to 300 KiB each (see Dictionary.build).
COMPRESSORS_MAX: Final = 64
DICTIONARIES_MAX: Final = 1_024


class Dictionaries:
    """Bounded by DICTIONARIES_MAX dictionaries and COMPRESSORS_MAX compressors, least recently used out first."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._families = FamilyMap()
        self._recoder = Recoder(dictionaries_max=DICTIONARIES_MAX, coders_max=COMPRESSORS_MAX)
        self._compressors: OrderedDict[int, Codec] = OrderedDict()
        self._announced = False
        self._opted_out = OptedOut()
        self.bytes_saved = 0
        # On links where bytes count payloads without a dictionary are deflated.
        self.deflates = False
        self._deflate = Deflate()

    def __contains__(self, dictionary: int) -> bool:
        return dictionary in self._recoder

    def announce(self, packed: bytes) -> Dictionary:
        """A dictionary that the broker pushed: publications of its family use it from now on, if it is the newest.

        Raises DictionaryError when it is damaged.
        """
        dictionary = self.hold(packed)
        self._families.add(dictionary)
        self._announced = True
        return dictionary

    def opted_out(self, topic: bytes) -> bool:
        """Whether nobody is to compress what is published to the topic."""
        return self._opted_out(topic)

    def opt_out(self, filters: Iterable[bytes]) -> None:
        """Topics that the cluster wants nobody to compress. Raises TopicError when a filter is none."""
        self._opted_out = OptedOut(filters)

    def limit(self, packet_bytes_max: int) -> None:
        """The largest packet of this cluster, from which follows how long a payload may be."""
        self._recoder.payload_bytes_max = payload_bytes_max(packet_bytes_max)

    @property
    def payload_bytes_max(self) -> int:
        """No payload is longer, decompressed."""
        return self._recoder.payload_bytes_max

    def announced(self) -> tuple[Dictionary, ...]:
        """The newest dictionary of each family that the broker has announced."""
        return self._families.dictionaries()

    def hold(self, packed: bytes) -> Dictionary:
        """A dictionary for reading. Raises DictionaryError when it is damaged."""
        dictionary = unpack_dictionary(packed)
        self._recoder.add(dictionary)
        return dictionary

    def compressor(self) -> Compress | None:
        """What compresses the payloads of one message; None while no dictionary has been announced.

        It takes a run of payloads of one topic and returns (dictionary id, compressed), with the newest unexpired
        dictionary of the topic's family, if together they become shorter, else (None, the payloads). Where there is no
        dictionary the id may be NONE: deflated.
        """
        if not (self._announced or self.deflates):
            return None
        now_us = self._clock.time_us()
        chosen: dict[bytes, Dictionary | None] = {}
        deflates = self.deflates

        def compress(topic: bytes, payloads: list[bytes]) -> tuple[int | None, list[bytes]]:
            if topic not in chosen:
                opted_out = self._opted_out(topic)
                chosen[topic] = None if opted_out else self._families.dictionary_for(topic, now_us)
            dictionary = chosen[topic]
            if dictionary is not None:
                return self._compress(dictionary, payloads)
            return self._deflated(payloads) if deflates and not self._opted_out(topic) else (None, payloads)

        return compress

    def _deflated(self, payloads: list[bytes]) -> tuple[int | None, list[bytes]]:
        shorter = [self._deflate.compress(payload) for payload in payloads]
        saved = sum(map(len, payloads)) - sum(map(len, shorter))
        if saved <= 0 or not all(payloads):  # an empty one clears what is retained
            return None, payloads
        self.bytes_saved += saved
        return NONE, shorter

    def _compress(self, dictionary: Dictionary, payloads: list[bytes]) -> tuple[int | None, list[bytes]]:
        try:
            compress = self._codec(dictionary).compress
            shorter = [compress(payload) for payload in payloads]
        except DictionaryError:
            return None, payloads
        saved = sum(map(len, payloads)) - sum(map(len, shorter))
        if saved <= 0:
            return None, payloads
        self.bytes_saved += saved
        return dictionary.id, shorter

    def held(self, dictionary: int) -> Dictionary | None:
        """The dictionary with this id, if it is here."""
        return self._recoder.get(dictionary)

    def room(self) -> Room:
        """Room for the payloads of messages that are taken at once."""
        return self._recoder.room()

    def decompress(self, encoding: int, dictionary: int | None, payloads: list[bytes], room: Room) -> list[bytes]:
        """A run of payloads as they were published. Raises DictionaryError: not held, data that does not fit, or no
        `room` left."""
        return self._recoder.all_to_raw(encoding, dictionary, payloads, room)

    def decompress_each(
        self, encoding: int, dictionary: int | None, payloads: list[bytes], room: Room
    ) -> Iterator[bytes | DictionaryError]:
        """The same for a run in which some payloads are damaged: these give their errors."""
        return self._recoder.each_to_raw(encoding, dictionary, payloads, room)

    def _codec(self, dictionary: Dictionary) -> Codec:
        codec = self._compressors.get(dictionary.id)
        if codec is None:
            codec = self._compressors[dictionary.id] = dictionary.build()
            if len(self._compressors) > COMPRESSORS_MAX:
                self._compressors.popitem(last=False)
        self._compressors.move_to_end(dictionary.id)
        return codec
