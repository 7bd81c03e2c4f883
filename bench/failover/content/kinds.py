"""What is done to the cluster in a drill of content subscriptions, kind by kind."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

from ..clusters import DrilledCluster
from ..kinds import KINDS, PAUSE_S, Fault, Strike, Struck
from ..overview import ActorPlace, Overview

HOT_SPOT: Final = "hot_spot"
HOT_SPOT_S: Final = 8.0
"""Brokers report every 2 s, and a handover takes three maps."""


def _signal_all(places: Sequence[ActorPlace], number: int) -> None:
    for place in places:
        with suppress(ProcessLookupError):
            os.kill(place.pid, number)


def _matchers(count: int, number: signal.Signals) -> Strike:
    """So many matchers are killed or stopped, another one first each time."""

    def strike(cluster: DrilledCluster, seen: Overview, turn: int) -> Struck:
        names = sorted(seen.said("matchers"))
        places = [seen.place(names[(turn + each) % len(names)]) for each in range(count)]
        _signal_all(places, number)
        end = (lambda: _signal_all(places, signal.SIGCONT)) if number == signal.SIGSTOP else None
        return Struck(places[0].machine, end)

    return strike


def hot_spot(move: Callable[[int], None]) -> Fault:
    """The fault that is none: the hot spot moves."""

    def strike(cluster: DrilledCluster, seen: Overview, turn: int) -> Struck:
        move(turn)
        return Struck(cluster.head)

    return Fault(HOT_SPOT, strike, HOT_SPOT_S)


MATCHER_KILL: Final = Fault("matcher_kill", _matchers(1, signal.SIGKILL), PAUSE_S)
MATCHER_PAUSE: Final = Fault("matcher_pause", _matchers(1, signal.SIGSTOP), PAUSE_S)
TWO_KILLED: Final = Fault("matchers_kill", _matchers(2, signal.SIGKILL), PAUSE_S)
OTHERS: Final = ("broker_kill", "coordinator_kill", "coordination_kill", "node_kill")
CONTENT_KINDS: Final = {
    fault.name: fault for fault in (MATCHER_KILL, MATCHER_PAUSE, TWO_KILLED, *(KINDS[name] for name in OTHERS))
}
CONTENT_QUICK: Final = (MATCHER_KILL.name, "broker_kill", HOT_SPOT)
CONTENT_NAMES: Final = (*CONTENT_KINDS, HOT_SPOT)
