"""The ring of sampling brokers, which gives each family to one: consistent hashing, so that changes move few.

Each member stands at POINTS places of a ring of 64-bit hashes; a family belongs to the first member at or after its
own hash. With n members, one that comes or goes moves about 1/n of the families (a plain `hash % n` nearly all).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from hashlib import blake2b
from typing import Final

POINTS: Final = 64


def _place(data: bytes) -> int:
    return int.from_bytes(blake2b(data, digest_size=8).digest(), "big")


class Ring:
    """The ring of these members. Immutable."""

    def __init__(self, members: Iterable[str]) -> None:
        """Raises ValueError without a member."""
        self.members = frozenset(members)
        if not self.members:
            raise ValueError("a ring needs a member")
        points = sorted((_place(b"%d/%s" % (at, name.encode())), name) for name in self.members for at in range(POINTS))
        self._places = [place for place, _ in points]
        self._names = [name for _, name in points]

    def owner(self, family: bytes) -> str:
        """The member that looks after `family`."""
        return self._names[bisect_left(self._places, _place(family)) % len(self._names)]
