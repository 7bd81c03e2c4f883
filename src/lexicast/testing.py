"""For the tests of programs that use lexicast: a broker in memory (see `lexicast.actors.client.memory`)."""

from __future__ import annotations

from lexicast.actors.client.memory import MemoryBroker

__all__ = ["MemoryBroker"]
