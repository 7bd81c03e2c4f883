"""What is fuzzed: code that takes bytes from somebody who is not trusted, and what it may do with them."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple


class FuzzTarget(NamedTuple):
    """`attempt` takes any bytes, and raises where what they meet does what it must not: another error than the one it
    promises, another answer to the same question, more memory than it says. `seeds`: inputs that reach far."""

    attempt: Callable[[bytes], None]
    seeds: tuple[bytes, ...]
    bytes_max: int = 4_096


def must(holds: bool, what: str) -> None:
    """Raise AssertionError unless something holds, also where Python leaves `assert` out."""
    if not holds:
        raise AssertionError(what)
