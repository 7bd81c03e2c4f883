"""What matchers are told of a broker's conditions: whenever one claims to know all up to a number, it does."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import numpy as np
import pytest

from lexicast.actors.broker.engine import BrokerEngine
from lexicast.actors.broker.matching import told_conditions, told_matcher
from lexicast.actors.broker.matching.told_conditions import ToldConditions
from lexicast.actors.broker.matching.told_matcher import Key
from lexicast.actors.matcher.brokers_conditions import BrokersConditions
from lexicast.cluster.clock import SystemClock
from lexicast.cluster.config.tables import Config
from lexicast.cluster.content.normal_form import boxes_of
from lexicast.cluster.content.predicate import Predicate
from lexicast.cluster.hpartition.cell_map import CellMap
from lexicast.cluster.hpartition.live_map import LiveMap, places_of
from lexicast.cluster.hpartition.partition import partitioned
from lexicast.cluster.protocol.messages import NAMES, WANTS

NAMES_OF = tuple(f"matcher-{i}" for i in range(4))


class FakeMatcher:
    """A matcher at the other end of a link: it takes each message as the real one does."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.closed = False
        self.conditions = BrokersConditions()
        self.conditions.begin("broker", 1)
        self._gathered: list[tuple[Any, ...]] = []

    def send(self, message: tuple[Any, ...]) -> None:
        """One message."""
        self.gather(message)
        self.flush()

    def gather(self, message: tuple[Any, ...]) -> None:
        """One of several."""
        assert message[0] == WANTS
        self._gathered.append(message)

    def flush(self) -> None:
        """Take them."""
        gathered, self._gathered = self._gathered, []
        for _, version, number, changes in gathered:
            self.conditions.told("broker", version, number, changes)


def map_of(dice: random.Random, version: int) -> LiveMap:
    """Some map: with cells, or without."""
    names = tuple(sorted(dice.sample(NAMES_OF, dice.randrange(2, 5))))
    if dice.random() < 0.3:
        return LiveMap(version, names)
    seen = np.arange(100, dtype=np.float64).reshape(100, 1)
    cells = CellMap(partitioned(seen, [[0]], 8), places_of(names), copies_each=dice.randrange(1, 3))
    return LiveMap(version, names, ("delay",), cells)


class Broker:
    """A broker's conditions, and what its matchers have to know of them."""

    def __init__(self, told: ToldConditions, dice: random.Random) -> None:
        self.told, self.dice = told, dice
        self.matchers: dict[str, FakeMatcher] = {}
        # Those that there are, by the number under which they began.
        self.began: dict[Key, int] = {}
        self.maps = {told.map.version: told.map}
        self._holders: dict[tuple[int, Key], Any] = {}

    def act(self) -> None:
        """Something happens."""
        dice, roll = self.dice, self.dice.random()
        if roll < 0.6:
            low = dice.randrange(100)
            key = b"f/#", Predicate.parse(f"delay BETWEEN {low} AND {low + dice.randrange(30)}")
            if key in self.began:
                del self.began[key]
                self.told.end(key)
            else:
                self.told.begin(key)
                self.began[key] = self.told.number
        elif roll < 0.7:
            made = map_of(dice, max(self.maps) + dice.choice([1, 2]))
            self.maps[made.version] = made
            self.told.follow(made)
        elif roll < 0.9:
            self.comes(dice.choice(NAMES_OF))
        elif self.matchers:
            self.goes(dice.choice(list(self.matchers)))

    def comes(self, name: str) -> None:
        """A matcher's link stands, perhaps in the place of another one."""
        if name not in self.matchers or self.dice.random() < 0.1:
            matcher: Any = FakeMatcher(name)
            user = self.told.opened(matcher)
            self.matchers[name] = matcher
            user.on_message(matcher, (NAMES, {}))

    def goes(self, name: str) -> None:
        """Its link ends."""
        matcher: Any = self.matchers.pop(name)
        matcher.closed = True
        self.told.gone(matcher)

    def check(self) -> int:
        """Whoever claims to know everything up to a number does, by the map that it names; how many claim all."""
        complete = 0
        for name, matcher in self.matchers.items():
            known = matcher.conditions.brokers["broker"]
            cells = self.maps[known.version]
            for key, number in self.began.items():
                if number <= known.number and self.holds(name, cells, key):
                    assert (key[0], key[1].text) in known.keys
            complete += known.number == self.told.number > 0
        return complete

    def holds(self, name: str, cells: LiveMap, key: Key) -> bool:
        """As `held_by`; asked for in every turn again, so it is worked out once."""
        if cells.cells is None:
            return True
        asked = cells.version, key
        if asked not in self._holders:
            self._holders[asked] = cells.holders(boxes(key))[0]
        return name in self._holders[asked]


