"""Conditions and records for the model, drawn from a seed: few names and values, so that they meet.

A half of the conditions bounds one field or two that few values are of, as those that an index is for; the others take
all that the grammar has. Payloads are JSON or MessagePack, some of them cut off.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable
from typing import Any, Final

import msgpack

from lexicast.cluster.properties import USER_PROPERTY

from .condition_model import FIELDS, HUGE, SPECIAL, TEXTS, ModelRecord, Operand, Tree

SIGNS: Final = ("=", "<>", "!=", "<", "<=", ">", ">=")
# Of each name the type that its values have, "" any.
NAMES: Final = {
    **dict.fromkeys(("a", "payload.b", "b", '"an odd name"', "é", '"topic"', '"In"', "payload.In", "a.b", "a.b.a"), ""),
    **dict.fromkeys(("topic", "level(1)", "level(2)", "properties.x", 'properties."y z"'), "text"),
    "qos": "number",
    "retain": "truth",
    "time": "number",
}
TOPICS: Final = ("a", "ab/a", "a//b", "é/5")
TIMES_US: Final = (0, 1, 500_000, 5_000_000, 1_700_000_000_123_456)
_FEW: Final[tuple[Any, ...]] = (0, 1, 2, 2.5, 2**53, 2**53 + 1, "a", "abcdefg", "abcdefh", True)
_NUMBERS: Final[tuple[Any, ...]] = (*range(-6, 7), *SPECIAL, -0.0, 0.5, 1.0, 5.0, 1e300, -1e300, 5e-324)
_STRANGE: Final[tuple[Any, ...]] = (math.nan, math.inf, -math.inf, b"a")
_DEPTH: Final = 3


class ConditionDice:
    """See the module's docstring."""

    def __init__(self, seed: int) -> None:
        self._dice = random.Random(seed)

    def tree(self) -> Tree:
        """A condition."""
        return self._tree(self._few_leaf if self._dice.random() < 0.5 else self._leaf, _DEPTH)

    def records(self, count: int) -> list[ModelRecord]:
        """Records of one time, as those of a block are."""
        time_us = self._dice.choice(TIMES_US)
        return [self._record(time_us) for _ in range(count)]

    def _tree(self, leaf: Callable[[], Tree], depth: int) -> Tree:
        dice = self._dice
        word = dice.choice(("leaf", "leaf", "and", "or", "not")) if depth else "leaf"
        if word == "leaf":
            return leaf()
        if word == "not":
            return ("not", self._tree(leaf, depth - 1))
        return (word, [self._tree(leaf, depth - 1) for _ in range(dice.randint(2, 3))])

    def _few_leaf(self) -> Tree:
        dice = self._dice
        name = ("name", dice.choice(("a", "b")), "")
        if dice.random() < 0.3:
            return ("in", False, name, dice.choices(_FEW, k=dice.randint(1, 4)))
        return ("compare", dice.choice(SIGNS), name, ("constant", dice.choice(_FEW)))

    def _leaf(self) -> Tree:
        dice = self._dice
        name, negated = self._name(), dice.random() < 0.5
        kind = name[2]
        shapes = ["compare", "compare", "names", "between", "in", "null"]
        shapes += ["like"] * (kind in ("", "text")) + ["is"] * (kind in ("", "truth"))
        match dice.choice(shapes):
            case "compare":
                sides = [name, self._constant(kind)]
                return ("compare", dice.choice(SIGNS), *(reversed(sides) if negated else sides))
            case "names":
                return ("compare", dice.choice(SIGNS), name, self._name())
            case "between":
                return ("between", negated, name, self._constant(kind), self._constant(kind))
            case "in":
                return ("in", negated, name, [self._constant(kind)[1] for _ in range(dice.randint(1, 4))])
            case "like":
                pattern = "".join(dice.choices(("a", "b", "%", "_", "!%", "!_", "!!", "é"), k=dice.randint(0, 5)))
                return ("like", negated, name, pattern, "!")
            case "null":
                return ("null", negated, name)
            case _:
                return ("is", name)

    def _name(self) -> Operand:
        name = self._dice.choice(list(NAMES))
        return ("name", name, NAMES[name])

    def _constant(self, kind: str) -> Operand:
        dice = self._dice
        match kind or dice.choice(("number", "text", "truth")):
            case "number":
                return ("constant", dice.choice((*_NUMBERS, *HUGE)))
            case "text":
                return ("constant", dice.choice(TEXTS))
            case _:
                return ("constant", dice.random() < 0.5)

    def _record(self, time_us: int) -> ModelRecord:
        dice = self._dice
        value: Any
        if dice.random() < 0.4:
            value = {name: dice.choice(_FEW) for name in "ab"}
            payload = json.dumps(value).encode()
        elif dice.random() < 0.5:
            value = {name: self._value(2, HUGE) for name in self._names()}
            payload = json.dumps(value, ensure_ascii=dice.random() < 0.5).encode()
        else:
            value = {name: self._value(2, _STRANGE) for name in self._names()}
            payload = msgpack.packb(value)
        if dice.random() < 0.1:
            payload, value = payload[: dice.randrange(len(payload))], None
        pairs = [(dice.choice(("x", "y z")), dice.choice(TEXTS)) for _ in range(dice.choice((0, 0, 1, 3)))]
        properties = {USER_PROPERTY: pairs} if pairs else {}
        topic, qos = dice.choice(TOPICS), dice.randrange(3)
        return ModelRecord(payload, value, topic, qos, dice.random() < 0.5, time_us, properties)

    def _names(self) -> list[str]:
        return self._dice.sample(FIELDS, self._dice.randint(0, len(FIELDS)))

    def _value(self, depth: int, rare: Any) -> Any:
        dice = self._dice
        shape = dice.random()
        if shape < 0.05:
            return None
        if shape < 0.1:
            return dice.choice(rare)
        if depth and shape < 0.2:
            return [self._value(depth - 1, rare) for _ in range(dice.randint(0, 2))]
        if depth and shape < 0.4:
            return {name: self._value(depth - 1, rare) for name in dice.sample(FIELDS, dice.randint(1, 3))}
        return dice.choice((*_NUMBERS, *TEXTS, True, False))
