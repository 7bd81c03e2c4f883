"""The announcements of others, from which a sampling broker learns: their dictionaries, and PREDICT's regression.

Both come from the jobs over the history (`lexicast spark ...`), or from another sampling broker, as retained
publications, which are followed like any other: what is there at the start, and what comes while it runs.

- A dictionary of a family that is looked after becomes the family's: it counts in the accounts, the algorithm goes on
  from it, and it is replaced only by one that is better by more than it costs.
- A regression is what all families that are still in their bootstrap start from (`compression.regression`). One that
  is none, that cannot be right, or that is older than the one in use is left alone, and the log says so.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from lexicast.cluster.clock import Clock
from lexicast.cluster.errors import DictionaryError, UsageError
from lexicast.cluster.topics.names import DICTIONARY_PREFIX, MODEL_TOPIC
from lexicast.compression.dictionary import Dictionary, unpack_dictionary
from lexicast.compression.regression import PublishedModel, unpack_model
from lexicast.compression.wire import ALIAS_TOPIC

from ..client.client import Client

log = logging.getLogger(__name__)

# Clocks of a cluster's machines differ; a model of a later time than this would keep out all that are to come.
CLOCKS_APART_US: Final = 3_600_000_000


class Announcements:
    """Follows what is published; tells `dictionary(dictionary, packed bytes)` and `regression(model)`."""

    def __init__(
        self,
        client: Client,
        clock: Clock,
        dictionary: Callable[[Dictionary, int], None],
        regression: Callable[[PublishedModel], None],
    ) -> None:
        self._client = client
        self._clock = clock
        self._dictionary = dictionary
        self._regression = regression
        self.model: PublishedModel | None = None

    async def follow_dictionaries(self) -> None:
        """Runs until cancelled."""
        async for message in self._client.subscribe(f"{DICTIONARY_PREFIX.decode()}#"):
            if not message.payload or message.topic.encode() == ALIAS_TOPIC:
                continue
            try:
                self._dictionary(unpack_dictionary(message.payload), len(message.payload))
            except DictionaryError as error:
                log.warning("%s: %s", message.topic, error)

    async def follow_models(self) -> None:
        """Runs until cancelled."""
        async for message in self._client.subscribe(MODEL_TOPIC.decode()):
            if message.payload:
                self.learn_model(message.payload)

    def learn_model(self, payload: bytes) -> None:
        """Take a published regression, if it is one, and newer than the one in use."""
        try:
            model = unpack_model(payload)
            if model.created_us > self._clock.time_us() + CLOCKS_APART_US:
                raise UsageError("a regression from the future: its publisher's clock is wrong")
        except UsageError as error:
            log.warning("%s is left alone: %s", MODEL_TOPIC.decode(), error)
            return
        if self.model is not None and model.created_us <= self.model.created_us:
            if model != self.model:
                log.warning("%s is left alone: an older regression than the one in use", MODEL_TOPIC.decode())
            return
        self.model = model
        self._regression(model)
