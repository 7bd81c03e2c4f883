"""The conditions of a broker's subscribers, as matchers are told of them: which begin and end, under which number.

Each that begins has a number, one more than the last. A matcher that has been told up to a number knows all up to
there that the map of cells gives to it; coordinators are told which number is needed before a subscription counts
(`choosing_filters`), so a matcher that has not heard of it yet is not believed about this broker.

Another map (`cluster.hpartition.live_map`) is followed in steps: what it gives to a matcher is told before its version
is, and what it takes away after. Until then conditions that begin go to the matchers of both.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, Final

from lexicast.cluster.content.boxes import Boxes
from lexicast.cluster.content.normal_form import boxes_of
from lexicast.cluster.errors import PeerError
from lexicast.cluster.hpartition.live_map import LiveMap
from lexicast.cluster.hpartition.partition import CellId
from lexicast.cluster.protocol.messages import BACK, CELLS, ENTRY, NAMES, WANTS

from ...link.circuit_link import CircuitLink, TellingLink
from ...link.link import Link
from ...loop.turns import Turns
from .event_columns import EventColumns
from .far_matchers import FarMatchers
from .told_matcher import CHANGES_MAX, Change, FillingMatcher, Key, change_of

# The matchers that are told a condition; None: all that there are.
Holders = frozenset[str] | None
NOTHING_KNOWN: Final = 0


class _Following:
    """A map that is being followed. `told`: the conditions that its matchers have been told, and who these are."""

    __slots__ = ("cells", "counts", "late", "told")

    def __init__(self, cells: LiveMap) -> None:
        self.cells = cells
        self.told: dict[Key, Holders] = {}
        self.counts: Counter[CellId] = Counter()
        self.late: list[Key] = []

    def end(self, key: Key) -> None:
        """A condition has ended."""
        if self.told.pop(key, _NOT_TOLD) is not _NOT_TOLD:
            self.counts.subtract(_lies(key, self.cells)[1])


_NOT_TOLD: Final[Any] = object()


class ToldConditions:
    """See the module's docstring. `number`: of the last that has begun; `links`: to matchers that know everything that
    they are to know; `map`: the one by whose version they do; `cells`: of each how many conditions lie in it."""

    def __init__(self, columns: EventColumns) -> None:
        self.number = NOTHING_KNOWN
        self.links: dict[str, TellingLink] = {}
        self.map = LiveMap()
        self.cells: Counter[CellId] = Counter()
        self._columns = columns
        self._next: _Following | None = None
        self._following: asyncio.Task[None] | None = None
        self._counts: Counter[Key] = Counter()
        self._holders: dict[Key, Holders] = {}
        self._filling: dict[str, tuple[FillingMatcher, asyncio.Task[None], TellingLink]] = {}
        # Matchers' own links, circuits are none.
        self._linked: dict[str, Link] = {}
        self._changes: dict[str, list[Change]] = {}
        self._telling = False
        self._told_number = NOTHING_KNOWN
        self.far = FarMatchers(self._new_circuit, self._linked)
        # What matchers say of the map of cells: (version of the membership, map as plain values).
        self.on_cells: Callable[[int, Any], None] = lambda version, cells: None

    def __len__(self) -> int:
        return len(self._counts)

    def sample(self, most: int) -> list[Boxes]:
        """The boxes of some conditions."""
        step = max(1, len(self._counts) // most)
        return [_boxes(key) for key in islice(self._counts, 0, None, step)][:most]

    def begin(self, key: Key) -> None:
        """One subscription more with this filter and condition."""
        self._counts[key] += 1
        if self._counts[key] > 1:
            return
        self.number += 1
        holders, cells = _lies(key, self.map)
        self.cells.update(cells)
        if self._next is not None:
            more, _ = _lies(key, self._next.cells)
            holders = None if holders is None or more is None else holders | more
            self._next.late.append(key)
        self._holders[key] = holders
        self._change(key, True, holders)

    def end(self, key: Key) -> None:
        """One less."""
        self._counts[key] -= 1
        if not self._counts[key]:
            del self._counts[key]
            self.cells.subtract(_lies(key, self.map)[1])
            if self._next is not None:
                self._next.end(key)
            self._change(key, False, self._holders.pop(key))

    def _change(self, key: Key, begins: bool, names: Iterable[str] | None) -> None:
        for name in self.links if names is None else self.links.keys() & names:
            self._changes.setdefault(name, []).append(change_of(key, begins))
        for name in self._filling if names is None else self._filling.keys() & names:
            self._filling[name][0].change(key, begins)
        if not self._telling and self.links:  # also who is told nothing else hears of the number
            self._telling = True
            asyncio.get_running_loop().call_soon(self.tell)

    def tell(self) -> None:
        """Tell all matchers what has changed."""
        self._telling = False
        changes, self._changes = self._changes, {}
        before, self._told_number = self._told_number, self.number
        for name, link in list(self.links.items()):  # a circuit may end with it
            self._send(link, changes.get(name, ()), before)

    def _send(self, link: TellingLink, changes: Sequence[Change], before: int) -> None:
        """Only the last message says that everything up to `number` is known; until then it is up to `before`."""
        messages = list(_parts(changes))
        version = self.map.version
        for some in messages[:-1]:
            link.gather((WANTS, version, before, some))
        link.gather((WANTS, version, self.number, messages[-1]))
        link.flush()

    # -- the map

    def follow(self, cells: LiveMap) -> None:
        """The cells lie like this from now on."""
        self.far.follow(cells.matchers)
        if cells.version == (self._next.cells if self._next is not None else self.map).version:
            return
        if self._following is not None:
            self._following.cancel()
        self._next = _Following(cells)
        self._following = asyncio.get_running_loop().create_task(self._follow(self._next))

    async def _follow(self, following: _Following) -> None:
        """Tell what the map gives to matchers that had not been told it; then that it counts; then what it takes."""
        turns, todo = Turns(), list(self._counts)
        while todo:
            for key in todo:
                if key in self._counts and key not in following.told:
                    self._give(key, following)
                    await turns.give_way()
            todo, following.late = following.late, []
        self.map, self._next, self.cells = following.cells, None, following.counts
        self._columns.follow(self.map)
        self.tell()
        for key, names in following.told.items():
            self._take(key, names)
            await turns.give_way()

    def _give(self, key: Key, following: _Following) -> None:
        names, cells = _lies(key, following.cells)
        had = self._holders[key]
        if had is not None:
            self._change(key, True, self._all - had if names is None else names - had)
            self._holders[key] = None if names is None else had | names
        following.told[key] = names
        following.counts.update(cells)

    def _take(self, key: Key, names: Holders) -> None:
        if names is not None and key in self._holders:
            had = self._holders[key]
            self._change(key, False, self._all - names if had is None else had - names)
            self._holders[key] = names

    @property
    def _all(self) -> frozenset[str]:
        return frozenset([*self.links, *self._filling])

    # -- links of matchers

    def opened(self, link: Link) -> MatcherLink:
        """A matcher's link was opened: it says when it is ready."""
        self._linked[link.name] = link
        return MatcherLink(self, self._columns)

    def _new_circuit(self) -> MatcherLink:
        return MatcherLink(self, self._columns)

    def ready(self, link: TellingLink) -> None:
        """A matcher is told everything, a part at a time."""
        self.gone_before(link.name)
        filling = FillingMatcher()
        task = asyncio.get_running_loop().create_task(self._fill(link, filling))
        self._filling[link.name] = filling, task, link

    async def _fill(self, link: TellingLink, filling: FillingMatcher) -> None:
        name = link.name

        def holds(key: Key) -> bool:
            names = self._holders.get(key, frozenset())
            return names is None or name in names

        def send(changes: Sequence[Change]) -> bool:
            link.send((WANTS, self.map.version, NOTHING_KNOWN, changes))
            return not link.closed

        if await filling.fill(self._holders, holds, send):
            self.tell()  # to the others, so that all have been told the same number
            del self._filling[name]
            self.links[name] = link
            self._send(link, filling.changes, NOTHING_KNOWN)

    def gone(self, link: TellingLink) -> bool:
        """A matcher's link or circuit has ended; whether it was the one that counted."""
        name = link.name
        if self._linked.get(name) is link:
            del self._linked[name]
        filling = self._filling.get(name)
        if self.links.get(name) is not link and (filling is None or filling[2] is not link):
            return False
        self.gone_before(name)
        return True

    def gone_before(self, name: str) -> None:
        """What was told a matcher, or is being told, is of no use any more."""
        self.links.pop(name, None)
        self._changes.pop(name, None)
        if (filling := self._filling.pop(name, None)) is not None:
            filling[1].cancel()

    def close(self) -> None:
        """Tell and follow no more."""
        if self._following is not None:
            self._following.cancel()
        self.far.close()
        for name in list(self._filling):
            self.gone_before(name)


