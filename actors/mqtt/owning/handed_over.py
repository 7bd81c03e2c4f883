"""What sessions were handed over with, for a home that asks again: it may have died before it had written it.

Without it a home that comes back takes what the old owner has told since of how far its sessions are, to which the one
that was handed over does not belong any more, and passes over what that one has not got. Bounded: the oldest go first.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final, TypeAlias

STATES_MAX: Final = 10_000
STATES_BYTES_MAX: Final = 16 * 1024 * 1024

State: TypeAlias = tuple[bytes, bytes]


class HandedOverStates:
    """By client id and generation: (filters, place)."""

    def __init__(self) -> None:
        self._states: OrderedDict[str, tuple[int, State]] = OrderedDict()
        self._bytes = 0

    def keep(self, client_id: str, generation: int, state: State) -> None:
        """A session goes to another connection with this."""
        self._forget(client_id)
        self._states[client_id] = (generation, state)
        self._bytes += sum(map(len, state))
        while len(self._states) > STATES_MAX or self._bytes > STATES_BYTES_MAX:
            self._forget(next(iter(self._states)))

    def of(self, client_id: str, generation: int) -> State | None:
        """What it went with; None where that is not known, or no more."""
        found = self._states.get(client_id)
        return found[1] if found is not None and found[0] == generation else None

    def _forget(self, client_id: str) -> None:
        found = self._states.pop(client_id, None)
        if found is not None:
            self._bytes -= sum(map(len, found[1]))
