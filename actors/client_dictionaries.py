"""The client's dictionaries: what it compresses with, and what it decompresses from.

The broker pushes the newest dictionary of each family; one that a received block names and that is not here is fetched
by id. A payload whose dictionary cannot be had is an error, never wrong bytes.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from lexicast.cluster.clock import Clock, SystemClock
from lexicast.cluster.errors import DictionaryError
from lexicast.compression.codecs import Codec
from lexicast.compression.dictionary import Dictionary, unpack
from lexicast.compression.families import FamilyMap
from lexicast.compression.wire import Recoder

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
        self.bytes_saved = 0

    def __contains__(self, dictionary: int) -> bool:
        return dictionary in self._recoder

    def announce(self, packed: bytes) -> Dictionary:
        """A dictionary that the broker pushed: publications of its family use it from now on, if it is the newest.

        Raises DictionaryError when it is damaged.
        """
        dictionary = self.hold(packed)
        self._families.add(dictionary)
        return dictionary

    def hold(self, packed: bytes) -> Dictionary:
        """A dictionary for reading. Raises DictionaryError when it is damaged."""
        dictionary = unpack(packed)
        self._recoder.add(dictionary)
        return dictionary

    def compress(self, topic: bytes, payloads: list[bytes]) -> tuple[int | None, list[bytes]]:
        """A run of payloads of one topic with the newest unexpired dictionary, if together they become shorter.

        Returns (dictionary id, compressed) or (None, `payloads`).
        """
        dictionary = self._families.dictionary_for(topic, self._clock.time_us())
        if dictionary is None:
            return None, payloads
        try:
            compress = self._compressor(dictionary).compress
            shorter = [compress(payload) for payload in payloads]
        except DictionaryError:
            return None, payloads
        saved = sum(map(len, payloads)) - sum(map(len, shorter))
        if saved <= 0:
            return None, payloads
        self.bytes_saved += saved
        return dictionary.id, shorter

    def decompress(self, encoding: int, dictionary: int | None, payloads: list[bytes]) -> list[bytes]:
        """A run of payloads as they were published. Raises DictionaryError: not held, or data that does not fit."""
        return self._recoder.all_to_raw(encoding, dictionary, payloads)

    def _compressor(self, dictionary: Dictionary) -> Codec:
        codec = self._compressors.get(dictionary.id)
        if codec is None:
            codec = self._compressors[dictionary.id] = dictionary.build()
            if len(self._compressors) > COMPRESSORS_MAX:
                self._compressors.popitem(last=False)
        self._compressors.move_to_end(dictionary.id)
        return codec
