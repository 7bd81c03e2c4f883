"""The states of families' algorithms, from which a sampling broker's successor goes on: retained below `$sampling/`.

An algorithm that has something to hand on is `Resumable`: its state is a plain dict of numbers (a few hundred bytes),
nothing of any payload. It is published, retained, on `$sampling/<family>` after each dictionary and whenever it has
changed at the time of a round (every SAVE_S); counts alone ("seen") are no change. Every sampling broker follows all
of them, so a family that changes hands is taken up without asking anybody.
"""

from __future__ import annotations

import logging
import secrets
from typing import Any, Final, Protocol, runtime_checkable

import msgpack

from lexicast.cluster.errors import TopicError
from lexicast.cluster.topics.names import escape_family, unescape_family
from lexicast.compression.dictionary import Dictionary
from lexicast.compression.maintenance import Maintenance

from ..client.client import Client
from ..client.subscription import Subscription

log = logging.getLogger(__name__)

PREFIX: Final = b"$sampling/"
# No family's escaped name: there "%" is followed by two digits.
MARK_TOPIC: Final = PREFIX + b"%"
VERSION: Final = 1
SAVE_S: Final = 10.0
STATE_BYTES_MAX: Final = 64 * 1024
STATES_MAX: Final = 100_000


@runtime_checkable
class Resumable(Protocol):
    """A maintenance algorithm that can go on where another one of its kind was."""

    def state(self) -> dict[str, Any]:
        """Plain numbers and lists of numbers; "seen" counts messages."""
        ...

    def restore(self, state: dict[str, Any], dictionary: Dictionary | None) -> None:
        """Go on from `state`, with `dictionary` announced. Raises ValueError, TypeError or KeyError, nothing changed,
        for what is no state."""
        ...


class AlgorithmStates:
    """All states, and how they are kept."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._packed: dict[bytes, bytes] = {}
        self._saved: dict[bytes, tuple[int, dict[str, Any]]] = {}

    async def open(self) -> Subscription:
        """Read what is retained; returns when all of it is here, with what brings the rest: see `follow`."""
        subscription = await self._client.subscribe("$sampling/#").__aenter__()
        # What is retained comes before what is published afterwards: this mark ends it.
        mark = secrets.token_bytes(16)
        await self._client.publish(MARK_TOPIC.decode(), mark, qos=1)
        async for message in subscription:
            if message.payload == mark:
                break
            self._learn(message.topic.encode(), message.payload)
        return subscription

    async def follow(self, subscription: Subscription) -> None:
        """Keep up with what others save; runs until cancelled."""
        async with subscription:
            async for message in subscription:
                self._learn(message.topic.encode(), message.payload)

    def _learn(self, topic: bytes, packed: bytes) -> None:
        if topic == MARK_TOPIC or len(packed) > STATE_BYTES_MAX or len(self._packed) >= STATES_MAX:
            return
        try:
            self._packed[unescape_family(topic[len(PREFIX) :])] = packed
        except TopicError as error:
            log.warning("%s: %s", topic.decode(errors="replace"), error)

    def restore(self, family: bytes, maintenance: Maintenance, dictionary: Dictionary | None) -> bool:
        """Let `maintenance` go on where its predecessor was; False when nothing (useful) is known."""
        packed = self._packed.get(family)
        if packed is None or not isinstance(maintenance, Resumable):
            return False
        try:
            version, dictionary_id, state = msgpack.unpackb(packed)
            if version != VERSION or dictionary_id != (dictionary.id if dictionary else 0):
                return False  # of another version of lexicast, or older than the announced dictionary
            maintenance.restore(state, dictionary)
        except (ValueError, TypeError, KeyError, msgpack.UnpackException) as error:
            log.warning("family %s: its saved state cannot be used: %s", family.decode(), error)
            return False
        return True

    async def save(self, family: bytes, maintenance: Maintenance, dictionary: Dictionary | None) -> None:
        """Publish the state if it has changed. Raises UnavailableError, PublishRefusedError."""
        if not isinstance(maintenance, Resumable):
            return
        state, id = maintenance.state(), dictionary.id if dictionary else 0
        changes = (id, {key: value for key, value in state.items() if key != "seen"})
        if changes == self._saved.get(family):
            return
        packed = msgpack.packb((VERSION, id, state))
        await self._client.publish((PREFIX + escape_family(family)).decode(), packed, qos=1, retain=True)
        self._saved[family] = changes
        while len(self._saved) > STATES_MAX:
            del self._saved[next(iter(self._saved))]