@pytest.mark.parametrize("seed", range(10))
async def test_who_claims_to_know_does(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(told_conditions, "Turns", OneAtATime)
    monkeypatch.setattr(told_matcher, "Turns", OneAtATime)
    monkeypatch.setattr(told_matcher, "CHANGES_MAX", 3)
    monkeypatch.setattr(told_conditions, "CHANGES_MAX", 3)
    dice = random.Random(seed)
    engine = BrokerEngine("broker", 1, 4, Config().replaced(node__matchers=1), SystemClock())
    told = engine.subscriptions.told_conditions
    assert told is not None
    broker = Broker(told, dice)
    complete = 0
    for _ in range(400):
        broker.act()
        for _ in range(dice.choice([0, 0, 1, 5])):
            await asyncio.sleep(0)
            complete += broker.check()
    assert complete > 100
    # In the end each knows what it is to know, and nothing else.
    for _ in range(1_000):
        await asyncio.sleep(0)
    assert broker.check() == len(broker.matchers)
    for name, matcher in broker.matchers.items():
        keys = {(key[0], key[1].text) for key in broker.began if held_by(name, told.map, key)}
        assert matcher.conditions.brokers["broker"].keys == keys
    cells = told.map.cells
    if cells is not None:
        assert sum(told.cells.values()) == sum(len(told.map.holders(boxes(key))[1]) for key in broker.began)
    for each in broker.matchers.values():
        each.conditions.table.close()
    await engine.close()


class Columns:
    """Whose names are asked for."""

    def __init__(self) -> None:
        self.matchers: set[str] = set()

    def asked(self, matcher: str, names: object) -> None:
        """A matcher says."""
        self.matchers.add(matcher)

    def gone(self, matcher: str) -> None:
        """It says no more."""
        self.matchers.discard(matcher)


@pytest.mark.parametrize("turns", [1, 20], ids=["while it is told everything", "when it has been told"])
async def test_a_link_that_closes_late_takes_nothing_from_the_one_in_its_place(
    turns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A matcher has dialled again before its old link's end was seen."""
    monkeypatch.setattr(told_matcher, "Turns", OneAtATime)
    monkeypatch.setattr(told_matcher, "CHANGES_MAX", 3)
    columns: Any = Columns()
    told = ToldConditions(columns)
    for number in range(12):
        told.begin((b"f/#", Predicate.parse(f"delay > {number}")))
    old: Any = FakeMatcher("matcher-0")
    new: Any = FakeMatcher("matcher-0")
    users = [told.opened(link) for link in (old, new)]
    users[0].on_message(old, (NAMES, {}))
    for _ in range(20):
        await asyncio.sleep(0)
    assert told.links == {"matcher-0": old}
    users[1].on_message(new, (NAMES, {}))
    for _ in range(turns):
        await asyncio.sleep(0)
    assert (told.links == {"matcher-0": new}) is (turns > 1)
    old.closed = True
    users[0].on_close(old, None)
    for _ in range(20):
        await asyncio.sleep(0)
    assert told.links == {"matcher-0": new}
    assert len(new.conditions.brokers["broker"].keys) == 12
    assert columns.matchers == {"matcher-0"}
    users[1].on_close(new, None)
    assert told.links == {}
    assert columns.matchers == set()
    for each in (old, new):
        each.conditions.table.close()
    told.close()


class OneAtATime:
    """Gives way each time."""

    async def give_way(self) -> None:
        """Others go on."""
        await asyncio.sleep(0)


def boxes(key: Key) -> Any:
    """A condition's."""
    return boxes_of(key[1].condition)


def held_by(name: str, cells: LiveMap, key: Key) -> bool:
    """Whether a matcher holds a condition by a map."""
    return cells.cells is None or name in cells.holders(boxes(key))[0]