def _boxes(key: Key) -> Boxes:
    """The boxes of a condition that the index helps."""
    boxes = boxes_of(key[1].condition)
    assert boxes is not None, "others choose nothing"
    return boxes


def _lies(key: Key, cells: LiveMap) -> tuple[Holders, Iterable[CellId]]:
    """Who has to be told a condition by a map, and the cells that it lies in."""
    return (None, ()) if cells.cells is None else cells.holders(_boxes(key))


def _parts(changes: Sequence[Change]) -> Iterator[Sequence[Change]]:
    """In messages' worth, at least one of them."""
    yield changes[:CHANGES_MAX]
    for at in range(CHANGES_MAX, len(changes), CHANGES_MAX):
        yield changes[at : at + CHANGES_MAX]


class MatcherLink:
    """A matcher's link, or circuit: what it says conditions ask of publications."""

    def __init__(self, told: ToldConditions, columns: EventColumns) -> None:
        self._told = told
        self._columns = columns
        self._ready = False

    def on_message(self, link: TellingLink, message: tuple[Any, ...]) -> None:
        """What is asked of topics' publications; the first says that the matcher is ready to hear conditions."""
        kind = message[0]
        if kind == NAMES:
            if not self._ready:
                self._columns.gone(link.name)
            self._columns.asked(link.name, message[1])
            if not self._ready:
                self._ready = True
                self._told.ready(link)
        elif not isinstance(link, CircuitLink) and kind in (ENTRY, BACK):
            self._told.far.heard(link, message)
        elif not isinstance(link, CircuitLink) and kind == CELLS:
            self._told.on_cells(message[1], message[2])
        else:
            raise PeerError(f"a matcher sent a message of kind {kind}")

    def on_close(self, link: TellingLink, error: Exception | None) -> None:
        """It dials again."""
        if self._told.gone(link):
            self._columns.gone(link.name)

    def on_writable(self, link: Link) -> None:
        """Little is said."""
