"""The cells of the bandwidth experiment: what varies, and what a run of one gives."""

from __future__ import annotations

from typing import Final, NamedTuple

METHODS: Final = ("nothing", "deflate", "predict")


class Setting(NamedTuple):
    """One cell of the experiment."""

    corpus: str
    mbit: int
    clients: int
    method: str


class Moved(NamedTuple):
    """What a run gave. Bytes: of all links of that side, both ways."""

    seconds: float
    publisher_bytes: int
    subscriber_bytes: int


Rounds = dict[Setting, list[Moved]]
"""A cell's runs, one a round."""
