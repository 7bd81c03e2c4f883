"""A broker in memory, for the tests of programs that use lexicast."""

from __future__ import annotations

from lexicast.actors.testing.memory_broker import MemoryBroker

__all__ = ["MemoryBroker"]
