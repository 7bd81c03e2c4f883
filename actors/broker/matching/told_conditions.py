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
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, Final

from lexicast.cluster.content.boxes import Boxes
from lexicast.cluster.content.normal_form import boxes_of
from lexicast.cluster.content.predicate import Predicate
from lexicast.cluster.errors import PeerError
from lexicast.cluster.hpartition.live_map import LiveMap
from lexicast.cluster.hpartition.partition import CellId
from lexicast.cluster.protocol.messages import NAMES, WANTS

from ...link.link import Link
from ...loop.turns import Turns
from .event_columns import EventColumns

# Of one message.
CHANGES_MAX: Final = 2_000

# A topic filter, and a condition on it.
Key = tuple[bytes, Predicate]
Change = tuple[bool, bytes, str]


class ToldConditions:
    """See the module's docstring. `number`: of the last that has begun; `links`: to matchers that know everything that
    they are to know; `map`: the one by whose version they do."""

    def __init__(self, columns: EventColumns) -> None:
        self.number = 0
        self.links: dict[str, Link] = {}
        self.map = LiveMap()
        # Of each cell how many conditions lie in it.
        self.cells: Counter[CellId] = Counter()
        self._columns = columns
        self._next: LiveMap | None = None
        self._following: asyncio.Task[None] | None = None
        self._counts: Counter[Key] = Counter()
        # Who has been told it; None: everybody.
        self._holders: dict[Key, frozenset[str] | None] = {}
        self._changes: dict[str, list[Change]] = {}
        self._telling = False
        self._told_number = 0

    def __len__(self) -> int:
        return len(self._counts)

    def sample(self, most: int) -> list[Boxes]:
        """The boxes of some conditions."""
        step = max(1, len(self._counts) // most)
        return [boxes_(key) for key in islice(self._counts, 0, None, step)][:most]

    def begin(self, key: Key) -> None:
        """One subscription more with this filter and condition."""
        self._counts[key] += 1
        if self._counts[key] > 1:
            return
        self.number += 1
        holders = self._lies(key, self.map, 1)
        if self._next is not None and holders is not None:
            more = self._next.holders(boxes_(key))[0] if self._next.cells is not None else None
            holders = None if more is None else holders | more
        self._holders[key] = holders
        self._change(key, True, holders)

    def end(self, key: Key) -> None:
        """One less."""
        self._counts[key] -= 1
        if not self._counts[key]:
            del self._counts[key]
            self._lies(key, self.map, -1)
            self._change(key, False, self._holders.pop(key))

    def _lies(self, key: Key, cells: LiveMap, count: int) -> frozenset[str] | None:
        """Who has to be told it by a map; the cells' counts follow."""
        if cells.cells is None:
            return None
        names, found = cells.holders(boxes_(key))
        for cell in found:
            self.cells[cell] += count
        return names

    def _change(self, key: Key, begins: bool, names: Iterable[str] | None) -> None:
        change = (begins, key[0], key[1].text)
        for name in self.links if names is None else self.links.keys() & names:
            self._changes.setdefault(name, []).append(change)
        if not self._telling and self.links:  # also who is told nothing else hears of the number
            self._telling = True
            asyncio.get_running_loop().call_soon(self.tell)

    def tell(self) -> None:
        """Tell all matchers what has changed."""
        self._telling = False
        changes, self._changes = self._changes, {}
        before, self._told_number = self._told_number, self.number
        for name, link in self.links.items():
            self._send(link, changes.get(name, ()), before)

    def _send(self, link: Link, changes: Sequence[Change], before: int) -> None:
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
        if cells.version == (self._next or self.map).version:
            return
        if self._following is not None:
            self._following.cancel()
        self._next = cells
        self._following = asyncio.get_running_loop().create_task(self._follow(cells))

    async def _follow(self, cells: LiveMap) -> None:
        """Tell what the map gives to matchers that had not been told it; then that it counts, and what it takes."""
        turns, told = Turns(), dict[Key, frozenset[str] | None]()
        counts: Counter[CellId] = Counter()
        while fresh := [key for key in self._counts if key not in told]:
            for key in fresh:
                if key not in self._counts:
                    continue
                names, found = cells.holders(boxes_(key)) if cells.cells is not None else (None, ())
                had = self._holders[key]
                if had is not None:
                    more = self.links.keys() - had if names is None else names - had
                    self._change(key, True, more)
                    self._holders[key] = None if names is None else had | names
                told[key] = names
                counts.update(found)
                await turns.give_way()
        self._counts_as(cells, told, counts)

    def _counts_as(self, cells: LiveMap, told: dict[Key, frozenset[str] | None], counts: Counter[CellId]) -> None:
        for key, names in told.items():
            if key not in self._counts:  # it has ended meanwhile
                for cell in cells.holders(boxes_(key))[1]:
                    counts[cell] -= 1
                continue
            had = self._holders[key]
            if names is not None:
                self._change(key, False, self.links.keys() - names if had is None else had - names)
            self._holders[key] = names
        self.map, self._next, self._following, self.cells = cells, None, None, +counts
        self._columns.follow(cells)
        self.tell()

    # -- links of matchers

    def opened(self, link: Link) -> MatcherLink:
        """A matcher's link was opened: it says when it is ready."""
        return MatcherLink(self, self._columns)

    def ready(self, link: Link) -> None:
        """A matcher is told everything."""
        self.tell()  # which it need not hear twice
        self.links[link.name] = link
        told = [key for key, names in self._holders.items() if names is None or link.name in names]
        self._send(link, [(True, topic_filter, where.text) for topic_filter, where in told], 0)

    def gone(self, link: Link) -> None:
        """A matcher's link has ended."""
        if self.links.get(link.name) is link:
            del self.links[link.name]
            self._changes.pop(link.name, None)

    def close(self) -> None:
        """Follow no more."""
        if self._following is not None:
            self._following.cancel()


def boxes_(key: Key) -> Boxes:
    """The boxes of a condition that the index helps."""
    boxes = boxes_of(key[1].condition)
    assert boxes is not None, "others choose nothing"
    return boxes


def _parts(changes: Sequence[Change]) -> Iterator[Sequence[Change]]:
    """In messages' worth, at least one of them."""
    yield changes[:CHANGES_MAX]
    for at in range(CHANGES_MAX, len(changes), CHANGES_MAX):
        yield changes[at : at + CHANGES_MAX]


class MatcherLink:
    """The link of a matcher: what it says conditions ask of publications."""

    def __init__(self, told: ToldConditions, columns: EventColumns) -> None:
        self._told = told
        self._columns = columns
        self._ready = False

    def on_message(self, link: Link, message: tuple[Any, ...]) -> None:
        """What is asked of topics' publications; the first says that the matcher is ready to hear conditions."""
        if message[0] != NAMES:
            raise PeerError(f"a matcher sent a message of kind {message[0]}")
        self._columns.asked(link.name, message[1])
        if not self._ready:
            self._ready = True
            self._told.ready(link)

    def on_close(self, link: Link, error: Exception | None) -> None:
        """It dials again."""
        self._told.gone(link)
        self._columns.gone(link.name)

    def on_writable(self, link: Link) -> None:
        """Little is said."""
