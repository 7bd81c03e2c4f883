"""For the tests of programs that use lexicast: a broker in memory (see `lexicast.actors.client_memory`)."""

from __future__ import annotations

from lexicast.actors.client_memory import MemoryBroker

__all__ = ["MemoryBroker"]
