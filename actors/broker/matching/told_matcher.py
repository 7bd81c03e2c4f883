"""A matcher that is being told a broker's conditions for the first time: a part at a time, while others come and go."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

from lexicast.cluster.content.predicate import Predicate

from ...loop.turns import Turns

# Of one message, which a matcher takes in one turn.
CHANGES_MAX: Final = 200

# A topic filter, and a condition on it.
Key = tuple[bytes, Predicate]
Change = tuple[bool, bytes, str]


def change_of(key: Key, begins: bool) -> Change:
    """As a matcher is told it."""
    return begins, key[0], key[1].text


class FillingMatcher:
    """See the module's docstring. `changes`: ends of what has been told, for its next message."""

    __slots__ = ("_late", "_told", "changes")

    def __init__(self) -> None:
        self._told: set[Key] = set()
        self._late: list[Key] = []
        self.changes: list[Change] = []

    def change(self, key: Key, begins: bool) -> None:
        """It is to hold this condition from now on, or no more."""
        if begins:
            self._late.append(key)
        elif key in self._told:
            self._told.remove(key)
            self.changes.append(change_of(key, False))

    async def fill(
        self, keys: Iterable[Key], holds: Callable[[Key], bool], send: Callable[[Sequence[Change]], bool]
    ) -> bool:
        """Tell all that it `holds`, `keys` and what comes meanwhile, by `send`, which says whether the link stands.
        Whether all is told: `changes` and nothing else is left then."""
        turns, todo = Turns(), list(keys)
        while todo:
            for at in range(0, len(todo), CHANGES_MAX):
                fresh = dict.fromkeys([k for k in todo[at : at + CHANGES_MAX] if k not in self._told and holds(k)])
                self._told.update(fresh)
                changes, self.changes = self.changes, []
                if not send([*changes, *[change_of(key, True) for key in fresh]]):
                    return False
                await turns.give_way()
            todo, self._late = self._late, []
        return True
