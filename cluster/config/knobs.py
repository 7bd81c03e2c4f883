"""The knobs of the configuration: a knob is a dataclass field with a type, a default and a range, checked wherever its
value comes from. `cluster.config.tables` has the knobs themselves.
"""

from __future__ import annotations

import dataclasses
import difflib
import tomllib
from collections.abc import Iterable, Sequence
from typing import Any

from ..errors import ConfigError

Value = bool | int | float | str | tuple[str, ...]

_KINDS = {"bool": bool, "int": int, "float": float, "str": str, "tuple[str, ...]": tuple}
_NAMES = {bool: "true or false", int: "a whole number", float: "a number", str: "a text", tuple: "a list of texts"}


def knob(default: Value, low: float | None = None, high: float | None = None, choices: Sequence[str] = ()) -> Any:
    """A field with its default and, both included, its range; or with the texts that are allowed."""
    return dataclasses.field(default=default, metadata={"low": low, "high": high, "choices": tuple(choices)})


def kind_of(field: dataclasses.Field[Any]) -> type:
    """The type of a knob's values. Raises TypeError for a field that cannot be a knob."""
    kind = _KINDS.get(str(field.type))
    if kind is None:
        raise TypeError(f"a knob cannot be of type {field.type}")
    return kind


def allowed(field: dataclasses.Field[Any]) -> str:
    """In words what a knob may be."""
    choices, low, high = (field.metadata[key] for key in ("choices", "low", "high"))
    if choices:
        return "one of " + ", ".join(f'"{choice}"' for choice in choices)
    limits = [
        f"{word} {limit:,}".replace(",", "_") for word, limit in (("from", low), ("to", high)) if limit is not None
    ]
    return " ".join([_NAMES[kind_of(field)], *limits])


def checked(table: str, field: dataclasses.Field[Any], value: object, source: str) -> Value:
    """`value` as the knob's type. Raises ConfigError naming the knob, the source and what is allowed."""
    kind = kind_of(field)
    if kind is tuple and isinstance(value, list | tuple) and all(isinstance(item, str) for item in value):
        return tuple(value)
    if kind is float and type(value) is int:
        value = float(value)
    low, high, choices = (field.metadata[key] for key in ("low", "high", "choices"))
    good = type(value) is kind and kind is not tuple
    if good and isinstance(value, int | float):
        # written so that NaN is refused
        good = (low is None or value >= low) and (high is None or value <= high)
    if not good or (choices and value not in choices):
        came = f" ({source})" if source else ""
        raise ConfigError(f"{table}.{field.name} = {value!r}{came}: it must be {allowed(field)}")
    assert isinstance(value, bool | int | float | str)
    return value


def parsed(field: dataclasses.Field[Any], text: str) -> object:
    """A text from the environment or the command line as a TOML value; what is no such value stays a text.

    A list may also be written without brackets and quotes: `a,b`.
    """
    kind = kind_of(field)
    if kind is str:
        return text
    try:
        value: object = tomllib.loads(f"value = {text.strip()}\n")["value"]
    except (tomllib.TOMLDecodeError, KeyError):
        value = text
    if kind is tuple and not isinstance(value, list):
        return [item.strip() for item in text.split(",") if item.strip()]
    return value


def closest(name: str, known: Iterable[str]) -> str:
    """A hint at the known name that looks most like `name`."""
    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    return f"did you mean {near[0]}?" if near else f"known are {', '.join(names)}"
