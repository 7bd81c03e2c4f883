"""The conditions of a broker's subscribers, as matchers are told of them: which begin and end, under which number.

Each that begins has a number, one more than the last. A matcher that has been told up to a number knows all up to
there; coordinators are told which number is needed before a subscription counts (`choosing_filters`), so a matcher that
has not heard of it yet is not believed about this broker.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, Final

from lexicast.cluster.errors import PeerError
from lexicast.cluster.protocol.messages import NAMES, WANTS

from ...link.link import Link
from .event_columns import EventColumns

# Of one message.
CHANGES_MAX: Final = 2_000

Key = tuple[bytes, str]
Change = tuple[bool, bytes, str]


class ToldConditions:
    """See the module's docstring. `number`: of the last that has begun; `links`: to matchers that know everything."""

    def __init__(self, columns: EventColumns) -> None:
        self.number = 0
        self.links: dict[str, Link] = {}
        self._columns = columns
        self._counts: Counter[Key] = Counter()
        self._changes: list[Change] = []
        self._telling = False
        self._told_number = 0

    def __len__(self) -> int:
        return len(self._counts)

    def begin(self, key: Key) -> bool:
        """One subscription more with this (filter, condition); whether there was none."""
        self._counts[key] += 1
        if self._counts[key] > 1:
            return False
        self.number += 1
        self._change((True, *key))
        return True

    def end(self, key: Key) -> None:
        """One less."""
        self._counts[key] -= 1
        if not self._counts[key]:
            del self._counts[key]
            self._change((False, *key))

    def _change(self, change: Change) -> None:
        if not self.links:
            return  # whoever comes is told what there is
        self._changes.append(change)
        if not self._telling:
            self._telling = True
            asyncio.get_running_loop().call_soon(self.tell)

    def tell(self) -> None:
        """Tell all matchers what has changed."""
        self._telling = False
        changes, self._changes = self._changes, []
        before, self._told_number = self._told_number, self.number
        if changes:
            for link in self.links.values():
                self._send(link, changes, before)

    def _send(self, link: Link, changes: Iterable[Change], before: int) -> None:
        """Only the last message says that everything up to `number` is known; until then it is up to `before`."""
        messages = list(_parts(changes))
        for some in messages[:-1]:
            link.gather((WANTS, 0, before, some))
        link.gather((WANTS, 0, self.number, messages[-1]))
        link.flush()

    # -- links of matchers

    def opened(self, link: Link) -> MatcherLink:
        """A matcher's link was opened: it says when it is ready."""
        return MatcherLink(self, self._columns)

    def ready(self, link: Link) -> None:
        """A matcher is told everything."""
        self.tell()  # which it need not hear twice
        self.links[link.name] = link
        self._send(link, [(True, *key) for key in self._counts], 0)

    def gone(self, link: Link) -> None:
        """A matcher's link has ended."""
        if self.links.get(link.name) is link:
            del self.links[link.name]


def _parts(changes: Iterable[Change]) -> Iterator[list[Change]]:
    """In messages' worth, at least one of them."""
    items = iter(changes)
    some = list(islice(items, CHANGES_MAX))
    yield some
    while some := list(islice(items, CHANGES_MAX)):
        yield some


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
