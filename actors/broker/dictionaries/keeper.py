"""The dictionaries that a broker knows: learned from the retained publications on `$sdc/`, like any subscriber's."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from lexicast.cluster.blocks import Block
from lexicast.cluster.clock import Clock
from lexicast.cluster.errors import DictionaryError
from lexicast.compression.dictionary import Dictionary, unpack_dictionary
from lexicast.compression.families import FamilyMap, crosses
from lexicast.compression.opted_out_topics import OptedOut
from lexicast.compression.wire import ALIAS_TOPIC, Recoder

log = logging.getLogger(__name__)

DICTIONARIES_FILTER = b"$sdc/#"
GIVEN_UP_MAX = 10_000

# A topic's newest dictionary; whether a topic is opted out.
NewestDictionary = Callable[[bytes], Dictionary | None]
IsOptedOut = Callable[[bytes], bool]


class DictionaryKeeper:
    """Newest dictionaries by family, and who wants to hear of a new one (`listeners`)."""

    def __init__(
        self, recoder: Recoder, clock: Clock, opted_out: Iterable[bytes] = (), boundary_levels: int = 0
    ) -> None:
        """`opted_out`: filters of the topics that are never sampled nor compressed. Dictionaries of families that cross
        the first `boundary_levels` levels, of the time before there was that boundary, are read and used no more."""
        self._recoder = recoder
        self.opted_out = OptedOut(opted_out)
        self._clock = clock
        self._boundary_levels = boundary_levels
        self.families = FamilyMap()
        self.listeners: set[Callable[[Dictionary], None]] = set()
        self._given_up: set[int] = set()

    def learn(self, block: Block) -> None:
        """Take the dictionaries out of a block that holds some."""
        for record in block.records():
            if record.topic.startswith(b"$sdc/") and record.topic != ALIAS_TOPIC and record.payload:
                try:
                    self.hold(record.payload)
                except DictionaryError as error:
                    log.warning("%s: %s", record.topic.decode(), error)

    def hold(self, packed: bytes) -> Dictionary:
        """Hold a packed dictionary. Raises DictionaryError when it is none."""
        dictionary = unpack_dictionary(packed)
        self._recoder.add(dictionary)
        self._given_up.discard(dictionary.id)
        if not self.crosses(dictionary.family) and self.families.add(dictionary):
            for listener in list(self.listeners):
                listener(dictionary)
        return dictionary

    def crosses(self, family: bytes) -> bool:
        """Whether a family's dictionaries hold what must stay apart."""
        return crosses(family, self._boundary_levels)

    def held(self, dictionary: int) -> Dictionary | None:
        """A dictionary by id, if it is held."""
        return self._recoder.get(dictionary)

    def newest(self, topic: bytes) -> Dictionary | None:
        """The newest unexpired dictionary of the topic's family; None for an opted-out topic."""
        if self.opted_out(topic):
            return None
        return self.families.dictionary_for(topic, self._clock.time_us())

    def newest_of_bytes(self, topic: bytes) -> Dictionary | None:
        """The same for clients that know no field models."""
        newest = self.newest(topic)
        found = None if newest is None else self.families.newest_of_bytes(newest.family)
        return found if found is not None and self._clock.time_us() < found.expires_us else None

    def settled(self, dictionary: int) -> bool:
        """Whether the dictionary is held, or was given up."""
        return dictionary in self._recoder or dictionary in self._given_up

    def give_up(self, dictionary: int) -> None:
        """Nobody holds it."""
        if len(self._given_up) >= GIVEN_UP_MAX:
            self._given_up.clear()
        self._given_up.add(dictionary)
