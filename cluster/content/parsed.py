"""Conditions as users write them, parsed once: most subscribers of a fleet ask for the same, again and again."""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from .predicate import Predicate

KEPT: Final = 4_096


@lru_cache(maxsize=KEPT)
def predicate(where: str) -> Predicate:
    """`Predicate.parse`. Raises UsageError."""
    return Predicate.parse(where)
