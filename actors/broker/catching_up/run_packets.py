"""The packets of a run out of the past: the form in which plain MQTT sessions take what they missed."""

from __future__ import annotations

from typing import NamedTuple

from ...mqtt.session import InFlight


class RunPackets(NamedTuple):
    """A run's packets, column by column: what stands before the packet id, what the session remembers, what follows.

    A run of QoS 0 is one row of whole packets, of which the session remembers nothing. `end`: the offset behind
    the run.
    """

    heads: list[bytes]
    sent: list[InFlight | None]
    tails: list[bytes]
    size_bytes: int
    end: int
