"""For the tests of programs that use lexicast: a broker in memory (see `lexicast.actors.testing.memory_broker`)."""

from __future__ import annotations

from lexicast.actors.testing.memory_broker import MemoryBroker

__all__ = ["MemoryBroker"]
