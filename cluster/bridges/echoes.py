"""Own publications that a broker of MQTT 3.1.1 sends back, recognised. Pure.

Such a broker knows neither No Local nor user properties, so what a bridge has published comes back where it subscribes
to the same topics. Each of them comes once: so they are *counted*, by topic and payload, and one that comes is taken
off the count. What somebody else publishes with the same topic and payload meanwhile comes as well, since there are
then two of them, and one is taken.

Bounded: `ECHOES_MAX` are remembered, for `REMEMBERED_S` each; what is forgotten comes in as if it were somebody else's
(and is counted).
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from typing import Final

ECHOES_MAX: Final = 100_000
REMEMBERED_S: Final = 120.0
_DIGEST_BYTES: Final = 16


class Echoes:
    """See the module's docstring. `forgotten`: how many were, for want of room."""

    def __init__(self, echoes_max: int = ECHOES_MAX, remembered_s: float = REMEMBERED_S) -> None:
        self._echoes_max = echoes_max
        self._remembered_s = remembered_s
        # How many are to come of each, and until when; those that were published last at the end.
        self._due: OrderedDict[bytes, tuple[int, float]] = OrderedDict()
        self.forgotten = 0

    def __len__(self) -> int:
        return len(self._due)

    def published(self, topic: bytes, payload: bytes, now_s: float) -> None:
        """It goes out, and will come back."""
        digest = _digest(topic, payload)
        count, _ = self._due.pop(digest, (0, 0.0))
        self._due[digest] = (count + 1, now_s + self._remembered_s)
        self._forget(now_s)

    def came(self, topic: bytes, payload: bytes, now_s: float) -> bool:
        """Whether it is one of one's own; then it has come."""
        self._forget(now_s)
        digest = _digest(topic, payload)
        found = self._due.get(digest)
        if found is None:
            return False
        count, until_s = found
        if count == 1:
            del self._due[digest]
        else:
            self._due[digest] = (count - 1, until_s)
        return True

    def clear(self) -> None:
        """None of them comes: the broker has lost the session to which it would have sent them."""
        self._due.clear()

    def _forget(self, now_s: float) -> None:
        while self._due:
            digest, (count, until_s) = next(iter(self._due.items()))
            full = len(self._due) > self._echoes_max
            if until_s > now_s and not full:
                return
            self.forgotten += count if full else 0
            del self._due[digest]


def _digest(topic: bytes, payload: bytes) -> bytes:
    return hashlib.blake2b(topic + b"\0" + payload, digest_size=_DIGEST_BYTES).digest()
