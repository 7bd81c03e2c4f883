"""Random conditions and records, for tests that hold `cluster.content` against the model in `bench`."""

from __future__ import annotations

import json
import math
from typing import Any

import msgpack
from hypothesis import strategies as st

from lexicast.bench.srem.edge.condition_model import FIELDS, HUGE, SPECIAL, TEXTS, ModelRecord, Tree

_ints = st.one_of(st.integers(-6, 6), st.sampled_from([*SPECIAL, *[-number for number in SPECIAL[:7]]]))
_floats = st.one_of(st.sampled_from([-0.0, 0.5, 1.0, 5.0, 1e300, -1e300, 5e-324, float(2**53)]), st.floats(-7, 7))
_numbers = st.one_of(_ints, _floats)
_texts = st.sampled_from(TEXTS)
_scalars = st.one_of(_numbers, _texts, st.booleans())

_TYPED: dict[str, Any] = {"text": _texts, "number": st.one_of(_numbers, st.sampled_from(HUGE)), "truth": st.booleans()}
_TYPED[""] = st.one_of(_TYPED["text"], _TYPED["number"], _TYPED["truth"])

_names = st.sampled_from(
    [("name", each, "") for each in ("a", "payload.b", "b", '"an odd name"', "é", '"topic"', '"In"', "payload.In")]
    + [("name", each, "") for each in ("a.b", 'payload.b."an odd name"', "a.b.a")]
    + [("name", each, "text") for each in ("topic", "level(1)", "level(2)", "properties.x", 'properties."y z"')]
    + [("name", "qos", "number"), ("name", "retain", "truth"), ("name", "time", "number")]
)
_signs = st.sampled_from(["=", "<>", "!=", "<", "<=", ">", ">="])


@st.composite
def _leaves(draw: st.DrawFn) -> Tree:
    name = draw(_names)
    kind = name[2]
    constants = _TYPED[kind].map(lambda value: ("constant", value))
    negated = draw(st.booleans())
    shapes = ["compare", "compare", "names", "between", "in", "null", "constants"]
    shapes += ["like"] * (kind in ("", "text")) + ["is"] * (kind in ("", "truth"))
    match draw(st.sampled_from(shapes)):
        case "compare":
            sides = [name, draw(constants)]
            return ("compare", draw(_signs), *(reversed(sides) if negated else sides))
        case "names":
            return ("compare", draw(_signs), name, draw(_names))
        case "constants":
            return ("compare", draw(_signs), *[("constant", draw(_scalars)) for _ in range(2)])
        case "between":
            return ("between", negated, name, draw(constants), draw(constants))
        case "in":
            return ("in", negated, name, draw(st.lists(_TYPED[kind], min_size=1, max_size=4)))
        case "like":
            pattern = "".join(draw(st.lists(st.sampled_from(["a", "b", "%", "_", "!%", "!_", "!!", "é"]), max_size=5)))
            return ("like", negated, name, pattern, "!")
        case "null":
            return ("null", negated, name)
        case _:
            return ("is", draw(st.sampled_from([name, ("constant", True), ("constant", False)])))


def _joined(inner: st.SearchStrategy[Tree]) -> st.SearchStrategy[Tree]:
    several = st.lists(inner, min_size=2, max_size=3)
    return st.one_of(
        st.tuples(st.just("and"), several), st.tuples(st.just("or"), several), st.tuples(st.just("not"), inner)
    )


trees = st.recursive(_leaves(), _joined, max_leaves=8)

# Comparisons that bound something, of two fields that have few values: what an index is for.
_few_values = st.sampled_from([0, 1, 2, 2.5, 2**53, 2**53 + 1, "a", "abcdefg", "abcdefh", True])
_few_names = st.sampled_from(["a", "b"]).map(lambda name: ("name", name, ""))
_bounds = st.one_of(
    st.tuples(st.just("compare"), _signs, _few_names, _few_values.map(lambda value: ("constant", value))),
    st.tuples(st.just("in"), st.just(False), _few_names, st.lists(_few_values, min_size=1, max_size=4)),
)
bounding_trees = st.recursive(_bounds, _joined, max_leaves=5)
few_values_records = st.fixed_dictionaries({"a": _few_values, "b": _few_values}).map(
    lambda value: ModelRecord(json.dumps(value).encode(), value)
)


_values = st.recursive(
    st.one_of(_scalars, st.none()),
    lambda inner: st.one_of(
        st.lists(inner, max_size=2), st.dictionaries(st.sampled_from(FIELDS), inner, min_size=1, max_size=3)
    ),
    max_leaves=5,
)
_huge = st.one_of(_values, st.sampled_from(HUGE))
_strange = st.one_of(_values, st.sampled_from([math.nan, math.inf, -math.inf, b"a"]))


@st.composite
def model_records(draw: st.DrawFn) -> ModelRecord:
    """Records whose payloads are JSON or MessagePack, or a part of one, which is nothing."""
    if draw(st.booleans()):
        value: Any = draw(st.dictionaries(st.sampled_from(FIELDS), _huge, max_size=6))
        payload = json.dumps(value, ensure_ascii=draw(st.booleans())).encode()
    else:
        value = draw(st.dictionaries(st.sampled_from(FIELDS), _strange, max_size=6))
        payload = msgpack.packb(value)
    if draw(st.integers(0, 9)) == 0:
        payload, value = payload[: draw(st.integers(0, len(payload) - 1))], None
    pairs = st.lists(st.tuples(st.sampled_from(["x", "y z"]), _texts), max_size=3)
    return ModelRecord(
        payload,
        value,
        topic=draw(st.sampled_from(["a", "ab/a", "a//b", "é/5"])),
        qos=draw(st.integers(0, 2)),
        retain=draw(st.booleans()),
        time_us=draw(st.sampled_from([0, 1, 500_000, 5_000_000, 1_700_000_000_123_456])),
        properties=draw(st.one_of(st.just({}), pairs.map(lambda several: {38: several}))),
    )
