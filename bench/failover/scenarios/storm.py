"""The reconnect storm: all clients of a dead broker come back at once, and others go on being served meanwhile."""

from __future__ import annotations

import asyncio
import os
import random
from collections import Counter
from typing import Final

from ...stage.parts import Stage
from .cases import LOCATIONS, storm_list
from .curves import Storm
from .plans import CrowdPlan, PublishingPlan
from .takeover import PUBLISHERS, ScenarioLoad, Scenarios, Survivors, all_fates, strike_down

VICTIM: Final = 3
OTHERS: Final = 100
OTHERS_RATE: Final = 20.0
"""Messages a second, each to all of the others."""
CROWDS: Final = 2
BEFORE_S: Final = 5.0
AFTER_S: Final = 1.0
BACK_S: Final = 60.0
NICE: Final = 5
"""A storm's clients are ten thousand machines of their own: they yield to the brokers, and to those who measure."""


async def run_storm(scenarios: Scenarios, clients: int, open_s: float) -> Storm:
    """One, of clients that wait so long for CONNACK. Raises PeerError, UnavailableError."""
    seen = await scenarios.cluster.healed()
    run, folder = scenarios.next_folder()
    survivors = [number for number in range(len(LOCATIONS)) if number != VICTIM]
    chance = random.Random(scenarios.seed)
    each = -(-clients // CROWDS)
    crowds = [
        CrowdPlan(
            run,
            first,
            [scenarios.hosts(storm_list(VICTIM, chance)) for _ in range(first, min(first + each, clients))],
            False,
            True,
            open_s=open_s,
            nice=NICE,
            seed=scenarios.seed + first,
        )
        for first in range(0, clients, each)
    ]
    others = [scenarios.hosts([survivors[number % len(survivors)]]) for number in range(OTHERS)]
    publishers = scenarios.hosts([survivors[number % len(survivors)] for number in range(PUBLISHERS)])
    async with Stage(folder) as stage:
        load = ScenarioLoad(stage, folder)
        plans = [*crowds, CrowdPlan(run, clients, others, True, False, delays=True)]
        await load.open(plans, PublishingPlan(run, publishers, 1, OTHERS_RATE, 0.0))
        load.publish()
        await asyncio.sleep(BEFORE_S)
        lasting = Survivors(scenarios.cluster, seen, [VICTIM], False)
        hit_ns = await asyncio.to_thread(strike_down, scenarios.cluster, seen, [VICTIM], False)
        load.strike(hit_ns)
        lacks = await load.until("accepted", clients, BACK_S, len(crowds))
        taken_s, loaded = lasting.cpu_s(), os.getloadavg()[0]
        await asyncio.sleep(AFTER_S)
        expected, told = await load.settle()
        found = Storm(hit_ns, all_fates(told[:-1]), [], [], load=loaded, cpu_s=taken_s)
        found.problems += [lacks] * bool(lacks)
        found.problems += ["a publisher had to connect again"] * bool(expected.reconnects)
        judge_others(found, told[-1].delays)
        for fate in told[-1].found():
            found.others_counts += Counter(fate.counts)
        await load.leave()
    return found


def judge_others(storm: Storm, delays: list[tuple[int, int]]) -> None:
    """What the others got before the fault, and between it and the last client's return."""
    back = storm.back_s()
    end_ns = storm.hit_ns + int(1e9 * back[-1]) if back else 0
    for sent_ns, took_ns in delays:
        if sent_ns + took_ns < storm.hit_ns:
            storm.before_ms.append(took_ns / 1e6)
        elif sent_ns <= end_ns:
            storm.meanwhile.append(((sent_ns - storm.hit_ns) / 1e9, took_ns / 1e6))
