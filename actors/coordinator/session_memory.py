"""The memory of the durable sessions that their home has had to do with lately, each read and unpacked once.

A session that returns is looked at when it is opened, saved and let go; what it stands at then is what was written
last, and only its home writes it. Bounded by bytes: those that nobody has asked for longest are read again.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Container
from typing import Final

from lexicast.cluster.records import SessionSaved

# Some ten thousand sessions with a cursor of a hundred groups.
MEMORY_BYTES_MAX: Final = 16 * 1024 * 1024
# What Python objects cost beside a session's own bytes.
SESSION_MEMORY_BYTES: Final = 1_000


class SessionMemory:
    """Over `read(group, client_id)`, which gives the durable row; None: there is none."""

    def __init__(self, read: Callable[[int, str], SessionSaved | None], bytes_max: int = MEMORY_BYTES_MAX) -> None:
        self._read = read
        self._bytes_max = bytes_max
        self._known: OrderedDict[tuple[int, str], SessionSaved | None] = OrderedDict()
        self._bytes = 0

    def get(self, key: tuple[int, str]) -> SessionSaved | None:
        """The durable session. Raises StoreError."""
        known = self._known
        if key in known:
            known.move_to_end(key)
            return known[key]
        session = self._read(*key)
        self.put(key, session)
        return session

    def put(self, key: tuple[int, str], session: SessionSaved | None) -> None:
        """`session` is durable now."""
        self.forget(key)
        self._known[key] = session
        self._bytes += _memory_bytes(session)
        while self._bytes > self._bytes_max:
            _, gone = self._known.popitem(last=False)
            self._bytes -= _memory_bytes(gone)

    def forget(self, key: tuple[int, str]) -> None:
        """What is durable is to be read from the store again."""
        if key in self._known:
            self._bytes -= _memory_bytes(self._known.pop(key))

    def forget_groups(self, groups: Container[int]) -> None:
        """The same for all sessions of these groups."""
        for key in [key for key in self._known if key[0] in groups]:
            self.forget(key)


def _memory_bytes(session: SessionSaved | None) -> int:
    if session is None:
        return SESSION_MEMORY_BYTES
    return SESSION_MEMORY_BYTES + len(session.filters) + len(session.will) + len(session.place) + len(session.user)
