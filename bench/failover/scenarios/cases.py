"""What dies in a scenario, and where those who were connected there go: each session's list of brokers. Pure."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

BROKER, BROKERS, LOCATION, STORM = "broker", "brokers", "location", "storm"
CONTENT: Final = "content"
"""Drills on a cluster of their own (`content.driver`)."""
SCENARIOS: Final = (BROKER, BROKERS, STORM, LOCATION, CONTENT)
"""In this order: what takes longest to become whole again comes last."""
LOCATIONS: Final = ("east", "east", "west", "west")
"""Of each machine; the first one, Ray's head, never dies."""
LOCAL, REMOTE = "local", "remote"


@dataclass(frozen=True, slots=True)
class Case:
    """One fault. `victims`: machines; `power`: they lose that, else their brokers are killed; `towards`: whether the
    list of a session goes on with the neighbours of its broker's location, or with the other location."""

    scenario: str
    towards: str
    victims: tuple[int, ...]
    power: bool
    sessions: int
    shared_rate: float
    own_rate: float

    @property
    def name(self) -> str:
        """As it is told."""
        return f"{self.scenario}, {self.towards}: {self.sessions:,} sessions, {self.shared_rate:g} messages/s to all"

    @property
    def rate(self) -> float:
        """How many messages a second each session gets."""
        return self.shared_rate + self.own_rate / self.sessions

    @property
    def survivors(self) -> list[int]:
        """The machines whose brokers live on."""
        return [number for number in range(len(LOCATIONS)) if number not in self.victims]


def broker_case(towards: str, sessions: int, shared_rate: float, own_rate: float) -> Case:
    """One broker is killed."""
    return Case(BROKER, towards, (3,), False, sessions, shared_rate, own_rate)


def brokers_case(sessions: int, shared_rate: float, own_rate: float) -> Case:
    """Two, one in each location."""
    return Case(BROKERS, LOCAL, (1, 3), False, sessions, shared_rate, own_rate)


def location_case(sessions: int, shared_rate: float, own_rate: float) -> Case:
    """Both machines of a location lose power. The lists go on with the neighbour, which is gone too."""
    return Case(LOCATION, LOCAL, (2, 3), True, sessions, shared_rate, own_rate)


def broker_list(home: int, towards: str) -> list[int]:
    """The machines on the list of a session whose broker is on `home`: that one first."""
    neighbours = [number for number, each in enumerate(LOCATIONS) if each == LOCATIONS[home] and number != home]
    others = [number for number, each in enumerate(LOCATIONS) if each != LOCATIONS[home]]
    turn = home % len(others)
    others = [*others[turn:], *others[:turn]]
    return [home, *neighbours, *others] if towards == LOCAL else [home, *others, *neighbours]


def storm_list(home: int, chance: random.Random) -> list[int]:
    """The same where the others come in any order."""
    others = [number for number in range(len(LOCATIONS)) if number != home]
    return [home, *chance.sample(others, len(others))]


def far_from(machines: Sequence[int]) -> list[int]:
    """The machines that are in another location than all of these."""
    near = {LOCATIONS[number] for number in machines}
    return [number for number, location in enumerate(LOCATIONS) if location not in near]
